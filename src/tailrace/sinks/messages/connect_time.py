"""Kafka Connect's types for dates, times and intervals, as Debezium chooses them, and their values as JSON.

Numbers count from 1970-01-01, or from midnight. Dates and timestamps that a type cannot hold raise ValueError.
"""

from __future__ import annotations

import json
import re
from typing import Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import text
from tailrace.log import json_columns
from tailrace.sinks.messages.connect_schema import ConnectType, Convert, convert_each, named_schema
from tailrace.text import TIMESTAMP_INFINITY, Special

TimeMode = Literal["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"]

_MILLIS_DIGITS: Final = 3
_DEFAULT_DIGITS: Final = 6
_MONTH_US: Final = 2_629_800_000_000
"""The length of a month of 365.25 / 12 days."""
_INT64: Final = range(-(2**63), 2**63)
_INFINITE_DATES: Final = {
    "infinity": (-2_147_472_692, "-5877611-06-21"),
    "-infinity": (-2_147_472_691, "-5877611-06-22"),
}
"""Debezium's values for infinite dates in the stream: days, and the date that they are."""
_INFINITE_US: Final = {1: 9_223_372_036_825_200_000, -1: -9_223_372_036_832_400_000}
"""Debezium's values for infinite timestamps, which are those of PostgreSQL's JDBC driver."""
_INFINITE_NS: Final = {1: 2**63 - 1, -1: -(2**63)}
_INFINITE_ISO: Final = {"infinity": "+294247-01-10T04:00:25.2Z", "-infinity": "-290308-12-21T19:59:27.6Z"}
_TIMETZ: Final = re.compile(r"(\d\d:\d\d:\d\d(?:\.\d{1,6})?)([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?")
_EPOCH: Final = "1970-01-01T00:00:00Z"


def temporal_type(name: str, modifier: int, mode: TimeMode) -> ConnectType | None:
    """Return the type of a column; None if its type is not about time.

    Args:
        name: The name in pg_catalog.
        modifier: The declared number of fractional digits, or -1.
        mode: Debezium's `time.precision.mode`.
    """
    digits = _DEFAULT_DIGITS if modifier < 0 else modifier
    match name:
        case "date":
            return _date_type(mode)
        case "time":
            return _time_type(digits, mode)
        case "timestamp":
            return _timestamp_type(digits, mode)
        case "timestamptz":
            schema = named_schema("string", "io.debezium.time.ZonedTimestamp")
            return ConnectType(schema, lambda texts: _zoned(texts, digits), f'"{_EPOCH}"')
        case "timetz":
            return ConnectType(
                named_schema("string", "io.debezium.time.ZonedTime"), convert_each(_zoned_time), '"00:00:00Z"'
            )
        case "interval":
            return ConnectType(named_schema("int64", "io.debezium.time.MicroDuration"), convert_each(_duration), "0")
    return None


def _date_type(mode: TimeMode) -> ConnectType:
    if mode == "isostring":
        return ConnectType(named_schema("string", "io.debezium.time.IsoDate"), convert_each(_iso_date), '"1970-01-01Z"')
    if mode == "connect":
        return ConnectType(named_schema("int32", "org.apache.kafka.connect.data.Date"), _dates, "0")
    return ConnectType(named_schema("int32", "io.debezium.time.Date"), _dates, "0")


def _time_type(digits: int, mode: TimeMode) -> ConnectType:
    if mode == "isostring":
        return ConnectType(named_schema("string", "io.debezium.time.IsoTime"), convert_each(_iso_time), '"00:00:00Z"')
    if mode == "connect":
        return ConnectType(named_schema("int32", "org.apache.kafka.connect.data.Time"), _times(1, 1000), "0")
    if mode == "adaptive" and digits <= _MILLIS_DIGITS:
        return ConnectType(named_schema("int32", "io.debezium.time.Time"), _times(1, 1000), "0")
    if mode == "nanoseconds":
        return ConnectType(named_schema("int64", "io.debezium.time.NanoTime"), _times(1000, 1), "0")
    return ConnectType(named_schema("int64", "io.debezium.time.MicroTime"), _times(1, 1), "0")


def _timestamp_type(digits: int, mode: TimeMode) -> ConnectType:
    if mode == "isostring":
        return ConnectType(
            named_schema("string", "io.debezium.time.IsoTimestamp"), convert_each(_iso_timestamp), f'"{_EPOCH}"'
        )
    if mode == "connect":
        return ConnectType(named_schema("int64", "org.apache.kafka.connect.data.Timestamp"), _timestamps(1, 1000), "0")
    if mode in ("adaptive", "adaptive_time_microseconds") and digits <= _MILLIS_DIGITS:
        return ConnectType(named_schema("int64", "io.debezium.time.Timestamp"), _timestamps(1, 1000), "0")
    if mode == "nanoseconds":
        return ConnectType(named_schema("int64", "io.debezium.time.NanoTimestamp"), _timestamps(1000, 1), "0")
    return ConnectType(named_schema("int64", "io.debezium.time.MicroTimestamp"), _timestamps(1, 1), "0")


def _dates(texts: pa.Array) -> pa.Array:
    """Convert with Arrow; value by value if there is one that Arrow does not parse: infinite, BC, a far year."""
    try:
        return texts.cast(pa.date32()).cast(pa.int32()).cast(pa.string())
    except pa.ArrowInvalid:
        return convert_each(_days)(texts)


def _days(value: str) -> str:
    return str(_INFINITE_DATES[value][0] if value in _INFINITE_DATES else _held(text.date(value)))


def _held(value: int | Special) -> int:
    if isinstance(value, Special):
        raise ValueError("the type has no value for it")
    return value


def _times(factor: int, divisor: int) -> Convert:
    """Convert microseconds to another unit."""
    return convert_each(lambda value: str(_time_us(value) * factor // divisor))


def _time_us(value: str) -> int:
    # PostgreSQL's end of the day, which Arrow's type cannot hold.
    return text.DAY_US if value == "24:00:00" else _held(text.time(value))


def _timestamps(factor: int, divisor: int) -> Convert:
    """Convert microseconds to another unit."""

    def convert(value: str) -> str:
        found = _held(text.timestamp(value, None))
        if abs(found) == TIMESTAMP_INFINITY:
            sign = 1 if found > 0 else -1
            return str(_INFINITE_NS[sign] if factor != 1 else _INFINITE_US[sign] // divisor)
        if found * factor not in _INT64:
            raise ValueError("the type has no value for it")
        return str(found * factor // divisor)

    def convert_all(texts: pa.Array) -> pa.Array:
        try:
            numbers = texts.cast(pa.timestamp("us" if factor == 1 else "ns")).cast(pa.int64())
        except pa.ArrowInvalid:
            return convert_each(convert)(texts)
        if divisor == 1:
            return numbers.cast(pa.string())
        rounded = np.asarray(pc.fill_null(numbers, 0)) // divisor
        is_null = pc.is_null(numbers).to_numpy(zero_copy_only=False)
        return pa.array(rounded, pa.int64(), mask=is_null).cast(pa.string())

    return convert_all


def _zoned(texts: pa.Array, digits: int) -> pa.Array:
    """ISO 8601 in UTC, with as many fractional digits as the column has. Infinite values are PostgreSQL's words."""
    is_plain = pc.match_substring_regex(texts, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00$")
    if not pc.all(pc.fill_null(is_plain, True)).as_py():
        return convert_each(lambda value: _zoned_text(value, digits))(texts)
    iso = pc.replace_substring(pc.replace_substring_regex(texts, r"\+00$", ""), " ", "T")
    if digits:
        has_fraction = pc.match_substring(iso, ".")
        padded = pc.if_else(has_fraction, iso, pc.binary_join_element_wise(iso, ".", ""))
        iso = pc.utf8_rpad(padded, len("2026-01-31T12:00:00.") + digits, "0")
    return pc.binary_join_element_wise('"', iso, 'Z"', "")


def _zoned_text(value: str, digits: int) -> str:
    if value in ("infinity", "-infinity"):
        return json.dumps(value)
    day, clock, *era = value.split(" ")
    clock, _, fraction = clock.removesuffix("+00").partition(".")
    point = f".{fraction.ljust(digits, '0')}" if digits else ""
    return f'"{_iso_day(day, bool(era))}T{clock}{point}Z"'


def _iso_day(day: str, is_before_christ: bool) -> str:
    """Java prints years beyond 9999 with a sign, and years before 1 as numbers."""
    year, month, date = day.split("-")
    number = 1 - int(year) if is_before_christ else int(year)
    shown = f"+{number}" if number > 9999 else f"-{-number:04d}" if number < 0 else f"{number:04d}"
    return f"{shown}-{month}-{date}"


def _iso_date(value: str) -> str:
    if value in _INFINITE_DATES:
        return f'"{_INFINITE_DATES[value][1]}Z"'
    day, *era = value.split(" ")
    return f'"{_iso_day(day, bool(era))}Z"'


def _iso_time(value: str) -> str:
    """The end of the day has no form of its own."""
    return '"00:00:00Z"' if value == "24:00:00" else f'"{value}Z"'


def _iso_timestamp(value: str) -> str:
    if value in _INFINITE_ISO:
        return f'"{_INFINITE_ISO[value]}"'
    day, clock, *era = value.split(" ")
    return f'"{_iso_day(day, bool(era))}T{clock}Z"'


def _zoned_time(value: str) -> str:
    """The time in UTC. The end of the day has no form of its own."""
    match = _TIMETZ.fullmatch(value)
    if match is None:
        raise ValueError("not a time with time zone")
    clock, sign, hours, minutes, seconds = match.groups()
    offset = (int(hours) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    whole, _, fraction = clock.partition(".")
    hour, minute, second = map(int, whole.split(":"))
    total = ((hour * 60 + minute) * 60 + second + (offset if sign == "-" else -offset)) % 86_400
    shown = f"{total // 3600:02d}:{total // 60 % 60:02d}:{total % 60:02d}"
    return json_columns.quote_text(f"{shown}.{fraction}Z" if fraction else f"{shown}Z")


def _duration(value: str) -> str:
    found = text.interval(value)
    if isinstance(found, Special):
        raise ValueError("an infinite or too long interval has no duration")
    total = found["months"] * _MONTH_US + found["days"] * text.DAY_US + found["microseconds"]
    if total not in _INT64:
        raise ValueError("the interval is too long")
    return str(total)
