"""Compiled loops that parse numbers to integers of 64 and 128 bits."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailrace.pgoutput.kernel import (
    BYTES,
    FLAG,
    LONG,
    LONGS,
    OUT,
    SPECIAL,
    VALUE,
    WORD,
    WORD_PAIR,
    WORDS,
    Bytes,
    Longs,
    compiled,
    signed_word,
)

_LOW_HALF, _HALF, _TEN = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(10)
_NAN, _INFINITY = (np.frombuffer(word, np.uint8) for word in (b"NaN", b"Infinity"))


@compiled(LONG(BYTES, LONGS, LONGS, LONG, LONG, LONGS, OUT))
def integers(data: Bytes, start: Longs, length: Longs, low: int, high: int, out: Longs, state: Bytes) -> int:
    for row in range(len(start)):
        out[row] = 0
        state[row] = 0
        if length[row] < 0:
            continue
        at, end = start[row], start[row] + length[row]
        negative = at < end and data[at] == 45
        if negative:
            at += 1
        if not 1 <= end - at <= 19:
            return row
        value = LONG(0)
        for k in range(at, end):
            digit = LONG(data[k]) - 48
            if digit < 0 or digit > 9:
                return row
            # Accumulate negative values, because the smallest int64 has no positive counterpart.
            value = value * 10 - digit
        # The 19th digit can overflow once, which changes the sign.
        if value > 0 or (not negative and value < -0x7FFFFFFFFFFFFFFF):
            return row
        if not negative:
            value = -value
        if value < low or value > high:
            return row
        out[row] = value
        state[row] = VALUE
    return -1


@compiled(WORD_PAIR(WORD, WORD, WORD))
def _append(low: np.uint64, high: np.uint64, digit: np.uint64) -> tuple[np.uint64, np.uint64]:
    """The 128-bit number × 10 + digit."""
    right = (low & _LOW_HALF) * _TEN + digit
    left = (low >> _HALF) * _TEN + (right >> _HALF)
    return left << _HALF | (right & _LOW_HALF), high * _TEN + (left >> _HALF)


@compiled(LONG(BYTES, LONGS, LONGS, LONG, LONG, FLAG, WORDS, OUT))
def decimals(
    data: Bytes,
    start: Longs,
    length: Longs,
    precision: int,
    scale: int,
    money: bool,
    out: npt.NDArray[np.uint64],
    state: Bytes,
) -> int:
    """Parse numeric, or money under lc_monetary C, to 128-bit integers of two words, the low one first."""
    for row in range(len(start)):
        out[row, 0] = 0
        out[row, 1] = 0
        state[row] = 0
        if length[row] < 0:
            continue
        at, end = start[row], start[row] + length[row]
        negative = at < end and data[at] == 45
        if negative:
            at += 1
        if money:
            if at >= end or data[at] != 36:
                return row
            at += 1
        elif signed_word(data, at, end, _INFINITY) == 1 or (not negative and signed_word(data, at, end, _NAN) == 1):
            state[row] = SPECIAL
            continue
        low, high = WORD(0), WORD(0)
        digits, whole, fraction = 0, 0, 0
        point = False
        for k in range(at, end):
            byte = data[k]
            if byte == 46 and whole > 0 and not point:
                point = True
                continue
            if byte == 44 and whole > 0 and not point and money:
                continue
            if byte < 48 or byte > 57:
                return row
            digit = WORD(byte) - WORD(48)
            if point:
                fraction += 1
            else:
                whole += 1
            if digits > 0 or digit > 0:
                digits += 1
            if digits < 20:
                low = low * _TEN + digit
            else:
                low, high = _append(low, high, digit)
        if whole == 0 or (point and fraction == 0) or (money and fraction != 2):
            return row
        if digits > 0:
            digits += max(scale - fraction, 0)
        if fraction > scale or digits > precision:
            state[row] = SPECIAL
            continue
        for _ in range(scale - fraction):
            low, high = _append(low, high, WORD(0))
        if negative:
            low = ~low + WORD(1)
            high = ~high + WORD(low == 0)
        out[row, 0] = low
        out[row, 1] = high
        state[row] = VALUE
    return -1
