"""Reads a log: segments by id, changes by position, and what arrives while one waits.

A transaction is visible once its commit is in the log. The end of a segment may be the beginning of a transaction that
goes on in the next ones; whether it ever ended, or is void because capture crashed inside it, is found by looking ahead
at headers, so that memory stays bounded however large it is.
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
from tailrace.log.entry import Entry, changes_of
from tailrace.log.segment import Content, Header, RelationUse
from tailrace.log.trim import Trim
from tailrace.store import ObjectInfo, Store

# Footers are a few KB; one request of this size nearly always has all of it.
_TAIL_BYTES = 64 * 1024
_HEADERS_KEPT = 100_000
# Of changes, and segments: several sinks that follow the log read each once. A larger object is kept by itself.
_CONTENTS_BYTES = 8 * 1024 * 1024
_CONTENTS_KEPT = 1000
# A segment moves into a merged object minutes after it was written, so a listing this young knows where all others are.
_LISTING_HOLDS_S = 60.0
# Between a listing and the read of what it showed, an object may be merged; not again and again.
_ATTEMPTS = 4

T = TypeVar("T")


class _Tail(Enum):
    COMPLETE = "its commit is in a later segment"
    VOID = "capture was restarted inside it"
    OPEN = "neither is known yet"


class Segment:
    """A handle on one segment, there or not: nothing is read before it is asked for."""

    def __init__(self, reader: LogReader, id: int) -> None:
        self.id = id
        self._reader = reader

    def metadata(self) -> Header | None:
        return self._reader._header(self.id)

    def content(self) -> Content | None:
        return self._reader._content(self.id)

    def entries(self) -> Iterator[Entry] | None:
        """The rows as they were written, those of void transactions among them."""
        content = self.content()
        return None if content is None else Entry.all(content)

    def __repr__(self) -> str:
        return f"Segment({self.id})"


@dataclass(frozen=True, slots=True)
class Span:
    """Rows of one segment that a reader may see."""

    content: Content
    start: int
    stop: int


class LogReader:
    """A log in a store, given as a `Store` or its URL. For any number of threads: they share what was read last."""

    def __init__(self, store: Store | str, options: Mapping[str, str] | None = None) -> None:
        self.store = Store.open(store, options) if isinstance(store, str) else store
        self._headers: dict[int, tuple[Header, Mapping[str, Relation]]] = {}
        self._relations: dict[str, Relation] = {}
        self._objects: dict[int, ObjectInfo] = {}
        self._merged: list[tuple[int, int, ObjectInfo]] = []
        self._listed_at: float | None = None
        self._newest_listed = 0
        self._contents: dict[int, Content] = {}
        self._contents_bytes = 0
        self._lock = threading.Lock()

    def list(self, first: int | None = None, last: int | None = None) -> list[Segment]:
        """The segments there are, ascending; `first` and `last` are included."""
        self._listed_at = time.monotonic()
        objects: dict[int, ObjectInfo] = {}
        merged: list[tuple[int, int, ObjectInfo]] = []
        newest = 0
        found: set[int] = set()
        # A merged object sorts under its first id, so one that covers `first` may stand before it.
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
        return Segment(self, id)

    def first(self) -> Segment | None:
        return next(iter(self.list()), None)

    def last(self) -> Segment | None:
        segments = self.list()
        return segments[-1] if segments else None

    def end_lsn(self) -> Lsn:
        """Every transaction that commits below this is in the log; what is above may be on its way."""
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
        """Changes in commit order from `start` on, up to and without `end`, as far as the log goes now."""
        yield from self._changes(start, end, tables, across_gaps, wait=None)

    def follow(
        self,
        from_position: Position | datetime | None = None,
        *,
        tables: Callable[[Relation], bool] | None = None,
        poll_seconds: float = 0.05,
        stop: threading.Event | None = None,
    ) -> Iterator[Change]:
        """Changes from a position on (None: the log's beginning), then each as it arrives, until `stop` is set."""
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
            header = self._header(first_id)
            # The segment that tells of a gap is empty, and reaches to where the log begins again.
            if (
                header is not None
                and header.gap_from is not None
                and not header.rows
                and start.commit_lsn < header.end_lsn
            ):
                raise gap_error(header)
        for span in self.spans(first_id, wait=wait, across_gaps=across_gaps):
            for change in changes_of(span.content, span.start, span.stop, tables):
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
        """What may be seen of each segment from an id on. `wait` is called when nothing new is there; False ends it."""
        id = first_id
        while (content := self._awaited(id, self._content, wait)) is not None:
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
        """The first segment in which a change at or after `start` may stand."""
        ids = [s.id for s in self.list()]
        if not ids:
            return 1
        if trim := Trim.load(self.store):
            # Until they are all gone, some that retention removes may still be there, without the ones before them.
            ids = ids[bisect_left(ids, trim.first_id) :] or ids[-1:]
            if isinstance(start, Position) and start < trim.end:
                raise GapError(
                    f"changes from {start} to {trim.end} are no longer in the log: retention removed them",
                    "start again from a snapshot, or from where the log begins now",
                )
        if start is None:
            return ids[0]
        if isinstance(start, datetime):
            wanted = int(start.timestamp() * 1_000_000)
            return next((i for i in ids if (self._known(i).last_committed_at_us or 0) >= wanted), ids[-1])
        at = bisect_left(ids, True, key=lambda i: self._known(i).end_lsn > start.commit_lsn)
        at = min(at, len(ids) - 1)
        # The transaction that ends there may have begun in earlier segments.
        while at > 0 and not self._known(ids[at - 1]).ends_at_commit:
            at -= 1
        return ids[at]

    def _tail(self, id: int, wait: Callable[[], bool] | None) -> _Tail:
        while True:
            id += 1
            header = self._awaited(id, self._header, wait)
            if header is None:
                return _Tail.OPEN
            if header.voids_tail:
                return _Tail.VOID
            if header.committed_rows:
                return _Tail.COMPLETE

    def _awaited(self, id: int, read: Callable[[int], T | None], wait: Callable[[], bool] | None) -> T | None:
        """What `read` finds of a segment, once it is there; None when it is not and there is no more waiting."""
        attempts = 0
        while (found := read(id)) is None:
            if wait is not None and not self._may_have_moved(id):
                if not wait():
                    return None
            elif not self.list(id):
                if wait is None or not wait():
                    return None
            elif (attempts := attempts + 1) == _ATTEMPTS:
                raise self._missing(id)
        return found

    def _may_have_moved(self, id: int) -> bool:
        """Whether only a new listing can tell that a segment, not found where it was looked for, does not exist yet."""
        if id <= self._newest_listed:
            return True
        now = time.monotonic()
        if self._listed_at is not None and now - self._listed_at < _LISTING_HOLDS_S:
            return False
        self._listed_at = now
        return any(segment.ids(info.key) for info in self.store.list(segment.PREFIX, after=segment.key(id)))

    def _missing(self, id: int) -> GapError | CorruptError:
        trim = Trim.load(self.store)
        if trim is not None and id < trim.first_id:
            return GapError(
                f"segment {id} of {self.store.url} is no longer there: retention removed it",
                "start again from a snapshot, or from where the log begins now",
            )
        return CorruptError(
            f"segment {id} of {self.store.url} is missing, though later ones are there",
            "restore it from a copy of the store; changes in it are nowhere else",
        )

    def awaited_header(self, id: int) -> Header | None:
        """What a segment says of itself; None while it is not there. One that went missing is an error."""
        return self._awaited(id, self._header, lambda: False)

    def awaited_content(self, id: int) -> Content | None:
        """A segment that was there, wherever it was merged to meanwhile."""
        return self._awaited(id, self._content, lambda: False)

    def relations(self, id: int) -> Iterator[tuple[RelationUse, Relation]]:
        """The definitions that a segment's rows use, in order, from its footer alone; none while it is not there."""
        found = self._awaited(id, self._described, lambda: False)
        for use in found[0].relations if found else ():
            if found is None or use.digest not in found[1]:
                raise CorruptError(f"segment {id} uses relation {use.relation_id}, which it does not define")
            yield use, found[1][use.digest]

    def _known(self, id: int) -> Header:
        header = self._awaited(id, self._header, None)
        if header is None:
            raise self._missing(id)
        return header

    def _header(self, id: int) -> Header | None:
        found = self._described(id)
        return found[0] if found is not None else None

    def _described(self, id: int) -> tuple[Header, Mapping[str, Relation]] | None:
        """A segment's header, and relations by digest: at least those that it uses."""
        if (known := self._headers.get(id)) is not None:
            return known
        for name, size in self._places(id):
            found = self._read_headers(name, size)
            if found is not None:
                headers, relations = found
                # What is the same is kept once, and known by being the same.
                own = {digest: self._relations.setdefault(digest, relation) for digest, relation in relations.items()}
                if len(self._headers) >= _HEADERS_KEPT:
                    self._headers, self._relations = {}, {}
                self._headers.update((h.id, (h, own)) for h in headers)
                return next(((h, own) for h in headers if h.id == id), None)
        return None

    def _read_headers(self, name: str, size: int | None) -> tuple[Sequence[Header], Mapping[str, Relation]] | None:
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
        raise CorruptError(f"{name}: an empty object")

    def _content(self, id: int) -> Content | None:
        if (known := self._contents.get(id)) is not None:
            return known
        for name, _ in self._places(id):
            data = self.store.get(name)
            if data is None:
                continue
            found = {content.header.id: content for content in segment.unpack(data, name)}
            if id not in found:
                raise CorruptError(f"{name} does not hold segment {id}")
            with self._lock:
                size = sum(content.rows.payload.nbytes for content in found.values())
                if self._contents_bytes + size > _CONTENTS_BYTES or len(self._contents) > _CONTENTS_KEPT:
                    self._contents, self._contents_bytes = {}, 0
                self._contents |= found
                self._contents_bytes += size
            return found[id]
        return None

    def _places(self, id: int) -> Iterator[tuple[str, int | None]]:
        """Objects that may hold a segment: merged ones if the last listing showed any, then its own."""
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
        "start again from a snapshot taken after the gap",
    )
