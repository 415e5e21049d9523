"""Compiled loops that parse dates, times and intervals to days, months and microseconds."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tailrace.pgoutput.kernel import (
    BYTES,
    FLAG,
    INTS,
    LONG,
    LONGS,
    OUT,
    PAIR,
    SPECIAL,
    VALUE,
    Bytes,
    Longs,
    compiled,
    ends_with,
    signed_word,
)
from tailrace.text import DATE_INFINITY, DAY_US, TIMESTAMP_INFINITY

DATE, TIMESTAMP, TIMESTAMPTZ, TIME = 0, 1, 2, 3

_LAST_DAY, _LAST_DAY_US = divmod(TIMESTAMP_INFINITY, DAY_US)
_LAST_SECOND, _LAST_SECOND_US = divmod(TIMESTAMP_INFINITY, 1_000_000)
_MALFORMED = -0x8000000000000000

_INFINITE, _BC, _UTC, _YEAR, _MON, _DAY = (
    np.frombuffer(word, np.uint8) for word in (b"infinity", b" BC", b"+00", b"year", b"mon", b"day")
)


@compiled(LONG(BYTES, LONG, LONG, LONG))
def _digits(data: Bytes, at: int, end: int, count: int) -> int:
    """Parse exactly `count` digits, else return _MALFORMED."""
    if end - at < count:
        return _MALFORMED
    value = 0
    for k in range(at, at + count):
        digit = LONG(data[k]) - 48
        if digit < 0 or digit > 9:
            return _MALFORMED
        value = value * 10 + digit
    return value


@compiled(LONG(BYTES, LONG, LONG, LONG))
def _count_digits(data: Bytes, at: int, end: int, most: int) -> int:
    """The number of digits at `at`, counted up to one more than `most`."""
    count = 0
    while at + count < end and count <= most and 48 <= data[at + count] <= 57:
        count += 1
    return count


@compiled(PAIR(BYTES, LONG, LONG, LONG))
def _clock(data: Bytes, at: int, end: int, most: int) -> tuple[int, int]:
    """Parse `HH:MM:SS.ffffff`, with hours of two to `most` digits, to seconds and microseconds."""
    bad = (_MALFORMED, 0)
    count = _count_digits(data, at, end, most)
    if count < 2 or count > most:
        return bad
    hours = _digits(data, at, end, count)
    at += count
    if end - at < 6 or data[at] != 58 or data[at + 3] != 58:
        return bad
    minutes, seconds = _digits(data, at + 1, end, 2), _digits(data, at + 4, end, 2)
    if minutes < 0 or seconds < 0:
        return bad
    at += 6
    fraction = LONG(0)
    if at < end:
        count = end - at - 1
        if data[at] != 46 or count < 1 or count > 6:
            return bad
        fraction = _digits(data, at + 1, end, count)
        if fraction < 0:
            return bad
        for _ in range(6 - count):
            fraction *= 10
    return (hours * 60 + minutes) * 60 + seconds, fraction


@compiled(PAIR(BYTES, LONG, LONG, FLAG))
def _civil(data: Bytes, at: int, end: int, bc: bool) -> tuple[int, int]:
    """Parse `YYYY-MM-DD`. Return days since 1970 in the proleptic Gregorian calendar, and the place after the date."""
    bad = (_MALFORMED, 0)
    count = _count_digits(data, at, end, 7)
    if count < 4 or count > 7 or end - at < count + 6:
        return bad
    year = _digits(data, at, end, count)
    at += count
    month, day = _digits(data, at + 1, end, 2), _digits(data, at + 4, end, 2)
    if data[at] != 45 or data[at + 3] != 45 or not 1 <= month <= 12 or not 1 <= day <= 31:
        return bad
    if bc:
        year = 1 - year
    if month <= 2:
        year, month = year - 1, month + 12
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month - 457) // 5 + day - 719_469
    return days, at + 6


@compiled(LONG(BYTES, LONGS, LONGS, LONG, LONGS, OUT))
def temporals(data: Bytes, start: Longs, length: Longs, kind: int, out: Longs, state: Bytes) -> int:
    """Parse DATE, TIMESTAMP, TIMESTAMPTZ at UTC, or TIME to days or microseconds."""
    for row in range(len(start)):
        out[row] = 0
        state[row] = 0
        if length[row] < 0:
            continue
        at, end = start[row], start[row] + length[row]
        state[row] = VALUE
        if kind != TIME:
            infinity = signed_word(data, at, end, _INFINITE)
            if infinity != 0:
                out[row] = infinity * (DATE_INFINITY if kind == DATE else TIMESTAMP_INFINITY)
                continue
        days, seconds, fraction = 0, 0, 0
        if kind != TIME:
            bc = ends_with(data, at, end, _BC)
            if bc:
                end -= 3
            if kind == TIMESTAMPTZ:
                if not ends_with(data, at, end, _UTC):
                    return row
                end -= 3
            days, at = _civil(data, at, end, bc)
            if days == _MALFORMED or (kind == DATE and at != end):
                return row
            if kind != DATE:
                if at >= end or data[at] != 32:
                    return row
                at += 1
        if kind == DATE:
            fits = abs(days) < DATE_INFINITY
            value = days
        else:
            seconds, fraction = _clock(data, at, end, 2)
            if seconds == _MALFORMED:
                return row
            clock = seconds * 1_000_000 + fraction
            fits = clock < DAY_US
            if kind != TIME:
                days, clock = days + clock // DAY_US, clock % DAY_US
                fits = -_LAST_DAY < days < _LAST_DAY or (days == _LAST_DAY and clock < _LAST_DAY_US)
            value = days * DAY_US + clock
        if fits:
            out[row] = value
        else:
            state[row] = SPECIAL
    return -1


@compiled(LONG(BYTES, LONG, LONG, BYTES))
def _unit(data: Bytes, at: int, end: int, word: Bytes) -> int:
    """The place after ` <word>` or ` <word>s` and the blank that follows, or _MALFORMED if there is no such word."""
    stop = at + 1 + len(word)
    if stop > end or data[at] != 32 or not ends_with(data, at, stop, word):
        return _MALFORMED
    if stop < end and data[stop] == 115:
        stop += 1
    if stop == end:
        return stop
    return stop + 1 if data[stop] == 32 and stop + 1 < end else _MALFORMED


@compiled(LONG(BYTES, LONGS, LONGS, INTS, INTS, LONGS, OUT))
def intervals(
    data: Bytes,
    start: Longs,
    length: Longs,
    months: npt.NDArray[np.int32],
    days: npt.NDArray[np.int32],
    microseconds: Longs,
    state: Bytes,
) -> int:
    for row in range(len(start)):
        months[row] = 0
        days[row] = 0
        microseconds[row] = 0
        state[row] = 0
        if length[row] < 0:
            continue
        at, end = start[row], start[row] + length[row]
        if at == end:
            return row
        state[row] = SPECIAL
        if signed_word(data, at, end, _INFINITE) != 0:
            continue
        month, day, clock = LONG(0), LONG(0), LONG(0)
        stage = 0  # units are in this order: years, months, days, clock
        fits = True
        while at < end:
            negative = data[at] == 45
            if negative or data[at] == 43:
                at += 1
            count = _count_digits(data, at, end, 10)
            after = at + count
            if count == 0 or count > 10 or stage == 4:
                return row
            if after < end and data[after] == 58:
                seconds, fraction = _clock(data, at, end, 10)
                if seconds == _MALFORMED:
                    return row
                most = _LAST_SECOND_US + negative
                fits = fits and (seconds < _LAST_SECOND or (seconds == _LAST_SECOND and fraction <= most))
                clock = -seconds * 1_000_000 - fraction
                if not negative:
                    clock = -clock
                stage, at = 4, end
                continue
            amount = _digits(data, at, end, count)
            if negative:
                amount = -amount
            if stage < 1 and _unit(data, after, end, _YEAR) != _MALFORMED:
                stage, at = 1, _unit(data, after, end, _YEAR)
                month += amount * 12
            elif stage < 2 and _unit(data, after, end, _MON) != _MALFORMED:
                stage, at = 2, _unit(data, after, end, _MON)
                month += amount
            elif stage < 3 and _unit(data, after, end, _DAY) != _MALFORMED:
                stage, at = 3, _unit(data, after, end, _DAY)
                day = amount
            else:
                return row
        fits = fits and -0x80000000 <= month <= 0x7FFFFFFF and -0x80000000 <= day <= 0x7FFFFFFF
        if fits:
            months[row] = month
            days[row] = day
            microseconds[row] = clock
            state[row] = VALUE
    return -1
