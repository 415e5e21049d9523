"""Casts: the text of every type, the value of a text, and the conversions between types."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tailrace.change import Type
from tailrace.query.query_error import EXACT, UNSUPPORTED, QueryError
from tailrace.query.scalar import array_text, json_value, network, numeric, text_value
from tailrace.query.scalar.scalar_error import ScalarError
from tailrace.query.sql import pg_type
from tailrace.query.sql.pg_type import base_type, is_citext, is_own, name_of
from tailrace.query.sql.signature import cast_context
from tailrace.query.sql.syntax import refuse
from tailrace.query.sql.typed import (
    INTEGER_DIGITS,
    MAX_DIGITS,
    REG,
    STRINGS,
    Typed,
    as_numeric_text,
    elements,
    from_texts,
    null_of,
    numeric_text,
    output_text,
    representation,
    text_literal,
)
from tailrace.query.table_view import sql_literal
from tailrace.types import numeric_modifier

_TEXTS: Final = STRINGS | {"bpchar"}
_INTEGERS: Final = {"int2": "smallint", "int4": "integer", "int8": "bigint", "oid": "oid", "xid": "oid", "cid": "oid"}
_STORED_AS_TEXT: Final = frozenset(
    ("json", "jsonb", "xml", "bit", "varbit", "macaddr", "macaddr8", "pg_node_tree", "aclitem")
)
"""Types whose cast to text gives their stored text."""


# To text


def cast_text(value: Typed) -> str:
    """The text that a cast to text gives."""
    name, sql = value.name, value.sql
    base = value.base
    if name in ("int2vector", "oidvector"):
        return f"array_to_string({sql}, ' ')"
    if base.element is not None:
        return _array_text(value) if value.is_list else sql
    match name:
        case "bool" | "int2" | "int4" | "int8" | "oid" | "uuid" | "time" | "xid" | "cid":
            return f"CAST({sql} AS VARCHAR)"
        case "numeric":
            return numeric_text(value)
        case "float8":
            return f"pg_double_text({sql})"
        case "float4":
            return f"pg_single_text(CAST({sql} AS DOUBLE))"
        case "bpchar":
            return f"rtrim({sql}, ' ')"
        case "bytea":
            return f"('\\x' || lower(hex({sql})))"
        case "date" | "timestamp":
            return f"pg_date_text(CAST({sql} AS VARCHAR))"
        case "timestamptz":
            return f"pg_date_text(CAST({sql} AS VARCHAR))"
        case "interval":
            return f"pg_interval_text({sql})"
        case "money":
            return f"pg_money_text({sql})"
        case "inet" | "cidr":
            return f"pg_inet_text({sql})"
    if name in REG:
        return f"{name}_name({sql})"
    return sql


def _array_text(value: Typed) -> str:
    element = base_type(value.base.element or pg_type.TEXT)
    text = output_text(Typed("e", element))
    return f"pg_array_write({value.sql if text == 'e' else f'list_transform({value.sql}, lambda e: {text})'})"


# From text


def parse_sql(sql: str, type_: Type) -> str:
    """A value of a type from PostgreSQL's own text of it, only known at run time."""
    type_ = base_type(type_)
    name = name_of(type_)
    if type_.element is not None or type_.kind in "ecrm" or not is_own(type_):
        return sql
    if name in _INTEGERS:
        return f"CAST(pg_parse_integer({sql}, '{_INTEGERS[name]}') AS {representation(type_)})"
    match name:
        case "bool":
            return f"pg_parse_boolean({sql})"
        case "float8":
            return f"pg_text_to_double({sql})"
        case "float4":
            return f"pg_text_to_single({sql})"
        case "numeric":
            return f"pg_numeric_parse({sql})"
        case "date" | "timestamp" | "timestamptz" | "time":
            return f"pg_text_to_{name}({sql})"
        case "interval":
            return f"pg_text_to_interval({sql})"
        case "uuid":
            return f"CAST(pg_parse_uuid({sql}) AS UUID)"
        case "bytea":
            return f"pg_parse_bytes({sql})"
        case "money":
            return f"pg_parse_money({sql})"
        case "json":
            return f"pg_json_parse({sql})"
        case "jsonb":
            return f"pg_jsonb_parse({sql})"
        case "inet" | "cidr":
            return f"pg_{name}_parse({sql})"
        case "regclass":
            return f"regclass_oid({sql})"
    return sql


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
    elif name in _INTEGERS:
        number = text_value.parse_integer(text, _INTEGERS[name])
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
                raise QueryError("22007", f'invalid input syntax for type time: "{text}"')
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


def list_of(items: list[str], type_: Type) -> Typed:
    return Typed(f"CAST([{', '.join(items)}] AS {representation(type_, is_list=True)})", type_, is_list=True)


def as_element(value: Typed) -> str:
    """A value as an element of a list, where numerics are texts and arrays are not allowed."""
    if value.base.element is not None:
        raise refuse("an array of arrays")
    return numeric_text(value) if value.name == "numeric" else value.sql


# Lengths and precisions


def apply_modifier(value: Typed, modifier: int, is_explicit: bool = True) -> Typed:
    """A value of the right type with the length, precision or scale that its declaration demands."""
    name = value.name
    if modifier < 0 and name != "bpchar":
        return value
    match name:
        case "varchar" | "bpchar":
            size = modifier - 4
            if size < 0:
                return value
            sql = value.sql
            if not is_explicit:
                failed = f"error('[22001] value too long for type character({size})')"
                sql = f"CASE WHEN length(rtrim({sql}, ' ')) > {size} THEN {failed} ELSE {sql} END"
            sql = f"left({sql}, {size})" if name == "varchar" else f"rpad(left({sql}, {size}), {size}, ' ')"
            return replace(value, sql=sql, modifier=modifier)
        case "numeric":
            precision, scale = numeric_modifier(modifier)
            if 1 <= precision <= MAX_DIGITS and 0 <= scale <= precision:
                text = f"pg_numeric_fit({value.sql}, {precision}, {scale})" if value.scale is None else value.sql
                sql = f"CAST({text} AS DECIMAL({precision}, {scale}))"
                return replace(value, sql=sql, modifier=modifier, scale=scale)
            return replace(
                as_numeric_text(value),
                sql=f"pg_numeric_fit({numeric_text(value)}, {precision}, {scale})",
                modifier=modifier,
            )
        case "timestamp" | "timestamptz" | "time":
            if modifier >= 6:
                return replace(value, modifier=modifier)
            return replace(value, sql=f"rounded({value.sql}, {modifier})", modifier=modifier)
        case "bit" | "varbit":
            if name == "bit" and is_explicit:
                return replace(value, sql=f"rpad(left({value.sql}, {modifier}), {modifier}, '0')", modifier=modifier)
            return replace(value, sql=f"left({value.sql}, {modifier})", modifier=modifier)
        case "interval":
            if modifier & 0xFFFF in (6, 0xFFFF) and modifier >> 16 == 0x7FFF:
                return value
            raise refuse("an interval with restricted fields or precision")
    return value


# Between types


def convert(value: Typed, target: Type, modifier: int = -1, is_explicit: bool = False) -> Typed:
    """The value as another type. Implicit conversions were checked before."""
    if target.kind == "d" and target.base is not None:
        inner = target.base_modifier if target.base_modifier != -1 else modifier
        return replace(convert(value, target.base, inner, is_explicit), type=target)
    if value.is_unknown:
        if value.infer is not None:
            value.infer(target)
        if value.literal is None:
            return Typed(null_of(target), target, modifier, is_list=False, is_constant=True)
        return literal(value.literal, target, modifier, True)
    source = value.base
    if source == target:
        same = replace(value, type=target)
        return apply_modifier(same, modifier, is_explicit) if modifier >= 0 and modifier != value.modifier else same
    made = _converted(value, source, target, is_explicit)
    made = replace(made, type=target, modifier=-1, is_constant=value.is_constant)
    return apply_modifier(made, modifier, is_explicit)


def _converted(value: Typed, source: Type, target: Type, is_explicit: bool) -> Typed:
    name, wanted = name_of(source), name_of(target)
    if (found := _CASTS.get((name, wanted))) is not None:
        return found(value)
    if source.element is not None and target.element is not None:
        return _array_conversion(value, source.element, target)
    if wanted in _TEXTS or is_citext(target):
        if source.kind in "c" or (
            not is_own(source)
            and source.kind == "b"
            and not is_citext(source)
            and source.element is None
            and not is_explicit
        ):
            raise _no_cast(source, target)
        return Typed(cast_text(value), target)
    if name in _TEXTS or is_citext(source):
        return _from_text(value, target)
    raise _no_cast(source, target)


def _no_cast(source: Type, target: Type) -> QueryError:
    known = cast_context(source, target) is not None
    names = f"{pg_type.display_name(source)} to {pg_type.display_name(target)}"
    if known or not (is_own(source) and is_own(target)):
        return refuse(f"the cast from {names}")
    return QueryError("42846", f"cannot cast type {names.replace(' to ', ' to ', 1)}")


def _from_text(value: Typed, target: Type) -> Typed:
    # Conversions other than to texts see the blanks of char(n).
    text = value.sql if value.name == "bpchar" else cast_text(value)
    if target.element is not None:
        texts = f"pg_array_plain_elements({text})"
        return Typed(from_texts(texts, base_type(target.element)), target, is_list=True)
    if target.kind == "e":
        labels = ", ".join(map(sql_literal, target.labels))
        message = sql_literal(f"[22P02] invalid input value for enum {target.name}")
        return Typed(f"CASE WHEN {text} IS NULL OR {text} IN ({labels}) THEN {text} ELSE error({message}) END", target)
    if not is_own(target) or target.kind != "b":
        raise refuse(f"the cast from text to {target.name}")
    parsed = parse_sql(text, target)
    if parsed == text and target.name not in ("regclass", "numeric", "pg_node_tree"):
        raise refuse(f"the cast from text to {target.name}")
    return Typed(parsed, target)


def _array_conversion(value: Typed, source: Type, target: Type) -> Typed:
    element = base_type(target.element or pg_type.TEXT)
    inner = convert(Typed("e", base_type(source)), element, is_explicit=True)
    list_sql = elements(value)
    body = as_element(inner)
    return Typed(list_sql if body == "e" else f"list_transform({list_sql}, lambda e: {body})", target, is_list=True)


Conversion = Callable[[Typed], Typed]


def _native(target: str, template: str = "CAST({} AS {})") -> Conversion:
    type_ = pg_type.built_in(target)
    return lambda value: Typed(template.format(value.sql, representation(type_)), type_)


def _integer_to_numeric(value: Typed) -> Typed:
    digits = INTEGER_DIGITS[value.name]
    return Typed(f"CAST({value.sql} AS DECIMAL({digits}, 0))", pg_type.NUMERIC, scale=0)


def _numeric_to_integer(target: str) -> Conversion:
    type_ = pg_type.built_in(target)

    def convert_(value: Typed) -> Typed:
        whole = f"pg_numeric_to_integer({value.sql})" if value.scale is None else f"round({value.sql}, 0)"
        return Typed(f"CAST({whole} AS {representation(type_)})", type_)

    return convert_


def _numeric_to_float(target: str) -> Conversion:
    type_ = pg_type.built_in(target)

    def convert_(value: Typed) -> Typed:
        function = "pg_numeric_to_single" if target == "float4" else "pg_numeric_to_double"
        return Typed(f"{function}({numeric_text(value)})", type_)

    return convert_


def _to_numeric(function: str) -> Conversion:
    return lambda value: Typed(f"{function}({value.sql})", pg_type.NUMERIC)


def _from_jsonb(target: str) -> Conversion:
    def convert_(value: Typed) -> Typed:
        inner = Typed(f"pg_jsonb_to_numeric({value.sql})", pg_type.NUMERIC)
        return convert(inner, pg_type.built_in(target), is_explicit=True)

    return convert_


def _same_text(value: Typed) -> Typed:
    return value


def _refused(value: Typed) -> Typed:
    raise refuse(f'the cast from {value.name} to "char"')


def _make_casts() -> dict[tuple[str, str], Conversion]:
    found: dict[tuple[str, str], Conversion] = {}
    integers = ("int2", "int4", "int8")
    for a in integers:
        for b in integers:
            if a != b:
                found[a, b] = _native(b)
        for b in ("float4", "float8"):
            found[a, b] = _native(b)
            found[b, a] = _native(a, "CAST(round_even({}, 0) AS {})")
        found[a, "numeric"] = _integer_to_numeric
        found["numeric", a] = _numeric_to_integer(a)
        found["jsonb", a] = _from_jsonb(a)
    for a in (*integers, "oid", *REG):
        for b in ("oid", *REG, *integers):
            if a != b and (a, b) not in found:
                found[a, b] = _native(b)
    found["oid", "numeric"] = _integer_to_numeric
    for a in ("regproc", "regprocedure"):
        found[a, "oid"] = _native("oid", "TRY_CAST({} AS {})")
        found["oid", a] = lambda v: Typed(f"CAST({v.sql} AS VARCHAR)", pg_type.TEXT)
    found["xid", "int8"] = _native("int8")
    for b in ("float4", "float8"):
        found["numeric", b] = _numeric_to_float(b)
        found["jsonb", b] = _from_jsonb(b)
    found["float4", "float8"] = _native("float8")
    found["float8", "float4"] = _native("float4", "pg_double_to_single({})")
    found["float8", "numeric"] = _to_numeric("pg_numeric_from_double")
    found["float4", "numeric"] = lambda v: Typed(f"pg_numeric_from_single(CAST({v.sql} AS DOUBLE))", pg_type.NUMERIC)
    for a in ("int4", "text", "varchar", "bpchar", "name"):
        found[a, "char"] = _refused
    found["char", "int4"] = _refused
    found["bool", "int4"] = _native("int4")
    found["int4", "bool"] = _native("bool", "({} <> 0)")
    found["money", "numeric"] = lambda v: Typed(v.sql, pg_type.NUMERIC, scale=2)
    found["numeric", "money"] = lambda v: Typed(
        f"pg_money(CAST({f'pg_numeric_fit({v.sql}, 19, 2)' if v.scale is None else v.sql} AS DECIMAL(19, 2)))",
        pg_type.built_in("money"),
    )
    for a in ("int4", "int8"):
        found[a, "money"] = _native("money")
    found["date", "timestamp"] = _native("timestamp")
    found["date", "timestamptz"] = _native("timestamptz", "CAST(CAST({} AS TIMESTAMP) AS {})")
    found["timestamp", "timestamptz"] = _native("timestamptz")
    found["timestamp", "date"] = _native("date")
    found["timestamp", "time"] = _native("time", "CAST(CASE WHEN isfinite({0}) THEN {0} END AS {1})")
    found["timestamptz", "timestamp"] = _native("timestamp")
    found["timestamptz", "date"] = _native("date", "CAST(CAST({} AS TIMESTAMP) AS {})")
    found["timestamptz", "time"] = _native(
        "time", "CAST(CAST(CASE WHEN isfinite({0}) THEN {0} END AS TIMESTAMP) AS {1})"
    )
    found["time", "interval"] = _native("interval", "to_microseconds(epoch_us({}))")
    found["jsonb", "numeric"] = _to_numeric("pg_jsonb_to_numeric")
    found["jsonb", "bool"] = _native("bool", "pg_jsonb_to_boolean({})")
    found["json", "jsonb"] = _native("jsonb", "pg_jsonb_parse({})")
    found["jsonb", "json"] = _same_text
    found["inet", "cidr"] = _native("cidr", "(pg_inet_network({}))")
    found["cidr", "inet"] = _native("inet", "pg_inet_parse({})")
    for a, b in (
        ("bit", "varbit"),
        ("varbit", "bit"),
        ("name", "text"),
        ("text", "name"),
        ("varchar", "name"),
        ("pg_node_tree", "text"),
    ):
        found[a, b] = _same_text
    for a in ("text", "varchar", "name"):
        for b in ("text", "varchar", "bpchar"):
            if a != b:
                found[a, b] = _same_text
    found["bytea", "text"] = lambda v: Typed(cast_text(v), pg_type.TEXT)
    return found


_CASTS: Final = _make_casts()
