"""Verifies a log: every object, every segment in it, and the chain of segments. Reports all faults, not only the first.

`consistency` checks the rows of one segment; this module checks the chain through all segments.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tailrace.errors import CorruptError, DecodeError
from tailrace.log import segment, trim
from tailrace.log.consistency import RowStructure, RowSummary, count_left_out, faults_between, faults_within
from tailrace.log.listing import LogObject, list_objects
from tailrace.log.segment import Header, SegmentContent
from tailrace.log.trim import Trim
from tailrace.store import Store


@dataclass(frozen=True, slots=True)
class LogFault:
    object: str
    """The key of the faulty object, or of the one that is missing."""
    segment: int | None
    problem: str

    def __str__(self) -> str:
        where = f"{self.object}: " if self.segment is None else f"{self.object}: segment {self.segment}: "
        return where + self.problem


@dataclass(slots=True)
class VerificationTotals:
    """What has been verified so far."""

    objects: int = 0
    objects_total: int = 0
    bytes: int = 0
    segments: int = 0
    rows: int = 0
    accepted_gaps: int = 0
    """Segments that record a loss of changes before them. The operator accepted it, so it is not a fault."""
    left_out: int = 0
    """Changes that have an ordinal but are not in the log: those of Tailrace's own tables at the source."""
    link: str = segment.NO_PREVIOUS
    """The last segment's link. Recorded elsewhere, it can later prove that the log up to there was not rewritten."""

    def add(self, header: Header, *, is_new: bool) -> None:
        if is_new:
            self.segments += 1
            self.rows += header.rows
            self.accepted_gaps += header.gap_from is not None
            self.link = header.link


def verify(
    store: Store,
    totals: VerificationTotals | None = None,
    progress: Callable[[VerificationTotals], None] = lambda _: None,
) -> Iterator[LogFault]:
    """All faults of the log. Updates `totals`, and calls `progress` with them, after each object."""
    totals = totals if totals is not None else VerificationTotals()
    for info in store.list(segment.PREFIX):
        span = segment.ids(info.key)
        if info.key != trim.KEY and (span is None or not 1 <= span[0] <= span[1]):
            yield LogFault(info.key, None, "not an object that Tailrace writes")
    chain = _Chain()
    # A merged object is listed before leftover objects with the same segments, which are then compared with it.
    objects = deque(o for o in list_objects(store) if 1 <= o.first <= o.last)
    newest = max((o.last for o in objects), default=0)
    yield from chain.load_trim(store)
    while objects:
        o = objects.popleft()
        data = store.get(o.key)
        if data is None:
            # Merged or trimmed since the listing: continue with a new listing.
            objects = deque(
                x for x in list_objects(store) if x.last > chain.reached and 1 <= x.first <= newest and x != o
            )
            yield from chain.load_trim(store)
            continue
        try:
            contents = segment.unpack(data, o.key)
        except CorruptError as error:
            yield LogFault(o.key, o.first if o.first == o.last else None, _strip_key(error, o.key))
            chain.unreadable.append((o.first, o.last))
        else:
            yield from _name_faults(o, contents)
            for content in contents:
                totals.add(content.header, is_new=content.header.id > chain.reached)
                problems = list(chain.add(content, o.key))
                yield from chain.missing
                yield from (LogFault(o.key, content.header.id, problem) for problem in problems)
                chain.missing.clear()
        totals.left_out = chain.left_out
        totals.objects += 1
        totals.objects_total = totals.objects + len(objects)
        totals.bytes += len(data)
        progress(totals)


def _strip_key(error: CorruptError, key: str) -> str:
    return str(error).removeprefix(f"{key}: ")


def _name_faults(o: LogObject, contents: Sequence[SegmentContent]) -> Iterator[LogFault]:
    ids = [content.header.id for content in contents]
    if ids != list(range(o.first, o.last + 1)):
        yield LogFault(o.key, None, f"its name says segments {o.first} to {o.last}, but it holds {_format_ids(ids)}")


def _format_ids(ids: Sequence[int]) -> str:
    return f"{ids[0]} to {ids[-1]}" if ids and list(ids) == list(range(ids[0], ids[-1] + 1)) else f"{list(ids)[:10]}"


@dataclass(slots=True)
class _Chain:
    """The state of verification after the last segment read."""

    trim: Trim | None = None
    last: Header | None = None
    committed: RowSummary | None = None
    """The last row of the last complete transaction; None if unknown."""
    tail: RowSummary | None = None
    """The last row of the transaction left open, if there is one."""
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    missing: list[LogFault] = field(default_factory=list)
    left_out: int = 0
    links: dict[int, tuple[str, str]] = field(default_factory=dict)
    """By id, the link and object of segments that a later object may also contain."""

    @property
    def reached(self) -> int:
        return self.last.id if self.last else 0

    def load_trim(self, store: Store) -> Iterator[LogFault]:
        try:
            self.trim = Trim.load(store)
        except CorruptError as error:
            yield LogFault(trim.KEY, None, _strip_key(error, trim.KEY))

    def add(self, content: SegmentContent, key: str) -> Iterator[str]:
        header = content.header
        if header.id <= self.reached:
            yield from self._compare(header)
            return
        structure = None
        try:
            structure = RowStructure(content.rows)
            yield from faults_within(content, structure)
        except DecodeError as error:
            yield f"cannot read its payloads: {error}"
        if self.last is None:
            yield from self._begin(content)
        elif header.id == self.last.id + 1:
            yield from self._continue(content, structure, self.last)
        else:
            self._report_missing(self.last.id + 1, header.id - 1)
            self.committed = self.tail = None
        if structure is not None:
            self.left_out += count_left_out(self._row_before(header), structure)
        self._remember(content, structure, key)

    def _compare(self, header: Header) -> Iterator[str]:
        link, key = self.links.get(header.id, (header.link, ""))
        if link != header.link:
            yield f"differs from the same segment in {key}"

    def _begin(self, content: SegmentContent) -> Iterator[str]:
        header = content.header
        first_id, previous = (self.trim.first_id, self.trim.previous) if self.trim else (1, segment.NO_PREVIOUS)
        if header.id < first_id:
            return  # retention is still removing segments, or was interrupted
        self._report_missing(first_id, header.id - 1)
        if header.id == first_id and header.previous != previous:
            yield (
                "does not follow the segments that retention removed"
                if self.trim
                else "is the first segment, but its header names a previous one"
            )

    def _continue(self, content: SegmentContent, structure: RowStructure | None, before: Header) -> Iterator[str]:
        header = content.header
        if header.previous != before.link:
            yield f"its chain is broken: `previous` is not the digest of segment {before.id}'s header"
        if self.trim and header.id == self.trim.first_id and header.previous != self.trim.previous:
            yield "does not follow the segments that retention removed"
        if header.end_lsn < before.end_lsn:
            yield f"end_lsn {header.end_lsn} is below that of segment {before.id}, {before.end_lsn}"
        if header.gap_from is not None and header.gap_from != before.end_lsn:
            yield f"records a gap from {header.gap_from} on, but the log reached {before.end_lsn}"
        same = (before.source.system_id, before.source.database) == (header.source.system_id, header.source.database)
        if not same and header.gap_from is None:
            yield f"comes from another source than segment {before.id}"
        if header.voids_tail and before.ends_at_commit:
            yield f"voids the end of segment {before.id}, which ends at a commit"
        last = self._row_before(header)
        if last is not None and structure is not None:
            yield from faults_between(last, content, structure, before.end_lsn)

    def _row_before(self, header: Header) -> RowSummary | None:
        """The row that the segment's first row follows, if known."""
        is_open = self.last is not None and not (self.last.ends_at_commit or header.voids_tail)
        return self.tail if is_open else self.committed

    def _remember(self, content: SegmentContent, structure: RowStructure | None, key: str) -> None:
        header = content.header
        if header.voids_tail:
            self.tail = None
        if structure is None or not 0 <= header.committed_rows <= header.rows:
            self.committed = self.tail = None
        else:
            if header.committed_rows:
                self.committed, self.tail = structure.row(header.committed_rows - 1), None
            if not header.ends_at_commit:
                self.tail = structure.row(header.rows - 1)
        self.last = header
        self.links[header.id] = header.link, key
        # Objects are read by first id, so duplicates go back no further than the ids of one object.
        if len(self.links) > 100_000:
            self.links = {id: known for id, known in self.links.items() if id > header.id - 50_000}

    def _report_missing(self, first: int, last: int) -> None:
        """Report ids that are in no object's name, whether or not the object is readable."""
        first = max(first, self.trim.first_id if self.trim else 1)
        for low, high in sorted(self.unreadable):
            if low > first:
                self._add_missing(first, min(low - 1, last))
            first = max(first, high + 1)
        self._add_missing(first, last)

    def _add_missing(self, first: int, last: int) -> None:
        if first > last:
            return
        key = segment.key(first)
        problem = f"segments {first} to {last} are missing" if last > first else "is missing"
        self.missing.append(LogFault(key, first if first == last else None, problem))
