"""Filters changes by a condition on rows, as PostgreSQL's own row filters do.

An update of a row that matches before and after it remains an update. If the row matches only afterwards, it becomes an
insert; if only before, a delete. So the old row must be known as far as the condition uses it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from tailrace.change import Relation
from tailrace.delivery.transforms.condition import Condition, typed
from tailrace.errors import ConfigError
from tailrace.images import Images, record_batch
from tailrace.log.decoding import DELETE, INSERT, UPDATE, Mask, TableChanges

_FULL: Final = "f"


def filter_rows(changes: TableChanges, condition: Condition) -> TableChanges:
    """The changes of rows that match the condition."""
    relation = changes.relation
    is_update, is_delete = changes.operation == UPDATE, changes.operation == DELETE
    has_old, has_new = is_update | is_delete, ~is_delete
    if has_old.any():
        _require_old(changes, has_old, condition)
    new_places, old_places = np.flatnonzero(has_new), np.flatnonzero(has_old)
    columns = {}
    for place in condition.places:
        new = _fill(changes, place)
        # An update without an old image did not change the row's identity, and the condition uses nothing else.
        old = _choose(changes.old.present, changes.old.batch.column(place), new) if len(old_places) else new
        both = pa.concat_arrays([new.take(pa.array(new_places)), old.take(pa.array(old_places))])
        columns[place] = typed(both, relation.columns[place])
    answers = condition.matches(columns, len(new_places) + len(old_places))
    new_matches, old_matches = np.zeros(len(changes), np.bool_), np.zeros(len(changes), np.bool_)
    new_matches[new_places] = answers[: len(new_places)]
    old_matches[old_places] = answers[len(new_places) :]
    arrives, leaves = is_update & new_matches & ~old_matches, is_update & old_matches & ~new_matches
    matches = new_matches | old_matches
    if matches.all() and not (arrives | leaves).any():
        return changes
    changes = _convert(changes, arrives, leaves) if (arrives | leaves).any() else changes
    return changes if matches.all() else changes.take(matches)


def _convert(changes: TableChanges, arrives: Mask, leaves: Mask) -> TableChanges:
    operation = changes.operation.copy()
    operation[arrives], operation[leaves] = INSERT, DELETE
    new = changes.new
    if new.unchanged and arrives.any():
        new = _complete(changes, arrives)
    return replace(
        changes,
        operation=operation,
        old=_without(changes.old, arrives),
        old_is_key=changes.old_is_key & ~arrives,
        new=_without(new, leaves),
    )


def filled_from_old(changes: TableChanges, rows: Mask) -> Images:
    """The new images. Unsent values of these rows, whose old images are whole, are taken from those."""
    return _complete(changes, rows) if changes.new.unchanged and rows.any() else changes.new


def _complete(changes: TableChanges, arrives: Mask) -> Images:
    """The new images, with unsent values of rows that now match taken from the old images."""
    new, old = changes.new, changes.old
    arrays, unchanged = list(new.batch.columns), dict(new.unchanged)
    for place, unsent in new.unchanged.items():
        lacking = unsent & arrives
        if (lost := lacking & (changes.old_is_key | ~old.present)).any():
            column = changes.relation.columns[place].name
            where = changes.at.position(int(np.flatnonzero(lost)[0]))
            raise ConfigError(
                f"{where}: UPDATE of {changes.relation.qualified_name} makes a row match, but PostgreSQL did not send "
                f"column {column}, which did not change",
                old_image_hint(changes.relation),
            )
        arrays[place] = _choose(lacking, old.batch.column(place), new.batch.column(place))
        unchanged[place] = unsent & ~arrives
    return Images(
        record_batch(arrays, new.batch.schema, len(new)),
        new.present,
        {place: mask for place, mask in unchanged.items() if mask.any()},
        _merge_special(new.special, old.special, arrives, changes),
    )


def _merge_special(
    new: pa.MapArray | None, old: pa.MapArray | None, arrives: Mask, changes: TableChanges
) -> pa.MapArray | None:
    """The new special values, and the old ones of unsent columns. They are few, so this works row by row."""
    if old is None:
        return new
    news = [None] * len(changes) if new is None else new.to_pylist()
    olds = old.to_pylist()
    for row in np.flatnonzero(arrives):
        names = {changes.relation.columns[p].name for p, mask in changes.new.unchanged.items() if mask[row]}
        carried = [(name, text) for name, text in olds[row] or () if name in names]
        if carried:
            news[row] = [*(news[row] or ()), *carried]
    return pa.array(news, old.type) if any(news) else None


def _without(images: Images, rows: Mask) -> Images:
    """The images without those of some rows."""
    if not (images.present & rows).any():
        return images
    arrays = [_choose(rows, pa.nulls(len(rows), array.type), array) for array in images.batch.columns]
    unchanged = {place: mask & ~rows for place, mask in images.unchanged.items()}
    special = images.special
    if special is not None:
        special = pa.array([None if rows[i] else row for i, row in enumerate(special.to_pylist())], special.type)
    return Images(
        record_batch(arrays, images.batch.schema, len(images)),
        images.present & ~rows,
        {place: mask for place, mask in unchanged.items() if mask.any()},
        special,
    )


def _fill(changes: TableChanges, place: int) -> pa.Array:
    """A column of the new images, with unsent values from the old ones."""
    new = changes.new.batch.column(place)
    unsent = changes.new.unchanged.get(place)
    return new if unsent is None else _choose(unsent, changes.old.batch.column(place), new)


def _choose(rows: Mask, some: pa.Array, others: pa.Array) -> pa.Array:
    if rows.all():
        return some
    return pc.if_else(pa.array(rows), some, others) if rows.any() else others


def _require_old(changes: TableChanges, has_old: Mask, condition: Condition) -> None:
    relation = changes.relation
    if relation.identity == _FULL:
        return
    unknown = [relation.columns[p].name for p in condition.places if not relation.columns[p].is_identity]
    if unknown:
        row = int(np.flatnonzero(has_old)[0])
        kind = "UPDATE" if changes.operation[row] == UPDATE else "DELETE"
        raise ConfigError(
            f"{condition.where} uses {', '.join(unknown)}, but {kind} at {changes.at.position(row)} lacks the old "
            "values: PostgreSQL sent only the key",
            old_image_hint(relation),
        )


def old_image_hint(relation: Relation) -> str:
    """What to do so that PostgreSQL sends the whole row that was there before."""
    name = sql.Identifier(relation.schema, relation.name).as_string(None)
    return (
        f"at the source, run ALTER TABLE {name} REPLICA IDENTITY FULL; then take a new snapshot of the table and start "
        "the sink from it: tailrace sink rewind NAME snapshot"
    )
