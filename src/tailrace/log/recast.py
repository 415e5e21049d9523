"""Values of a column whose type was changed: by way of PostgreSQL's texts, as its own casts would have them. Pure.

What `ALTER TABLE … USING` computes is not in the log, so a cast is the best that can be told of older rows: numbers are
rounded as PostgreSQL rounds them, times lose or gain their date and zone (UTC), everything becomes text. A value that
has no place in the new type is NULL, and its text is given beside it.
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
from tailrace.log.printing import to_text
from tailrace.types import Form

_NUMBERS: Final = frozenset({Form.INTEGER, Form.FLOAT, Form.DECIMAL, Form.NUMERIC, Form.MONEY})
_MOMENTS: Final = frozenset({Form.DATE, Form.TIMESTAMP, Form.TIMESTAMPTZ})
_UNBOUNDED: Final = frozenset({"infinity", "-infinity"})
_WORDS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_TRUE, _FALSE = frozenset({"t", "true", "yes", "on", "1"}), frozenset({"f", "false", "no", "off", "0"})


def texts(array: pa.Array, column: Column, special: Mapping[int, str] | None = None) -> pa.StringArray:
    """PostgreSQL's texts of a column's values; `special` has those, by row, that the array could not hold."""
    found = to_text(array, column)
    if special:
        given = [special.get(row) for row in range(len(array))]
        found = pc.coalesce(pa.array(given, pa.string()), found)
    return found


def recast(values: pa.StringArray, old: Column, new: Column) -> tuple[pa.Array, dict[int, str]]:
    """Texts of the old type as values of the new one, and by row the texts of those that it cannot hold."""
    source, target = types.mapping(old).form, types.mapping(new)
    if quick := _quickly(values, source, target):
        return quick, {}
    encoded = values.dictionary_encode()
    read, unread = [], {}
    for index, value in enumerate(encoded.dictionary.to_pylist()):
        known = _read(value, source, target)
        if known is text.SPECIAL:
            unread[index] = value
        read.append(None if known is text.SPECIAL else known)
    array = pa.array(read, target.arrow).take(encoded.indices)
    if not unread:
        return array, {}
    places = encoded.indices.fill_null(-1).to_numpy()
    return array, {int(row): unread[places[row]] for row in np.flatnonzero(np.isin(places, list(unread)))}


def _quickly(values: pa.StringArray, source: Form, target: types.Mapping) -> pa.Array | None:
    """Where Arrow casts as PostgreSQL does; None where it cannot, or not all of them."""
    if pa.types.is_string(target.arrow) and source is not Form.BOOLEAN:
        return values
    if source in (Form.INTEGER, Form.DECIMAL, Form.NUMERIC) and target.form in (Form.INTEGER, Form.DECIMAL):
        try:
            return pc.cast(values, target.arrow)
        except pa.ArrowInvalid:
            return None
    return None


def _read(value: str, source: Form, target: types.Mapping) -> Any:
    try:
        return target.arrow_value(_adapted(value, source, target).encode())
    except (DecodeError, ValueError, InvalidOperation):
        return text.SPECIAL


def _adapted(value: str, source: Form, target: types.Mapping) -> str:
    """The text as the new type writes it."""
    form = target.form
    if source is Form.BOOLEAN and form is not Form.BOOLEAN:
        value = {"t": "1", "f": "0"}[value] if form is Form.INTEGER else {"t": "true", "f": "false"}[value]
    if form is Form.BOOLEAN and value.strip().lower() in _TRUE | _FALSE:
        return "t" if value.strip().lower() in _TRUE else "f"
    if source is Form.MONEY and form in _NUMBERS:
        value = value.replace("$", "").replace(",", "")
    if form in (Form.INTEGER, Form.DECIMAL, Form.MONEY) and value not in _WORDS:
        scale = 0 if form is Form.INTEGER else target.arrow.scale
        # PostgreSQL rounds a float as the processor does, and a numeric as people do.
        rounding = ROUND_HALF_EVEN if source is Form.FLOAT and form is Form.INTEGER else ROUND_HALF_UP
        with localcontext() as context:
            context.prec = 2000
            number = Decimal(value.strip()).quantize(Decimal(1).scaleb(-scale), rounding)
        plain = f"{number:f}"
        return plain if form is not Form.MONEY else plain.replace("-", "-$") if plain[0] == "-" else f"${plain}"
    if source in _MOMENTS and form in _MOMENTS | {Form.TIME} and value not in _UNBOUNDED:
        return _moment(value, form)
    return value


def _moment(value: str, form: Form) -> str:
    """`2024-02-29 12:00:00.5+00 BC` with the parts that the form has."""
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
