"""Literals: the value of a text that is known now, for each type."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from tailrace.change import Type
from tailrace.query.query_error import EXACT, UNSUPPORTED, QueryError
from tailrace.query.scalar import array_text, json_value, network, numeric, text_value
from tailrace.query.scalar.scalar_error import ScalarError
from tailrace.query.sql import pg_type
from tailrace.query.sql.modifier import apply_modifier
from tailrace.query.sql.pg_type import base_type, is_citext, is_own, name_of
from tailrace.query.sql.syntax import refuse
from tailrace.query.sql.text_form import INTEGERS
from tailrace.query.sql.typed import MAX_DIGITS, REG, Typed, as_element, list_of, null_of, representation, text_literal
from tailrace.query.table_view import sql_literal

_DAY: Final = r"(?P<year>[0-9]{4,6})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})"
_CLOCK: Final = r"(?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{1,2}(?:\.[0-9]{1,6})?))?"
_ZONE: Final = r"\s*(?P<zone>[zZ]|[+-][0-9]{1,2}(?::?[0-9]{2})?|UTC|GMT)?"
_MOMENT: Final = re.compile(rf"{_DAY}(?:(?:\s+|T){_CLOCK}{_ZONE})?(?P<era>\s+BC)?", re.IGNORECASE)
_COMPACT: Final = re.compile(r"(?P<year>[0-9]{4})(?P<month>[0-9]{2})(?P<day>[0-9]{2})")
_TIME: Final = re.compile(rf"{_CLOCK}{_ZONE}", re.IGNORECASE)
_WORDS: Final = {"infinity": "infinity", "-infinity": "-infinity", "epoch": "epoch"}


def _moment(text: str, name: str) -> str:
    """A date or timestamp as DuckDB reads it: with seconds, and with a zone only if the type has one."""
    stripped = text.strip()
    if stripped.lower() in _WORDS:
        return _WORDS[stripped.lower()]
    found = _MOMENT.fullmatch(stripped) or _COMPACT.fullmatch(stripped)
    if found is None:
        if re.search(r"[0-9]", stripped) is None and stripped.lower() not in ("now", "today", "tomorrow", "yesterday"):
            raise QueryError("22007", f'invalid input syntax for type {name}: "{text}"')
        raise QueryError(
            "22007",
            f'invalid input syntax for type {name}: "{text}"',
            "The query server reads ISO dates: 2024-02-29 12:34:56.789+00.",
        )
    parts = found.groupdict()
    era = " (BC)" if parts.get("era") else ""
    day = f"{parts['year']}-{int(parts['month']):02d}-{int(parts['day']):02d}{era}"
    if not 1 <= int(parts["month"]) <= 12 or not 1 <= int(parts["day"]) <= 31:
        raise QueryError("22008", f'date/time field value out of range: "{text}"')
    if name == "date":
        return day
    clock = "00:00:00"
    if parts.get("hour"):
        second = parts["second"] or "00"
        clock = f"{int(parts['hour']):02d}:{parts['minute']}:{second if second[1:2].isdecimal() else '0' + second}"
    zone = (parts.get("zone") or "") if name == "timestamptz" else ""
    zone = "+00" if zone.lower() in ("z", "utc", "gmt") or (not zone and name == "timestamptz") else zone
    return f"{day} {clock}{zone}"


def literal(text: str, type_: Type, modifier: int = -1, is_explicit: bool = True) -> Typed:
    """A value of a type from a text that is known now."""
    try:
        return _literal(text, type_, modifier, is_explicit)
    except ScalarError as error:
        message = str(error)
        raise QueryError(message[1:6], message[8:], EXACT if message[1:6] == UNSUPPORTED else "") from None


def _literal(text: str, type_: Type, modifier: int, is_explicit: bool) -> Typed:
    base = base_type(type_)
    name = name_of(base)
    made: Typed
    if name == "interval" and modifier >= 0 and (one := _interval_of_field(text, modifier)) is not None:
        return replace(one, type=type_)
    if base.element is not None:
        made = _array_literal(text, base)
    elif base.kind == "e":
        if text not in base.labels:
            raise QueryError("22P02", f'invalid input value for enum {base.name}: "{text}"')
        made = text_literal(text, base)
    elif is_citext(base):
        made = text_literal(text, base)
    elif not is_own(base):
        raise refuse(f"a literal of type {base.name}", f"Compare its text: x::text = {sql_literal('…')}.")
    elif name in INTEGERS:
        number = text_value.parse_integer(text, INTEGERS[name])
        made = integer(number, base)
    elif name in REG and text.isdecimal():
        made = Typed(f"CAST({text} AS BIGINT)", base)
    elif name in REG:
        raise refuse(f"a literal of type {name} in this place")
    else:
        made = _plain_literal(text, base, name)
    made = replace(made, type=type_, is_constant=True)
    return apply_modifier(made, modifier, is_explicit) if modifier >= 0 or name == "bpchar" else made


def integer(number: int, type_: Type) -> Typed:
    sql = str(number) if number >= 0 else f"({number})"
    return Typed(sql if type_.name == "int4" else f"CAST({sql} AS {representation(type_)})", type_, is_constant=True)


def decimal(text: str) -> Typed:
    """A numeric constant: a DECIMAL if its digits fit."""
    canonical = numeric.parse(text)
    whole, _, fraction = canonical.lstrip("-").partition(".")
    digits = len(whole.lstrip("0")) + len(fraction)
    if canonical[-1].isdecimal() and max(digits, 1) <= MAX_DIGITS:
        precision = max(digits, len(fraction) + 1 if not whole.lstrip("0") else digits, 1)
        if precision <= MAX_DIGITS:
            sql = f"CAST({sql_literal(canonical)} AS DECIMAL({precision}, {len(fraction)}))"
            return Typed(sql, pg_type.NUMERIC, scale=len(fraction), is_constant=True)
    return Typed(sql_literal(canonical), pg_type.NUMERIC, is_constant=True)


def _plain_literal(text: str, base: Type, name: str) -> Typed:
    match name:
        case "bool":
            return Typed("true" if text_value.parse_boolean(text) else "false", base)
        case "float4" | "float8":
            return Typed(f"CAST({sql_literal(_float(text))} AS {representation(base)})", base)
        case "numeric":
            return decimal(text)
        case "text" | "varchar" | "name" | "char" | "bpchar":
            return text_literal(text[:63] if name == "name" else text[:1] if name == "char" else text, base)
        case "date" | "timestamp" | "timestamptz":
            return Typed(f"CAST({sql_literal(_moment(text, name))} AS {representation(base)})", base)
        case "time":
            found = _TIME.fullmatch(text.strip())
            if found is None:
                raise QueryError(
                    "22007", f'invalid input syntax for type time: "{text}"', "The query server reads 12:34:56.789."
                )
            second = found["second"] or "00"
            clock = f"{int(found['hour']):02d}:{found['minute']}:{second if second[1:2].isdecimal() else '0' + second}"
            return Typed(f"CAST({sql_literal(clock)} AS TIME)", base)
        case "interval":
            return interval(text)
        case "uuid":
            return Typed(f"CAST('{text_value.parse_uuid(text)}' AS UUID)", base)
        case "bytea":
            return Typed(f"unhex('{text_value.parse_bytes(text).hex()}')", base)
        case "money":
            return Typed(f"CAST('{text_value.parse_money(text)}' AS DECIMAL(19, 2))", base)
        case "json":
            return text_literal(json_value.parse_json(text), base)
        case "jsonb":
            return text_literal(json_value.parse_jsonb(text), base)
        case "inet":
            return text_literal(network.parse_inet(text), base)
        case "cidr":
            return text_literal(network.parse_cidr(text), base)
        case "bit" | "varbit":
            return text_literal(_bits(text), base)
        case "int4range" | "int8range":
            return text_literal(_integer_range(text, base.name), base)
    raise refuse(f"a literal of type {name}", "Compare its text: x::text.")


def _float(text: str) -> str:
    stripped = text.strip()
    if not re.fullmatch(
        r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?inf(?:inity)?|nan", stripped, re.IGNORECASE
    ):
        raise QueryError("22P02", f'invalid input syntax for type double precision: "{text}"')
    if "n" not in stripped.lower() and abs(float(stripped)) == float("inf"):
        raise QueryError("22003", f'"{text}" is out of range for type double precision')
    return stripped


def interval(text: str) -> Typed:
    months, days, microseconds = text_value.interval_parts(text)
    sql = f"(to_months({months}) + to_days({days}) + to_microseconds({microseconds}))"
    return Typed(sql, pg_type.INTERVAL, is_constant=True)


_INTERVAL_FIELDS: Final = {4: "year", 2: "month", 8: "day", 1024: "hour", 2048: "minute", 4096: "second"}


def _interval_of_field(text: str, modifier: int) -> Typed | None:
    """`interval '1' day`; None for other modifiers and texts."""
    unit = _INTERVAL_FIELDS.get(modifier >> 16)
    digits = r"\s*[+-]?[0-9]+(\.[0-9]{1,6})?\s*" if unit == "second" else r"\s*[+-]?[0-9]+\s*"
    return interval(f"{text.strip()} {unit}") if unit and re.fullmatch(digits, text) else None


def _bits(text: str) -> str:
    if text[:1] in "xX" and text:
        return "".join(f"{int(digit, 16):04b}" for digit in text[1:])
    body = text[1:] if text[:1] in ("b", "B") else text
    if not re.fullmatch("[01]*", body):
        raise QueryError("22P02", f'"{text}" is not a valid bit string')
    return body


def _integer_range(text: str, name: str) -> str:
    stripped = text.strip()
    if stripped.lower() == "empty":
        return "empty"
    found = re.fullmatch(r"([\[(])\s*(-?[0-9]*)\s*,\s*(-?[0-9]*)\s*([\])])", stripped)
    if found is None:
        raise QueryError("22P02", f'malformed range literal: "{text}"')
    low = None if not found[2] else int(found[2]) + (found[1] == "(")
    high = None if not found[3] else int(found[3]) + (found[4] == "]")
    if found[2] and found[3] and int(found[2]) > int(found[3]):
        raise QueryError("22000", f"{name}: range lower bound must be less than or equal to range upper bound")
    if low is not None and high is not None and low >= high:
        return "empty"
    return f"{'(' if low is None else '['}{'' if low is None else low},{'' if high is None else high})"


def _array_literal(text: str, base: Type) -> Typed:
    element = base_type(base.element or pg_type.TEXT)
    found = array_text.parse(text)
    if len(found.sizes) > 1 or found.lowers not in ((), (1,)):
        raise refuse("an array literal with several dimensions or a lower bound other than 1")
    items = [
        null_of(element) if item is None else as_element(_literal(item, element, -1, True)) for item in found.items
    ]
    return list_of(items, base)
