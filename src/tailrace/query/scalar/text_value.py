"""PostgreSQL's text of values that DuckDB writes or reads differently: floats, intervals, money, bytea, booleans."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.query import value_format
from tailrace.query.scalar.scalar_error import ScalarError, invalid_text

_TRUE: Final = frozenset(("t", "tr", "tru", "true", "y", "ye", "yes", "on", "1"))
_FALSE: Final = frozenset(("f", "fa", "fal", "fals", "false", "n", "no", "of", "off", "0"))


def double_text(value: float) -> str:
    return value_format.doubles(pa.array([value], pa.float64()))[0].decode()


def single_text(value: float) -> str:
    found = value_format.singles(pa.array([np.float32(value)], pa.float32()))[0]
    return (found or b"").decode()


def single_sum(values: Sequence[float | None]) -> float | None:
    """The sum of reals, rounded to a real at each step as PostgreSQL does."""
    given = np.array([v for v in values if v is not None], np.float32)
    if not len(given):
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        totals = np.add.accumulate(given, dtype=np.float32)
    others = np.flatnonzero(~np.isfinite(given))
    if np.isinf(totals[: others[0] if len(others) else None]).any():
        raise ScalarError("22003", "value out of range: overflow")
    return float(totals[-1])


def parse_boolean(text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise invalid_text("boolean", text)


_UUID: Final = re.compile(r"(\{)?([0-9a-fA-F]{4}(?:-?[0-9a-fA-F]{4}){7})(?(1)\})")


def parse_uuid(text: str) -> str:
    """A UUID's text from anything that PostgreSQL accepts as input."""
    found = _UUID.fullmatch(text)
    if found is None:
        raise invalid_text("uuid", text)
    return str(uuid.UUID(found[2]))


_INTEGER: Final = re.compile(r"\s*([+-]?)(0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+|[0-9][0-9_]*)\s*")
_BITS: Final = {"smallint": 16, "integer": 32, "bigint": 64, "oid": 33}


def parse_integer(text: str, type_: str) -> int:
    found = _INTEGER.fullmatch(text)
    if found is None or "__" in text or text.rstrip().endswith("_"):
        raise invalid_text(type_, text)
    digits = found[2].replace("_", "")
    value = int(digits, 0) if digits[1:2].isalpha() else int(digits)
    value = -value if found[1] == "-" else value
    bits = _BITS[type_]
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise ScalarError("22003", f'value "{text}" is out of range for type {type_}')
    return value


def parse_bytes(text: str) -> bytes:
    if text.startswith("\\x"):
        try:
            return bytes.fromhex(text[2:])
        except ValueError:
            raise ScalarError("22023", f'invalid hexadecimal data: "{text[2:]}"') from None
    out = bytearray()
    at = 0
    raw = text.encode()
    while at < len(raw):
        if raw[at] != 92:
            out.append(raw[at])
            at += 1
        elif raw[at + 1 : at + 2] == b"\\":
            out.append(92)
            at += 2
        elif re.fullmatch(rb"[0-3][0-7]{2}", raw[at + 1 : at + 4]):
            out.append(int(raw[at + 1 : at + 4], 8))
            at += 4
        else:
            raise invalid_text("bytea", text)
    return bytes(out)


def encode(value: bytes, how: str) -> str:
    import base64

    match how.lower():
        case "hex":
            return value.hex()
        case "base64":
            text = base64.b64encode(value).decode()
            return "\n".join(text[at : at + 76] for at in range(0, len(text), 76))
        case "escape":
            return "".join(
                "\\\\" if b == 92 else chr(b) if 32 <= b < 127 or (0 < b < 32) or b == 127 else f"\\{b:03o}"
                for b in value
            )
    raise ScalarError("22023", f'unrecognized encoding: "{how}"')


def decode(text: str, how: str) -> bytes:
    import base64
    import binascii

    try:
        match how.lower():
            case "hex":
                return bytes.fromhex(text)
            case "base64":
                return base64.b64decode("".join(text.split()), validate=True)
            case "escape":
                return parse_bytes(text) if not text.startswith("\\x") else parse_bytes("\\\\" + text[1:])
    except (ValueError, binascii.Error):
        raise ScalarError("22023", f"invalid {how} data") from None
    raise ScalarError("22023", f'unrecognized encoding: "{how}"')


def money_text(value: Decimal) -> str:
    return f"{'-' if value < 0 else ''}${abs(value):,.2f}"


_MONEY: Final = re.compile(r"\s*(-|\()?\s*\$?\s*(-)?([0-9][0-9,]*(?:\.[0-9]*)?|\.[0-9]+)\)?\s*")


def parse_money(text: str) -> Decimal:
    found = _MONEY.fullmatch(text)
    if found is None and not re.search("[A-Za-z]", text):
        raise ScalarError("0A000", f'the money "{text}" is not supported')
    if found is None:
        raise invalid_text("money", text)
    value = Decimal(found[3].replace(",", "")).quantize(Decimal("0.01"), "ROUND_HALF_UP")
    return -value if found[1] or found[2] else value


_MONTHS: Final = {
    "year": 12, "years": 12, "y": 12, "yr": 12, "yrs": 12, "mon": 1, "mons": 1, "month": 1, "months": 1,
    "decade": 120, "decades": 120, "century": 1200, "centuries": 1200, "millennium": 12000, "millennia": 12000,
}  # fmt: skip
_DAYS: Final = {"day": 1, "days": 1, "d": 1, "week": 7, "weeks": 7, "w": 7}
_MICROSECONDS: Final = {
    "hour": 3_600_000_000, "hours": 3_600_000_000, "h": 3_600_000_000, "hr": 3_600_000_000, "hrs": 3_600_000_000,
    "minute": 60_000_000, "minutes": 60_000_000, "min": 60_000_000, "mins": 60_000_000, "m": 60_000_000,
    "second": 1_000_000, "seconds": 1_000_000, "sec": 1_000_000, "secs": 1_000_000, "s": 1_000_000,
    "millisecond": 1000, "milliseconds": 1000, "ms": 1000, "microsecond": 1, "microseconds": 1, "us": 1,
}  # fmt: skip
_INTERVAL_PART: Final = re.compile(
    r"\s*(?:([+-]?)([0-9]+):([0-9]{1,2})(?::([0-9]{1,2}(?:\.[0-9]+)?))?|([+-]?[0-9]+(?:\.[0-9]+)?)\s*([a-z]*))"
    r"(?=\s|$|(?<=[a-z])[0-9+-])\s*"
)


_NUMBER: Final = r"(?:([+-]?[0-9]+){})?"
_ISO_INTERVAL: Final = re.compile(
    "P" + "".join(map(_NUMBER.format, "YMWD")) + "(?:T" + "".join(map(_NUMBER.format, "HM"))
    + r"(?:([+-]?[0-9]+(?:\.[0-9]{1,6})?)S)?)?(?<![PT])"
)  # fmt: skip


def _iso_parts(found: re.Match[str]) -> tuple[int, int, int]:
    """Months, days and microseconds of an interval such as P1Y2M3DT4H5M6S."""
    years, months, weeks, days, hours, minutes = (int(found[n] or 0) for n in range(1, 7))
    seconds = Fraction(found[7] or 0) + 60 * minutes + 3600 * hours
    return 12 * years + months, 7 * weeks + days, int(seconds * 1_000_000)


def interval_parts(text: str) -> tuple[int, int, int]:
    """Months, days and microseconds of an interval's text in PostgreSQL's own format."""
    months, days, micros = 0, 0, Fraction(0)
    body = text.strip().lower().removeprefix("@").strip()
    is_ago = body.endswith(" ago")
    body = body.removesuffix(" ago")
    at = 0
    if iso := _ISO_INTERVAL.fullmatch(text.strip()):
        return _iso_parts(iso)
    if not body:
        raise invalid_text("interval", text)
    while at < len(body):
        found = _INTERVAL_PART.match(body, at)
        if found is None:
            raise ScalarError("0A000", f'the interval "{text}" is not supported')
        at = found.end()
        if found[2] is not None:
            clock = Fraction(found[2]) * 3600 + Fraction(found[3]) * 60 + Fraction(found[4] or 0)
            micros += (-clock if found[1] == "-" else clock) * 1_000_000
            continue
        count, unit = Fraction(found[5]), found[6] or "second"
        if not found[6] and at < len(body):
            if not re.fullmatch(r"[+-]?[0-9]+:[0-9:.]+", body[at:]):
                raise ScalarError("0A000", "an interval whose numbers have no units is not supported")
            unit = "day"
        if unit in _MICROSECONDS:
            micros += count * _MICROSECONDS[unit]
        elif count.denominator != 1:
            raise ScalarError("0A000", f"an interval with a fraction of a {unit} is not supported")
        elif unit in _MONTHS:
            months += int(count) * _MONTHS[unit]
        elif unit in _DAYS:
            days += int(count) * _DAYS[unit]
        else:
            raise ScalarError("0A000", f'the interval "{text}" is not supported')
    sign = -1 if is_ago else 1
    whole = int(abs(micros) + Fraction(1, 2)) * (1 if micros >= 0 else -1)
    return sign * months, sign * days, sign * whole


def interval_text(months: int, days: int, microseconds: int) -> str:
    return value_format.interval(months, days, microseconds * 1000)
