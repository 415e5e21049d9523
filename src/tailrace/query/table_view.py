"""The views that show the lake's tables: the source's columns, with DuckDB's closest types.

Columns stored as in the source are left unchanged, so that DuckDB can use them to skip files and row groups. A numeric
without a precision is stored as text. Shown as text, ORDER BY and max() would be silently wrong; so it becomes a
`NUMERIC`, and a value that does not fit is an error. For each table, `"<table>$stored"` shows the stored values
unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from tailrace import types
from tailrace.change import Column, Relation, Type
from tailrace.column_name import unused_name
from tailrace.lake.metadata import TableMetadata
from tailrace.query.lake_view import TableVersion
from tailrace.query.query_error import UNSUPPORTED, QueryError

NUMERIC: Final = (38, 10)
"""Precision and scale that stand in for a numeric without a precision. Ten decimals leave 28 digits before the point,
and 18 for the product of two such numbers."""
STORED: Final = "$stored"

_ITEM: Final = r'"(?:[^"\\]|\\.)*"|[^,{}"]+'
_ELEMENTS: Final = {
    "bool": "BOOLEAN",
    "int2": "SMALLINT",
    "int4": "INTEGER",
    "int8": "BIGINT",
    "float4": "FLOAT",
    "float8": "DOUBLE",
    "text": "VARCHAR",
    "varchar": "VARCHAR",
    "uuid": "UUID",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
}
_NOT_FINITE: Final = "('NaN', 'Infinity', '-Infinity')"
_ICEBERG: Final = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
    "string": "VARCHAR",
    "uuid": "UUID",
    "binary": "BLOB",
}


def sql_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def sql_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def view_query(
    table: TableVersion, relation: Relation, metadata: TableMetadata, unprunable: Collection[str] = ()
) -> str:
    """The SELECT of a table's view.

    `unprunable` names the columns that must not be used to skip files.
    """
    stored = _columns(table, metadata)
    special = _special_column(relation, stored)
    unprunable = metadata.added_columns(table.snapshot).union(unprunable)
    declared = {column.name: column for column in relation.columns}
    if table.kind == "mirror":
        names = [name for name in declared if name in stored]
    else:
        names = [name for name in stored if name != special]
    columns = [_column(name, stored[name], declared.get(name), special, unprunable) for name in names]
    return f"SELECT {', '.join(columns)} FROM {_source(table, stored)}"  # noqa: S608 (quoted)


def stored_view_query(table: TableVersion, metadata: TableMetadata, unprunable: Collection[str] = ()) -> str:
    stored = _columns(table, metadata)
    unprunable = metadata.added_columns(table.snapshot).union(unprunable)
    columns = [_column(name, type_, None, None, unprunable) for name, type_ in stored.items()]
    return f"SELECT {', '.join(columns)} FROM {_source(table, stored)}"  # noqa: S608 (quoted)


def _columns(table: TableVersion, metadata: TableMetadata) -> Mapping[str, Any]:
    stored = metadata.columns(table.snapshot)
    folded: dict[str, str] = {}
    for name in stored:
        if (other := folded.setdefault(name.lower(), name)) != name:
            raise QueryError(
                UNSUPPORTED,
                f"columns {other} and {name} of {table.schema}.{table.name} differ only in case,"
                " and DuckDB cannot distinguish them",
                "Deliver only one of them: set `columns` of the sink.",
            )
    return stored


def _source(table: TableVersion, stored: Mapping[str, Any]) -> str:
    if table.snapshot is None:
        nothing = [f"NULL::{_duckdb(type_)} AS {sql_name(name)}" for name, type_ in stored.items()]
        return f"(SELECT {', '.join(nothing)} WHERE false)"
    return f"iceberg_scan({sql_literal(table.metadata)}, snapshot_from_id = {table.snapshot})"


def _special_column(relation: Relation, stored: Mapping[str, Any]) -> str | None:
    """The name of the column for values that their own column cannot hold; None if the table has none."""
    name = unused_name("_special", relation)
    return name if isinstance(stored.get(name), dict) else None


def _column(name: str, stored: Any, column: Column | None, special: str | None, unprunable: Collection[str]) -> str:
    quoted = sql_name(name)
    expression = quoted if column is None else _view_expression(quoted, name, stored, column, special)
    # A file's maximum ignores NaN, although NaN is greater. A file has no bounds for columns it lacks, and DuckDB then
    # assumes that nothing matches, even where the column has a default.
    if expression == quoted and (name.lower() in unprunable or stored in ("float", "double")):
        expression = _without_pruning(quoted)
    return expression if expression == quoted else f"{expression} AS {quoted}"


def _without_pruning(quoted: str) -> str:
    """The same value in a form that prevents pruning: DuckDB pushes no expression that might fail into a scan.

    This one never does.
    """
    return f"CASE WHEN {quoted} IS NULL THEN NULL WHEN {quoted} IS NULL THEN error('') ELSE {quoted} END"


def _view_expression(quoted: str, name: str, stored: Any, column: Column, special: str | None) -> str:
    type_, _ = types.base(column.type, column.modifier)
    expression = quoted
    if isinstance(stored, dict) and type_.name == "interval":
        expression = f"to_months({quoted}.months) + to_days({quoted}.days) + to_microseconds({quoted}.microseconds)"
    elif stored == "string" and type_.name == "numeric" and type_.schema == "pg_catalog":
        expression = _numeric(quoted, name)
    elif stored == "string" and type_.name == "time" and type_.schema == "pg_catalog":
        expression = f"CAST({quoted} AS TIME)"
    elif stored == "string" and type_.name == "bpchar" and type_.schema == "pg_catalog":
        # PostgreSQL compares char(n) without trailing blanks. They are restored when the column itself is returned.
        expression = f"rtrim({_without_pruning(quoted)}, ' ')"
    elif special is not None and stored in ("date", "timestamp", "timestamptz"):
        # DuckDB expects BC right after the day.
        text = f"regexp_replace({sql_name(special)}[{sql_literal(name)}], '^(\\S+)(.*) BC$', '\\1 (BC)\\2')"
        expression = f"coalesce({quoted}, TRY_CAST({text} AS {_ICEBERG[stored]}))"
    elif stored == "string" and type_.element is not None:
        expression = _array(quoted, name, type_.element)
    return expression


def _numeric(quoted: str, name: str) -> str:
    """A numeric's text as a decimal, never rounded: a value that does not fit is an error."""
    precision, scale = NUMERIC
    decimals = f"length(rtrim(split_part({quoted}, '.', 2), '0'))"
    decimal = f"TRY_CAST({quoted} AS DECIMAL({precision}, {scale}))"
    message = (
        f"{name} holds a number that does not fit numeric({precision},{scale}): read it from the table with {STORED}"
    )
    return (
        f"CASE WHEN {quoted} IS NULL OR {quoted} IN {_NOT_FINITE} THEN NULL"
        f" WHEN {decimals} <= {scale} AND {decimal} IS NOT NULL THEN {decimal} ELSE error({sql_literal(message)}) END"
    )


def _array(quoted: str, name: str, element: Type) -> str:
    """An array's text as a list, if it has one dimension, lower bound 1 and elements of a type that DuckDB has."""
    base, _ = types.base(element, -1)
    if base.schema != "pg_catalog" or base.name not in _ELEMENTS:
        return quoted
    items = f"regexp_extract_all({quoted}, {sql_literal(_ITEM)})"
    plain = "regexp_replace(i[2:-2], '\\\\(.)', '\\1', 'g')"
    value_sql = f"CASE WHEN i = 'NULL' THEN NULL WHEN i[1] = '\"' THEN {plain} ELSE i END"
    list_sql = f"CAST(list_transform({items}, lambda i: {value_sql}) AS {_ELEMENTS[base.name]}[])"
    problem = f"{name} holds an array with several dimensions or a lower bound other than 1"
    message = f"{problem}: read it from the table with {STORED}"
    is_plain = f"{quoted} LIKE '{{%' AND {quoted} NOT LIKE '{{{{%'"
    return f"CASE WHEN {is_plain} THEN {list_sql} WHEN {quoted} IS NOT NULL THEN error({sql_literal(message)}) END"


def _duckdb(stored: Any) -> str:
    if isinstance(stored, str):
        return _ICEBERG.get(stored) or stored.upper()
    if stored.get("type") == "struct":
        parts = [f"{sql_name(part['name'])} {_duckdb(part['type'])}" for part in stored["fields"]]
        return f"STRUCT({', '.join(parts)})"
    if stored.get("type") == "map":
        return f"MAP({_duckdb(stored['key'])}, {_duckdb(stored['value'])})"
    return f"{_duckdb(stored['element'])}[]"
