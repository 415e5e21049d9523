"""Decodes slices of the log into columns of changes, the form that sinks and other bulk consumers use.

A chunk holds the changes of one slice: one `TableChanges` for each run of changes of a table under one relation, and
one `LogicalMessages`. Each of these is in log order; `at.commit_lsn` and `at.ordinal` give the order across them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace import types
from tailrace.change import Lsn, Position, Relation
from tailrace.errors import CorruptError, DecodeError
from tailrace.images import Images, record_batch
from tailrace.log.planner import Slice
from tailrace.log.reader import LogReader
from tailrace.log.segment import SegmentContent
from tailrace.log_rows import LogRows
from tailrace.pgoutput import message
from tailrace.pgoutput.decoder import decode

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

INSERT, UPDATE, DELETE, TRUNCATE, SNAPSHOT = (ord(letter) for letter in "IUDTS")
OPERATIONS: Mapping[int, str] = {
    INSERT: "INSERT",
    UPDATE: "UPDATE",
    DELETE: "DELETE",
    TRUNCATE: "TRUNCATE",
    SNAPSHOT: "SNAPSHOT",
}
"""pgoutput's letters, and S for a row of a snapshot: the row exists, however it was written."""

_KIND_M, _KIND_C, _KIND_O = (ord(letter) for letter in "MCO")


@dataclass(frozen=True)
class ChangePositions:
    """Position, transaction and commit time of each change, as columns."""

    commit_lsn: I64
    ordinal: I64
    lsn: I64
    xid: I64
    committed_at_us: I64
    is_last: Mask
    """The change is the last of its transaction among those that are delivered."""

    def __len__(self) -> int:
        return len(self.commit_lsn)

    def position(self, row: int) -> Position:
        return Position(Lsn(self.commit_lsn[row]), int(self.ordinal[row]))

    @classmethod
    def joined(cls, parts: Sequence[ChangePositions]) -> ChangePositions:
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def take(self, rows: I64 | Mask) -> ChangePositions:
        return ChangePositions(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class TableChanges:
    """Consecutive changes of one table, all under one relation. A TRUNCATE is a run of its own, without images."""

    relation: Relation
    at: ChangePositions
    operation: npt.NDArray[np.uint8]
    """INSERT, UPDATE, DELETE, TRUNCATE or SNAPSHOT."""
    old: Images
    old_is_key: Mask
    new: Images
    truncate_options: tuple[str, ...] = ()
    target: tuple[str, str] = ("", "")
    """Schema and table of the destination, as the sink's settings route the changes."""

    def __len__(self) -> int:
        return len(self.operation)

    def take(self, rows: I64 | Mask) -> TableChanges:
        """A selection of the changes, by index or by mask."""
        return replace(
            self,
            at=self.at.take(rows),
            operation=self.operation[rows],
            old=self.old.take(rows),
            old_is_key=self.old_is_key[rows],
            new=self.new.take(rows),
        )

    @property
    def span(self) -> str:
        """The first and last position, as text for messages."""
        first, last = self.at.position(0), self.at.position(len(self) - 1)
        return str(first) if first == last else f"{first} to {last}"

    @property
    def is_truncate(self) -> bool:
        return len(self) == 1 and int(self.operation[0]) == TRUNCATE


@dataclass(frozen=True)
class LogicalMessages:
    """Logical messages (`pg_logical_emit_message`), as columns."""

    at: ChangePositions
    prefix: tuple[str, ...]
    content: tuple[bytes, ...]
    transactional: Mask

    def __len__(self) -> int:
        return len(self.prefix)

    @classmethod
    def joined(cls, parts: Sequence[LogicalMessages]) -> LogicalMessages:
        return cls(
            ChangePositions.joined([part.at for part in parts]),
            tuple([prefix for part in parts for prefix in part.prefix]),
            tuple([content for part in parts for content in part.content]),
            np.concatenate([part.transactional for part in parts]),
        )

    def take(self, rows: I64 | Mask) -> LogicalMessages:
        indexes = np.arange(len(self))[rows]
        return LogicalMessages(
            self.at.take(rows),
            tuple([self.prefix[i] for i in indexes]),
            tuple([self.content[i] for i in indexes]),
            self.transactional[rows],
        )


Chunk = Sequence[TableChanges | LogicalMessages]

_CACHE_BYTES: Final = 1024 * 1024
"""The largest segment whose decoded changes are cached with it."""


@dataclass(frozen=True)
class ChangeFilter:
    """Which changes to decode: from which LSN on, and of which tables."""

    start: Lsn = Lsn(0)  # noqa: RUF009 (an immutable value)
    """Excludes transactions that commit below this LSN."""
    tables: Mapping[int, Lsn] = field(default_factory=dict)
    """By table oid, an LSN: excludes that table's changes that commit below it."""
    others: bool = True
    """Includes tables that are not in `tables`."""
    messages: bool = True
    """Includes logical messages."""
    end: Lsn | None = None
    """Excludes transactions that commit at or above this LSN."""

    def start_of(self, oid: int) -> Lsn | None:
        """The LSN from which on a table's changes are included; None if they are excluded."""
        if oid in self.tables:
            return max(self.start, self.tables[oid])
        return self.start if self.others else None

    def accepts_all(self, content: SegmentContent) -> bool:
        """Whether every change of a segment is included."""
        if not (self.others and self.messages):
            return False
        lsns = content.rows.commit_lsn
        lowest = int(lsns.min(initial=1 << 62))
        is_before = self.end is None or int(lsns.max(initial=0)) < self.end
        return is_before and max(self.start, *self.tables.values(), 0) <= lowest


def chunks(
    reader: LogReader, slices: Iterable[Slice], change_filter: ChangeFilter, *, as_text: bool = False
) -> Iterator[tuple[Slice, Chunk]]:
    """Each slice with its changes. `is_last` is correct only within the slice: see `with_last`."""
    for s in slices:
        content = reader.content(s.segment)
        if content is None:
            raise CorruptError(f"segment {s.segment} of {reader.store.url} was removed while it was read")
        yield s, chunk(content, s.start, s.stop, change_filter, as_text=as_text)


def chunk(
    content: SegmentContent, start: int, stop: int, change_filter: ChangeFilter, *, as_text: bool = False
) -> Chunk:
    is_whole = start == 0 and stop == len(content.rows) and content.rows.payload.nbytes <= _CACHE_BYTES
    if not is_whole or not change_filter.accepts_all(content):
        return _decode_chunk(content, start, stop, change_filter, as_text)
    # Small segments are many, decoding has a fixed cost for each, and every sink decodes them.
    with content.decoded.lock:
        if as_text not in content.decoded.whole:
            content.decoded.whole[as_text] = _freeze(_decode_chunk(content, start, stop, ChangeFilter(), as_text))
        found: Chunk = content.decoded.whole[as_text]
        return found


def _freeze(found: Chunk) -> Chunk:
    for part in found:
        for name in ChangePositions.__dataclass_fields__:
            getattr(part.at, name).flags.writeable = False
        if isinstance(part, TableChanges):
            part.operation.flags.writeable = part.old_is_key.flags.writeable = False
    return tuple(found)


def _decode_chunk(content: SegmentContent, start: int, stop: int, change_filter: ChangeFilter, as_text: bool) -> Chunk:
    rows = content.rows.slice(start, stop)
    included = (rows.commit_lsn >= change_filter.start) & (rows.kind != _KIND_C) & (rows.kind != _KIND_O)
    if change_filter.end is not None:
        included &= rows.commit_lsn < change_filter.end
    found: list[TableChanges | LogicalMessages] = []
    for oid in np.unique(rows.relation_id[included]):
        if oid:
            found += _table_runs(content, rows, start, int(oid), included, change_filter, as_text)
    found += _decode_truncates(content, rows, start, included, change_filter, as_text)
    found.sort(key=lambda part: (int(part.at.commit_lsn[0]), int(part.at.ordinal[0])))
    messages = np.flatnonzero(included & (rows.kind == _KIND_M))
    if len(messages) and change_filter.messages:
        found.append(_decode_messages(rows, messages))
    return found


def with_last(found: Iterable[tuple[Slice, Chunk]]) -> Iterator[Chunk]:
    """The chunks, with `is_last` also correct for transactions that span slices."""
    pending: list[Chunk] = []
    for s, chunk_ in found:
        chunk_ = _mark_last(chunk_)
        first = min((int(part.at.commit_lsn[0]) for part in chunk_), default=None)
        if pending and first is not None:
            pending[-1] = _unmark(pending[-1], first)
        if chunk_ or not pending:
            yield from pending
            pending = []
        if chunk_:
            pending.append(chunk_)
        if not s.continues:
            yield from pending
            pending = []
    yield from pending


def with_last_of(found: Iterable[Chunk]) -> Iterator[Chunk]:
    """The same for chunks of unknown slices: each is held back until the next one arrives."""
    pending: Chunk | None = None
    for chunk_ in map(_mark_last, found):
        if not chunk_:
            continue
        if pending is not None:
            yield _unmark(pending, min(int(part.at.commit_lsn[0]) for part in chunk_))
        pending = chunk_
    if pending is not None:
        yield pending


def _table_runs(
    content: SegmentContent,
    rows: LogRows,
    start: int,
    oid: int,
    included: Mask,
    change_filter: ChangeFilter,
    as_text: bool,
) -> Iterator[TableChanges]:
    start_lsn = change_filter.start_of(oid)
    if start_lsn is None:
        return
    own = included & (rows.relation_id == oid) & (rows.commit_lsn >= start_lsn)
    # A TRUNCATE has no relation id of its own, but must separate the changes before it from those after it.
    cuts = {use.first_row - start for use in content.header.relations if use.relation_id == oid}
    cuts |= {int(row) for row in np.flatnonzero(rows.kind == TRUNCATE)}
    edges = sorted({0, len(rows), *(cut for cut in cuts if 0 < cut < len(rows))})
    for low, high in pairwise(edges):
        indexes = np.flatnonzero(own[low:high]) + low
        if len(indexes):
            relation = content.relation_at(start + int(indexes[0]), oid)
            yield _decode_table(relation, rows, indexes, as_text)


def _decode_table(relation: Relation, rows: LogRows, indexes: I64, as_text: bool) -> TableChanges:
    payload = rows.payload if len(indexes) == len(rows) else rows.payload.take(pa.array(indexes))
    at = _positions(rows, indexes)
    try:
        decoded = decode(relation, payload, as_text=as_text)
    except DecodeError as error:
        raise DecodeError(f"{at.position(0)} to {at.position(len(at) - 1)}: {error}", error.hint) from error
    return TableChanges(
        relation,
        at,
        rows.kind[indexes],
        decoded.old,
        decoded.old_is_key,
        decoded.new,
        target=(relation.schema, relation.name),
    )


def _decode_truncates(
    content: SegmentContent, rows: LogRows, start: int, included: Mask, change_filter: ChangeFilter, as_text: bool
) -> Iterator[TableChanges]:
    for row in np.flatnonzero(included & (rows.kind == TRUNCATE)):
        truncate = message.parse(rows.payload[int(row)].as_py())
        assert isinstance(truncate, message.Truncate)
        for index, oid in enumerate(truncate.relation_oids):
            start_lsn = change_filter.start_of(oid)
            if start_lsn is None or rows.commit_lsn[row] < start_lsn:
                continue
            relation = content.relation_at(start + int(row), oid)
            at = _positions(rows, np.array([row]))
            none = no_images(relation, 1, as_text)
            yield TableChanges(
                relation,
                replace(at, ordinal=at.ordinal + index),
                np.array([TRUNCATE], np.uint8),
                none,
                np.zeros(1, np.bool_),
                none,
                truncate.options,
                (relation.schema, relation.name),
            )


def _decode_messages(rows: LogRows, indexes: I64) -> LogicalMessages:
    parsed = [message.parse(rows.payload[int(row)].as_py()) for row in indexes]
    assert all(isinstance(m, message.LogicalMessage) for m in parsed)
    found = [m for m in parsed if isinstance(m, message.LogicalMessage)]
    return LogicalMessages(
        _positions(rows, indexes),
        tuple([m.prefix for m in found]),
        tuple([m.content for m in found]),
        np.array([m.transactional for m in found], np.bool_),
    )


def _positions(rows: LogRows, indexes: I64) -> ChangePositions:
    return ChangePositions(
        rows.commit_lsn[indexes],
        rows.ordinal[indexes],
        rows.lsn[indexes],
        rows.xid[indexes],
        rows.commit_ts[indexes],
        np.zeros(len(indexes), np.bool_),
    )


def no_images(relation: Relation, count: int, as_text: bool = False) -> Images:
    """Images of changes that have none."""
    schema = types.schema(relation, as_text)
    batch = record_batch([pa.nulls(count, f.type) for f in schema], schema, count)
    return Images(batch, np.zeros(count, np.bool_), {}, None)


def _mark_last(found: Chunk) -> Chunk:
    """Mark the change with the highest ordinal of each transaction in the chunk."""
    if not found:
        return found
    lsns = np.concatenate([part.at.commit_lsn for part in found])
    ordinals = np.concatenate([part.at.ordinal for part in found])
    order = np.lexsort((ordinals, lsns))
    ends = np.append(lsns[order][1:] != lsns[order][:-1], True)
    is_last = np.zeros(len(lsns), np.bool_)
    is_last[order[ends]] = True
    edges = np.cumsum([len(part.at) for part in found])[:-1]
    return [
        replace(part, at=replace(part.at, is_last=mask))
        for part, mask in zip(found, np.split(is_last, edges), strict=True)
    ]


def _unmark(found: Chunk, commit_lsn: int) -> Chunk:
    """Remove the mark of a transaction that continues in a later chunk."""
    return [
        replace(part, at=replace(part.at, is_last=part.at.is_last & (part.at.commit_lsn != commit_lsn)))
        for part in found
    ]
