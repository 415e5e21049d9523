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
from tailrace.types import Form

_NUMBERS: Final = frozenset({Form.INTEGER, Form.FLOAT, Form.DECIMAL, Form.NUMERIC, Form.MONEY})
_MOMENTS: Final = frozenset({Form.DATE, Form.TIMESTAMP, Form.TIMESTAMPTZ})
_UNBOUNDED: Final = frozenset({"infinity", "-infinity"})
_WORDS: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
_TRUE, _FALSE = frozenset({"t", "true", "yes", "on", "1"}), frozenset({"f", "false", "no", "off", "0"})


def texts(array: pa.Array, column: Column, special: Mapping[int, str] | None = None) -> pa.StringArray:
    """PostgreSQL's texts of a column's values; `special` has those, by row, that the array could not hold."""
    found = _texts(array, types.mapping(column).form)
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
    if form in (Form.INTEGER, Form.DECIMAL, Form.MONEY) and value not in _WORDS.values():
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


def _texts(array: pa.Array, form: Form) -> pa.StringArray:
    match form:
        case Form.BOOLEAN:
            return pc.if_else(array, "t", "f")
        case Form.INTEGER:
            return pc.cast(array, pa.string())
        case Form.FLOAT:
            found = pc.cast(array, pa.string())
            for word, postgres in _WORDS.items():
                found = pc.if_else(pc.equal(found, word), postgres, found)
            return found
        case Form.DECIMAL | Form.MONEY:
            # Arrow would write small ones with an exponent.
            return _each(array, lambda value: f"{value:f}")
        case Form.BINARY:
            return _each(array, lambda value: f"\\x{value.hex()}")
        case Form.INTERVAL:
            return _each(array, interval)
        case Form.DATE:
            return _each(array.view(pa.int32()), date)
        case Form.TIMESTAMP | Form.TIMESTAMPTZ:
            zone = "+00" if form is Form.TIMESTAMPTZ else ""
            return _each(array.view(pa.int64()), lambda value: timestamp(value, zone))
        case Form.TIME:
            return _each(array.view(pa.int64()), clock)
    return array


def _each(array: pa.Array, written: Any) -> pa.StringArray:
    return pa.array([None if value is None else written(value) for value in array.to_pylist()], pa.string())


def date(days: int, between: str = "") -> str:
    """`between` stands before the era."""
    if abs(days) == text.DATE_INFINITY and not between:
        return "infinity" if days > 0 else "-infinity"
    year, month, day = _civil(days)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}{between}{'' if year > 0 else ' BC'}"


def timestamp(microseconds: int, zone: str) -> str:
    if abs(microseconds) == text.TIMESTAMP_INFINITY:
        return "infinity" if microseconds > 0 else "-infinity"
    days, rest = divmod(microseconds, text.DAY_US)
    return date(days, f" {clock(rest)}{zone}")


def clock(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    point = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{point}"


def interval(value: Mapping[str, int]) -> str:
    months, days, microseconds = value["months"], value["days"], value["microseconds"]
    # As PostgreSQL divides: towards zero.
    years = abs(months) // 12 * (1 if months > 0 else -1)
    words = [(years, "year"), (months - 12 * years, "mon"), (days, "day")]
    parts: list[str] = []
    for count, word in words:
        if count:
            parts.append(f"{_plus(parts, count)}{count} {word}{'' if count == 1 else 's'}")
    if microseconds or not parts:
        sign = "-" if microseconds < 0 else _plus(parts, microseconds)
        parts.append(f"{sign}{clock(abs(microseconds))}")
    return " ".join(parts)


def _plus(parts: list[str], count: int) -> str:
    """After a negative part PostgreSQL gives a positive one its sign."""
    return "+" if parts and parts[-1][0] == "-" and count > 0 else ""


def _civil(days: int) -> tuple[int, int, int]:
    """Year (0 is 1 BC), month and day, in the Gregorian calendar however early."""
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return year_of_era + 400 * era + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1
