"""Converts a snapshot's typed columns back into PostgreSQL's text: the inverse of `tailrace.text`, exact to the byte.

The text is that of a session with the settings that every Tailrace connection uses, so a row from a snapshot equals the
same row from the stream. Arrow prints ordinary values, a column at a time. Python prints the few that Arrow prints
differently from PostgreSQL: years after 9999 or before 1, and very large or small numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import types
from tailrace.change import Column, Relation
from tailrace.images import Images, record_batch
from tailrace.log.decoding import Mask
from tailrace.text import DATE_INFINITY, DAY_US, TIMESTAMP_INFINITY
from tailrace.types import Form

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31."""

_DIGITS: Final = {32: 9, 64: 17}
"""By bit width: the digits that distinguish any two floats."""
_PLAIN_BELOW: Final = {32: 6, 64: 15}
"""By bit width: the power of ten from which on PostgreSQL prints an exponent. It also does so below 0.0001."""

_SCALE: Final = 64
"""Midpoints between floats that are printed with a positive exponent are whole numbers if multiplied by this."""


def to_text(array: pa.Array, column: Column) -> pa.StringArray:
    """PostgreSQL's text of each value. Special values are NULL: see `snapshot_images`."""
    form = types.mapping(column).form
    return _PRINTERS[form](array) if form in _PRINTERS else array


def snapshot_images(batch: pa.RecordBatch, relation: Relation, *, as_text: bool) -> Images:
    """Images of a batch from a snapshot's chunk, which has the table's columns and then the special values."""
    special = batch.column(batch.num_columns - 1)
    arrays = batch.columns[:-1]
    if as_text:
        arrays = [to_text(array, column) for array, column in zip(arrays, relation.columns, strict=True)]
        arrays = _with_special(arrays, special, relation)
    rows = record_batch(arrays, types.schema(relation, as_text), len(batch))
    has_special = not as_text and special.null_count < len(special)
    return Images(rows, np.ones(len(batch), np.bool_), {}, special if has_special else None)


def image_texts(images: Images, relation: Relation) -> Images:
    """Typed images as PostgreSQL's texts."""
    arrays = [to_text(array, column) for array, column in zip(images.batch.columns, relation.columns, strict=True)]
    if images.special is not None:
        arrays = _with_special(arrays, images.special, relation)
    batch = record_batch(arrays, types.schema(relation, as_text=True), len(images))
    return replace(images, batch=batch, special=None)


def _with_special(arrays: list[pa.Array], special: pa.MapArray, relation: Relation) -> list[pa.Array]:
    if special.null_count == len(special):
        return arrays
    offsets = special.offsets.to_numpy()
    rows = np.repeat(np.arange(len(special)), np.diff(offsets))
    names, texts = special.keys[offsets[0] : offsets[-1]], special.items[offsets[0] : offsets[-1]]
    found = []
    for array, column in zip(arrays, relation.columns, strict=True):
        own = pc.equal(names, column.name).to_numpy(zero_copy_only=False)
        if own.any():
            mask = np.zeros(len(array), np.bool_)
            mask[rows[own]] = True
            array = pc.replace_with_mask(array, pa.array(mask), texts.filter(pa.array(own)))
        found.append(array)
    return found


def _patch(printed: pa.Array, array: pa.Array, odd: Mask, print_: Callable[[Any], str]) -> pa.Array:
    """`printed`, with the odd rows replaced by what `print_` returns for them."""
    if not odd.any():
        return printed
    texts = pa.array([print_(value) for value in array.filter(pa.array(odd)).to_pylist()], pa.string())
    return pc.replace_with_mask(printed, pa.array(odd), texts)


def _each(print_: Callable[[Any], str]) -> Callable[[pa.Array], pa.Array]:
    def printed(array: pa.Array) -> pa.Array:
        return pa.array([None if value is None else print_(value) for value in array.to_pylist()], pa.string())

    return printed


def _plain(array: pa.Array) -> pa.Array:
    return pc.cast(array, pa.string())


def _boolean(array: pa.Array) -> pa.Array:
    return pc.if_else(array, "t", "f")


def _decimal(array: pa.Array) -> pa.Array:
    printed = _plain(array)
    # Arrow prints small numbers as Decimal does: 1E-10.
    odd = pc.fill_null(pc.match_substring(printed, "E"), False).to_numpy(zero_copy_only=False)
    return _patch(printed, array, odd, lambda value: format(value, "f"))


def _money(value: Decimal) -> str:
    return f"{'-' if value < 0 else ''}${abs(value):,.2f}"


def _binary(array: pa.Array) -> pa.Array:
    _, offsets, data = array.buffers()
    edges = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    if len(array) == 0 or data is None:
        return pc.if_else(array.is_valid(), "\\x", pa.scalar(None, pa.string()))
    raw = np.frombuffer(data, np.uint8)[edges[0] : edges[-1]]
    pairs = np.frombuffer(raw.tobytes().hex().encode(), np.uint8)
    hexed = pa.Array.from_buffers(
        pa.string(), len(array), [None, pa.py_buffer((edges - edges[0]) * np.int32(2)), pa.py_buffer(pairs)]
    )
    return pc.if_else(array.is_valid(), pc.binary_join_element_wise("\\x", hexed, ""), pa.scalar(None, pa.string()))


def _float(array: pa.Array) -> pa.Array:
    width = array.type.bit_width
    values = array.fill_null(0).to_numpy(zero_copy_only=False)
    size = np.abs(values)
    # In this range Arrow's format is PostgreSQL's. From 1e10 on Arrow prints an exponent.
    plain = ((size >= 1e-4) & (size < 10.0 ** min(_PLAIN_BELOW[width], 10))) | (size == 0)
    printed = _plain(array)
    odd = pa.array(~plain)
    if not odd.true_count:
        return printed
    texts = [float_text(text, width) for text in printed.filter(odd).to_pylist()]
    return pc.replace_with_mask(printed, odd, pa.array(texts, pa.string()))


_NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def float_text(shortest: str, width: int) -> str:
    """PostgreSQL's text of a float, from the shortest digits that parse as this float."""
    if shortest in _NOT_FINITE:
        return _NOT_FINITE[shortest]
    if float(shortest) == 0:
        return "-0" if shortest[0] == "-" else "0"
    sign = "-" if shortest[0] == "-" else ""
    mantissa, _, exponent = shortest.removeprefix("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or 0) - len(fraction) + len(digits) - 1
    digits = digits.rstrip("0")
    if power >= _PLAIN_BELOW[width]:
        if len(digits) <= power + 1:
            digits, power = _digits_inside(digits, power, width)
    elif power >= -4:
        return sign + (f"{digits:0<{power + 1}}" if len(digits) <= power + 1 else _with_point(digits, power))
    rest = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{rest}e{'-' if power < 0 else '+'}{abs(power):02d}"


def _with_point(digits: str, power: int) -> str:
    return f"{digits[: power + 1]}.{digits[power + 1 :]}" if power >= 0 else f"0.{'0' * (-power - 1)}{digits}"


def _digits_inside(digits: str, power: int, width: int) -> tuple[str, int]:
    """The shortest digits strictly between the midpoints to the float's neighbours.

    PostgreSQL does not print a number on such a midpoint, although parsers that round to even accept it: it prints 1e23
    as 9.999999999999999e+22. Only whole numbers are affected: midpoints of smaller floats have more digits than any
    shortest form.
    """
    value = int(digits) * 10 ** (power + 1 - len(digits))
    low, exact, high = _neighbourhood(value, width)
    if low < _SCALE * value < high:
        return digits, power
    for count in range(len(digits) + 1, _DIGITS[width] + 1):
        unit = 10 ** (len(str(exact)) - count)
        below = exact // unit * unit
        inside = [n for n in (below, below + unit) if low < _SCALE * n < high]
        if inside:
            nearest = str(min(inside, key=lambda n: abs(n - exact)))
            return nearest.rstrip("0"), len(nearest) - 1
    raise AssertionError("no digits identify the float")


def _neighbourhood(value: int, width: int) -> tuple[int, int, int]:
    """The float nearest to a whole number, between the midpoints to its neighbours, which are multiplied by _SCALE."""
    number = int(np.float32(value) if width == 32 else float(value))
    half = _SCALE << number.bit_length() >> (25 if width == 32 else 54)
    # Below a power of two, floats are twice as close.
    is_power = number & (number - 1) == 0
    return _SCALE * number - (half // 2 if is_power else half), number, _SCALE * number + half


def _date(array: pa.Array) -> pa.Array:
    days = array.view(pa.int32())
    odd = _is_outside(days, _FIRST_DAY, _LAST_DAY)
    return _patch(_plain(_without_odd(array, odd)), days, odd, _date_text)


def _timestamp(zone: str) -> Callable[[pa.Array], pa.Array]:
    def printed(array: pa.Array) -> pa.Array:
        microseconds = array.view(pa.int64())
        odd = _is_outside(microseconds, _FIRST_DAY * DAY_US, (_LAST_DAY + 1) * DAY_US - 1)
        text = _trim_zeros(_plain(_without_odd(microseconds.view(pa.timestamp("us")), odd)))
        if zone:
            text = pc.binary_join_element_wise(text, zone, "")
        return _patch(text, microseconds, odd, lambda value: _timestamp_text(value, zone))

    return printed


def _is_outside(numbers: pa.Array, low: int, high: int) -> Mask:
    values = numbers.fill_null(low).to_numpy(zero_copy_only=False)
    mask: Mask = (values < low) | (values > high)
    return mask


def _without_odd(array: pa.Array, odd: Mask) -> pa.Array:
    """The array with odd values set to NULL, because Arrow would print a wrong text for them without an error."""
    return pc.if_else(pa.array(~odd), array, pa.scalar(None, array.type)) if odd.any() else array


def _trim_zeros(text: pa.Array) -> pa.Array:
    """The text without trailing zeros of the microseconds."""
    return pc.utf8_rtrim(pc.utf8_rtrim(text, characters="0"), characters=".")


def _time(array: pa.Array) -> pa.Array:
    return _trim_zeros(_plain(array))


def _date_text(days: int) -> str:
    if abs(days) == DATE_INFINITY:
        return "infinity" if days > 0 else "-infinity"
    day, bc = _day(days)
    return day + bc


def _timestamp_text(microseconds: int, zone: str) -> str:
    if abs(microseconds) == TIMESTAMP_INFINITY:
        return "infinity" if microseconds > 0 else "-infinity"
    days, clock = divmod(microseconds, DAY_US)
    day, bc = _day(days)
    return f"{day} {_clock(clock)}{zone}{bc}"


def _day(days: int) -> tuple[str, str]:
    """The date, and ` BC` or nothing, for a number of days since 1970: the inverse of `tailrace.text`."""
    days += 719_468
    era, of_era = divmod(days, 146_097)
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153  # from March on
    day = of_year - (153 * month + 2) // 5 + 1
    year += era * 400
    month += 3
    if month > 12:
        month, year = month - 12, year + 1
    bc = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}", bc


def _clock(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{text}.{fraction:06d}".rstrip("0") if fraction else text


def _interval(value: dict[str, int]) -> str:
    months, days, microseconds = value["months"], value["days"], value["microseconds"]
    years = abs(months) // 12 * (1 if months >= 0 else -1)
    parts: list[str] = []
    is_before = False
    for amount, unit in ((years, "year"), (months - years * 12, "mon"), (days, "day")):
        if amount:
            plus = "+" if is_before and amount > 0 else ""
            parts.append(f"{plus}{amount} {unit}{'s' if amount != 1 else ''}")
            is_before = amount < 0
    if microseconds or not parts:
        sign = "-" if microseconds < 0 else "+" if is_before else ""
        parts.append(sign + _clock(abs(microseconds)))
    return " ".join(parts)


_PRINTERS: Final[dict[Form, Callable[[pa.Array], pa.Array]]] = {
    Form.BOOLEAN: _boolean,
    Form.INTEGER: _plain,
    Form.FLOAT: _float,
    Form.DECIMAL: _decimal,
    Form.MONEY: _each(_money),
    Form.BINARY: _binary,
    Form.DATE: _date,
    Form.TIMESTAMP: _timestamp(""),
    Form.TIMESTAMPTZ: _timestamp("+00"),
    Form.TIME: _time,
    Form.INTERVAL: _each(_interval),
}
"""Values of other forms are already text."""
