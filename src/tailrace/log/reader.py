"""Reads a log: segments by id, changes by position, and new changes as they arrive.

A transaction is visible once its commit is in the log. A segment may end with the beginning of a transaction that
continues in the next segments. Whether that transaction was completed, or is void because capture crashed inside it, is
found by reading the headers ahead, so that memory stays bounded however large the transaction is.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TypeVar

from tailrace.change import Change, Lsn, Position, Relation
from tailrace.errors import CorruptError, GapError
from tailrace.log import segment
from tailrace.log.entry import LogEntry, decode_changes
from tailrace.log.segment import Header, RelationUse, SegmentContent
from tailrace.log.trim import Trim
from tailrace.store import ObjectInfo, Store

# Footers are a few KB, so one request of this size nearly always returns the whole footer.
_TAIL_BYTES = 64 * 1024
_MAX_HEADERS = 100_000
# Limits of the content cache, which lets several sinks that follow the log read each segment once. An object larger
# than this is cached alone.
_MAX_CONTENT_BYTES = 8 * 1024 * 1024
_MAX_CONTENTS = 1000
# A segment is merged minutes after it was written at the earliest, so a listing this recent shows all earlier merges.
_LISTING_VALID_S = 60.0
# An object may be merged between the listing and the read, but not several times in a row.
_ATTEMPTS = 4

T = TypeVar("T")


class _Tail(Enum):
    COMPLETE = "its commit is in a later segment"
    VOID = "capture was restarted inside it"
    OPEN = "neither is known yet"


class Segment:
    """A handle on one segment, which may not exist. Nothing is read until a method is called."""

    def __init__(self, reader: LogReader, id: int) -> None:
        self.id = id
        self._reader = reader

    def metadata(self) -> Header | None:
        """The segment's header; None if the segment does not exist."""
        return self._reader._read_header(self.id)

    def content(self) -> SegmentContent | None:
        """The segment's header, rows and relations; None if the segment does not exist."""
        return self._reader._read_content(self.id)

    def entries(self) -> Iterator[LogEntry] | None:
        """The rows as they were written, including those of void transactions; None if the segment does not exist."""
        content = self.content()
        return None if content is None else LogEntry.all(content)

    def __repr__(self) -> str:
        return f"Segment({self.id})"


@dataclass(frozen=True, slots=True)
class Span:
    """A range of visible rows of one segment."""

    content: SegmentContent
    start: int
    stop: int


class LogReader:
    """Reads the log in a store. Threads may share a reader, and with it its cache.

    Args:
        store: The store, or its URL: `file:///path` or `s3://bucket/prefix`.
        options: Options of the store, as in `[store.options]`. Only used with a URL.
    """

    def __init__(self, store: Store | str, options: Mapping[str, str] | None = None) -> None:
        self.store = Store.open(store, options) if isinstance(store, str) else store
        self._headers: dict[int, tuple[Header, Mapping[str, Relation]]] = {}
        self._relations: dict[str, Relation] = {}
        self._objects: dict[int, ObjectInfo] = {}
        self._merged: list[tuple[int, int, ObjectInfo]] = []
        self._listed_at: float | None = None
        self._newest_listed = 0
        self._contents: dict[int, SegmentContent] = {}
        self._contents_bytes = 0
        self._lock = threading.Lock()

    def list(self, first: int | None = None, last: int | None = None) -> list[Segment]:
        """The existing segments, in ascending order.

        Args:
            first: The lowest id to return; None for no limit.
            last: The highest id to return; None for no limit.
        """
        self._listed_at = time.monotonic()
        objects: dict[int, ObjectInfo] = {}
        merged: list[tuple[int, int, ObjectInfo]] = []
        newest = 0
        found: set[int] = set()
        # A merged object sorts by its first id, so one that contains `first` may sort before it.
        for info in self.store.list(segment.PREFIX):
            span = segment.ids(info.key)
            if span is None:
                continue
            if span[0] == span[1] and "-" not in info.key:
                objects[span[0]] = info
            else:
                merged.append((*span, info))
            newest = max(newest, span[1])
            low, high = max(span[0], first or 1), min(span[1], last if last is not None else span[1])
            found.update(range(low, high + 1))
        self._objects, self._merged, self._newest_listed = objects, merged, newest
        return [Segment(self, id) for id in sorted(found)]

    def get(self, id: int) -> Segment:
        """A handle on the segment with this id, whether or not it exists."""
        return Segment(self, id)

    def first(self) -> Segment | None:
        """The oldest segment; None if the log is empty."""
        return next(iter(self.list()), None)

    def last(self) -> Segment | None:
        """The newest segment; None if the log is empty."""
        segments = self.list()
        return segments[-1] if segments else None

    def end_lsn(self) -> Lsn:
        """The end of the log: all transactions that commit below this LSN are in the log."""
        last = self.last()
        header = last.metadata() if last else None
        return header.end_lsn if header else Lsn(0)

    def changes(
        self,
        start: Position | datetime | None = None,
        end: Position | datetime | None = None,
        *,
        tables: Callable[[Relation], bool] | None = None,
        across_gaps: bool = False,
    ) -> Iterator[Change]:
        """Changes in commit order, up to the current end of the log.

        Args:
            start: The first position or commit time to include; None for the beginning of the log.
            end: The position or commit time at which to stop, exclusive; None for the end of the log.
            tables: Called with a relation; only changes of relations for which it returns True are yielded, and no
                logical messages.
            across_gaps: Continue after a gap instead of raising GapError.
        """
        yield from self._changes(start, end, tables, across_gaps, wait=None)

    def follow(
        self,
        from_position: Position | datetime | None = None,
        *,
        tables: Callable[[Relation], bool] | None = None,
        poll_seconds: float = 0.05,
        stop: threading.Event | None = None,
    ) -> Iterator[Change]:
        """Changes in commit order, and then new ones as they arrive, until `stop` is set.

        Args:
            from_position: The first position or commit time to include; None for the beginning of the log.
            tables: As for `changes`.
            poll_seconds: How often to look for new segments.
            stop: Ends the iteration once it is set.
        """
        stopped = stop or threading.Event()
        yield from self._changes(from_position, None, tables, False, wait=lambda: not stopped.wait(poll_seconds))

    def _changes(
        self,
        start: Position | datetime | None,
        end: Position | datetime | None,
        tables: Callable[[Relation], bool] | None,
        across_gaps: bool,
        wait: Callable[[], bool] | None,
    ) -> Iterator[Change]:
        first_id = self.find(start)
        if isinstance(start, Position) and not across_gaps:
            header = self._read_header(first_id)
            # The segment that records a gap is empty, and its end LSN is where the log begins again.
            if (
                header is not None
                and header.gap_from is not None
                and not header.rows
                and start.commit_lsn < header.end_lsn
            ):
                raise gap_error(header)
        for span in self.spans(first_id, wait=wait, across_gaps=across_gaps):
            for change in decode_changes(span.content, span.start, span.stop, tables):
                if start is not None and _is_before(change, start):
                    continue
                if end is not None and not _is_before(change, end):
                    if isinstance(end, Position):
                        return
                    continue
                yield change

    def spans(
        self, first_id: int, *, wait: Callable[[], bool] | None = None, across_gaps: bool = False
    ) -> Iterator[Span]:
        """The visible rows of each segment from an id on.

        `wait` is called when there is no new segment; the iteration ends if it returns False, or is None.
        """
        id = first_id
        while (content := self._wait_for(id, self._read_content, wait)) is not None:
            header = content.header
            if header.gap_from is not None and not across_gaps and id != first_id:
                raise gap_error(header)
            if header.committed_rows:
                yield Span(content, 0, header.committed_rows)
            if not header.ends_at_commit:
                tail = self._tail(id, wait)
                if tail is _Tail.OPEN:
                    return
                if tail is _Tail.COMPLETE:
                    yield Span(content, header.committed_rows, header.rows)
            id += 1

    def find(self, start: Position | datetime | None) -> int:
        """The id of the first segment that may hold a change at or after `start`."""
        ids = [s.id for s in self.list()]
        if not ids:
            return 1
        if trim := Trim.load(self.store):
            # While retention removes segments, some of them still exist without the ones before them.
            ids = ids[bisect_left(ids, trim.first_id) :] or ids[-1:]
            if isinstance(start, Position) and start < trim.end:
                raise GapError(
                    f"changes from {start} to {trim.end} are no longer in the log: retention removed them",
                    "start from a snapshot, or from the current beginning of the log",
                )
        if start is None:
            return ids[0]
        if isinstance(start, datetime):
            wanted = int(start.timestamp() * 1_000_000)
            return next((i for i in ids if (self._existing_header(i).last_committed_at_us or 0) >= wanted), ids[-1])
        at = bisect_left(ids, True, key=lambda i: self._existing_header(i).end_lsn > start.commit_lsn)
        at = min(at, len(ids) - 1)
        # The transaction may have begun in earlier segments.
        while at > 0 and not self._existing_header(ids[at - 1]).ends_at_commit:
            at -= 1
        return ids[at]

    def _tail(self, id: int, wait: Callable[[], bool] | None) -> _Tail:
        while True:
            id += 1
            header = self._wait_for(id, self._read_header, wait)
            if header is None:
                return _Tail.OPEN
            if header.voids_tail:
                return _Tail.VOID
            if header.committed_rows:
                return _Tail.COMPLETE

    def _wait_for(self, id: int, read: Callable[[int], T | None], wait: Callable[[], bool] | None) -> T | None:
        """What `read` returns for a segment once it exists; None if it does not and `wait` is None or returns False."""
        attempts = 0
        while (found := read(id)) is None:
            if wait is not None and not self._may_have_moved(id):
                if not wait():
                    return None
            elif not self.list(id):
                if wait is None or not wait():
                    return None
            elif (attempts := attempts + 1) == _ATTEMPTS:
                raise self._missing_error(id)
        return found

    def _may_have_moved(self, id: int) -> bool:
        """Whether a segment that was not found may be in a merged object, so that only a new listing can tell."""
        if id <= self._newest_listed:
            return True
        now = time.monotonic()
        if self._listed_at is not None and now - self._listed_at < _LISTING_VALID_S:
            return False
        self._listed_at = now
        return any(segment.ids(info.key) for info in self.store.list(segment.PREFIX, after=segment.key(id)))

    def _missing_error(self, id: int) -> GapError | CorruptError:
        trim = Trim.load(self.store)
        if trim is not None and id < trim.first_id:
            return GapError(
                f"segment {id} of {self.store.url} no longer exists: retention removed it",
                "start from a snapshot, or from the current beginning of the log",
            )
        return CorruptError(
            f"segment {id} of {self.store.url} is missing, but later segments exist",
            "restore it from a copy of the store: its changes are nowhere else",
        )

    def header(self, id: int) -> Header | None:
        """A segment's header; None if it is not written yet. Raises CorruptError or GapError if it is missing."""
        return self._wait_for(id, self._read_header, lambda: False)

    def completes_tail(self, id: int) -> bool:
        """Whether the log completes the transaction that a segment leaves open. If it leaves none open: whether the log
        holds a commit after the segment."""
        return self._tail(id, None) is _Tail.COMPLETE

    def content(self, id: int) -> SegmentContent | None:
        """A segment's content, even if it was merged meanwhile; otherwise as `header`."""
        return self._wait_for(id, self._read_content, lambda: False)

    def known_header(self, id: int) -> Header | None:
        """A segment's header, if it was read already."""
        found = self._headers.get(id)
        return None if found is None else found[0]

    def small_object_bytes(self, id: int) -> int | None:
        """The size of the object that holds a segment, if the last listing has it and reading its footer would read
        all of it; else None."""
        _, size = next(self._possible_objects(id))
        return size if size is not None and size <= _TAIL_BYTES else None

    def relations(self, id: int) -> Iterator[tuple[RelationUse, Relation]]:
        """The relations that a segment's rows use, in order, from its footer; empty if it is not written yet."""
        found = self._wait_for(id, self._read_footer, lambda: False)
        for use in found[0].relations if found else ():
            if found is None or use.digest not in found[1]:
                raise CorruptError(f"segment {id} uses relation {use.relation_id}, which it does not define")
            yield use, found[1][use.digest]

    def _existing_header(self, id: int) -> Header:
        header = self._wait_for(id, self._read_header, None)
        if header is None:
            raise self._missing_error(id)
        return header

    def _read_header(self, id: int) -> Header | None:
        found = self._read_footer(id)
        return found[0] if found is not None else None

    def _read_footer(self, id: int) -> tuple[Header, Mapping[str, Relation]] | None:
        """A segment's header, and relations by digest: at least those that it uses."""
        if (cached := self._headers.get(id)) is not None:
            return cached
        for name, size in self._possible_objects(id):
            found = self._read_object_footer(name, size)
            if found is not None:
                headers, relations = found
                own = self._remember(headers, relations)
                return next(((h, own) for h in headers if h.id == id), None)
        return None

    def _remember(self, headers: Sequence[Header], relations: Mapping[str, Relation]) -> Mapping[str, Relation]:
        # Equal relations share one object, so that comparing them is fast.
        own = {digest: self._relations.setdefault(digest, relation) for digest, relation in relations.items()}
        if len(self._headers) >= _MAX_HEADERS:
            self._headers, self._relations = {}, {}
        self._headers.update((h.id, (h, own)) for h in headers)
        return own

    def _read_object_footer(
        self, name: str, size: int | None
    ) -> tuple[Sequence[Header], Mapping[str, Relation]] | None:
        if size is None:
            info = self.store.head(name)
            if info is None:
                return None
            size = info.size
        wanted = min(size, _TAIL_BYTES)
        while wanted:
            tail = self.store.get_range(name, size - wanted, wanted)
            if tail is None:
                return None
            found = segment.unpack_headers(tail, name)
            if not isinstance(found, int):
                return found
            if found > size:
                raise CorruptError(f"{name}: its footer is larger than the object")
            wanted = found
        raise CorruptError(f"{name} is an empty object")

    def _read_content(self, id: int) -> SegmentContent | None:
        if (cached := self._contents.get(id)) is not None:
            return cached
        for name, _ in self._possible_objects(id):
            data = self.store.get(name)
            if data is None:
                continue
            found = {content.header.id: content for content in segment.unpack(data, name)}
            if id not in found:
                raise CorruptError(f"{name} does not hold segment {id}")
            self._remember([content.header for content in found.values()], found[id].relations)
            with self._lock:
                size = sum(content.rows.payload.nbytes for content in found.values())
                if self._contents_bytes + size > _MAX_CONTENT_BYTES or len(self._contents) > _MAX_CONTENTS:
                    self._contents, self._contents_bytes = {}, 0
                self._contents |= found
                self._contents_bytes += size
            return found[id]
        return None

    def _possible_objects(self, id: int) -> Iterator[tuple[str, int | None]]:
        """Key and size of the objects that may hold a segment: merged ones from the last listing, then its own."""
        if self._listed_at is None:
            self.list()
        for first, last, merged in self._merged:
            if first <= id <= last:
                yield merged.key, merged.size
        info = self._objects.get(id)
        yield segment.key(id), info.size if info else None


def _is_before(change: Change, bound: Position | datetime) -> bool:
    if isinstance(bound, datetime):
        return change.committed_at < bound
    return change.position < bound


def gap_error(header: Header) -> GapError:
    return GapError(
        f"changes between {header.gap_from} and segment {header.id} are not in the log",
        "start from a snapshot taken after the gap; for a sink: tailrace sink rewind NAME snapshot",
    )
