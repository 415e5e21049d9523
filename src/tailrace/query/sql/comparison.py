"""Comparison, order and equality of values as PostgreSQL defines them for each type."""

from __future__ import annotations

from typing import Final

from tailrace.query.query_error import QueryError
from tailrace.query.sql import pg_type
from tailrace.query.sql.pg_type import base_type, is_citext, is_own
from tailrace.query.sql.syntax import refuse
from tailrace.query.sql.text_form import elements
from tailrace.query.sql.typed import STRINGS, Typed, is_column, numeric_text
from tailrace.query.table_view import sql_literal

OPERATORS: Final = frozenset(("=", "<>", "<", ">", "<=", ">="))
_NATIVE: Final = frozenset(
    ("bool", "int2", "int4", "int8", "float4", "float8", "money", "bytea", "uuid", "date", "time", "timestamp",
     "timestamptz", "oid", "xid", "cid", "regclass", "regtype", "regnamespace", "regrole", "bit", "varbit",
     "macaddr", "macaddr8", "regproc", "int2vector", "oidvector", "pg_lsn_text")
)  # fmt: skip
_EQUAL_BY_TEXT: Final = frozenset(("int4range", "int8range", "daterange", "tsrange", "tstzrange", "aclitem"))
"""Types whose values are equal exactly if their texts are, but sort otherwise."""


def is_plain(value: Typed) -> bool:
    """Whether DuckDB compares the representation as PostgreSQL compares the value."""
    try:
        return order_key(value) == value.sql
    except QueryError:  # a type that cannot be sorted
        return False


def order_key(value: Typed) -> str:
    """An expression that sorts as the value does."""
    base, sql = value.base, value.sql
    if base.element is not None and value.name not in _NATIVE:
        return _list_key(value)
    if value.name in _NATIVE or value.name in STRINGS:
        return sql
    if value.name == "bpchar":
        return f"rtrim({sql}, ' ')"
    if value.name == "numeric":
        return numeric_key(sql) if value.scale is None else sql
    if value.name == "interval":
        # DuckDB groups equal intervals apart: '1 mon -1 days' and '29 days'.
        return f"pg_interval_key({sql})"
    if value.name in ("inet", "cidr"):
        return f"pg_inet_key({sql})"
    if base.kind == "e":
        labels = ", ".join(map(sql_literal, base.labels))
        return f"pg_label_position([{labels}], {sql})"
    if is_citext(base):
        return f"lower({sql})"
    raise refuse(f"the order of values of type {base.name}", "Cast to text, or to a type that can be sorted.")


def equality_key(value: Typed) -> str:
    """An expression that is equal exactly for equal values."""
    if value.name == "jsonb":
        return f"pg_jsonb_{'key' if is_column(value.sql) else 'full_key'}({value.sql})"
    if value.name in _EQUAL_BY_TEXT or value.base.kind == "e":
        return value.sql
    try:
        return order_key(value)
    except QueryError:
        if is_own(value.base) and value.name in ("json", "xml", "point"):
            raise QueryError("42883", f"could not identify an equality operator for type {value.name}") from None
        raise refuse(
            f"equality of values of type {value.base.name}", "Compare their texts: x::text = y::text."
        ) from None


def numeric_key(text: str) -> str:
    """A text that sorts as the numeric of this text does."""
    # The macro that needs no Python repeats its argument.
    return f"pg_numeric_{'key' if is_column(text) else 'full_key'}({text})"


def _list_key(value: Typed) -> str:
    element = base_type(value.base.element or pg_type.TEXT)
    key = order_key(Typed("e", element))
    found = elements(value)
    return found if key == "e" else f"list_transform({found}, lambda e: {key})"


def compare(operator: str, a: Typed, b: Typed) -> str:
    """`a operator b`, for operands of the same type or of types that DuckDB compares as PostgreSQL does."""
    if a.name == "numeric" and b.name == "numeric" and (a.scale is None) != (b.scale is None):
        return f"({numeric_key(numeric_text(a))} {operator} {numeric_key(numeric_text(b))})"
    if a.name == "point":
        raise refuse(f"operator {operator} of points", "Compare their coordinates: p[0], p[1].")
    key = equality_key if operator in ("=", "<>") else order_key
    return f"({key(a)} {operator} {key(b)})"


def is_distinct(a: Typed, b: Typed, negated: bool) -> str:
    word = "IS NOT DISTINCT FROM" if negated else "IS DISTINCT FROM"
    if a.name == "numeric" and b.name == "numeric" and (a.scale is None) != (b.scale is None):
        return f"({numeric_key(numeric_text(a))} {word} {numeric_key(numeric_text(b))})"
    return f"({equality_key(a)} {word} {equality_key(b)})"
