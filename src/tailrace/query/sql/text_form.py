"""Values as PostgreSQL's texts, and from them."""

from __future__ import annotations

from typing import Final

from tailrace.change import Type
from tailrace.query.sql import pg_type
from tailrace.query.sql.pg_type import base_type, is_own, name_of
from tailrace.query.sql.typed import REG, Typed, numeric_text, representation

INTEGERS: Final = {"int2": "smallint", "int4": "integer", "int8": "bigint", "oid": "oid", "xid": "oid", "cid": "oid"}


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


def parse_sql(sql: str, type_: Type) -> str:
    """A value of a type from PostgreSQL's own text of it, only known at run time."""
    type_ = base_type(type_)
    name = name_of(type_)
    if type_.element is not None or type_.kind in "ecrm" or not is_own(type_):
        return sql
    if name in INTEGERS:
        return f"CAST(pg_parse_integer({sql}, '{INTEGERS[name]}') AS {representation(type_)})"
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
            return f"regclass_of({sql})"
    return sql


def elements(value: Typed, function: str = "pg_array_plain_elements") -> str:
    """An array as a list of its elements' representations."""
    if value.is_list:
        return value.sql
    element = base_type(value.base.element or pg_type.TEXT)
    return from_texts(f"{function}({value.sql})", element)


def from_texts(texts: str, element: Type) -> str:
    """A list of PostgreSQL's texts as a list of the element's representation."""
    parsed = parse_sql("e", element)
    return texts if parsed == "e" else f"list_transform({texts}, lambda e: {parsed})"


def output_text(value: Typed) -> str:
    """The text that PostgreSQL's output function writes."""
    name = value.name
    if name == "bool":
        return f"CASE WHEN {value.sql} THEN 't' WHEN NOT {value.sql} THEN 'f' END"
    if name in ("bpchar", "inet", "cidr"):
        return value.sql
    return cast_text(value)
