"""The net effect of a run of changes on a table of the lake: deleted rows, inserted rows, and rows that need values of
the rows that they replace. Pure.

An update deletes a row and inserts another. Fingerprints of the key identify the deleted rows (of the whole row if the
table has no key). Inserted rows are complete, unless PostgreSQL did not send a large value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import types
from tailrace.change import Relation
from tailrace.images import Images, record_batch
from tailrace.log import typed_columns
from tailrace.log.decoding import TableChanges
from tailrace.sinks.iceberg.fingerprint import Fingerprints, HashKey, fingerprints
from tailrace.sinks.iceberg.iceberg_schema import may_be_special, stored_columns
from tailrace.state.cast import column_texts
from tailrace.state.evolution import specials
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
from tailrace.types import Form

I64 = npt.NDArray[np.int64]

_TEXT_TO_COMPARE: Final = frozenset({Form.FLOAT, Form.INTERVAL})
"""Types whose values Arrow does not compare bit by bit."""


@dataclass(frozen=True)
class StoredRows:
    """Rows as stored in data files."""

    arrays: list[pa.Array]
    special: pa.MapArray | None
    count: int
    change_columns: tuple[pa.Array, ...] = ()
    """The columns of a changelog that describe each change."""

    @classmethod
    def of(cls, rows: Images, relation: Relation) -> StoredRows:
        return cls(*stored_columns(rows, relation), len(rows))

    def null_keys(self, relation: Relation) -> tuple[str, ...]:
        """Key columns that contain NULL: they cannot hold a value, or had NULL before they became the key."""
        return tuple([relation.columns[i].name for i in key_columns(relation) if self.arrays[i].null_count])


@dataclass(frozen=True)
class IncompleteRows:
    """Inserted rows that lack some values, which the rows that they replace have."""

    unsent: tuple[int, ...]
    """The columns without values, by index in the relation."""
    replaced: Fingerprints
    rows: StoredRows
    """With NULL in the unsent columns."""


@dataclass(frozen=True)
class TableDelta:
    """The rows that a run of changes deletes from and inserts into one table, under one relation."""

    relation: Relation
    target: tuple[str, str]
    span: str
    last: str
    """The position of the last change."""
    is_truncate: bool = False
    deleted: Fingerprints | None = None
    copies: I64 | None = None
    """For a table without a key: how many rows to delete for each fingerprint."""
    incomplete: tuple[IncompleteRows, ...] = ()
    inserted: StoredRows | None = None

    @property
    def contents(self) -> list[StoredRows]:
        """All inserted rows."""
        return [*([self.inserted] if self.inserted else []), *(incomplete.rows for incomplete in self.incomplete)]


def mirror_delta(changes: TableChanges, hash_key: HashKey, *, is_load: bool) -> TableDelta:
    """The effect of a run of changes on a mirror. `is_load`: they are a snapshot's rows."""
    base = _empty_delta(changes)
    if changes.is_truncate:
        return replace(base, is_truncate=True)
    if is_load:
        return replace(base, inserted=StoredRows.of(changes.new, changes.relation))
    return (
        _keyed_delta(changes, base, hash_key) if has_key(changes.relation) else _keyless_delta(changes, base, hash_key)
    )


def changelog_delta(changes: TableChanges) -> TableDelta:
    """One inserted row per change: the row after it. For a delete: the key, or the whole row if it was sent."""
    rows = changes.new
    if changes.old.present.any():
        is_delete = changes.old.present & ~changes.new.present
        arrays = [
            pc.if_else(pa.array(is_delete), old, new)
            for old, new in zip(changes.old.batch.columns, rows.batch.columns, strict=True)
        ]
        special = rows.special
        if changes.old.special is not None:
            none = pa.nulls(len(changes), types.SPECIALS)
            special = pc.if_else(pa.array(is_delete), changes.old.special, none if special is None else special)
        rows = replace(rows, batch=record_batch(arrays, rows.batch.schema, len(changes)), special=special)
    inserted = replace(StoredRows.of(rows, changes.relation), change_columns=typed_columns.metadata_columns(changes))
    return replace(_empty_delta(changes), inserted=inserted)


def _empty_delta(changes: TableChanges) -> TableDelta:
    last = str(changes.at.position(len(changes) - 1))
    return TableDelta(changes.relation, changes.target, changes.span, last)


def _keyed_delta(changes: TableChanges, base: TableDelta, hash_key: HashKey) -> TableDelta:
    relation, folded = changes.relation, fold(_with_comparable_texts(changes))
    is_incomplete = np.zeros(len(folded), np.bool_)
    for entries, source in folded.fills.values():
        is_incomplete[entries[source < 0]] = True
    is_incomplete &= ~folded.is_inserted
    deleted = ~folded.is_inserted & ~is_incomplete
    inserted = ~folded.is_deleted & ~is_incomplete
    parts: dict[str, Any] = {}
    if deleted.any():
        parts["deleted"] = _keys(changes, folded.origin[deleted], hash_key)
    if is_incomplete.any():
        parts["incomplete"] = tuple(_incomplete_rows(changes, folded, np.flatnonzero(is_incomplete), hash_key))
    if inserted.any():
        is_all = folded.is_inserted.all() and len(folded) == len(changes)
        new = changes.new if is_all else final_images(changes, folded, inserted)
        require_whole(changes, new, folded.final[inserted])
        parts["inserted"] = StoredRows.of(new, relation)
    return replace(base, **parts)


def _keyless_delta(changes: TableChanges, base: TableDelta, hash_key: HashKey) -> TableDelta:
    relation, copies = changes.relation, fold_copies(_with_comparable_texts(changes))
    more, fewer = copies.delta > 0, copies.delta < 0
    parts: dict[str, Any] = {}
    if fewer.any():
        rows = StoredRows.of(copied_rows(changes, copies, fewer), relation)
        parts["deleted"] = row_fingerprints(rows.arrays, rows.special, relation, hash_key, rows.count)
        parts["copies"] = -copies.delta[fewer]
    if more.any():
        entries = np.repeat(np.flatnonzero(more), copies.delta[more])
        parts["inserted"] = StoredRows.of(copied_rows(changes, copies, entries), relation)
    return replace(base, **parts)


def _incomplete_rows(
    changes: TableChanges, folded: NetChanges, entries: I64, hash_key: HashKey
) -> Iterator[IncompleteRows]:
    """Rows grouped by their unsent columns."""
    for unsent, which, rows in group_by_unsent(final_images(changes, folded, entries)):
        replaced = _keys(changes, folded.origin[entries[which]], hash_key)
        yield IncompleteRows(unsent, replaced, StoredRows.of(rows, changes.relation))


def _keys(changes: TableChanges, origin: I64, hash_key: HashKey) -> Fingerprints:
    """Fingerprints of the keys that the rows had before these changes."""
    has_old = changes.old.present[origin]
    prints = np.empty((len(origin), 2), np.uint64)
    for images_, mask in ((changes.old, has_old), (changes.new, ~has_old)):
        if mask.any():
            rows = images_.take(origin[mask])
            arrays, special = stored_columns(rows, changes.relation)
            prints[mask] = row_fingerprints(arrays, special, changes.relation, hash_key, len(rows))
    return prints


def row_fingerprints(
    arrays: Sequence[pa.Array], special: pa.MapArray | None, relation: Relation, hash_key: HashKey, count: int
) -> Fingerprints:
    """Fingerprints that identify rows: of the key's values, or of all values, with the texts of special ones."""
    places = key_columns(relation) if has_key(relation) else range(len(relation.columns))
    found = []
    for place in places:
        column = relation.columns[place]
        found.append(arrays[place])
        if may_be_special(column):
            found.append(_special_texts(special, column.name, count))
    return fingerprints(found, count, hash_key)


def _special_texts(special: pa.MapArray | None, name: str, count: int) -> pa.StringArray:
    if special is None or special.null_count == count:
        return pa.nulls(count, pa.string())
    return pc.map_lookup(special, pa.scalar(name, special.type.key_type), "first").cast(pa.string())


def _with_comparable_texts(changes: TableChanges) -> TableChanges:
    """The changes with texts in place of values that Arrow cannot compare bit by bit."""
    relation = changes.relation
    whole = relation.identity == "f" or not has_key(relation)
    places = range(len(relation.columns)) if whole else key_columns(relation)
    return replace(changes, old=_as_texts(changes.old, relation, places), new=_as_texts(changes.new, relation, places))


def _as_texts(rows: Images, relation: Relation, places: Sequence[int]) -> Images:
    specials_by_column = specials(rows)
    arrays = list(rows.batch.columns)
    for place in places:
        column = relation.columns[place]
        # Decided by type alone: both images of a column, in all runs, must have the same Arrow type.
        if types.mapping(column).form in _TEXT_TO_COMPARE or may_be_special(column):
            arrays[place] = column_texts(arrays[place], column, specials_by_column.get(column.name))
    schema = pa.schema([f.with_type(a.type) for f, a in zip(rows.batch.schema, arrays, strict=True)])
    return replace(rows, batch=record_batch(arrays, schema, len(rows)))
