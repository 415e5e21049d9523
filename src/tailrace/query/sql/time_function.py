"""The renderings of PostgreSQL's functions of dates, times and intervals."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from tailrace.change import Type
from tailrace.query.sql.syntax import refuse
from tailrace.query.sql.typed import Typed, constant_text, is_null_constant, representation
from tailrace.query.table_view import sql_literal
from tailrace.query.template import strptime_format, to_char_sql


def to_char(arguments: Sequence[Typed], result: Type) -> Typed:
    if is_null_constant(arguments[1]):
        return Typed("CAST(NULL AS VARCHAR)", result)
    pattern = constant_text(arguments[1], "a template of to_char")
    value = arguments[0].sql
    if arguments[0].name == "timestamptz":
        value = f"CAST({value} AS TIMESTAMP)"
    early = "error('[0A000] to_char of years before Christ is not supported')"
    text = f"CASE WHEN {value} < TIMESTAMP '0001-01-01' THEN {early} ELSE {to_char_sql(f'({value})', pattern)} END"
    return Typed(f"CASE WHEN isfinite({arguments[0].sql}) THEN {text} END", result)


def strptime(cast: str) -> Callable[[Sequence[Typed], Type], Typed]:
    def render(arguments: Sequence[Typed], result: Type) -> Typed:
        if is_null_constant(arguments[1]):
            return Typed(f"CAST(NULL AS {representation(result)})", result)
        template = constant_text(arguments[1], "a template")
        pattern = strptime_format(template)
        if not re.search("%[Yy]", pattern):
            raise refuse(f"the template {template}, which has no year")
        text, found = arguments[0].sql, f"try_strptime({arguments[0].sql}, {sql_literal(pattern)})"
        if "%y" in pattern:
            # The two digits 69 mean 2069 in PostgreSQL, and 1969 in DuckDB.
            found = f"CASE WHEN year({found}) = 1969 THEN {found} + to_years(100) ELSE {found} END"
        failed = "error('[0A000] a text that differs from its template is not supported')"
        sql = f"CASE WHEN {found} IS NULL AND {text} IS NOT NULL THEN {failed} ELSE {found} END"
        return Typed(f"CAST({sql} AS {cast})", result)

    return render


def extract(arguments: Sequence[Typed], result: Type) -> Typed:
    field = constant_text(arguments[0], "a field of extract").lower()
    value = arguments[1]
    found, scale = _field(field, value)
    if result.name == "float8":
        return Typed(f"CAST({found} AS DOUBLE)", result)
    return Typed(found, result, scale=scale)


_MICROS: Final = "CAST({} AS DECIMAL(28, 0)) * CAST('0.000001' AS DECIMAL(7, 6))"
_LIMITED: Final = frozenset(
    (
        "month",
        "day",
        "hour",
        "minute",
        "second",
        "dow",
        "isodow",
        "doy",
        "quarter",
        "week",
        "milliseconds",
        "microseconds",
    )
)
_PLAIN_FIELDS: Final = {
    "year": "year", "years": "year", "month": "month", "months": "month", "mon": "month", "day": "day", "days": "day",
    "hour": "hour", "hours": "hour", "minute": "minute", "minutes": "minute", "min": "minute", "dow": "dow",
    "isodow": "isodow", "doy": "doy", "quarter": "quarter", "week": "week", "weeks": "week", "isoyear": "isoyear",
    "decade": "decade", "century": "century", "millennium": "millennium",
}  # fmt: skip


_OTHER_ERAS: Final = {"year": "pg_era_year({})", "isoyear": "pg_era_year({})", "decade": "pg_decade({})"}
"""Fields that differ for years before Christ."""
_TIME_FIELDS: Final = (
    *("hour", "hours", "minute", "minutes", "min", "second", "seconds"),
    *("milliseconds", "microseconds"),
)


def _field(field: str, value: Typed) -> tuple[str, int]:
    """A field of a date, time or interval as a decimal, and its scale."""
    name = value.name
    sql = f"CAST({value.sql} AS TIMESTAMP)" if name == "timestamptz" else value.sql
    if name == "interval" and field in ("dow", "isodow", "doy", "week", "isoyear", "weeks", "quarter"):
        raise refuse(f'unit "{field}" for type interval')
    if name == "date" and field in _TIME_FIELDS:
        raise refuse(f'unit "{field}" for type date')
    if name == "time" and field not in (*_TIME_FIELDS, "epoch"):
        raise refuse(f'unit "{field}" for type time without time zone')

    def part(word: str) -> str:
        return f"system.main.date_part('{word}', {sql})"

    if field in ("second", "seconds", "sec", "secs"):
        found, scale = _MICROS.format(part("microseconds")), 6
    elif field in ("millisecond", "milliseconds", "ms"):
        found, scale = f"CAST({part('microseconds')} AS DECIMAL(18, 0)) * CAST('0.001' AS DECIMAL(4, 3))", 3
    elif field in ("microsecond", "microseconds", "us"):
        found, scale = f"CAST({part('microseconds')} AS DECIMAL(18, 0))", 0
    elif field == "epoch":
        found, scale = _epoch(value, sql)
    elif field in _PLAIN_FIELDS:
        word = _PLAIN_FIELDS[field]
        if word in ("decade", "century", "millennium") and name == "interval":
            raise refuse(f"extract({word}) of an interval")
        number = part(word)
        if name != "interval" and word in _OTHER_ERAS:
            number = _OTHER_ERAS[word].format(part("year" if word == "decade" else word))
        found, scale = f"CAST({number} AS DECIMAL(18, 0))", 0
    else:
        raise refuse(f"extract({field})")
    if name in ("date", "timestamp", "timestamptz"):
        when = (
            "NULL"
            if _PLAIN_FIELDS.get(field, field).rstrip("s") in {f.rstrip("s") for f in _LIMITED}
            else "error('[0A000] a field of an infinite date is not supported')"
        )
        found = f"CASE WHEN NOT isfinite({value.sql}) THEN {when} ELSE {found} END"
    return f"({found})", scale


def _epoch(value: Typed, sql: str) -> tuple[str, int]:
    match value.name:
        case "interval":
            years = f"system.main.date_part('year', {sql})"
            months = f"system.main.date_part('month', {sql})"
            days = f"system.main.date_part('day', {sql})"
            seconds = f"CAST({years} * 31557600 + {months} * 2592000 + {days} * 86400 AS DECIMAL(28, 0))"
            return f"({seconds} + {_MICROS.format(f'pg_interval_us({sql})')})", 6
        case "date":
            return f"CAST(epoch({sql}) AS DECIMAL(18, 0))", 0
        case "time":
            return _MICROS.format(f"epoch_us({sql})"), 6
    return _MICROS.format(f"epoch_us({value.sql})"), 6


def timezone(arguments: Sequence[Typed], result: Type) -> Typed:
    zone = constant_text(arguments[0], "a time zone")
    if not re.fullmatch(r"[A-Za-z_]+(?:/[A-Za-z_+-]+)+|UTC|GMT|utc|gmt", zone):
        raise refuse(f"the time zone {zone}", "Use a full name, such as Europe/Berlin.")
    return Typed(f"timezone({sql_literal(zone)}, {arguments[1].sql})", result)


_YEARS: Final = {"century": 100, "millennium": 1000}


def date_trunc(arguments: Sequence[Typed], result: Type) -> Typed:
    field = constant_text(arguments[0], "a field of date_trunc").lower()
    if field not in (
        "microseconds",
        "milliseconds",
        "second",
        "minute",
        "hour",
        "day",
        "week",
        "month",
        "quarter",
        "year",
        "decade",
        "century",
        "millennium",
    ):
        raise refuse(f"date_trunc({field})")
    value = arguments[1]
    if value.name == "interval":
        if field in ("week", "decade", "century", "millennium", "quarter"):
            raise refuse(f"date_trunc({field}) of an interval")
        return Typed(f"system.main.date_trunc('{field}', {value.sql})", result)
    inner = f"CAST({value.sql} AS TIMESTAMP)" if value.name == "timestamptz" else value.sql
    if field in _YEARS:
        return Typed(f"CAST(pg_truncate_year({inner}, {_YEARS[field]}) AS {representation(result)})", result)
    found = f"system.main.date_trunc('{field}', {inner})"
    if field == "decade":
        early = "error('[0A000] date_trunc of years before Christ is not supported')"
        found = f"CASE WHEN isfinite({inner}) AND {inner} < TIMESTAMP '0001-01-01' THEN {early} ELSE {found} END"
    return Typed(f"CAST({found} AS {representation(result)})", result)


def date_bin(arguments: Sequence[Typed], result: Type) -> Typed:
    stride, source, origin = arguments

    def ts(v: Typed) -> str:
        return f"CAST({v.sql} AS TIMESTAMP)"

    return Typed(f"CAST(pg_date_bin({stride.sql}, {ts(source)}, {ts(origin)}) AS {representation(result)})", result)


def make_interval(arguments: Sequence[Typed], result: Type) -> Typed:
    parts = [a.sql for a in arguments] + ["0"] * (7 - len(arguments))
    years, months, weeks, days, hours, minutes, seconds = parts
    return Typed(
        f"(to_months(CAST({years} * 12 + {months} AS INTEGER)) + to_days(CAST({weeks} * 7 + {days} AS INTEGER))"
        f" + to_hours({hours}) + to_minutes({minutes})"
        f" + to_microseconds(CAST(round_even({seconds} * 1000000, 0) AS BIGINT)))",
        result,
    )
