"""Verifies a log: every object, every segment in it, and how they follow on each other. All faults, not the first.

What one segment must say of its own rows is in `consistency`; here is the chain through all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tailrace.errors import CorruptError, DecodeError
from tailrace.log import segment, trim
from tailrace.log.consistency import Row, Shape, faults_between, faults_within, left_out
from tailrace.log.listing import LogObject, listed
from tailrace.log.segment import Content, Header
from tailrace.log.trim import Trim
from tailrace.store import Store


@dataclass(frozen=True, slots=True)
class Finding:
    object: str
    """The key of the object it was found in, or which ought to be there."""
    segment: int | None
    problem: str

    def __str__(self) -> str:
        where = f"{self.object}: " if self.segment is None else f"{self.object}: segment {self.segment}: "
        return where + self.problem


@dataclass(slots=True)
class Tally:
    """What has been looked at so far."""

    objects: int = 0
    objects_in_all: int = 0
    bytes: int = 0
    segments: int = 0
    rows: int = 0
    accepted_gaps: int = 0
    """Segments that say themselves that changes before them were lost: known to the operator, and no fault."""
    left_out: int = 0
    """Changes that have their ordinals and are not in the log: those of Tailrace's own tables, if it has any at the
    source."""
    link: str = segment.NO_PREVIOUS
    """Of the last segment: whoever notes it down can later tell whether the log up to there was rewritten."""

    def add(self, header: Header, *, is_new: bool) -> None:
        if is_new:
            self.segments += 1
            self.rows += header.rows
            self.accepted_gaps += header.gap_from is not None
            self.link = header.link


def verify(
    store: Store, tally: Tally | None = None, progress: Callable[[Tally], None] = lambda _: None
) -> Iterator[Finding]:
    """Everything that is wrong with the log; `tally` is kept up to date and `progress` called after each object."""
    tally = tally if tally is not None else Tally()
    for info in store.list(segment.PREFIX):
        span = segment.ids(info.key)
        if info.key != trim.KEY and (span is None or not 1 <= span[0] <= span[1]):
            yield Finding(info.key, None, "not a segment, and nothing Tailrace writes here")
    chain = _Chain()
    # A merged object comes before the segments in it that a crash left over: those are then compared with it.
    objects = deque(o for o in listed(store) if 1 <= o.first <= o.last)
    newest = max((o.last for o in objects), default=0)
    yield from chain.begin_after(store)
    while objects:
        o = objects.popleft()
        data = store.get(o.key)
        if data is None:
            # Merged or trimmed since the listing: go on with what is there now.
            objects = deque(x for x in listed(store) if x.last > chain.reached and 1 <= x.first <= newest and x != o)
            yield from chain.begin_after(store)
            continue
        try:
            contents = segment.unpack(data, o.key)
        except CorruptError as error:
            yield Finding(o.key, o.first if o.first == o.last else None, _without(error, o.key))
            chain.unreadable.append((o.first, o.last))
        else:
            yield from _names(o, contents)
            for content in contents:
                tally.add(content.header, is_new=content.header.id > chain.reached)
                problems = list(chain.add(content, o.key))
                yield from chain.missing
                yield from (Finding(o.key, content.header.id, problem) for problem in problems)
                chain.missing.clear()
        tally.left_out = chain.left_out
        tally.objects += 1
        tally.objects_in_all = tally.objects + len(objects)
        tally.bytes += len(data)
        progress(tally)


def _without(error: CorruptError, key: str) -> str:
    return str(error).removeprefix(f"{key}: ")


def _names(o: LogObject, contents: Sequence[Content]) -> Iterator[Finding]:
    held = [content.header.id for content in contents]
    if held != list(range(o.first, o.last + 1)):
        yield Finding(o.key, None, f"its name says segments {o.first} to {o.last}, but it holds {_ranges(held)}")


def _ranges(ids: Sequence[int]) -> str:
    return f"{ids[0]} to {ids[-1]}" if ids and list(ids) == list(range(ids[0], ids[-1] + 1)) else f"{list(ids)[:10]}"


@dataclass(slots=True)
class _Chain:
    """What is known of the log up to the segment looked at last."""

    trim: Trim | None = None
    last: Header | None = None
    committed: Row | None = None
    """The last row of the last complete transaction; None when it is not known."""
    tail: Row | None = None
    """The last row of the transaction left open, if one is."""
    unreadable: list[tuple[int, int]] = field(default_factory=list)
    missing: list[Finding] = field(default_factory=list)
    left_out: int = 0
    links: dict[int, tuple[str, str]] = field(default_factory=dict)
    """id → link and object, of segments that a later object might hold too."""

    @property
    def reached(self) -> int:
        return self.last.id if self.last else 0

    def begin_after(self, store: Store) -> Iterator[Finding]:
        try:
            self.trim = Trim.load(store)
        except CorruptError as error:
            yield Finding(trim.KEY, None, _without(error, trim.KEY))

    def add(self, content: Content, key: str) -> Iterator[str]:
        header = content.header
        if header.id <= self.reached:
            yield from self._compared(header)
            return
        shape = None
        try:
            shape = Shape(content.rows)
            yield from faults_within(content, shape)
        except DecodeError as error:
            yield f"its payloads cannot be read: {error}"
        if self.last is None:
            yield from self._begin(content)
        elif header.id == self.last.id + 1:
            yield from self._continue(content, shape, self.last)
        else:
            self._miss(self.last.id + 1, header.id - 1)
            self.committed = self.tail = None
        if shape is not None:
            self.left_out += left_out(self._before(header), shape)
        self._remember(content, shape, key)

    def _compared(self, header: Header) -> Iterator[str]:
        link, key = self.links.get(header.id, (header.link, ""))
        if link != header.link:
            yield f"differs from the same segment in {key}"

    def _begin(self, content: Content) -> Iterator[str]:
        header = content.header
        first_id, previous = (self.trim.first_id, self.trim.previous) if self.trim else (1, segment.NO_PREVIOUS)
        if header.id < first_id:
            return  # trimming goes on, or was interrupted
        self._miss(first_id, header.id - 1)
        if header.id == first_id and header.previous != previous:
            yield "does not continue what was trimmed" if self.trim else "names one before it, though it is the first"

    def _continue(self, content: Content, shape: Shape | None, before: Header) -> Iterator[str]:
        header = content.header
        if header.previous != before.link:
            yield f"its chain is broken: `previous` is not the digest of segment {before.id}'s header"
        if self.trim and header.id == self.trim.first_id and header.previous != self.trim.previous:
            yield "does not continue what was trimmed"
        if header.end_lsn < before.end_lsn:
            yield f"end_lsn {header.end_lsn} is below the {before.end_lsn} of segment {before.id}"
        if header.gap_from is not None and header.gap_from != before.end_lsn:
            yield f"says that changes are lost from {header.gap_from} on, but the log went to {before.end_lsn}"
        same = (before.source.system_id, before.source.database) == (header.source.system_id, header.source.database)
        if not same and header.gap_from is None:
            yield f"comes from another source than segment {before.id}"
        if header.voids_tail and before.ends_at_commit:
            yield f"voids the end of segment {before.id}, which ends at a commit"
        last = self._before(header)
        if last is not None and shape is not None:
            yield from faults_between(last, content, shape, before.end_lsn)

    def _before(self, header: Header) -> Row | None:
        """The row that the segment's first follows on, where it is known."""
        is_open = self.last is not None and not (self.last.ends_at_commit or header.voids_tail)
        return self.tail if is_open else self.committed

    def _remember(self, content: Content, shape: Shape | None, key: str) -> None:
        header = content.header
        if header.voids_tail:
            self.tail = None
        if shape is None or not 0 <= header.committed_rows <= header.rows:
            self.committed = self.tail = None
        else:
            if header.committed_rows:
                self.committed, self.tail = shape.row(header.committed_rows - 1), None
            if not header.ends_at_commit:
                self.tail = shape.row(header.rows - 1)
        self.last = header
        self.links[header.id] = header.link, key
        # Objects come by first id, so duplicates reach back no further than one object's ids.
        if len(self.links) > 100_000:
            self.links = {id: known for id, known in self.links.items() if id > header.id - 50_000}

    def _miss(self, first: int, last: int) -> None:
        """Report the ids that no object, readable or not, is named for."""
        first = max(first, self.trim.first_id if self.trim else 1)
        for low, high in sorted(self.unreadable):
            if low > first:
                self._report(first, min(low - 1, last))
            first = max(first, high + 1)
        self._report(first, last)

    def _report(self, first: int, last: int) -> None:
        if first > last:
            return
        key = segment.key(first)
        wanted = f"segments {first} to {last} are missing" if last > first else "is missing"
        self.missing.append(Finding(key, first if first == last else None, wanted))
