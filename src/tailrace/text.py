"""Parsers for PostgreSQL's text of single values, in plain Python.

Each returns the value that Arrow stores. Temporal values are integers counted from 1970-01-01 (days, or
microseconds), because Python's own classes are limited to the years 1 to 9999. Well-formed text whose value the Arrow
type cannot hold gives `SPECIAL`; text that PostgreSQL never prints raises ValueError. Tests hold the vectorised
decoder to this module.

The text is that of a session with DateStyle ISO, IntervalStyle postgres, TimeZone UTC, lc_monetary C and bytea_output
hex. Every Tailrace connection sets these.
"""

from __future__ import annotations

import math
import re
import struct
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

DATE_INFINITY: Final = 2**31 - 1
TIMESTAMP_INFINITY: Final = 2**63 - 1
DAY_US: Final = 86_400_000_000


class Special:
    """The class of `SPECIAL`: a well-formed value that the Arrow type cannot hold."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "SPECIAL"

    def __reduce__(self) -> str:
        return "SPECIAL"


SPECIAL: Final = Special()

_CLOCK = r"([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?"
_DAY = r"([0-9]{4,7})-([0-9]{2})-([0-9]{2})"
_DATE = re.compile(rf"{_DAY}( BC)?")
_TIMESTAMP = re.compile(rf"{_DAY} {_CLOCK}(\+00)?( BC)?")
_TIME = re.compile(_CLOCK)
_INTERVAL = re.compile(
    r"(?:([+-]?[0-9]{1,10}) years?(?: |\Z))?(?:([+-]?[0-9]{1,10}) mons?(?: |\Z))?"
    r"(?:([+-]?[0-9]{1,10}) days?(?: |\Z))?"
    r"(?:([+-]?)([0-9]{2,10}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,6}))?)?"
)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_MONEY = re.compile(r"-?\$[0-9][0-9,]*\.[0-9]{2}")
_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})


def boolean(text: str) -> bool:
    if text not in ("t", "f"):
        raise ValueError("not a boolean")
    return text == "t"


def integer(text: str, low: int, high: int) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or not low <= int(text) <= high:
        raise ValueError("not an integer of this type")
    return int(text)


def float64(text: str) -> float:
    if text in _NOT_FINITE or re.fullmatch(r"-?[0-9]+(\.[0-9]+)?(e[+-][0-9]+)?", text):
        return float(text)
    raise ValueError("not a float")


def float32(text: str) -> float:
    """Round once, from the decimal text; going through the nearest double would round twice."""
    near = float64(text)
    if math.isfinite(near) and (error := Fraction(text) - Fraction(near)):
        # Round to odd: of the two doubles around the value, the odd one is never a float32 midpoint.
        (bits,) = struct.unpack("<q", struct.pack("<d", near))
        if bits & 1 == 0:
            near = math.nextafter(near, math.inf if error > 0 else -math.inf)
    (single,) = struct.unpack("<f", struct.pack("<f", near))
    return float(single)


def decimal(text: str, precision: int, scale: int) -> Decimal | Special:
    if text in _NOT_FINITE:
        return SPECIAL
    if not _NUMBER.fullmatch(text):
        raise ValueError("not a numeric")
    whole, _, fraction = text.removeprefix("-").partition(".")
    digits = (whole + fraction.ljust(scale, "0")).lstrip("0")
    if len(fraction) > scale or len(digits) > precision:
        return SPECIAL
    return Decimal((int(text[0] == "-"), tuple(map(int, digits)), -scale))


def money(text: str) -> Decimal | Special:
    if not _MONEY.fullmatch(text):
        raise ValueError("not money in the C locale")
    return decimal(text.replace("$", "").replace(",", ""), 19, 2)


def binary(text: str) -> bytes:
    # bytes.fromhex alone would accept blanks.
    if not text.startswith("\\x") or any(c.isspace() for c in text):
        raise ValueError("not bytea in hex")
    return bytes.fromhex(text[2:])


def date(text: str) -> int | Special:
    if text in ("infinity", "-infinity"):
        return DATE_INFINITY if text == "infinity" else -DATE_INFINITY
    if not (match := _DATE.fullmatch(text)):
        raise ValueError("not a date")
    year, month, day, bc = match.groups()
    days = _days(int(year), int(month), int(day), bc is not None)
    return days if abs(days) < DATE_INFINITY else SPECIAL


def timestamp(text: str, zone: str | None) -> int | Special:
    """`zone` is "+00" if the text must end in it (timestamptz in a UTC session), else None."""
    if text in ("infinity", "-infinity"):
        return TIMESTAMP_INFINITY if text == "infinity" else -TIMESTAMP_INFINITY
    if not (match := _TIMESTAMP.fullmatch(text)) or match[8] != zone:
        raise ValueError("not a timestamp")
    year, month, day, hour, minute, second, fraction, _, bc = match.groups()
    days = _days(int(year), int(month), int(day), bc is not None)
    microseconds = days * DAY_US + _clock(hour, minute, second, fraction)
    return microseconds if abs(microseconds) < TIMESTAMP_INFINITY else SPECIAL


def time(text: str) -> int | Special:
    if not (match := _TIME.fullmatch(text)):
        raise ValueError("not a time")
    microseconds = _clock(*match.groups())
    return microseconds if microseconds < DAY_US else SPECIAL


def interval(text: str) -> dict[str, int] | Special:
    if text in ("infinity", "-infinity"):
        return SPECIAL
    if not text or text.endswith(" ") or not (match := _INTERVAL.fullmatch(text)):
        raise ValueError("not an interval")
    years, months, days, sign, hour, minute, second, fraction = match.groups()
    total_months = int(years or 0) * 12 + int(months or 0)
    clock = _clock(hour, minute, second, fraction) if hour else 0
    microseconds = -clock if sign == "-" else clock
    if not (_fits(total_months, 32) and _fits(int(days or 0), 32) and _fits(microseconds, 64)):
        return SPECIAL
    return {"months": total_months, "days": int(days or 0), "microseconds": microseconds}


def _fits(value: int, bits: int) -> bool:
    return bool(-(1 << (bits - 1)) <= value < 1 << (bits - 1))


def _clock(hour: Any, minute: Any, second: Any, fraction: Any) -> int:
    whole = (int(hour) * 60 + int(minute)) * 60 + int(second)
    return whole * 1_000_000 + int((fraction or "").ljust(6, "0"))


def _days(year: int, month: int, day: int, bc: bool) -> int:
    """Days since 1970-01-01 in the proleptic Gregorian calendar; 1 BC is year 0."""
    if not (1 <= month <= 12 and 1 <= day <= 31):
        raise ValueError("no such day")
    if bc:
        year = 1 - year
    # Years start in March here, so the leap day comes last and month lengths do not depend on the year.
    if month <= 2:
        year, month = year - 1, month + 12
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * month - 457) // 5 + day - 719_469
