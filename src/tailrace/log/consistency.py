"""Checks of a segment's rows: against its header, against each other, and against the rows before them.

Vectorised over the columns; reads payloads only where a rule needs them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tailrace.change import Lsn, Position
from tailrace.errors import DecodeError
from tailrace.log.segment import Header, SegmentContent, payload_buffers, with_row_facts
from tailrace.log_rows import LogRows
from tailrace.pgoutput import message

_KNOWN: Final = b"ICUDTMO"
# A TRUNCATE of no table, with its flags: the shortest message that the log can hold.
_SHORTEST: Final = 6
_COMMIT, _ORIGIN, _TRUNCATE, _MESSAGE = (ord(c) for c in "COTM")
_DERIVED: Final = (
    "rows",
    "first",
    "last",
    "first_committed_at_us",
    "last_committed_at_us",
    "payload_bytes",
    "content",
)

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RowSummary:
    """What is needed of a row to check the next one."""

    position: Position
    xid: int
    commit_ts: int
    weight: int
    """How many ordinals the row uses: a TRUNCATE one for each table, COMMIT and ORIGIN none, others one."""
    may_end: bool
    """A transaction may end with this row."""
    must_end: bool
    """A transaction always ends with this row."""


def faults_within(content: SegmentContent, structure: RowStructure) -> Iterator[str]:
    header, rows = content.header, content.rows
    actual = with_row_facts(header, rows)
    for name in _DERIVED:
        if getattr(actual, name) != getattr(header, name):
            yield f"its header says {name} is {getattr(header, name)}, its rows say {getattr(actual, name)}"
    if not 0 <= header.committed_rows <= header.rows:
        yield f"its header says that {header.committed_rows} of {header.rows} rows are committed"
    yield from _payload_faults(rows, structure)
    yield from _order_faults(rows, structure)
    yield from _commit_faults(header, rows, structure)
    yield from _relation_faults(content, structure)


def faults_between(before: RowSummary, content: SegmentContent, structure: RowStructure, end_lsn: Lsn) -> Iterator[str]:
    """Faults between a segment and the log before it.

    `before` is the last row before the segment that is not void, and `end_lsn` is the end LSN of the segment before.
    """
    if not content.header.rows:
        return
    if fault := _step_fault(before, structure.row(0)):
        yield f"row 0 at {structure.row(0).position}, after {before.position}: {fault}"
    if content.rows.commit_lsn[0] < end_lsn:
        yield f"has a transaction at {Lsn(content.rows.commit_lsn[0])}, but the log was complete up to {end_lsn}"


def count_left_out(before: RowSummary | None, structure: RowStructure) -> int:
    """How many ordinals a segment's rows skip. `before` is the row that the first row follows."""
    rows = structure.rows
    if not len(rows):
        return 0
    expected = np.zeros(len(rows), dtype=np.int64)
    if before is not None and before.position.commit_lsn == rows.commit_lsn[0]:
        expected[0] = before.position.ordinal + before.weight
    same = rows.commit_lsn[1:] == rows.commit_lsn[:-1]
    expected[1:][same] = (rows.ordinal + structure.weight)[:-1][same]
    return int(np.maximum(rows.ordinal - expected, 0).sum())


class RowStructure:
    """Weights and transaction ends of rows, from payloads. Raises DecodeError if a payload contradicts its kind."""

    def __init__(self, rows: LogRows) -> None:
        self.rows = rows
        offsets, data = payload_buffers(rows.payload)
        self.offsets = offsets.astype(np.int64)
        self.data = np.frombuffer(data, dtype=np.uint8)
        sizes = np.diff(self.offsets)
        if len(sizes) and sizes.min() < _SHORTEST:
            raise DecodeError(f"row {int(sizes.argmin())} has a payload of {sizes.min()} bytes")
        mismatched = np.flatnonzero(self.data[self.offsets[:-1]] != rows.kind)
        if len(mismatched):
            raise DecodeError(f"the payload of row {int(mismatched[0])} does not have the row's kind")
        self.weight = np.ones(len(rows), dtype=np.int64)
        self.weight[(rows.kind == _COMMIT) | (rows.kind == _ORIGIN)] = 0
        self.truncates = {int(i): self._truncated_relations(int(i)) for i in np.flatnonzero(rows.kind == _TRUNCATE)}
        for row, relation_ids in self.truncates.items():
            self.weight[row] = len(relation_ids)
        messages = np.flatnonzero(rows.kind == _MESSAGE)
        self.alone = np.zeros(len(rows), dtype=np.bool_)
        self.alone[messages] = self.data[self.offsets[messages] + 1] & 1 == 0
        self.must_end: Flags = (rows.kind == _COMMIT) | self.alone
        # PostgreSQL 14 also sends transactions without published changes. If one has an origin, only that row remains.
        self.may_end: Flags = self.must_end | (rows.kind == _ORIGIN)

    def _truncated_relations(self, row: int) -> tuple[int, ...]:
        parsed = message.parse(self.rows.payload[row].as_py())
        assert isinstance(parsed, message.Truncate)
        return parsed.relation_oids

    def numbers(self, rows: Ints, at: int, dtype: str) -> Ints:
        """Big-endian numbers at an offset in these rows' payloads."""
        size = np.dtype(dtype).itemsize
        if len(rows) and int((self.offsets[rows + 1] - self.offsets[rows]).min()) < at + size:
            raise DecodeError("a message is too short")
        indexes = (self.offsets[rows] + at)[:, None] + np.arange(size)
        numbers: Ints = self.data[indexes].view(dtype).ravel().astype(np.int64)
        return numbers

    def row(self, index: int) -> RowSummary:
        rows = self.rows
        return RowSummary(
            Position(Lsn(rows.commit_lsn[index]), int(rows.ordinal[index])),
            int(rows.xid[index]),
            int(rows.commit_ts[index]),
            int(self.weight[index]),
            bool(self.may_end[index]),
            bool(self.must_end[index]),
        )


def _payload_faults(rows: LogRows, structure: RowStructure) -> Iterator[str]:
    unknown = ~np.isin(rows.kind, np.frombuffer(_KNOWN, dtype=np.uint8))
    yield from _at(rows, unknown, "has a kind that the format does not define")
    changes = np.flatnonzero(np.isin(rows.kind, np.frombuffer(b"IUD", dtype=np.uint8)))
    relation_ids = np.zeros(len(rows), dtype=np.int64)
    relation_ids[changes] = structure.numbers(changes, 1, ">u4")
    yield from _at(rows, relation_ids != rows.relation_id, "has another relation than its payload")
    yield from _at(rows, structure.alone & ((rows.xid != 0) | (rows.ordinal != 0)), "is not a transaction of its own")
    commits, alone = np.flatnonzero(rows.kind == _COMMIT), np.flatnonzero(structure.alone)
    other = np.zeros(len(rows), dtype=np.bool_)
    other[commits] = structure.numbers(commits, 2, ">i8") != rows.commit_lsn[commits]
    other[alone] = structure.numbers(alone, 2, ">i8") != rows.commit_lsn[alone] + 1
    yield from _at(rows, other, "has another commit LSN than its payload")


def _order_faults(rows: LogRows, structure: RowStructure) -> Iterator[str]:
    """Skipped ordinals are not faults: changes of Tailrace's own tables have ordinals but are not in the log."""
    if not len(rows):
        return
    same = rows.commit_lsn[1:] == rows.commit_lsn[:-1]
    follows = (
        (rows.ordinal[1:] >= rows.ordinal[:-1] + structure.weight[:-1])
        & (rows.xid[1:] == rows.xid[:-1])
        & (rows.commit_ts[1:] == rows.commit_ts[:-1])
        & ~structure.must_end[:-1]
    )
    begins = (rows.commit_lsn[1:] > rows.commit_lsn[:-1]) & structure.may_end[:-1]
    wrong = np.flatnonzero(~np.where(same, follows, begins))
    for index in wrong[:1]:
        before, after = structure.row(int(index)), structure.row(int(index) + 1)
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        yield f"row {index + 1} at {after.position}, after {before.position}: {_step_fault(before, after)}{more}"


def _step_fault(before: RowSummary, after: RowSummary) -> str | None:
    if before.position.commit_lsn == after.position.commit_lsn:
        if before.must_end:
            return "a row after the end of its transaction"
        if after.position.ordinal < before.position.ordinal + before.weight:
            return f"expected ordinal {before.position.ordinal + before.weight} or a later one"
        if (before.xid, before.commit_ts) != (after.xid, after.commit_ts):
            return "one transaction with two transaction ids or commit times"
        return None
    if before.position.commit_lsn > after.position.commit_lsn:
        return "commits are not in order"
    if not before.may_end:
        return "a transaction without its commit"
    return None


def _commit_faults(header: Header, rows: LogRows, structure: RowStructure) -> Iterator[str]:
    committed = header.committed_rows
    if not 0 <= committed <= len(rows):
        return
    if committed and not structure.may_end[committed - 1]:
        yield f"its committed rows end with row {committed - 1}, which does not end a transaction"
    if structure.must_end[committed:].any():
        yield f"a transaction ends after its {committed} committed rows"
    commits = np.flatnonzero((rows.kind == _COMMIT)[:committed])
    reached = max(structure.numbers(commits, 10, ">i8").max(initial=0), rows.commit_lsn[:committed].max(initial=-1) + 1)
    if reached > header.end_lsn:
        yield f"end_lsn {header.end_lsn} is below {Lsn(reached)}, the end of a commit in the segment"
    if committed < len(rows) and rows.commit_lsn[committed:].min() < header.end_lsn:
        yield f"end_lsn {header.end_lsn} is above the commit of the transaction left open"


def _relation_faults(content: SegmentContent, structure: RowStructure) -> Iterator[str]:
    rows, first_rows = content.rows, dict[int, int]()
    for use in content.header.relations:
        relation = content.relations.get(use.digest)
        if relation is None:
            yield f"relation {use.relation_id}: its definition {use.digest[:12]}… is not in the object"
        elif relation.digest != use.digest:
            yield f"relation {use.relation_id}: its definition does not match its digest"
        elif relation.oid != use.relation_id:
            yield f"relation {use.relation_id}: its definition is of relation {relation.oid}"
        if not 0 <= use.first_row <= max(len(rows) - 1, 0):
            yield f"relation {use.relation_id}: defined from row {use.first_row} on, but there are {len(rows)} rows"
        first_rows[use.relation_id] = min(use.first_row, first_rows.get(use.relation_id, use.first_row))
    ids, at = np.unique(rows.relation_id, return_index=True)
    needed = {int(i): int(row) for i, row in zip(ids, at, strict=True) if i}
    for row, relation_ids in structure.truncates.items():
        for relation_id in relation_ids:
            needed[relation_id] = min(row, needed.get(relation_id, row))
    for relation_id, row in sorted(needed.items()):
        if relation_id not in first_rows or first_rows[relation_id] > row:
            yield f"row {row} uses relation {relation_id}, which is not defined there"


def _at(rows: LogRows, wrong: npt.NDArray[Any], problem: str) -> Iterator[str]:
    found = np.flatnonzero(wrong)
    if len(found):
        row = int(found[0])
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        yield f"row {row} at {Position(Lsn(rows.commit_lsn[row]), int(rows.ordinal[row]))} {problem}{more}"
