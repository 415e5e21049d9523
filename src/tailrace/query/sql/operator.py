"""The renderings of PostgreSQL's operators. A signature that is not here is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from tailrace.change import Type
from tailrace.query.sql import pg_type, regular_expression
from tailrace.query.sql.cast import convert
from tailrace.query.sql.comparison import OPERATORS, compare, equality_key, order_key
from tailrace.query.sql.pg_type import base_type, is_citext
from tailrace.query.sql.signature import Resolved
from tailrace.query.sql.syntax import refuse
from tailrace.query.sql.text_form import cast_text, elements, parse_sql
from tailrace.query.sql.typed import (
    MAX_DIGITS,
    Typed,
    as_element,
    constant_text,
    is_column,
    numeric_text,
    representation,
)
from tailrace.query.table_view import sql_literal

Rendering = str | Callable[[Typed, Typed], Typed]

_NUMERIC: Final = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "remainder"}


def numeric_operation(operator: str, a: Typed, b: Typed) -> Typed:
    if a.scale is not None and b.scale is not None and operator in "+-*":
        scale = a.scale + b.scale if operator == "*" else max(a.scale, b.scale)
        if scale <= MAX_DIGITS:
            return Typed(f"({a.sql} {operator} {b.sql})", pg_type.NUMERIC, scale=scale)
    return Typed(f"pg_numeric_{_NUMERIC[operator]}({numeric_text(a)}, {numeric_text(b)})", pg_type.NUMERIC)


def _integers(operator: str, result: str) -> Rendering:
    type_ = pg_type.built_in(result)

    def render(a: Typed, b: Typed) -> Typed:
        wide = representation(type_)
        x, y = (v.sql if v.name == result else f"CAST({v.sql} AS {wide})" for v in (a, b))
        if operator in "/%":
            is_safe = b.is_constant and b.sql.strip("()-").isdecimal() and int(b.sql.strip("()-")) not in (0, 1)
            name = "//" if operator == "/" else "%"
            sql = f'system.main."{name}"({x}, {y})' if is_safe else f'"{name}"({x}, {y})'
        else:
            sql = f"({x} {operator} {y})"
        return Typed(f"CAST({sql} AS {wide})" if result == "int2" else sql, type_)

    return render


def _floats(operator: str, result: str) -> Rendering:
    name = {"+": "pg_float_add", "-": "pg_float_subtract", "*": "pg_float_multiply", "/": "pg_float_divide"}[operator]
    type_ = pg_type.built_in(result)
    wide = representation(type_)
    return lambda a, b: Typed(f"{name}(CAST({a.sql} AS {wide}), CAST({b.sql} AS {wide}))", type_)


def _regex(template: str, ignore_case: bool = False) -> Rendering:
    def render(a: Typed, b: Typed) -> Typed:
        if b.sql.startswith("CAST(NULL"):
            return Typed("CAST(NULL AS BOOLEAN)", pg_type.BOOL)
        pattern = regular_expression.translate(constant_text(b, "a regular expression"), ignore_case=ignore_case)
        return Typed(template.format(a.sql, sql_literal(pattern)), pg_type.BOOL)

    return render


def _like(name: str) -> Rendering:
    return lambda a, b: Typed(f'"{name}"({a.sql}, {b.sql})', pg_type.BOOL)


def _simple(template: str) -> Rendering:
    return template


def _minus_timestamps(a: Typed, b: Typed) -> Typed:
    x, y = (f"CAST({v.sql} AS TIMESTAMP)" for v in (a, b))
    return Typed(f"pg_timestamp_minus({x}, {y})", pg_type.INTERVAL)


def _join_lists(a: Typed, b: Typed) -> Typed:
    return Typed(f"pg_array_cat({elements(a)}, {elements(b)})", a.type, is_list=True)


def _append(a: Typed, b: Typed) -> Typed:
    return Typed(f"list_append(coalesce({elements(a)}, []), {as_element(b)})", a.type, is_list=True)


def _prepend(a: Typed, b: Typed) -> Typed:
    return Typed(f"list_prepend({as_element(a)}, coalesce({elements(b)}, []))", b.type, is_list=True)


def _set_operation(template: str) -> Rendering:
    """An operator that compares the elements of two arrays."""

    def render(a: Typed, b: Typed) -> Typed:
        keys = []
        for value in (a, b):
            key = equality_key(Typed("e", base_type(value.base.element or pg_type.TEXT)))
            found = elements(value, "pg_array_elements")
            keys.append(found if key == "e" else f"list_transform({found}, lambda e: {key})")
        # Without the test, `false AND NULL` would be false for an array that is NULL.
        test = template.format(*keys)
        return Typed(f"CASE WHEN {a.sql} IS NOT NULL AND {b.sql} IS NOT NULL THEN {test} END", pg_type.BOOL)

    return render


def _range_contains_element(a: Typed, b: Typed) -> Typed:
    low, high = (
        order_key(Typed(parse_sql(f"pg_range_{side}({a.sql})", b.base), b.base)) for side in ("lower", "upper")
    )
    if b.name == "numeric":
        b = replace(b, sql=numeric_text(b), scale=None)
    value = order_key(b)
    above = f"(pg_range_lower_inf({a.sql}) OR {value} > {low} OR (pg_range_lower_inc({a.sql}) AND {value} = {low}))"
    below = f"(pg_range_upper_inf({a.sql}) OR {value} < {high} OR (pg_range_upper_inc({a.sql}) AND {value} = {high}))"
    return Typed(f"(NOT pg_range_isempty({a.sql}) AND {above} AND {below})", pg_type.BOOL)


_KEYS: Final = re.compile(r"pg_jsonb_at\((?P<column>[^(),]+), \[(?P<keys>[^\]]+)\], '(?P<pointer>[^']+)', '[^']+'\)")
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][\w -]*", re.ASCII)


def _member(native: str, general: str) -> Rendering:
    """A member of a jsonb. Of a column, DuckDB itself finds the one with a known name, or with a path of names."""

    def render(a: Typed, b: Typed) -> Typed:
        key = b.sql[1:-1]
        type_ = pg_type.TEXT if native.endswith("text") else pg_type.JSONB
        outer = _KEYS.fullmatch(a.sql)
        if not (b.is_constant and _PLAIN_KEY.fullmatch(key)) or not (outer or is_column(a.sql)):
            return Typed(f"{general}({a.sql}, {b.sql})", type_)
        column, keys, pointer = outer.groups() if outer else (a.sql, "", "")
        listed = f"{keys}, {b.sql}" if keys else b.sql
        return Typed(f"{native}({column}, [{listed}], '{pointer}/{key}', '\"{key}\": ')", type_)

    return render


def _make_binary() -> dict[str, Rendering]:
    found: dict[str, Rendering] = {}
    order = ("int2", "int4", "int8")
    for op in "+-*/":
        for n, a in enumerate(order):
            for m, b in enumerate(order):
                found[f"{op}({a},{b})"] = _integers(op, order[max(n, m)])
        for a in ("float4", "float8"):
            for b in ("float4", "float8"):
                found[f"{op}({a},{b})"] = _floats(op, "float4" if a == b == "float4" else "float8")
    for a in order:
        found[f"%({a},{a})"] = _integers("%", a)
        for op in "&|":
            found[f"{op}({a},{a})"] = f"({{0}} {op} {{1}})"
        found[f"#({a},{a})"] = "xor({0}, {1})"
        bits = {"int2": 16, "int4": 32, "int8": 64}[a]
        wide = representation(pg_type.built_in(a))
        found[f"<<({a},int4)"] = f"CAST(pg_shift_left({{0}}, {{1}}, {bits}) AS {wide})"
        found[f">>({a},int4)"] = f"CAST(pg_shift_right({{0}}, {{1}}, {bits}) AS {wide})"
    for op in "+-*/%":
        found[f"{op}(numeric,numeric)"] = lambda x, y, op=op: numeric_operation(op, x, y)  # type: ignore[misc]
    found["^(float8,float8)"] = "pg_power({0}, {1})"
    # Dates and times
    for zone in ("timestamp", "timestamptz"):
        found[f"-({zone},{zone})"] = _minus_timestamps
        found[f"+({zone},interval)"] = "({0} + {1})"
        found[f"-({zone},interval)"] = "({0} - {1})"
        found[f"+(interval,{zone})"] = "({1} + {0})"
    found["+(date,int4)"] = "({0} + {1})"
    found["+(int4,date)"] = "({1} + {0})"
    found["-(date,int4)"] = "({0} - {1})"
    found["-(date,date)"] = "CAST(pg_date_minus({0}, {1}) AS INTEGER)"
    found["+(date,interval)"] = "(CAST({0} AS TIMESTAMP) + {1})"
    found["-(date,interval)"] = "(CAST({0} AS TIMESTAMP) - {1})"
    found["+(interval,date)"] = "(CAST({1} AS TIMESTAMP) + {0})"
    found["+(date,time)"] = "(CAST({0} AS TIMESTAMP) + pg_time_interval({1}))"
    found["+(time,interval)"] = "({0} + {1})"
    found["-(time,interval)"] = "({0} - {1})"
    found["-(time,time)"] = "to_microseconds(epoch_us({0}) - epoch_us({1}))"
    found["+(interval,interval)"] = "({0} + {1})"
    found["-(interval,interval)"] = "({0} - {1})"
    found["*(interval,float8)"] = "pg_interval_multiply({0}, {1})"
    found["*(float8,interval)"] = "pg_interval_multiply({1}, {0})"
    # Money
    found["+(money,money)"] = "pg_money({0} + {1})"
    found["-(money,money)"] = "pg_money({0} - {1})"
    for a in order:
        found[f"*(money,{a})"] = "pg_money({0} * {1})"
        found[f"*({a},money)"] = "pg_money({0} * {1})"
    # Text
    found["||(text,text)"] = "({0} || {1})"
    found["||(anynonarray,text)"] = lambda a, b: Typed(f"({cast_text(a)} || {b.sql})", pg_type.TEXT)
    found["||(text,anynonarray)"] = lambda a, b: Typed(f"({a.sql} || {cast_text(b)})", pg_type.TEXT)
    found["||(bytea,bytea)"] = "({0} || {1})"
    found["||(varbit,varbit)"] = "({0} || {1})"
    for a in ("text", "name", "bpchar"):
        for op, name in (("~~", "~~"), ("!~~", "!~~"), ("~~*", "~~*"), ("!~~*", "!~~*")):
            found[f"{op}({a},text)"] = _like(name)
        found[f"~({a},text)"] = _regex("system.main.regexp_matches({0}, {1}, 's')")
        found[f"~*({a},text)"] = _regex("system.main.regexp_matches({0}, {1}, 's')", ignore_case=True)
        found[f"!~({a},text)"] = _regex("(NOT system.main.regexp_matches({0}, {1}, 's'))")
        found[f"!~*({a},text)"] = _regex("(NOT system.main.regexp_matches({0}, {1}, 's'))", ignore_case=True)
    found["^@(text,text)"] = "starts_with({0}, {1})"
    # Bits
    for op, template in (("&", "pg_bit_and({0}, {1})"), ("|", "pg_bit_or({0}, {1})"), ("#", "pg_bit_xor({0}, {1})")):
        found[f"{op}(bit,bit)"] = template
    # Arrays
    found["||(anycompatiblearray,anycompatiblearray)"] = _join_lists
    found["||(anycompatiblearray,anycompatible)"] = _append
    found["||(anycompatible,anycompatiblearray)"] = _prepend
    not_null = "list_filter({1}, lambda v: v IS NOT NULL)"
    found["@>(anyarray,anyarray)"] = _set_operation(
        f"(list_has_all({{0}}, {not_null}) AND len({not_null}) = len({{1}}))"
    )
    found["<@(anyarray,anyarray)"] = _set_operation(
        "(list_has_all({1}, list_filter({0}, lambda v: v IS NOT NULL))"
        " AND len(list_filter({0}, lambda v: v IS NOT NULL)) = len({0}))"
    )
    found["&&(anyarray,anyarray)"] = _set_operation(f"list_has_any({{0}}, {not_null})")
    # JSON
    found["->(jsonb,text)"] = _member("pg_jsonb_at", "pg_jsonb_member")
    found["->>(jsonb,text)"] = _member("pg_jsonb_at_text", "pg_jsonb_member_text")
    for kind in ("json", "jsonb"):
        found.setdefault(f"->({kind},text)", f"pg_{kind}_member({{0}}, {{1}})")
        found[f"->({kind},int4)"] = f"pg_{kind}_element({{0}}, {{1}})"
        found.setdefault(f"->>({kind},text)", f"pg_{kind}_member_text({{0}}, {{1}})")
        found[f"->>({kind},int4)"] = f"pg_{kind}_element_text({{0}}, {{1}})"
        found[f"#>({kind},_text)"] = f"pg_{kind}_path({{0}}, {{1}})"
        found[f"#>>({kind},_text)"] = f"pg_{kind}_path_text({{0}}, {{1}})"
    found["@>(jsonb,jsonb)"] = "pg_jsonb_contains_value({0}, {1})"
    found["<@(jsonb,jsonb)"] = "pg_jsonb_contains_value({1}, {0})"
    found["?(jsonb,text)"] = "pg_jsonb_has({0}, {1})"
    found["?|(jsonb,_text)"] = "pg_jsonb_has_any({0}, {1})"
    found["?&(jsonb,_text)"] = "pg_jsonb_has_all({0}, {1})"
    found["||(jsonb,jsonb)"] = "pg_jsonb_join({0}, {1})"
    found["-(jsonb,text)"] = "pg_jsonb_without_key({0}, {1})"
    found["-(jsonb,_text)"] = "pg_jsonb_without_keys({0}, {1})"
    found["-(jsonb,int4)"] = "pg_jsonb_without_element({0}, {1})"
    found["#-(jsonb,_text)"] = "pg_jsonb_without_path({0}, {1})"
    # Networks and ranges
    found["<<(inet,inet)"] = "pg_inet_within({0}, {1})"
    found["<<=(inet,inet)"] = "pg_inet_within_equal({0}, {1})"
    found[">>(inet,inet)"] = "pg_inet_within({1}, {0})"
    found[">>=(inet,inet)"] = "pg_inet_within_equal({1}, {0})"
    found["&&(inet,inet)"] = "pg_inet_overlaps({0}, {1})"
    found["@>(anyrange,anyelement)"] = _range_contains_element
    found["<@(anyelement,anyrange)"] = lambda a, b: _range_contains_element(b, a)
    return found


_BINARY: Final = _make_binary()
_PREFIX: Final[dict[str, str]] = {
    **{f"-({t})": "(-{0})" for t in ("int4", "int8", "float4", "float8", "interval")},
    "-(int2)": "CAST(-{0} AS SMALLINT)",
    **{f"+({t})": "{0}" for t in ("int2", "int4", "int8", "float4", "float8")},
    **{f"~({t})": "(~{0})" for t in ("int2", "int4", "int8")},
    **{f"@({t})": "abs({0})" for t in ("int2", "int4", "int8", "float4", "float8")},
    "|/(float8)": "sqrt({0})",
    "||/(float8)": "cbrt({0})",
}
_LIKE_OF_CITEXT: Final = {"~~": "~~*", "!~~": "!~~*", "~": "~*", "!~": "!~*"}


def citext_operation(operator: str, a: Typed, b: Typed) -> Typed | None:
    """An operator of citext and another text; None if PostgreSQL does not use citext's own."""
    if not (is_citext(a.base) or is_citext(b.base)):
        return None
    citext = a.type if is_citext(a.base) else b.type
    both = [convert(v, base_type(citext)) if v.is_unknown or is_citext(v.base) else v for v in (a, b)]
    if not all(is_citext(v.base) for v in both):
        # citext = text compares as text, because the implicit cast goes that way.
        return None
    x, y = both
    if operator in OPERATORS:
        return Typed(compare(operator, x, y), pg_type.BOOL)
    if operator in _LIKE_OF_CITEXT or operator in _LIKE_OF_CITEXT.values():
        if "~~" in operator:
            return Typed(f'"{_LIKE_OF_CITEXT.get(operator, operator)}"({x.sql}, {y.sql})', pg_type.BOOL)
        rendering = _BINARY[f"{_LIKE_OF_CITEXT.get(operator, operator)}(text,text)"]
        return rendering(x, y) if callable(rendering) else None
    return None


def render_binary(operator: str, resolved: Resolved, a: Typed, b: Typed) -> Typed:
    """`a operator b`, with both converted to the types of the signature."""
    if operator in OPERATORS:
        return Typed(compare(operator, a, b), pg_type.BOOL)
    found = _BINARY.get(resolved.signature.key)
    if found is None:
        raise refuse(f"operator {operator} for {_names(resolved.arguments)}")
    if callable(found):
        made = found(a, b)
    else:
        given = [
            elements(v) if v.base.element is not None else numeric_text(v) if v.name == "numeric" else v.sql
            for v in (a, b)
        ]
        made = Typed(found.format(*given), resolved.result)
    return replace(made, type=resolved.result)


def render_prefix(operator: str, resolved: Resolved, a: Typed) -> Typed:
    if resolved.signature.key == "-(numeric)":
        if a.scale is None:
            return Typed(f"pg_numeric_negate({a.sql})", pg_type.NUMERIC)
        return Typed(f"(-{a.sql})", pg_type.NUMERIC, scale=a.scale, is_constant=a.is_constant)
    if resolved.signature.key in ("+(numeric)",):
        return a
    found = _PREFIX.get(resolved.signature.key)
    if found is None:
        raise refuse(f"operator {operator} for {_names(resolved.arguments)}")
    return Typed(found.format(a.sql), resolved.result, is_constant=a.is_constant and operator in "+-")


def _names(types: Sequence[Type]) -> str:
    return " and ".join(pg_type.display_name(t) for t in types)
