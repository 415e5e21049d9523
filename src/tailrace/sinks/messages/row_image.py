"""The values of a change's row that a message can hold, as columns of PostgreSQL's texts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Relation
from tailrace.log.decoding import DELETE, UPDATE, TableChanges

Mask = npt.NDArray[np.bool_]
ColumnTexts = Callable[[TableChanges, int], tuple[pa.Array, Mask | None]]
"""Returns the texts of a column by its index, and the rows that have a value there (None: all)."""


def key_indexes(relation: Relation) -> list[int]:
    """Return the columns of the key; empty if the table has no key, or the sink does not deliver all of it."""
    names = [column.name for column in relation.columns]
    return [names.index(name) for name in relation.key] if all(name in names for name in relation.key) else []


def new_values(changes: TableChanges, index: int) -> tuple[pa.Array, Mask | None]:
    """Return a column of the new rows, and the rows that have it (None: all).

    A value that PostgreSQL did not send is taken from the old row if that has it.
    """
    texts = changes.new.batch.column(index)
    unsent = changes.new.unchanged.get(index)
    if unsent is None:
        return texts, None
    from_old = unsent & known_old(changes, index)
    if from_old.any():
        texts = pc.if_else(pa.array(from_old), changes.old.batch.column(index), texts)
    return texts, None if from_old[unsent].all() else ~(unsent & ~from_old)


def current_values(changes: TableChanges, index: int) -> tuple[pa.Array, Mask | None]:
    """Return a column of the rows as the change left or found them: of deleted rows, what PostgreSQL sent."""
    texts, present = new_values(changes, index)
    is_delete = changes.operation == DELETE
    if not is_delete.any():
        return texts, present
    texts = pc.if_else(pa.array(is_delete), changes.old.batch.column(index), texts)
    in_old = known_old(changes, index)
    known = np.ones(len(changes), np.bool_) if present is None else present
    known = np.where(is_delete, in_old, known)
    return texts, None if known.all() else known


def old_values(changes: TableChanges, index: int) -> tuple[pa.Array, Mask | None]:
    """Return a column of the old rows as far as PostgreSQL sent them, and the rows that have it."""
    return changes.old.batch.column(index), known_old(changes, index)


def has_old(changes: TableChanges, index: int) -> Mask:
    """Return the rows that have the old value of a column because PostgreSQL sent the whole old row."""
    has = changes.old.present & ~changes.old_is_key
    unsent = changes.old.unchanged.get(index)
    return has if unsent is None else has & ~unsent


def known_old(changes: TableChanges, index: int) -> Mask:
    """Return the rows that have the old value of a column, also if PostgreSQL sent only the key."""
    known = has_old(changes, index)
    return known | (changes.old.present & changes.old_is_key) if changes.relation.columns[index].is_identity else known


def unknown_columns(changes: TableChanges) -> list[tuple[int, Mask]]:
    """Return the columns that PostgreSQL did not send and that are not in the old row either, with the rows."""
    found = []
    for index, unsent in sorted(changes.new.unchanged.items()):
        unknown = unsent & ~known_old(changes, index)
        if unknown.any():
            found.append((index, unknown))
    return found


def changed_keys(changes: TableChanges) -> Mask:
    """Return the updates that change the key."""
    is_candidate: Mask = (changes.operation == UPDATE) & changes.old.present
    indexes = key_indexes(changes.relation)
    if not is_candidate.any() or not indexes:
        return np.zeros(len(changes), np.bool_)
    differs = np.zeros(len(changes), np.bool_)
    for index in indexes:
        same = pc.equal(changes.old.batch.column(index), new_values(changes, index)[0])
        differs |= ~pc.fill_null(same, False).to_numpy(zero_copy_only=False)
    return is_candidate & differs
