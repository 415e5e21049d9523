"""Slices of the log → changes in columns: what every consumer of more than single changes works with.

A chunk is what one slice holds: `TableChanges` for each run of changes of one table under one relation, and `Messages`.
Within a table, and within messages, the order is the log's; across them `at.commit_lsn` and `at.ordinal` tell.
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
from tailrace.log.plan import Slice
from tailrace.log.reader import LogReader
from tailrace.log.segment import Content
from tailrace.pgoutput import message
from tailrace.pgoutput.columns import Images, decode, record_batch
from tailrace.pgoutput.framing import Rows

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
"""Letters as in pgoutput, and S for a row that a snapshot holds: it is there, whoever put it there."""

_KIND_M, _KIND_C, _KIND_O = (ord(letter) for letter in "MCO")


@dataclass(frozen=True)
class At:
    """Where each change stands, row for row."""

    commit_lsn: I64
    ordinal: I64
    lsn: I64
    xid: I64
    committed_at_us: I64
    is_last: Mask
    """The last of its transaction among those that are delivered."""

    def __len__(self) -> int:
        return len(self.commit_lsn)

    def position(self, row: int) -> Position:
        return Position(Lsn(self.commit_lsn[row]), int(self.ordinal[row]))

    @classmethod
    def joined(cls, parts: Sequence[At]) -> At:
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__))

    def take(self, rows: I64 | Mask) -> At:
        return At(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class TableChanges:
    """Consecutive changes of one table, all under one relation. A TRUNCATE stands alone in its run, without images."""

    relation: Relation
    at: At
    operation: npt.NDArray[np.uint8]
    """INSERT, UPDATE, DELETE, TRUNCATE or SNAPSHOT."""
    old: Images
    old_is_key: Mask
    new: Images
    truncate_options: tuple[str, ...] = ()
    target: tuple[str, str] = ("", "")
    """Schema and table that it goes to, as the sink's settings route it."""

    def __len__(self) -> int:
        return len(self.operation)

    def take(self, rows: I64 | Mask) -> TableChanges:
        """Those changes, by number or by mask."""
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
        """From which position to which."""
        first, last = self.at.position(0), self.at.position(len(self) - 1)
        return str(first) if first == last else f"{first} to {last}"

    @property
    def is_truncate(self) -> bool:
        return len(self) == 1 and int(self.operation[0]) == TRUNCATE


@dataclass(frozen=True)
class Messages:
    """Logical messages."""

    at: At
    prefix: tuple[str, ...]
    content: tuple[bytes, ...]
    transactional: Mask

    def __len__(self) -> int:
        return len(self.prefix)

    @classmethod
    def joined(cls, parts: Sequence[Messages]) -> Messages:
        return cls(
            At.joined([part.at for part in parts]),
            tuple([prefix for part in parts for prefix in part.prefix]),
            tuple([content for part in parts for content in part.content]),
            np.concatenate([part.transactional for part in parts]),
        )

    def take(self, rows: I64 | Mask) -> Messages:
        places = np.arange(len(self))[rows]
        return Messages(
            self.at.take(rows),
            tuple([self.prefix[i] for i in places]),
            tuple([self.content[i] for i in places]),
            self.transactional[rows],
        )


Chunk = Sequence[TableChanges | Messages]

_KEPT_BYTES: Final = 1024 * 1024
"""A segment's changes, to be kept decoded as long as the segment is kept."""


@dataclass(frozen=True)
class Admission:
    """Which tables' changes count, and from where on."""

    start: Lsn = Lsn(0)  # noqa: RUF009 (an immutable value)
    """Nothing that commits below it."""
    tables: Mapping[int, Lsn] = field(default_factory=dict)
    """By oid: nothing of that table that commits below it."""
    others: bool = True
    """Whether tables that `tables` does not name count too."""
    messages: bool = True
    """Whether messages count."""
    end: Lsn | None = None
    """Nothing that commits at or above it."""

    def floor(self, oid: int) -> Lsn | None:
        if oid in self.tables:
            return max(self.start, self.tables[oid])
        return self.start if self.others else None

    def has_all_of(self, content: Content) -> bool:
        """Whether every change of a segment counts."""
        if not (self.others and self.messages):
            return False
        lsns = content.rows.commit_lsn
        lowest = int(lsns.min(initial=1 << 62))
        is_before = self.end is None or int(lsns.max(initial=0)) < self.end
        return is_before and max(self.start, *self.tables.values(), 0) <= lowest


def chunks(
    reader: LogReader, slices: Iterable[Slice], admission: Admission, *, as_text: bool = False
) -> Iterator[tuple[Slice, Chunk]]:
    """Each slice's changes, as they stand in the log. `is_last` holds within the slice: see `with_last`."""
    for s in slices:
        content = reader.awaited_content(s.segment)
        if content is None:
            raise CorruptError(f"segment {s.segment} of {reader.store.url} went away while it was read")
        yield s, chunk(content, s.start, s.stop, admission, as_text=as_text)


def chunk(content: Content, start: int, stop: int, admission: Admission, *, as_text: bool = False) -> Chunk:
    is_whole = start == 0 and stop == len(content.rows) and content.rows.payload.nbytes <= _KEPT_BYTES
    if not is_whole or not admission.has_all_of(content):
        return _chunk(content, start, stop, admission, as_text)
    # Small ones cost the same time each, and every sink wants them.
    with content.decoded.lock:
        if as_text not in content.decoded.whole:
            content.decoded.whole[as_text] = _frozen(_chunk(content, start, stop, Admission(), as_text))
        found: Chunk = content.decoded.whole[as_text]
        return found


def _frozen(found: Chunk) -> Chunk:
    for part in found:
        for name in At.__dataclass_fields__:
            getattr(part.at, name).flags.writeable = False
        if isinstance(part, TableChanges):
            part.operation.flags.writeable = part.old_is_key.flags.writeable = False
    return tuple(found)


def _chunk(content: Content, start: int, stop: int, admission: Admission, as_text: bool) -> Chunk:
    rows = content.rows.slice(start, stop)
    kept = (rows.commit_lsn >= admission.start) & (rows.kind != _KIND_C) & (rows.kind != _KIND_O)
    if admission.end is not None:
        kept &= rows.commit_lsn < admission.end
    found: list[TableChanges | Messages] = []
    for oid in np.unique(rows.relation_id[kept]):
        if oid:
            found += _table(content, rows, start, int(oid), kept, admission, as_text)
    found += _truncates(content, rows, start, kept, admission, as_text)
    found.sort(key=lambda part: (int(part.at.commit_lsn[0]), int(part.at.ordinal[0])))
    messages = np.flatnonzero(kept & (rows.kind == _KIND_M))
    if len(messages) and admission.messages:
        found.append(_messages(rows, messages))
    return found


def with_last(found: Iterable[tuple[Slice, Chunk]]) -> Iterator[Chunk]:
    """The chunks, with `is_last` right also for transactions that go on from slice to slice."""
    held: list[Chunk] = []
    for s, chunk_ in found:
        chunk_ = _mark_last(chunk_)
        first = min((int(part.at.commit_lsn[0]) for part in chunk_), default=None)
        if held and first is not None:
            held[-1] = _unmark(held[-1], first)
        if chunk_ or not held:
            yield from held
            held = []
        if chunk_:
            held.append(chunk_)
        if not s.goes_on:
            yield from held
            held = []
    yield from held


def _table(
    content: Content, rows: Rows, start: int, oid: int, kept: Mask, admission: Admission, as_text: bool
) -> Iterator[TableChanges]:
    floor = admission.floor(oid)
    if floor is None:
        return
    own = kept & (rows.relation_id == oid) & (rows.commit_lsn >= floor)
    # A TRUNCATE has no relation id of its own, but what is before it and what is after it must not be one run.
    cuts = {use.first_row - start for use in content.header.relations if use.relation_id == oid}
    cuts |= {int(row) for row in np.flatnonzero(rows.kind == TRUNCATE)}
    edges = sorted({0, len(rows), *(cut for cut in cuts if 0 < cut < len(rows))})
    for low, high in pairwise(edges):
        places = np.flatnonzero(own[low:high]) + low
        if len(places):
            relation = content.relation_at(start + int(places[0]), oid)
            yield _decoded(relation, rows, places, as_text)


def _decoded(relation: Relation, rows: Rows, places: I64, as_text: bool) -> TableChanges:
    payload = rows.payload if len(places) == len(rows) else rows.payload.take(pa.array(places))
    at = _at(rows, places)
    try:
        decoded = decode(relation, payload, as_text=as_text)
    except DecodeError as error:
        raise DecodeError(f"{at.position(0)} to {at.position(len(at) - 1)}: {error}", error.hint) from error
    return TableChanges(
        relation,
        at,
        rows.kind[places],
        decoded.old,
        decoded.old_is_key,
        decoded.new,
        target=(relation.schema, relation.name),
    )


def _truncates(
    content: Content, rows: Rows, start: int, kept: Mask, admission: Admission, as_text: bool
) -> Iterator[TableChanges]:
    for row in np.flatnonzero(kept & (rows.kind == TRUNCATE)):
        said = message.parse(rows.payload[int(row)].as_py())
        assert isinstance(said, message.Truncate)
        for index, oid in enumerate(said.relation_oids):
            floor = admission.floor(oid)
            if floor is None or rows.commit_lsn[row] < floor:
                continue
            relation = content.relation_at(start + int(row), oid)
            at = _at(rows, np.array([row]))
            none = no_images(relation, 1, as_text)
            yield TableChanges(
                relation,
                replace(at, ordinal=at.ordinal + index),
                np.array([TRUNCATE], np.uint8),
                none,
                np.zeros(1, np.bool_),
                none,
                said.options,
                (relation.schema, relation.name),
            )


def _messages(rows: Rows, places: I64) -> Messages:
    said = [message.parse(rows.payload[int(row)].as_py()) for row in places]
    assert all(isinstance(m, message.LogicalMessage) for m in said)
    found = [m for m in said if isinstance(m, message.LogicalMessage)]
    return Messages(
        _at(rows, places),
        tuple([m.prefix for m in found]),
        tuple([m.content for m in found]),
        np.array([m.transactional for m in found], np.bool_),
    )


def _at(rows: Rows, places: I64) -> At:
    return At(
        rows.commit_lsn[places],
        rows.ordinal[places],
        rows.lsn[places],
        rows.xid[places],
        rows.commit_ts[places],
        np.zeros(len(places), np.bool_),
    )


def no_images(relation: Relation, count: int, as_text: bool = False) -> Images:
    schema = types.schema(relation, as_text)
    batch = record_batch([pa.nulls(count, f.type) for f in schema], schema, count)
    return Images(batch, np.zeros(count, np.bool_), {}, None)


def _mark_last(found: Chunk) -> Chunk:
    """Of every transaction in the chunk, the change with the highest ordinal."""
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
    """The transaction has later changes in a later chunk."""
    return [
        replace(part, at=replace(part.at, is_last=part.at.is_last & (part.at.commit_lsn != commit_lsn)))
        for part in found
    ]
