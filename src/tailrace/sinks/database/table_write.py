"""The net change that a run of changes makes to a destination table: deleted, updated and inserted rows. Pure.

A statement over many rows applies them in no particular order. So a run is reduced to its net change, which is applied
as deletes, then updates, then inserts. A row whose key changed is deleted and inserted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Position, Relation
from tailrace.log.decoding import TableChanges
from tailrace.sinks.database.staged_rows import (
    Positions,
    RowBatch,
    StagedRows,
    StagingField,
    key_fields,
    value_fields,
)
from tailrace.state.fold import (
    NetChanges,
    copied_rows,
    final_images,
    fold,
    fold_copies,
    group_by_unsent,
    has_key,
    key_columns,
    require_whole,
)

T = TypeVar("T")
"""Rows in memory, or staged rows."""
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowGroup(Generic[T]):
    """Rows for which PostgreSQL sent the same columns."""

    unsent: tuple[int, ...]
    """TOASTed columns that were not modified: only the row at the destination has their values."""
    rows: T


@dataclass(frozen=True)
class TableWrite(Generic[T]):
    """The net change of one table, under one relation."""

    relation: Relation
    target: tuple[str, str]
    first: Position
    last: Position
    """The positions of the first and last change."""
    is_truncate: bool = False
    is_load: bool = False
    nulls: tuple[str, ...] = ()
    """Columns that contain NULL although the relation declares them NOT NULL: the catalogue was already ahead of these
    changes when the relation was read from it."""
    deleted: T | None = None
    """Keys."""
    rekeyed: tuple[RowGroup[T], ...] = ()
    """Rows with another key and with unsent values, which the row with the old key has: old keys, and rows."""
    updated: tuple[RowGroup[T], ...] = ()
    """Rows."""
    inserted: T | None = None
    """Rows."""
    removed_copies: T | None = None
    """For a table without a key: rows, and how many copies of each to delete."""
    versions: tuple[RowGroup[T], ...] = ()
    """For a history: rows and the period in which each was valid; also the old keys of rows with unsent values."""
    ended: T | None = None
    """For a history: keys, or rows of a table without a key, and when their current versions ended."""
    time_and_position: tuple[str, str] | None = None
    """Of a TRUNCATE or a load."""

    @classmethod
    def of(cls, changes: TableChanges, **rows: Any) -> TableWrite[T]:
        """The net change of these changes, which has these rows."""
        first, last = changes.at.position(0), changes.at.position(len(changes) - 1)
        return cls(changes.relation, changes.target, first, last, **rows)

    @property
    def name(self) -> str:
        """The target, for messages."""
        return ".".join(self.target)

    @property
    def span(self) -> str:
        """The first and last position, for messages."""
        return str(self.first) if self.first == self.last else f"{self.first} to {self.last}"

    def with_staged_rows(self, stage: Callable[[RowBatch], StagedRows]) -> TableWrite[StagedRows]:
        """The same net change, with its rows staged."""

        def one(rows: Any) -> StagedRows | None:
            return None if rows is None else stage(rows)

        def each(groups: Any) -> tuple[RowGroup[StagedRows], ...]:
            return tuple([RowGroup(group.unsent, stage(group.rows)) for group in groups])

        return TableWrite(
            self.relation,
            self.target,
            self.first,
            self.last,
            self.is_truncate,
            self.is_load,
            self.nulls,
            one(self.deleted),
            each(self.rekeyed),
            each(self.updated),
            one(self.inserted),
            one(self.removed_copies),
            each(self.versions),
            one(self.ended),
            self.time_and_position,
        )

    def rows(self) -> list[T]:
        """All of its rows."""
        grouped = [group.rows for group in (*self.rekeyed, *self.updated, *self.versions)]
        others = (self.deleted, self.inserted, self.removed_copies, self.ended)
        return grouped + [rows for rows in others if rows is not None]


def of_snapshot(changes: TableChanges) -> TableWrite[RowBatch]:
    """The rows of a snapshot."""
    inserted = _batch(changes.relation, changes.new.batch, Positions.of(changes.at))
    nulls = columns_with_null(changes.relation, [inserted])
    return TableWrite.of(changes, is_load=True, nulls=nulls, inserted=inserted)


def of_changes(changes: TableChanges) -> TableWrite[RowBatch]:
    """The net change of a mirrored table."""
    return _keyed_write(changes) if has_key(changes.relation) else _keyless_write(changes)


def _keyed_write(changes: TableChanges) -> TableWrite[RowBatch]:
    relation, folded = changes.relation, fold(changes)
    key = key_columns(relation)
    lacking = np.zeros(len(folded), np.bool_)
    for entries, source in folded.fills.values():
        lacking[entries[source < 0]] = True
    # A row with another key is deleted and inserted, unless the old row has values that the new one lacks.
    rekeyed, replaced = folded.is_moved & lacking, folded.is_moved & ~lacking
    inserted, deleted = folded.is_inserted | replaced, folded.is_deleted | replaced
    updated = ~(inserted | deleted | rekeyed)
    if relation.is_upsert:
        # Nobody knows which rows exist: whatever has the key is deleted first.
        inserted, deleted, updated = inserted | updated, deleted | updated, np.zeros_like(updated)
    rows: dict[str, Any] = {}
    if deleted.any():
        rows["deleted"] = _keys(changes, folded.origin[deleted], key)
    if rekeyed.any():
        rows["rekeyed"] = tuple(_rekeyed_groups(changes, folded, np.flatnonzero(rekeyed), key))
    if updated.any():
        rows["updated"] = tuple(_updated_groups(changes, folded, np.flatnonzero(updated)))
    if inserted.any():
        is_all = folded.is_inserted.all() and len(folded) == len(changes)
        new = changes.new if is_all else final_images(changes, folded, inserted)
        require_whole(changes, new, folded.final[inserted])
        rows["inserted"] = _batch(relation, new.batch, Positions.of(changes.at, folded.final[inserted]))
    change: TableWrite[RowBatch] = TableWrite.of(changes, **rows)
    written = [batch for batch in change.rows() if batch is not change.deleted]
    return replace(change, nulls=columns_with_null(relation, written))


def _keyless_write(changes: TableChanges) -> TableWrite[RowBatch]:
    relation, copies = changes.relation, fold_copies(changes)
    more, fewer = copies.delta > 0, copies.delta < 0
    rows: dict[str, Any] = {}
    if fewer.any():
        own = _batch(
            relation, copied_rows(changes, copies, fewer).batch, Positions.of(changes.at, copies.change[fewer])
        )
        count = pa.array(-copies.delta[fewer]).cast(pa.string())
        fields = (*own.fields, StagingField("n", "bigint"))
        rows["removed_copies"] = RowBatch(fields, (*own.arrays, count), own.positions)
    if more.any():
        entries = np.repeat(np.flatnonzero(more), copies.delta[more])
        if len(entries) == len(changes) and not changes.new.unchanged:
            batch = changes.new.batch
        else:
            batch = copied_rows(changes, copies, entries).batch
        rows["inserted"] = _batch(relation, batch, Positions.of(changes.at, copies.change[entries]))
    written = [rows["inserted"]] if "inserted" in rows else []
    return TableWrite.of(changes, nulls=columns_with_null(relation, written), **rows)


def _rekeyed_groups(
    changes: TableChanges, folded: NetChanges, entries: I64, key: Sequence[int]
) -> Iterator[RowGroup[RowBatch]]:
    for unsent, which, new in group_by_unsent(final_images(changes, folded, entries)):
        own = entries[which]
        keys = _keys(changes, folded.origin[own], key)
        sent = _other_indexes(len(changes.relation.columns), unsent)
        fields = (*keys.fields, *value_fields(changes.relation, sent))
        arrays = (*keys.arrays, *(new.batch.column(i) for i in sent))
        yield RowGroup(unsent, RowBatch(fields, arrays, Positions.of(changes.at, folded.final[own])))


def _updated_groups(changes: TableChanges, folded: NetChanges, entries: I64) -> Iterator[RowGroup[RowBatch]]:
    for unsent, which, new in group_by_unsent(final_images(changes, folded, entries)):
        own = entries[which]
        sent = _other_indexes(len(changes.relation.columns), unsent)
        fields = tuple(value_fields(changes.relation, sent))
        arrays = tuple([new.batch.column(i) for i in sent])
        yield RowGroup(unsent, RowBatch(fields, arrays, Positions.of(changes.at, folded.final[own])))


def _keys(changes: TableChanges, origin: I64, key: Sequence[int]) -> RowBatch:
    """The keys that the rows had before these changes."""
    old, new = changes.old, changes.new
    has_old = old.present[origin]
    places = pa.array(origin)
    arrays = []
    for column in key:
        values = old.batch.column(column).take(places)
        if not has_old.all():
            values = pc.if_else(pa.array(has_old), values, new.batch.column(column).take(places))
        arrays.append(values)
    return RowBatch(tuple(key_fields(changes.relation, key)), tuple(arrays), Positions.of(changes.at, origin))


def _batch(relation: Relation, batch: pa.RecordBatch, positions: Positions) -> RowBatch:
    return RowBatch(tuple(value_fields(relation)), tuple(batch.columns), positions)


def _other_indexes(count: int, columns: Sequence[int]) -> list[int]:
    return [i for i in range(count) if i not in columns]


def columns_with_null(relation: Relation, batches: Sequence[RowBatch]) -> tuple[str, ...]:
    """Columns that contain NULL although the relation declares them NOT NULL."""
    strict = {f"c{i}": c.name for i, c in enumerate(relation.columns) if not c.nullable}
    found = [
        strict[f.name]
        for batch in batches
        for f, array in zip(batch.fields, batch.arrays, strict=True)
        if f.name in strict and array.null_count
    ]
    return tuple(dict.fromkeys(found))
