"""What a run of changes comes to at the destination: which rows go, which change, which come. Pure.

Statements over many rows have no order among them, so the net effect is what is applied: rows that go first, then
those that stay, then those that come. Of a row whose key changed the old one goes and the new one comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Relation
from tailrace.log.decoding import TableChanges
from tailrace.log.fold import Folded, by_unsent, copied, fold, fold_copies, has_key, images, key_columns, whole
from tailrace.sinks.database.rows import Field, Positions, Rows, Table, key_fields, value_fields

T = TypeVar("T")
"""Tables in memory, or rows that were brought."""
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Some(Generic[T]):
    """Rows of which the same columns were sent."""

    unsent: tuple[int, ...]
    """TOASTed values that nobody touched: the row that is there has them."""
    rows: T


@dataclass(frozen=True)
class Effect(Generic[T]):
    """On one table, under one relation."""

    relation: Relation
    target: tuple[str, str]
    span: str
    """From which position to which."""
    is_truncate: bool = False
    is_load: bool = False
    nulls: tuple[str, ...] = ()
    """Columns that the relation says are NOT NULL and that hold NULL all the same: the catalogue was ahead of these
    changes when the relation was read from it."""
    gone: T | None = None
    """Keys."""
    moved: tuple[Some[T], ...] = ()
    """Rows that lack what the row that was there has, by its old key: old keys, and rows."""
    kept: tuple[Some[T], ...] = ()
    """Rows."""
    born: T | None = None
    """Rows."""
    fewer: T | None = None
    """Of a table without a key: rows, and how many copies of each go."""
    versions: tuple[Some[T], ...] = ()
    """Of a history: old keys where something was not sent, rows, and from when to when each was valid."""
    closed: T | None = None
    """Of a history: keys, or rows of a table without one, and when the versions of them ended."""
    moment: tuple[str, str] | None = None
    """Time and position, of a TRUNCATE or a load."""

    def stored(self, store: Callable[[Table], Rows]) -> Effect[Rows]:
        """The same with its rows brought somewhere."""

        def one(rows: Any) -> Rows | None:
            return None if rows is None else store(rows)

        def each(some: Any) -> tuple[Some[Rows], ...]:
            return tuple([Some(s.unsent, store(s.rows)) for s in some])

        return Effect(
            self.relation,
            self.target,
            self.span,
            self.is_truncate,
            self.is_load,
            self.nulls,
            one(self.gone),
            each(self.moved),
            each(self.kept),
            one(self.born),
            one(self.fewer),
            each(self.versions),
            one(self.closed),
            self.moment,
        )

    def rows(self) -> list[T]:
        each = [some.rows for some in (*self.moved, *self.kept, *self.versions)]
        found = (self.gone, self.born, self.fewer, self.closed)
        return each + [one for one in found if one is not None]


def loaded(changes: TableChanges) -> Effect[Table]:
    """Rows of a snapshot."""
    born = _table(changes.relation, changes.new.batch, Positions.of(changes.at))
    return Effect(
        changes.relation, changes.target, changes.span, is_load=True, nulls=nulls(changes.relation, [born]), born=born
    )


def mirrored(changes: TableChanges) -> Effect[Table]:
    return _keyed(changes) if has_key(changes.relation) else _keyless(changes)


def _keyed(changes: TableChanges) -> Effect[Table]:
    relation, folded = changes.relation, fold(changes)
    key = key_columns(relation)
    lacking = np.zeros(len(folded), np.bool_)
    for entries, source in folded.fills.values():
        lacking[entries[source < 0]] = True
    # A row that got another key is one that goes and one that comes, unless the one has what the other lacks.
    moved, replaced = folded.is_moved & lacking, folded.is_moved & ~lacking
    born, gone = folded.is_born | replaced, folded.is_gone | replaced
    kept = ~(born | gone | moved)
    tables: dict[str, Any] = {}
    if gone.any():
        tables["gone"] = _keys(changes, folded.origin[gone], key)
    if moved.any():
        tables["moved"] = tuple(_moved(changes, folded, np.flatnonzero(moved), key))
    if kept.any():
        tables["kept"] = tuple(_kept(changes, folded, np.flatnonzero(kept)))
    if born.any():
        is_all = folded.is_born.all() and len(folded) == len(changes)
        new = changes.new if is_all else images(changes, folded, born)
        whole(changes, new, folded.final[born])
        tables["born"] = _table(relation, new.batch, Positions.of(changes.at, folded.final[born]))
    effect = Effect[Table](relation, changes.target, changes.span, **tables)
    found = [t for t in effect.rows() if t is not effect.gone]
    return Effect(relation, changes.target, effect.span, nulls=nulls(relation, found), **tables)


def _keyless(changes: TableChanges) -> Effect[Table]:
    relation, copies = changes.relation, fold_copies(changes)
    more, fewer = copies.delta > 0, copies.delta < 0
    tables: dict[str, Any] = {}
    if fewer.any():
        rows = _table(relation, copied(changes, copies, fewer).batch, Positions.of(changes.at, copies.change[fewer]))
        count = pa.array(-copies.delta[fewer]).cast(pa.string())
        tables["fewer"] = Table((*rows.fields, Field("n", "bigint")), (*rows.arrays, count), rows.positions)
    if more.any():
        entries = np.repeat(np.flatnonzero(more), copies.delta[more])
        if len(entries) == len(changes) and not changes.new.unchanged:
            batch = changes.new.batch
        else:
            batch = copied(changes, copies, entries).batch
        tables["born"] = _table(relation, batch, Positions.of(changes.at, copies.change[entries]))
    found = [tables["born"]] if "born" in tables else []
    return Effect(relation, changes.target, changes.span, nulls=nulls(relation, found), **tables)


def _moved(changes: TableChanges, folded: Folded, entries: I64, key: Sequence[int]) -> Iterator[Some[Table]]:
    for unsent, which, new in by_unsent(images(changes, folded, entries)):
        some = entries[which]
        keys = _keys(changes, folded.origin[some], key)
        sent = _without(len(changes.relation.columns), unsent)
        fields = (*keys.fields, *value_fields(changes.relation, sent))
        arrays = (*keys.arrays, *(new.batch.column(i) for i in sent))
        yield Some(unsent, Table(fields, arrays, Positions.of(changes.at, folded.final[some])))


def _kept(changes: TableChanges, folded: Folded, entries: I64) -> Iterator[Some[Table]]:
    for unsent, which, new in by_unsent(images(changes, folded, entries)):
        some = entries[which]
        sent = _without(len(changes.relation.columns), unsent)
        fields = tuple(value_fields(changes.relation, sent))
        arrays = tuple([new.batch.column(i) for i in sent])
        yield Some(unsent, Table(fields, arrays, Positions.of(changes.at, folded.final[some])))


def _keys(changes: TableChanges, origin: I64, key: Sequence[int]) -> Table:
    """The keys of the rows that these changes found."""
    old, new = changes.old, changes.new
    told = old.present[origin]
    places = pa.array(origin)
    arrays = []
    for column in key:
        found = old.batch.column(column).take(places)
        if not told.all():
            found = pc.if_else(pa.array(told), found, new.batch.column(column).take(places))
        arrays.append(found)
    return Table(tuple(key_fields(changes.relation, key)), tuple(arrays), Positions.of(changes.at, origin))


def _table(relation: Relation, batch: pa.RecordBatch, positions: Positions) -> Table:
    return Table(tuple(value_fields(relation)), tuple(batch.columns), positions)


def _without(count: int, columns: Sequence[int]) -> list[int]:
    return [i for i in range(count) if i not in columns]


def nulls(relation: Relation, tables: Sequence[Table]) -> tuple[str, ...]:
    """Columns that hold NULL though the relation says they do not."""
    strict = {f"c{i}": c.name for i, c in enumerate(relation.columns) if not c.nullable}
    found = [
        strict[f.name]
        for table in tables
        for f, array in zip(table.fields, table.arrays, strict=True)
        if f.name in strict and array.null_count
    ]
    return tuple(dict.fromkeys(found))
