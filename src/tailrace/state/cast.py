"""Casts values of a column whose type changed, from PostgreSQL's text and by the rules of PostgreSQL's casts. Pure.

The log does not contain what `ALTER TABLE … USING` computes, so a cast is the best approximation for older rows:
numbers are rounded as PostgreSQL rounds them, times lose or gain their date and zone (UTC), and everything can become
text. A value that the new type cannot hold becomes NULL, and its text is returned beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import text, types
from tailrace.change import Column
from tailrace.errors import DecodeError
from tailrace.state.postgres_text import to_text
from tailrace.types import Form

_NUMBERS: Final = frozenset({Form.INTEGER, Form.FLOAT, Form.DECIMAL, Form.NUMERIC, Form.MONEY})
_TIMES: Final = frozenset({Form.DATE, Form.TIMESTAMP, Form.TIMESTAMPTZ})
_UNBOUNDED: Final = frozenset({"infinity", "-infinity"})
_WORDS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_TRUE, _FALSE = frozenset({"t", "true", "yes", "on", "1"}), frozenset({"f", "false", "no", "off", "0"})


def column_texts(array: pa.Array, column: Column, special: Mapping[int, str] | None = None) -> pa.StringArray:
    """PostgreSQL's texts of a column's values. `special` has, by row, the texts that the array cannot hold."""
    found = to_text(array, column)
    if special:
        given = [special.get(row) for row in range(len(array))]
        found = pc.coalesce(pa.array(given, pa.string()), found)
    return found


def recast(values: pa.StringArray, old: Column, new: Column) -> tuple[pa.Array, dict[int, str]]:
    """Texts of the old type as values of the new type, and by row the texts that the new type cannot hold."""
    source, target = types.mapping(old).form, types.mapping(new)
    if array := _cast_with_arrow(values, source, target):
        return array, {}
    encoded = values.dictionary_encode()
    results, special = [], {}
    for index, value in enumerate(encoded.dictionary.to_pylist()):
        result = _cast_value(value, source, target)
        if result is text.SPECIAL:
            special[index] = value
        results.append(None if result is text.SPECIAL else result)
    array = pa.array(results, target.arrow).take(encoded.indices)
    if not special:
        return array, {}
    indexes = encoded.indices.fill_null(-1).to_numpy()
    return array, {int(row): special[indexes[row]] for row in np.flatnonzero(np.isin(indexes, list(special)))}


def _cast_with_arrow(values: pa.StringArray, source: Form, target: types.TypeMapping) -> pa.Array | None:
    """The values cast by Arrow, if Arrow casts all of them as PostgreSQL does; else None."""
    if pa.types.is_string(target.arrow) and source is not Form.BOOLEAN:
        return values
    if source in (Form.INTEGER, Form.DECIMAL, Form.NUMERIC) and target.form in (Form.INTEGER, Form.DECIMAL):
        try:
            return pc.cast(values, target.arrow)
        except pa.ArrowInvalid:
            return None
    return None


def _cast_value(value: str, source: Form, target: types.TypeMapping) -> Any:
    try:
        return target.arrow_value(_reformat(value, source, target).encode())
    except (DecodeError, ValueError, InvalidOperation):
        return text.SPECIAL


def _reformat(value: str, source: Form, target: types.TypeMapping) -> str:
    """The text in the new type's format."""
    form = target.form
    if source is Form.BOOLEAN and form is not Form.BOOLEAN:
        value = {"t": "1", "f": "0"}[value] if form is Form.INTEGER else {"t": "true", "f": "false"}[value]
    if form is Form.BOOLEAN and value.strip().lower() in _TRUE | _FALSE:
        return "t" if value.strip().lower() in _TRUE else "f"
    if source is Form.MONEY and form in _NUMBERS:
        value = value.replace("$", "").replace(",", "")
    if form in (Form.INTEGER, Form.DECIMAL, Form.MONEY) and value not in _WORDS:
        scale = 0 if form is Form.INTEGER else target.arrow.scale
        # PostgreSQL rounds halves of a float to even, and halves of a numeric away from zero.
        rounding = ROUND_HALF_EVEN if source is Form.FLOAT and form is Form.INTEGER else ROUND_HALF_UP
        with localcontext() as context:
            context.prec = 2000
            number = Decimal(value.strip()).quantize(Decimal(1).scaleb(-scale), rounding)
        plain = f"{number:f}"
        return plain if form is not Form.MONEY else plain.replace("-", "-$") if plain[0] == "-" else f"${plain}"
    if source in _TIMES and form in _TIMES | {Form.TIME} and value not in _UNBOUNDED:
        return _convert_time(value, form)
    return value


def _convert_time(value: str, form: Form) -> str:
    """The parts of `2024-02-29 12:00:00.5+00 BC` that the form has."""
    era = " BC" if value.endswith(" BC") else ""
    day, _, clock = value.removesuffix(" BC").partition(" ")
    clock = clock.removesuffix("+00") or "00:00:00"
    match form:
        case Form.DATE:
            return day + era
        case Form.TIME:
            return clock
        case Form.TIMESTAMP:
            return f"{day} {clock}{era}"
        case _:
            return f"{day} {clock}+00{era}"
