"""Searches the log for changes, newest first, a bounded part at a time.

A search reads a limited part of the log and returns a cursor, from which the next search goes on. Headers say which
segments cannot hold a match; of the others, only rows that may match are decoded.
"""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tailrace.change import Change, Lsn, Operation, Position, Relation
from tailrace.errors import ConfigError, CorruptError, GapError
from tailrace.log.entry import decode_changes
from tailrace.log.planner import Slice, segment_reaching
from tailrace.log.read_ahead import ReadAhead
from tailrace.log.reader import LogReader
from tailrace.log.segment import Header, SegmentContent
from tailrace.log.trim import Trim
from tailrace.settings.pattern import TablePattern

Mask = npt.NDArray[np.bool_]

# Concurrent transactions get their commit time and their place in the WAL one after the other.
_DISORDER_US: Final = 1_000_000
# How many segments without rows are skipped to learn what time it was: a guess, which may only cost time.
_SKIPPED_SEGMENTS: Final = 20


@dataclass(frozen=True)
class ChangeCriteria:
    """What a change must meet; it meets all of these."""

    table: TablePattern | None = None
    key: tuple[str, ...] | None = None
    """PostgreSQL's texts of the key's columns, in their order: of the row before the change, or after it. A TRUNCATE
    concerns every key."""
    xid: int | None = None
    commit_lsn: Lsn | None = None
    """The transaction that commits there."""
    since: datetime | None = None
    until: datetime | None = None
    """Committed before this time."""

    def accepts(self, relation: Relation) -> bool:
        return self.table is None or self.table.matches(relation.schema, relation.name)

    @property
    def since_us(self) -> int | None:
        return None if self.since is None else _micros(self.since)

    @property
    def until_us(self) -> int | None:
        return None if self.until is None else _micros(self.until)


@dataclass(frozen=True, slots=True)
class SearchCursor:
    """Where a search goes on."""

    segment: int
    before: Position | None = None
    """Only changes below it are left in the segment; None: all are."""

    @classmethod
    def parse(cls, text: str) -> SearchCursor:
        found = re.fullmatch(r"(\d{1,18})(?:@(.+))?", text)
        if found is None:
            raise ConfigError(f"{text!r} is not the cursor of a search", "search again without one")
        return cls(int(found[1]), Position.parse(found[2]) if found[2] else None)

    def __str__(self) -> str:
        return str(self.segment) if self.before is None else f"{self.segment}@{self.before}"


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """A search ends when it reaches one of these. It reads one segment in any case, so that it gets on."""

    changes: int = 50
    seconds: float = 1.0
    """How often somebody who waits sees that the search gets on."""


@dataclass(frozen=True, slots=True)
class FoundChange:
    change: Change
    slice: Slice
    """The visible rows of the segment that holds the change."""
    is_split: bool
    """Whether the transaction has changes in other segments too."""


@dataclass(frozen=True)
class SearchResult:
    found: tuple[FoundChange, ...]
    """Newest first."""
    searched_to: datetime | None
    """All changes that were committed since then, and before the search's start, were looked at. None if the log is
    empty."""
    cursor: SearchCursor | None
    """None: nothing is left to search."""
    first_segment: int = 0
    """The log's first segment, where a search without a lower limit ends."""

    @property
    def segments_left(self) -> int:
        """How many segments are left at most."""
        return 0 if self.cursor is None else self.cursor.segment - self.first_segment + 1


def search_back(
    reader: LogReader,
    criteria: ChangeCriteria,
    cursor: SearchCursor | None = None,
    limits: SearchLimits | None = None,
) -> SearchResult:
    """Search a part of the log, from a cursor or from its end towards its beginning.

    Args:
        reader: The log.
        criteria: What to look for.
        cursor: Where the last search ended; None to begin.
        limits: How much to read.
    """
    limits = limits or SearchLimits()
    ids = _existing_ids(reader)
    if not ids:
        return SearchResult((), None, None)
    start = cursor or SearchCursor(_first_segment(reader, ids, criteria))
    stop_at = time.monotonic() + limits.seconds
    found: list[FoundChange] = []
    searched_to: datetime | None = None
    is_complete = reader.completes_tail(start.segment)
    before = start.before

    def may_match(header: Header) -> bool:
        return not _is_before(header, criteria) and _may_match(reader, header, criteria)

    with ReadAhead(reader, ids[0], may_match, headers_first=criteria.table is not None) as ahead:
        for id in range(min(start.segment, ids[-1]), ids[0] - 1, -1):
            ahead.reach(id)
            try:
                header = reader.header(id)
            except GapError:  # retention has removed it since the listing
                break
            if header is None:
                raise CorruptError(f"segment {id} of {reader.store.url} is missing", "`tailrace log verify` says more")
            if _is_before(header, criteria):
                break
            visible = header.rows if is_complete else header.committed_rows
            if visible and _may_match(reader, header, criteria):
                content = _content(reader, id)
                searched = Slice(id, 0, visible, header.payload_bytes)
                for change in _matches(content, visible, criteria, before):
                    found.append(FoundChange(change, searched, _is_split(reader, header, content, change)))
                    if len(found) == limits.changes:
                        rest = SearchCursor(id, change.position)
                        return SearchResult(tuple(found), change.committed_at, rest, ids[0])
            before = None
            if header.first_committed_at_us is not None:
                searched_to = _time(header.first_committed_at_us)
            # What the segment before leaves open is complete if a commit follows it, unless it is void.
            is_complete = not header.voids_tail and (header.committed_rows > 0 or is_complete)
            if time.monotonic() > stop_at and id > ids[0]:
                return SearchResult(tuple(found), searched_to, SearchCursor(id - 1), ids[0])
    return SearchResult(tuple(found), searched_to, None, ids[0])


def _existing_ids(reader: LogReader) -> Sequence[int]:
    trim = Trim.load(reader.store)
    return [segment.id for segment in reader.list(trim.first_id if trim else None)]


def _first_segment(reader: LogReader, ids: Sequence[int], criteria: ChangeCriteria) -> int:
    """The newest segment that may hold a match."""
    if criteria.commit_lsn is not None:
        return segment_reaching(reader, Lsn(criteria.commit_lsn + 1))
    if criteria.until_us is None:
        return ids[-1]
    time_us = criteria.until_us + _DISORDER_US
    at = bisect_left(ids, True, key=lambda id: _begins_after(reader, id, ids[-1], time_us))
    return ids[min(at, len(ids) - 1)]


def _begins_after(reader: LogReader, id: int, last: int, time_us: int) -> bool:
    for each in range(id, min(id + _SKIPPED_SEGMENTS, last + 1)):
        header = reader.header(each)
        if header is not None and header.first_committed_at_us is not None:
            return header.first_committed_at_us >= time_us
    return False


def _is_before(header: Header, criteria: ChangeCriteria) -> bool:
    """Whether a segment, and all before it, are older than what is looked for."""
    if criteria.commit_lsn is not None and header.last is not None and header.last.commit_lsn < criteria.commit_lsn:
        return True
    since, last = criteria.since_us, header.last_committed_at_us
    return since is not None and last is not None and last < since - _DISORDER_US


def _may_match(reader: LogReader, header: Header, criteria: ChangeCriteria) -> bool:
    first, last = header.first_committed_at_us, header.last_committed_at_us
    if first is None or last is None:
        return False
    if criteria.until_us is not None and first >= criteria.until_us:
        return False
    if criteria.since_us is not None and last < criteria.since_us:
        return False
    return criteria.table is None or any(criteria.accepts(relation) for _, relation in reader.relations(header.id))


def _matches(
    content: SegmentContent, visible: int, criteria: ChangeCriteria, before: Position | None
) -> Iterator[Change]:
    """The changes among the visible rows that meet the criteria, newest first."""
    tables = None if criteria.table is None else criteria.accepts
    for row in np.flatnonzero(_candidates(content, visible, criteria, before))[::-1].tolist():
        for change in reversed(list(decode_changes(content, row, row + 1, tables))):
            is_below = before is None or change.position < before
            if is_below and (criteria.key is None or _concerns(change, criteria.key)):
                yield change


def _concerns(change: Change, key: tuple[str, ...]) -> bool:
    """Whether a change is one of the row with a key: a TRUNCATE is one of every row."""
    return change.operation is Operation.TRUNCATE or key in (key_before(change), key_after(change))


def _candidates(content: SegmentContent, visible: int, criteria: ChangeCriteria, before: Position | None) -> Mask:
    """Which rows may match, as far as that is known without decoding them."""
    rows = content.rows.slice(0, visible)
    found: Mask = ~np.isin(rows.kind, np.frombuffer(b"CO", np.uint8))
    if criteria.xid is not None:
        found &= rows.xid == criteria.xid
    if criteria.commit_lsn is not None:
        found &= rows.commit_lsn == criteria.commit_lsn
    if criteria.since_us is not None:
        found &= rows.commit_ts >= criteria.since_us
    if criteria.until_us is not None:
        found &= rows.commit_ts < criteria.until_us
    if before is not None:
        found &= rows.commit_lsn <= before.commit_lsn
    if criteria.table is not None:
        matching = [
            use.relation_id for use in content.header.relations if criteria.accepts(content.relations[use.digest])
        ]
        # A TRUNCATE names its tables in its payload.
        found &= np.isin(rows.relation_id, matching) | (rows.kind == ord("T"))
    for text in criteria.key or ():
        has_text = pc.match_substring(rows.payload, text.encode())
        found &= has_text.to_numpy(zero_copy_only=False) | (rows.kind == ord("T"))
    return found


def key_before(change: Change) -> tuple[str, ...] | None:
    """PostgreSQL's texts of the key that the row had before the change, or has after an insert."""
    return _texts([value for _, value in change.key_columns or ()])


def key_after(change: Change) -> tuple[str, ...] | None:
    """The same after the change; None if it deletes the row."""
    names = change.relation.key if change.relation else ()
    values = {column.name: value for column, value in change.new_columns or ()}
    return _texts([values.get(name) for name in names])


def _texts(values: Sequence[bytes | None]) -> tuple[str, ...] | None:
    texts = [value.decode() for value in values if value is not None]
    return tuple(texts) if texts and len(texts) == len(values) else None


def _is_split(reader: LogReader, header: Header, content: SegmentContent, change: Change) -> bool:
    commit_lsn, rows = change.position.commit_lsn, content.rows
    if header.rows > header.committed_rows and int(rows.commit_lsn[header.committed_rows]) == commit_lsn:
        return True
    if header.voids_tail or int(rows.commit_lsn[0]) != commit_lsn:
        return False
    try:
        previous = reader.header(header.id - 1) if header.id > 1 else None
    except GapError:
        return False
    return previous is not None and not previous.ends_at_commit


def _content(reader: LogReader, id: int) -> SegmentContent:
    content = reader.content(id)
    if content is None:
        raise CorruptError(f"segment {id} of {reader.store.url} was removed while it was read")
    return content


def _micros(at: datetime) -> int:
    return int(at.timestamp() * 1_000_000)


def _time(micros: int) -> datetime:
    return datetime.fromtimestamp(micros / 1e6, UTC)
