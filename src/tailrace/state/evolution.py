"""Matches the columns of two relations of a table, and converts rows of one into rows of the other. Pure.

PostgreSQL numbers columns and never reuses a number, so numbers distinguish a renamed column from a dropped one whose
name was reused. A number is unknown if the catalogue had already changed when it was read. Such a column is matched by
name, then by type. Columns are in the order of their numbers: an unknown number lies between those of its neighbours,
and matches never cross.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace import text, types
from tailrace.change import Column, Relation
from tailrace.images import Images
from tailrace.state.cast import column_texts, recast

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ColumnOrigin:
    """Which column of the old relation a new column comes from."""

    index: int | None
    """The index of the old column; None for an added column."""
    missing: str | None = None
    """The text that older rows show for an added column; None is NULL."""


def origins(old: Relation, new: Relation) -> tuple[ColumnOrigin, ...]:
    """The origin in `old` of each column of `new`. A table that was dropped and recreated matches only by name."""
    return _origins(old, new)


@lru_cache(maxsize=4096)
def _origins(old: Relation, new: Relation) -> tuple[ColumnOrigin, ...]:
    unmatched = dict(enumerate(zip(old.columns, _bounds(old.columns), strict=True)))
    bounds = _bounds(new.columns)
    found: dict[int, int] = {}

    def fits(candidate: int, index: int) -> bool:
        if old.oid != new.oid:
            return True
        low, high = (f(a, b) for f, a, b in zip((max, min), unmatched[candidate][1], bounds[index], strict=True))
        return low + 1 < high and all((p < candidate) == (i < index) for i, p in found.items())

    for is_same in _RULES if old.oid == new.oid else [_has_same_name]:
        for index, column in enumerate(new.columns):
            match = (p for p, (other, _) in unmatched.items() if is_same(other, column) and fits(p, index))
            if index not in found and (candidate := next(match, None)) is not None:
                found[index] = candidate
                del unmatched[candidate]
    return tuple(
        ColumnOrigin(found[index])
        if index in found
        else ColumnOrigin(None, column.missing if old.oid == new.oid else None)
        for index, column in enumerate(new.columns)
    )


def dropped_columns(old: Relation, new: Relation) -> tuple[int, ...]:
    """Indexes of the columns of `old` that `new` no longer has."""
    remaining = {origin.index for origin in origins(old, new)}
    return tuple(index for index in range(len(old.columns)) if index not in remaining)


def origins_along(chain: Sequence[Relation]) -> tuple[ColumnOrigin, ...]:
    """The origin in the first relation of each column of the last, found step by step.

    When a table is rewritten, later relations lose the `missing` value of a column, so it comes from the step in which
    the column was added.
    """
    reached = tuple(ColumnOrigin(index) for index in range(len(chain[0].columns)))
    for old, new in pairwise(chain):
        reached = tuple(o if o.index is None else reached[o.index] for o in origins(old, new))
    return reached


def project(
    images: Images,
    old: Relation,
    new: Relation,
    as_text: bool = False,
    *,
    via: Sequence[Relation] = (),
    whole: Mask | None = None,
) -> Images:
    """Images of the old relation as images of the new one. `via` has the relations between them, in order.

    Values of a column whose type changed are cast from their text; one that cannot be cast becomes NULL, with its text
    in `special`. Added columns have the value that PostgreSQL shows for older rows, but only in rows that are `whole`
    (all rows by default).
    """
    if old == new and not via:
        return images
    found = origins_along([old, *via, new])
    is_shown = images.present if whole is None else images.present & whole
    old_special = specials(images)
    arrays: list[pa.Array] = []
    unchanged: dict[int, Mask] = {}
    special: dict[str, dict[int, str]] = {}
    for index, (column, origin) in enumerate(zip(new.columns, found, strict=True)):
        if origin.index is None:
            array, special_texts = fill_added_column(column, origin.missing, is_shown, as_text)
        else:
            before = old.columns[origin.index]
            array, special_texts = images.batch.column(origin.index), old_special.get(before.name, {})
            if not as_text and types.mapping(before) != types.mapping(column):
                array, special_texts = recast(column_texts(array, before, special_texts), before, column)
            if origin.index in images.unchanged:
                unchanged[index] = images.unchanged[origin.index]
        arrays.append(array)
        if special_texts:
            special[column.name] = special_texts
    schema = types.schema(new, as_text)
    return Images(_batch(arrays, schema, len(images)), images.present, unchanged, special_map(special, len(images)))


def special_map(special: dict[str, dict[int, str]], count: int) -> pa.MapArray | None:
    """A map column of special values, from column name → row → text."""
    if not special:
        return None
    entries: list[list[tuple[str, str]] | None] = [None] * count
    for name, of_rows in special.items():
        for row, value in of_rows.items():
            entries[row] = [*(entries[row] or ()), (name, value)]
    return pa.array(entries, types.SPECIALS)


def specials(images: Images) -> dict[str, dict[int, str]]:
    """Column name → row → text, from the map column of special values: the inverse of `special_map`."""
    found: dict[str, dict[int, str]] = {}
    if images.special is not None:
        for row in np.flatnonzero(images.special.is_valid().to_numpy(zero_copy_only=False)):
            for name, value in images.special[int(row)].as_py():
                found.setdefault(name, {})[int(row)] = value
    return found


def fill_added_column(
    column: Column, missing: str | None, is_shown: Mask, as_text: bool
) -> tuple[pa.Array, dict[int, str]]:
    """The values that older rows show for an added column, and by row the texts that the column cannot hold."""
    mapped = types.TEXT if as_text else types.mapping(column)
    if missing is None:
        return pa.nulls(len(is_shown), mapped.arrow), {}
    value = mapped.arrow_value(missing.encode())
    if value is text.SPECIAL:
        return pa.nulls(len(is_shown), mapped.arrow), {int(row): missing for row in np.flatnonzero(is_shown)}
    # A masked index takes NULL.
    indexes = pa.array(np.zeros(len(is_shown), np.int64), mask=~is_shown)
    return pa.array([value], mapped.arrow).take(indexes), {}


def _batch(arrays: list[pa.Array], schema: pa.Schema, count: int) -> pa.RecordBatch:
    if not arrays:  # a batch without arrays would lose the number of rows
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _has_same_number(old: Column, new: Column) -> bool:
    return old.number is not None and old.number == new.number


def _has_same_name(old: Column, new: Column) -> bool:
    return old.name == new.name


def _may_be_same(old: Column, new: Column) -> bool:
    return old.number is None or new.number is None


_RULES: Sequence[Callable[[Column, Column], bool]] = (
    _has_same_number,
    lambda old, new: _may_be_same(old, new) and old.name == new.name,
    lambda old, new: _may_be_same(old, new) and old.type.oid == new.type.oid,
)


def _bounds(columns: Sequence[Column]) -> list[tuple[int, int]]:
    """For each column, the numbers between which (exclusive) its own number lies."""
    numbers = [column.number for column in columns]
    lows, highs = [0] * len(numbers), [1 << 16] * len(numbers)
    for index in range(len(numbers)):
        known = numbers[index]
        lows[index] = known - 1 if known is not None else (lows[index - 1] + 1 if index else 0)
    for index in reversed(range(len(numbers))):
        known = numbers[index]
        above = highs[index + 1] - 1 if index + 1 < len(numbers) else 1 << 16
        highs[index] = known + 1 if known is not None else above
    return list(zip(lows, highs, strict=True))
