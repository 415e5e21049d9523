"""Converts rows to a table's new columns, where Iceberg cannot change them in place. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from tailrace import text, types
from tailrace.change import Column, Relation
from tailrace.errors import DecodeError, SinkRefused
from tailrace.sinks.iceberg.delta import StoredRows
from tailrace.sinks.iceberg.iceberg_schema import iceberg_type, stored_column, stored_texts
from tailrace.sinks.iceberg.schema_change import is_same_or_wider
from tailrace.state.cast import recast
from tailrace.state.evolution import fill_added_column, origins, special_map


def rewrite_rows(
    arrays: Sequence[pa.Array], special: pa.MapArray | None, count: int, old: Relation, new: Relation
) -> StoredRows:
    """Rows of the old relation, as stored in data files, cast to the new relation as PostgreSQL casts them."""
    specials = _by_column(special)
    found: list[pa.Array] = []
    new_specials: dict[str, dict[int, str]] = {}
    for column, origin in zip(new.columns, origins(old, new), strict=True):
        if origin.index is None:
            array, special_texts = fill_added_column(column, origin.missing, np.ones(count, np.bool_), as_text=False)
        else:
            before = old.columns[origin.index]
            array, special_texts = arrays[origin.index], specials.get(before.name, {})
            if is_same_or_wider(iceberg_type(before), iceberg_type(column)):
                found.append(array)
                new_specials |= {column.name: special_texts} if special_texts else {}
                continue
            array, special_texts = recast(stored_texts(array, before, special_texts), before, column)
            _check(special_texts.values(), new, column)
        new_specials |= {column.name: special_texts} if special_texts else {}
        found.append(stored_column(array, column, new_specials))
    return StoredRows(found, special_map(new_specials, count), count)


def _by_column(special: pa.MapArray | None) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for row, entries in enumerate(special.to_pylist() if special is not None else ()):
        for name, value in entries or ():
            found.setdefault(name, {})[row] = value
    return found


def _check(values: Iterable[str], relation: Relation, column: Column) -> None:
    for value in values:
        try:
            if types.mapping(column).arrow_value(value.encode()) is text.SPECIAL:
                continue
        except DecodeError:
            pass
        raise SinkRefused(
            f"{relation.qualified_name}, column {column.name}: its type changed to "
            f"{types.sql_name(column.type, column.modifier)}, to which a value in the lake has no implicit cast",
            f"take a new snapshot: `tailrace snapshot {relation.qualified_name}`, then "
            f"`tailrace sink reload … {relation.qualified_name}`",
        )
