"""Kafka Connect's types for dates, times and intervals, as Debezium chooses them, and their values as JSON.

Numbers count from 1970-01-01, or from midnight. Dates and timestamps that a type cannot hold raise ValueError.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace import text
from tailrace.log import json_columns
from tailrace.text import TIMESTAMP_INFINITY, Special

SchemaAndConvert = tuple[dict[str, Any], Callable[[pa.Array], pa.Array]]

_MILLIS_DIGITS: Final = 3
_DEFAULT_DIGITS: Final = 6
_MONTH_US: Final = 2_629_800_000_000
"""The length of a month of 365.25 / 12 days."""
_POSITIVE_INFINITY: Final = 9_223_372_036_825_200_000
_NEGATIVE_INFINITY: Final = -9_223_372_036_832_400_000
"""Debezium's values for infinite timestamps, which are those of PostgreSQL's JDBC driver."""
_TIMETZ: Final = re.compile(r"(\d\d:\d\d:\d\d(?:\.\d{1,6})?)([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?")


def schema_and_convert(name: str, modifier: int, mode: str) -> SchemaAndConvert | None:
    """Return the schema of a type and the conversion of its values; None if the type is not about time.

    Args:
        name: The name in pg_catalog.
        modifier: The declared number of fractional digits, or -1.
        mode: Debezium's `time.precision.mode`.
    """
    digits = _DEFAULT_DIGITS if modifier < 0 else modifier
    is_connect = mode == "connect"
    match name:
        case "date":
            kind = "org.apache.kafka.connect.data.Date" if is_connect else "io.debezium.time.Date"
            return _named("int32", kind), _dates
        case "time":
            if is_connect:
                return _named("int32", "org.apache.kafka.connect.data.Time"), _times(1000)
            if digits <= _MILLIS_DIGITS and mode == "adaptive":
                return _named("int32", "io.debezium.time.Time"), _times(1000)
            return _named("int64", "io.debezium.time.MicroTime"), _times(1)
        case "timestamp":
            if is_connect:
                return _named("int64", "org.apache.kafka.connect.data.Timestamp"), _timestamps(1000)
            if digits <= _MILLIS_DIGITS:
                return _named("int64", "io.debezium.time.Timestamp"), _timestamps(1000)
            return _named("int64", "io.debezium.time.MicroTimestamp"), _timestamps(1)
        case "timestamptz":
            return _named("string", "io.debezium.time.ZonedTimestamp"), lambda texts: _zoned(texts, digits)
        case "timetz":
            return _named("string", "io.debezium.time.ZonedTime"), _each(_zoned_time)
        case "interval":
            return _named("int64", "io.debezium.time.MicroDuration"), _each(_duration)
    return None


def _named(type_: str, name: str) -> dict[str, Any]:
    return {"type": type_, "name": name, "version": 1}


def _each(convert: Callable[[str], str]) -> Callable[[pa.Array], pa.Array]:
    def convert_all(texts: pa.Array) -> pa.Array:
        return pa.array([None if value is None else convert(value) for value in texts.to_pylist()], pa.string())

    return convert_all


def _dates(texts: pa.Array) -> pa.Array:
    """Convert with Arrow; value by value if there is one that Arrow does not parse: infinite, BC, a far year."""
    try:
        return texts.cast(pa.date32()).cast(pa.int32()).cast(pa.string())
    except pa.ArrowInvalid:
        return _each(lambda value: str(_held(text.date(value))))(texts)


def _held(value: int | Special) -> int:
    if isinstance(value, Special):
        raise ValueError("the type has no value for it")
    return value


def _times(divisor: int) -> Callable[[pa.Array], pa.Array]:
    def convert(value: str) -> str:
        # PostgreSQL's end of the day, which Arrow's type cannot hold.
        found = text.DAY_US if value == "24:00:00" else _held(text.time(value))
        return str(found // divisor)

    return _each(convert)


def _timestamps(divisor: int) -> Callable[[pa.Array], pa.Array]:
    def convert(value: str) -> str:
        found = _held(text.timestamp(value, None))
        if abs(found) == TIMESTAMP_INFINITY:
            return str(_POSITIVE_INFINITY if found > 0 else _NEGATIVE_INFINITY)
        return str(found // divisor)

    def convert_all(texts: pa.Array) -> pa.Array:
        try:
            numbers = texts.cast(pa.timestamp("us")).cast(pa.int64())
        except pa.ArrowInvalid:
            return _each(convert)(texts)
        rounded = pc.fill_null(numbers, 0).to_numpy() // divisor
        is_null = pc.is_null(numbers).to_numpy(zero_copy_only=False)
        return pa.array(rounded, pa.int64(), mask=is_null).cast(pa.string())

    return convert_all


def _zoned(texts: pa.Array, digits: int) -> pa.Array:
    """ISO 8601 in UTC, with as many fractional digits as the column has. Infinite values are PostgreSQL's words."""
    is_plain = pc.match_substring_regex(texts, r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?\+00$")
    if not pc.all(pc.fill_null(is_plain, True)).as_py():
        return _each(lambda value: _zoned_text(value, digits))(texts)
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
    year, month, date = day.split("-")
    number = 1 - int(year) if era else int(year)
    # Java prints years beyond 9999 with a sign, and years before 1 as numbers.
    shown = f"+{number}" if number > 9999 else f"-{-number:04d}" if number < 0 else f"{number:04d}"
    point = f".{fraction.ljust(digits, '0')}" if digits else ""
    return f'"{shown}-{month}-{date}T{clock}{point}Z"'


def _zoned_time(value: str) -> str:
    """The time in UTC. The end of the day stays what it is."""
    match = _TIMETZ.fullmatch(value)
    if match is None:
        raise ValueError("not a time with time zone")
    clock, sign, hours, minutes, seconds = match.groups()
    offset = (int(hours) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)
    if clock == "24:00:00" and not offset:
        return '"24:00:00Z"'
    whole, _, fraction = clock.partition(".")
    hour, minute, second = map(int, whole.split(":"))
    total = ((hour * 60 + minute) * 60 + second + (offset if sign == "-" else -offset)) % 86_400
    shown = f"{total // 3600:02d}:{total // 60 % 60:02d}:{total % 60:02d}"
    return json_columns.quote_text(f"{shown}.{fraction}Z" if fraction else f"{shown}Z")


def _duration(value: str) -> str:
    found = text.interval(value)
    if isinstance(found, Special):
        raise ValueError("an infinite or too long interval has no duration")
    return str(found["months"] * _MONTH_US + found["days"] * text.DAY_US + found["microseconds"])
