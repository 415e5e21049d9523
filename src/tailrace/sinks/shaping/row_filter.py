"""Changes of the rows that match a condition, as PostgreSQL's own row filters make them.

An update of a row that matched and still does is an update; of one that comes to match an insert; of one that no longer
does a delete. So the row that was there must be known as far as the condition looks at it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from tailrace.change import Relation
from tailrace.errors import ConfigError
from tailrace.log.decoding import DELETE, INSERT, UPDATE, Mask, TableChanges
from tailrace.pgoutput.columns import Images, record_batch
from tailrace.sinks.shaping.condition import Condition, typed

_FULL: Final = "f"


def filtered(changes: TableChanges, condition: Condition) -> TableChanges:
    relation = changes.relation
    is_update, is_delete = changes.operation == UPDATE, changes.operation == DELETE
    has_old, has_new = is_update | is_delete, ~is_delete
    if has_old.any():
        _require_old(changes, has_old, condition)
    new_places, old_places = np.flatnonzero(has_new), np.flatnonzero(has_old)
    columns = {}
    for place in condition.places:
        new = _filled(changes, place)
        # An update without an old image did not change what identifies the row, and the condition looks at no more.
        old = _chosen(changes.old.present, changes.old.batch.column(place), new) if len(old_places) else new
        both = pa.concat_arrays([new.take(pa.array(new_places)), old.take(pa.array(old_places))])
        columns[place] = typed(both, relation.columns[place])
    answers = condition.matches(columns, len(new_places) + len(old_places))
    new_matches, old_matches = np.zeros(len(changes), np.bool_), np.zeros(len(changes), np.bool_)
    new_matches[new_places] = answers[: len(new_places)]
    old_matches[old_places] = answers[len(new_places) :]
    arrives, leaves = is_update & new_matches & ~old_matches, is_update & old_matches & ~new_matches
    kept = new_matches | old_matches
    if kept.all() and not (arrives | leaves).any():
        return changes
    changes = _turned(changes, arrives, leaves) if (arrives | leaves).any() else changes
    return changes if kept.all() else changes.take(kept)


def _turned(changes: TableChanges, arrives: Mask, leaves: Mask) -> TableChanges:
    operation = changes.operation.copy()
    operation[arrives], operation[leaves] = INSERT, DELETE
    new = changes.new
    if new.unchanged and arrives.any():
        new = _whole(changes, arrives)
    return replace(
        changes,
        operation=operation,
        old=_without(changes.old, arrives),
        old_is_key=changes.old_is_key & ~arrives,
        new=_without(new, leaves),
    )


def _whole(changes: TableChanges, arrives: Mask) -> Images:
    """The new images, with the old values where `arrives` lacks some."""
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
                _remedy(changes.relation),
            )
        arrays[place] = _chosen(lacking, old.batch.column(place), new.batch.column(place))
        unchanged[place] = unsent & ~arrives
    return Images(
        record_batch(arrays, new.batch.schema, len(new)),
        new.present,
        {place: mask for place, mask in unchanged.items() if mask.any()},
        _merged(new.special, old.special, arrives, changes),
    )


def _merged(
    new: pa.MapArray | None, old: pa.MapArray | None, arrives: Mask, changes: TableChanges
) -> pa.MapArray | None:
    """Special values are few: row by row. Of the old ones, those of columns that were not sent."""
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
    """As if these messages did not carry the image."""
    if not (images.present & rows).any():
        return images
    arrays = [_chosen(rows, pa.nulls(len(rows), array.type), array) for array in images.batch.columns]
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


def _filled(changes: TableChanges, place: int) -> pa.Array:
    """A column of the new images; what was not sent is what was there."""
    new = changes.new.batch.column(place)
    unsent = changes.new.unchanged.get(place)
    return new if unsent is None else _chosen(unsent, changes.old.batch.column(place), new)


def _chosen(rows: Mask, some: pa.Array, others: pa.Array) -> pa.Array:
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
            f"{condition.where} looks at {', '.join(unknown)}, and {kind} at {changes.at.position(row)} does not say "
            "what was there before: PostgreSQL sent the key alone",
            _remedy(relation),
        )


def _remedy(relation: Relation) -> str:
    name = sql.Identifier(relation.schema, relation.name).as_string(None)
    return (
        f"on the source: ALTER TABLE {name} REPLICA IDENTITY FULL; then take a new snapshot of the table and let the "
        "sink start from it: tailrace deliver --sink NAME --rewind snapshot"
    )
