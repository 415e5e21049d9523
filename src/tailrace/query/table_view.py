"""The views that show the lake's tables: the source's columns, in the representations that the translation expects.

Columns stored as in the source are left unchanged, so that DuckDB can use them to skip files and row groups. For each
table, `"<table>$stored"` shows the stored values unchanged.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from tailrace import types
from tailrace.change import Column, Relation
from tailrace.column_name import unused_name
from tailrace.lake.metadata import TableMetadata
from tailrace.query.lake_view import TableVersion
from tailrace.query.query_error import UNSUPPORTED, QueryError

STORED: Final = "$stored"

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


def shown_columns(
    table: TableVersion, relation: Relation, metadata: TableMetadata
) -> list[tuple[str, Any, Column | None]]:
    """The columns of a table's view: name, Iceberg type, and the source's column if there is one.

    The Iceberg type is `string` for a numeric that is shown as text."""
    stored = _columns(table, metadata)
    special = _special_column(relation, stored)
    declared = {column.name: column for column in relation.columns}
    is_mirror = table.kind == "mirror"
    names = [n for n in declared if n in stored] if is_mirror else [n for n in stored if n != special]
    found: list[tuple[str, Any, Column | None]] = []
    for name in names:
        type_ = stored[name]
        column = declared.get(name)
        is_decimal = isinstance(type_, str) and type_.startswith("decimal")
        is_money = column is not None and types.base(column.type, -1)[0].name == "money"
        found.append((name, "string" if special and is_decimal and not is_money else type_, column))
    return found


def stored_columns(table: TableVersion, metadata: TableMetadata) -> Mapping[str, Any]:
    """The columns of `"<table>$stored"`: name → Iceberg type."""
    return _columns(table, metadata)


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
    elif stored == "string" and type_.name == "time" and type_.schema == "pg_catalog":
        expression = f"CAST({quoted} AS TIME)"
    elif special is not None and stored in ("date", "timestamp", "timestamptz"):
        # DuckDB expects BC right after the day.
        text = f"regexp_replace({sql_name(special)}[{sql_literal(name)}], '^(\\S+)(.*) BC$', '\\1 (BC)\\2')"
        expression = f"coalesce({quoted}, CAST({text} AS {_ICEBERG[stored]}))"
    elif special is not None and isinstance(stored, str) and stored.startswith("decimal") and type_.name == "numeric":
        # NaN is not in the column. Then the column is shown as PostgreSQL's text of numerics.
        expression = f"coalesce(CAST({quoted} AS VARCHAR), {sql_name(special)}[{sql_literal(name)}])"
    return expression


def _duckdb(stored: Any) -> str:
    if isinstance(stored, str):
        return _ICEBERG.get(stored) or stored.upper()
    if stored.get("type") == "struct":
        parts = [f"{sql_name(part['name'])} {_duckdb(part['type'])}" for part in stored["fields"]]
        return f"STRUCT({', '.join(parts)})"
    if stored.get("type") == "map":
        return f"MAP({_duckdb(stored['key'])}, {_duckdb(stored['value'])})"
    return f"{_duckdb(stored['element'])}[]"
