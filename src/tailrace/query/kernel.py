"""The compiled loops of `row_encoding`: values into PostgreSQL's text and binary forms, and cells into messages.

The cells of a column are a buffer with `start` and `length` for each row; a length of NULL means NULL. A loop that
writes text right-aligns it in slots of a fixed size. It marks values it cannot write with OTHER; the caller encodes
those in Python.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from tailrace.pgoutput.kernel import BYTES, FLAG, LONG, LONGS, OUT, WORD, compiled

NULL, OTHER = -1, -2
SLOT = 48

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Doubles = npt.NDArray[np.float64]

_DAY_US = 86_400_000_000
_READ_LONGS: Any = types.Array(types.int64, 1, "C", readonly=True)
_DOUBLES: Any = types.Array(types.float64, 1, "C", readonly=True)
_NOTHING: Any = types.void
_POWERS = np.array([10**k for k in range(19)], np.int64)


@compiled(LONG(OUT, LONG, LONG))
def _digits(out: Bytes, end: int, value: int) -> int:
    """Write a non-negative number that ends at `end`; returns where it begins."""
    rest = WORD(value)  # unsigned, so the division compiles to a multiplication
    while True:
        end -= 1
        out[end] = WORD(48) + rest % WORD(10)
        rest = rest // WORD(10)
        if rest == WORD(0):
            return end


@compiled(LONG(OUT, LONG, LONG, LONG))
def _padded_digits(out: Bytes, end: int, value: int, width: int) -> int:
    rest = WORD(value)
    for _ in range(width):
        end -= 1
        out[end] = WORD(48) + rest % WORD(10)
        rest = rest // WORD(10)
    return end


@compiled(_NOTHING(_READ_LONGS, BYTES, OUT, LONGS, LONGS))
def integers(values: Longs, valid: Bytes, out: Bytes, start: Longs, length: Longs) -> None:
    for row in range(len(values)):
        if valid[row] == 0:
            length[row] = NULL
            continue
        end = (row + 1) * SLOT
        value = values[row]
        if value == -9223372036854775808:
            length[row] = OTHER
            continue
        begin = _digits(out, end, abs(value))
        if value < 0:
            begin -= 1
            out[begin] = 45
        start[row], length[row] = begin, end - begin


@compiled(_NOTHING(_READ_LONGS, BYTES, LONG, OUT, LONGS, LONGS))
def decimals(words: Longs, valid: Bytes, scale: int, out: Bytes, start: Longs, length: Longs) -> None:
    """Write decimals of up to 64 bits. `words` are pairs of low and high words."""
    for row in range(len(valid)):
        if valid[row] == 0:
            length[row] = NULL
            continue
        value = words[2 * row]
        if words[2 * row + 1] != value >> 63 or value == -9223372036854775808:
            length[row] = OTHER
            continue
        end = (row + 1) * SLOT
        rest = abs(value)
        begin = end
        if scale > 0:
            for _ in range(scale):
                begin -= 1
                out[begin] = 48 + rest % 10
                rest //= 10
            begin -= 1
            out[begin] = 46
        begin = _digits(out, begin, rest)
        if value < 0:
            begin -= 1
            out[begin] = 45
        start[row], length[row] = begin, end - begin


@compiled(LONG(OUT, LONG, LONG))
def _date(out: Bytes, end: int, days: int) -> int:
    """Write days since 1970 as YYYY-MM-DD. The caller has already written any ` BC` after it."""
    shifted = days + 719468
    era = shifted // 146097
    day_of_era = shifted - era * 146097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + 3 if shifted_month < 10 else shifted_month - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    if year <= 0:
        year = 1 - year
    end = _padded_digits(out, end, day, 2) - 1
    out[end] = 45
    end = _padded_digits(out, end, month, 2) - 1
    out[end] = 45
    return _padded_digits(out, end, year, 4) if year < 10000 else _digits(out, end, year)


@compiled(LONG(OUT, LONG, LONG))
def _clock(out: Bytes, end: int, microseconds: int) -> int:
    fraction = LONG(WORD(microseconds) % WORD(1000000))
    seconds = LONG(WORD(microseconds) // WORD(1000000))
    minutes = LONG(WORD(seconds) // WORD(60))
    if fraction:
        width = 6
        while fraction % 10 == 0:
            fraction //= 10
            width -= 1
        end = _padded_digits(out, end, fraction, width) - 1
        out[end] = 46
    end = _padded_digits(out, end, seconds - minutes * 60, 2) - 1
    out[end] = 58
    hours = LONG(WORD(minutes) // WORD(60))
    end = _padded_digits(out, end, minutes - hours * 60, 2) - 1
    out[end] = 58
    return _padded_digits(out, end, hours, 2)


@compiled(LONG(OUT, LONG, FLAG))
def _infinity(out: Bytes, end: int, is_negative: bool) -> int:
    for letter in (121, 116, 105, 110, 105, 102, 110, 105):
        end -= 1
        out[end] = letter
    if is_negative:
        end -= 1
        out[end] = 45
    return end


@compiled(LONG(OUT, LONG, LONG))
def _era(out: Bytes, end: int, days: int) -> int:
    """Write ` BC` for a day before the year 1."""
    if days >= -719162:
        return end
    out[end - 1], out[end - 2], out[end - 3] = 67, 66, 32
    return end - 3


@compiled(_NOTHING(_READ_LONGS, BYTES, OUT, LONGS, LONGS))
def dates(values: Longs, valid: Bytes, out: Bytes, start: Longs, length: Longs) -> None:
    for row in range(len(values)):
        if valid[row] == 0:
            length[row] = NULL
            continue
        end = (row + 1) * SLOT
        if abs(values[row]) == 2147483647:
            begin = _infinity(out, end, values[row] < 0)
        else:
            begin = _date(out, _era(out, end, values[row]), values[row])
        start[row], length[row] = begin, end - begin


@compiled(_NOTHING(_READ_LONGS, BYTES, FLAG, OUT, LONGS, LONGS))
def timestamps(values: Longs, valid: Bytes, with_zone: bool, out: Bytes, start: Longs, length: Longs) -> None:
    last_day, last_begin, last_length = -9223372036854775807, 0, 0
    for row in range(len(values)):
        if valid[row] == 0:
            length[row] = NULL
            continue
        end = (row + 1) * SLOT
        value = values[row]
        if value == 9223372036854775807 or value == -9223372036854775807:
            begin = _infinity(out, end, value < 0)
        else:
            days = value // _DAY_US
            begin = _era(out, end, days)
            if with_zone:
                out[begin - 1], out[begin - 2], out[begin - 3] = 48, 48, 43
                begin -= 3
            begin = _clock(out, begin, value - days * _DAY_US) - 1
            out[begin] = 32
            if days == last_day:  # consecutive rows often share the day
                begin -= last_length
                for k in range(last_length):
                    out[begin + k] = out[last_begin + k]
                last_begin = begin
            else:
                ends = begin
                begin = _date(out, begin, days)
                last_day, last_begin, last_length = days, begin, ends - begin
        start[row], length[row] = begin, end - begin


@compiled(_NOTHING(_READ_LONGS, BYTES, OUT, LONGS, LONGS))
def times(values: Longs, valid: Bytes, out: Bytes, start: Longs, length: Longs) -> None:
    for row in range(len(values)):
        if valid[row] == 0:
            length[row] = NULL
            continue
        end = (row + 1) * SLOT
        begin = _clock(out, end, values[row])
        start[row], length[row] = begin, end - begin


@compiled(_NOTHING(_DOUBLES, BYTES, OUT, LONGS, LONGS))
def floats(values: Doubles, valid: Bytes, out: Bytes, start: Longs, length: Longs) -> None:
    """Write floats with few decimals, which are the majority.

    A quotient of integers below 2^53 is the double nearest to the decimal fraction. So the first number of decimals
    that reproduces the value gives its shortest text."""
    for row in range(len(values)):
        if valid[row] == 0:
            length[row] = NULL
            continue
        value = abs(values[row])
        length[row] = OTHER
        if not (value == 0 or 1e-4 <= value < 1e15) or (value == 0 and math.copysign(1.0, values[row]) < 0):
            continue
        for decimals_ in range(16):
            scaled = value * _POWERS[decimals_]
            if scaled >= 1e15:
                break
            whole = LONG(scaled + 0.5)
            if whole / _POWERS[decimals_] == value:
                end = (row + 1) * SLOT
                begin = end
                if decimals_:
                    begin = _padded_digits(out, end, whole % _POWERS[decimals_], decimals_) - 1
                    out[begin] = 46
                begin = _digits(out, begin, whole // _POWERS[decimals_])
                if values[row] < 0:
                    begin -= 1
                    out[begin] = 45
                start[row], length[row] = begin, end - begin
                break


@compiled(_NOTHING(_READ_LONGS, BYTES, LONG, OUT, LONGS, LONGS))
def numerics(words: Longs, valid: Bytes, scale: int, out: Bytes, start: Longs, length: Longs) -> None:
    """Write binary numerics: base-10,000 digits aligned at the decimal point. Up to 16 decimals and 64 bits."""
    groups = (scale + 3) // 4
    for row in range(len(valid)):
        if valid[row] == 0:
            length[row] = NULL
            continue
        value = words[2 * row]
        if words[2 * row + 1] != value >> 63 or value == -9223372036854775808 or scale > 16:
            length[row] = OTHER
            continue
        whole = abs(value) // _POWERS[scale]
        fraction = abs(value) % _POWERS[scale] * _POWERS[groups * 4 - scale]
        end = (row + 1) * SLOT
        at = end
        for _ in range(groups):
            at -= 2
            digit = fraction % 10000
            out[at], out[at + 1] = digit >> 8, digit & 255
            fraction //= 10000
        weight = -1
        while whole:
            at -= 2
            digit = whole % 10000
            out[at], out[at + 1] = digit >> 8, digit & 255
            whole //= 10000
            weight += 1
        count = (end - at) // 2
        sign = 64 if value < 0 else 0
        at -= 8
        out[at], out[at + 1] = count >> 8, count & 255
        out[at + 2], out[at + 3] = (weight >> 8) & 255, weight & 255
        out[at + 4], out[at + 5] = sign, 0
        out[at + 6], out[at + 7] = scale >> 8, scale & 255
        start[row], length[row] = at, end - at


@compiled(_NOTHING(BYTES, LONGS, LONGS, OUT, LONGS))
def hexadecimal(data: Bytes, start: Longs, length: Longs, out: Bytes, begin: Longs) -> None:
    """Write `\\x…` for each cell, at `begin`."""
    for row in range(len(length)):
        if length[row] < 0:
            continue
        at = begin[row]
        out[at], out[at + 1] = 92, 120
        for k in range(length[row]):
            byte = data[start[row] + k]
            high, low = byte >> 4, byte & 15
            out[at + 2 + 2 * k] = high + (48 if high < 10 else 87)
            out[at + 3 + 2 * k] = low + (48 if low < 10 else 87)


@compiled(_NOTHING(OUT, LONGS, LONGS, LONG, LONG))
def frame(out: Bytes, at: Longs, size: Longs, letter: int, columns: int) -> None:
    """Write each row's type, size and column count, and move `at` to its first cell. A text COPY has no count (-1)."""
    for row in range(len(at)):
        place = at[row]
        count = size[row] - 1
        out[place] = letter
        for k in range(4):
            out[place + 1 + k] = (count >> (24 - 8 * k)) & 255
        if columns >= 0:
            out[place + 5], out[place + 6] = columns >> 8, columns & 255
            at[row] = place + 7
        else:
            at[row] = place + 5


@compiled(_NOTHING(OUT, LONGS, BYTES, LONGS, LONGS))
def place(out: Bytes, at: Longs, data: Bytes, start: Longs, length: Longs) -> None:
    """Copy one column's cells into their rows, each preceded by its length."""
    for row in range(len(at)):
        to = at[row]
        count = length[row]
        for k in range(4):
            out[to + k] = (count >> (24 - 8 * k)) & 255
        to += 4
        begin = start[row]
        for k in range(count):
            out[to + k] = data[begin + k]
        at[row] = to + (count if count > 0 else 0)


@compiled(_NOTHING(OUT, LONGS, BYTES, LONGS, LONGS, BYTES, LONG))
def place_text(out: Bytes, at: Longs, data: Bytes, start: Longs, length: Longs, null: Bytes, end: int) -> None:
    """Copy one column's cells into their lines, each followed by the byte `end`."""
    for row in range(len(at)):
        to = at[row]
        count = length[row]
        if count < 0:
            for k in range(len(null)):
                out[to + k] = null[k]
            to += len(null)
        else:
            begin = start[row]
            for k in range(count):
                out[to + k] = data[begin + k]
            to += count
        out[to] = end
        at[row] = to + 1
