"""How one relation of a table became the next, and rows of the one as rows of the other. Pure.

PostgreSQL numbers columns and never reuses a number, so numbers tell a renamed column from a dropped one whose name
another took. Where the catalogue had moved on and a number is unknown, names tell, then types; and since columns stand
in the order of their numbers, an unknown one lies between its neighbours' and no two columns change places.
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
from tailrace.log.recast import recast, texts
from tailrace.pgoutput.columns import Images

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Origin:
    """What a column was before."""

    index: int | None
    """Its place among the old relation's columns; None for an added one."""
    missing: str | None = None
    """What rows older than an added column show for it; None is NULL."""


def origins(old: Relation, new: Relation) -> tuple[Origin, ...]:
    """For each column of `new`, which of `old` it is. Another table (dropped and made again) shares names alone."""
    return _origins(old, new)


@lru_cache(maxsize=4096)
def _origins(old: Relation, new: Relation) -> tuple[Origin, ...]:
    left = dict(enumerate(zip(old.columns, _bounds(old.columns), strict=True)))
    bounds = _bounds(new.columns)
    found: dict[int, int] = {}

    def fits(place: int, index: int) -> bool:
        if old.oid != new.oid:
            return True
        low, high = (f(a, b) for f, a, b in zip((max, min), left[place][1], bounds[index], strict=True))
        return low + 1 < high and all((p < place) == (i < index) for i, p in found.items())

    for is_same in _RULES if old.oid == new.oid else [_has_same_name]:
        for index, column in enumerate(new.columns):
            match = (p for p, (other, _) in left.items() if is_same(other, column) and fits(p, index))
            if index not in found and (place := next(match, None)) is not None:
                found[index] = place
                del left[place]
    return tuple(
        Origin(found[index]) if index in found else Origin(None, column.missing if old.oid == new.oid else None)
        for index, column in enumerate(new.columns)
    )


def dropped(old: Relation, new: Relation) -> tuple[int, ...]:
    """Columns of `old` that `new` has no longer."""
    kept = {origin.index for origin in origins(old, new)}
    return tuple(index for index in range(len(old.columns)) if index not in kept)


def origins_along(chain: Sequence[Relation]) -> tuple[Origin, ...]:
    """For each column of the last relation, which of the first it is, step by step.

    A rewrite of the table forgets what older rows showed for a column, so the step in which it was added must tell.
    """
    reached = tuple(Origin(index) for index in range(len(chain[0].columns)))
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
    """Images of the old relation as rows of the new one. `via`: relations between them, in order.

    A value of a column whose type changed is cast by way of its text; one that cannot be is NULL, with its text in
    `special`. Added columns show what PostgreSQL shows for older rows, in those that are `whole` (all, unless said).
    """
    if old == new and not via:
        return images
    found = origins_along([old, *via, new])
    shown = images.present if whole is None else images.present & whole
    odd_ones = specials(images)
    arrays: list[pa.Array] = []
    unchanged: dict[int, Mask] = {}
    special: dict[str, dict[int, str]] = {}
    for index, (column, origin) in enumerate(zip(new.columns, found, strict=True)):
        if origin.index is None:
            array, odd = filled(column, origin.missing, shown, as_text)
        else:
            before = old.columns[origin.index]
            array, odd = images.batch.column(origin.index), odd_ones.get(before.name, {})
            if not as_text and types.mapping(before) != types.mapping(column):
                array, odd = recast(texts(array, before, odd), before, column)
            if origin.index in images.unchanged:
                unchanged[index] = images.unchanged[origin.index]
        arrays.append(array)
        if odd:
            special[column.name] = odd
    schema = types.schema(new, as_text)
    return Images(_batch(arrays, schema, len(images)), images.present, unchanged, special_map(special, len(images)))


def special_map(special: dict[str, dict[int, str]], count: int) -> pa.MapArray | None:
    """Column name → row → text, as the map beside the rows."""
    if not special:
        return None
    entries: list[list[tuple[str, str]] | None] = [None] * count
    for name, of_rows in special.items():
        for row, value in of_rows.items():
            entries[row] = [*(entries[row] or ()), (name, value)]
    return pa.array(entries, types.SPECIALS)


def specials(images: Images) -> dict[str, dict[int, str]]:
    """The inverse: of the values that their columns cannot hold."""
    found: dict[str, dict[int, str]] = {}
    if images.special is not None:
        for row in np.flatnonzero(images.special.is_valid().to_numpy(zero_copy_only=False)):
            for name, value in images.special[int(row)].as_py():
                found.setdefault(name, {})[int(row)] = value
    return found


def filled(column: Column, missing: str | None, shown: Mask, as_text: bool) -> tuple[pa.Array, dict[int, str]]:
    """What rows older than a column show for it, and by row the texts of values that it cannot hold."""
    mapped = types.TEXT if as_text else types.mapping(column)
    if missing is None:
        return pa.nulls(len(shown), mapped.arrow), {}
    value = mapped.arrow_value(missing.encode())
    if value is text.SPECIAL:
        return pa.nulls(len(shown), mapped.arrow), {int(row): missing for row in np.flatnonzero(shown)}
    # None where the row says nothing: a taken NULL is NULL.
    places = pa.array(np.zeros(len(shown), np.int64), mask=~shown)
    return pa.array([value], mapped.arrow).take(places), {}


def _batch(arrays: list[pa.Array], schema: pa.Schema, count: int) -> pa.RecordBatch:
    if not arrays:  # a batch made from no arrays would forget how many rows it has
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
    """Between which numbers, both excluded, each column's lies."""
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
