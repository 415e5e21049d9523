"""Values of any type as JSON, as to_json writes them."""

from __future__ import annotations

from tailrace.query.scalar.json_value import quote
from tailrace.query.sql.pg_type import base_type
from tailrace.query.sql.syntax import refuse
from tailrace.query.sql.text_form import cast_text, elements
from tailrace.query.sql.typed import Typed, numeric_text
from tailrace.query.table_view import sql_literal


def json_of(value: Typed) -> str:
    """The SQL of a value's JSON text; NULL for NULL."""
    name, sql = value.name, value.sql
    if value.base.kind == "c":
        raise refuse("the JSON of a composite value")
    if value.fields:
        pairs = zip(value.names or [f"f{n}" for n in range(1, len(value.fields) + 1)], value.fields, strict=True)
        parts = [f"{sql_literal(_key(name))}, coalesce({json_of(field)}, 'null')" for name, field in pairs]
        joined = ", ',', ".join(parts)
        return f"concat('{{', {joined}, '}}')"
    if value.base.element is not None:
        element = base_type(value.base.element)
        inner = json_of(Typed("e", element))
        items = f"list_transform({elements(value)}, lambda e: coalesce({inner}, 'null'))"
        return f"CASE WHEN {items} IS NOT NULL THEN '[' || coalesce(array_to_string({items}, ','), '') || ']' END"
    if name == "bool" or name in ("int2", "int4", "int8"):
        return f"CAST({sql} AS VARCHAR)"
    if name == "numeric":
        return sql_number(numeric_text(value))
    if name in ("float4", "float8"):
        return sql_number(cast_text(value))
    if name in ("json", "jsonb"):
        return sql
    if name == "timestamp":
        return f"pg_json_quote_text(system.main.regexp_replace({cast_text(value)}, ' ', 'T'))"
    if name == "timestamptz":
        return f"pg_json_quote_text(system.main.regexp_replace({cast_text(value)}, ' ([0-9]\\S+)', 'T\\1:00'))"
    if name == "bpchar":
        return f"pg_json_quote_text({sql})"
    if name in ("inet", "cidr"):
        return f"pg_json_quote_text({sql})"
    return f"pg_json_quote_text({cast_text(value)})"


def sql_number(text: str) -> str:
    return f"CASE WHEN {text} IN ('NaN', 'Infinity', '-Infinity') THEN '\"' || {text} || '\"' ELSE {text} END"


def _key(name: str) -> str:
    return f"{quote(name)}:"
