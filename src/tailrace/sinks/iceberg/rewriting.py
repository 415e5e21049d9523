"""Rows of a table's old columns as rows of its new ones, where Iceberg cannot do it in place. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from tailrace import text, types
from tailrace.change import Column, Relation
from tailrace.errors import DecodeError, SinkRefused
from tailrace.log.evolution import filled, origins, special_map
from tailrace.log.recast import recast
from tailrace.sinks.iceberg.effect import Content
from tailrace.sinks.iceberg.evolution import is_same_or_wider
from tailrace.sinks.iceberg.schema import stored_column, stored_texts, type_of


def rewritten(
    arrays: Sequence[pa.Array], special: pa.MapArray | None, count: int, old: Relation, new: Relation
) -> Content:
    """Values of the old relation's columns, as data files have them, cast as PostgreSQL would have cast them."""
    odd_ones = _by_column(special)
    found: list[pa.Array] = []
    odd: dict[str, dict[int, str]] = {}
    for column, origin in zip(new.columns, origins(old, new), strict=True):
        if origin.index is None:
            array, strange = filled(column, origin.missing, np.ones(count, np.bool_), as_text=False)
        else:
            before = old.columns[origin.index]
            array, strange = arrays[origin.index], odd_ones.get(before.name, {})
            if is_same_or_wider(type_of(before), type_of(column)):
                found.append(array)
                odd |= {column.name: strange} if strange else {}
                continue
            array, strange = recast(stored_texts(array, before, strange), before, column)
            _check(strange.values(), new, column)
        odd |= {column.name: strange} if strange else {}
        found.append(stored_column(array, column, odd))
    return Content(found, special_map(odd, count), count)


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
            f"{relation.qualified_name}, column {column.name}: its type became "
            f"{types.sql_name(column.type, column.modifier)}, and a value in the lake does not become that by itself",
            f"take a new snapshot: `tailrace snapshot {relation.qualified_name}`, then "
            f"`tailrace deliver --sink … --reload {relation.qualified_name}`",
        )
