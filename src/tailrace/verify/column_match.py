"""Which columns of the source and of a destination's table can be compared. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.change import Relation
from tailrace.state.evolution import dropped_columns, origins
from tailrace.state.fold import has_key, key_columns

_UNTIL = "no change since has told the sink"


@dataclass(frozen=True)
class ColumnMatch:
    source: tuple[int, ...]
    """Indexes of the columns in the relation that the source would deliver now."""
    stored: tuple[int, ...]
    """Indexes of the same columns in the destination's relation."""
    names: tuple[str, ...]
    """Their names at the destination."""
    key: tuple[int, ...]
    """Which of them are the key; all of them, for a table without one."""
    has_key: bool
    notes: tuple[str, ...]
    """The columns that are not compared, and why."""

    @classmethod
    def of(cls, source: Relation, stored: Relation) -> ColumnMatch:
        """Match the relation that the source would deliver now with the one that the destination has.

        A definition that changed at the source is sent with the next change of the table.
        """
        pairs, notes = [], []
        for index, (column, origin) in enumerate(zip(source.columns, origins(stored, source), strict=True)):
            if origin.index is None:
                notes.append(f"column {column.name} was added at the source, and {_UNTIL}")
                continue
            before = stored.columns[origin.index]
            if (before.type.oid, before.modifier) != (column.type.oid, column.modifier):
                notes.append(f"column {column.name} has another type at the source, and {_UNTIL}")
                continue
            pairs.append((origin.index, index))
        notes += [
            f"column {stored.columns[index].name} was dropped at the source, and {_UNTIL}"
            for index in dropped_columns(stored, source)
        ]
        pairs.sort()
        places = [index for index, _ in pairs]
        is_keyed = has_key(stored) and all(index in places for index in key_columns(stored))
        if has_key(stored) and not is_keyed:
            notes.append("rows are compared as a whole, because the key has another definition at the source")
        key = [places.index(index) for index in key_columns(stored)] if is_keyed else range(len(places))
        return cls(
            tuple([index for _, index in pairs]),
            tuple(places),
            tuple([stored.columns[index].name for index in places]),
            tuple(key),
            is_keyed,
            tuple(notes),
        )
