"""Casts: the conversions between types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tailrace.change import Type
from tailrace.query.query_error import QueryError
from tailrace.query.sql import pg_type
from tailrace.query.sql.literal import literal
from tailrace.query.sql.modifier import apply_modifier
from tailrace.query.sql.pg_type import base_type, is_citext, is_own, name_of
from tailrace.query.sql.signature import cast_context
from tailrace.query.sql.syntax import refuse
from tailrace.query.sql.text_form import cast_text, elements, from_texts, parse_sql
from tailrace.query.sql.typed import (
    INTEGER_DIGITS,
    REG,
    STRINGS,
    Typed,
    as_element,
    null_of,
    numeric_text,
    representation,
)
from tailrace.query.table_view import sql_literal

_TEXTS: Final = STRINGS | {"bpchar"}


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
