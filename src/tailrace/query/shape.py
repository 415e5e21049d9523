"""How a table of the lake is shown: the source's columns, with types as near to the source's as DuckDB has them.

Columns that lie in the lake as they are in the source are left untouched, so that DuckDB still skips files and row
groups by them. A numeric without a precision lies there as text; shown as text, ORDER BY and max() would be silently
wrong, so it is a `NUMERIC`, and a value that does not fit is an error. Beside each table, `"<table>$stored"` shows what
lies in the lake, untouched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from tailrace import types
from tailrace.change import Column, Relation, Type
from tailrace.query.failure import UNSUPPORTED, Failure
from tailrace.query.history import Metadata
from tailrace.query.lake import Table

NUMERIC: Final = (38, 10)
"""What PostgreSQL's numeric without a precision is here: ten decimals leave 28 digits before the point, and a product
of two of them still has 18."""
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


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def select(table: Table, relation: Relation, metadata: Metadata, unpruned: Collection[str] = ()) -> str:
    """The SELECT of a table's view."""
    stored = _columns(table, metadata)
    special = _special(relation, stored)
    kept = metadata.added(table.snapshot).union(unpruned)
    declared = {column.name: column for column in relation.columns}
    if table.kind == "mirror":
        names = [name for name in declared if name in stored]
    else:
        names = [name for name in stored if name != special]
    columns = [_column(name, stored[name], declared.get(name), special, kept) for name in names]
    return f"SELECT {', '.join(columns)} FROM {_source(table, stored)}"  # noqa: S608 (quoted)


def select_stored(table: Table, metadata: Metadata, unpruned: Collection[str] = ()) -> str:
    stored = _columns(table, metadata)
    kept = metadata.added(table.snapshot).union(unpruned)
    columns = [_column(name, type_, None, None, kept) for name, type_ in stored.items()]
    return f"SELECT {', '.join(columns)} FROM {_source(table, stored)}"  # noqa: S608 (quoted)


def _columns(table: Table, metadata: Metadata) -> Mapping[str, Any]:
    stored = metadata.columns(table.snapshot)
    folded: dict[str, str] = {}
    for name in stored:
        if (other := folded.setdefault(name.lower(), name)) != name:
            raise Failure(
                UNSUPPORTED,
                f"columns {other} and {name} of {table.schema}.{table.name} differ only in case,"
                " and DuckDB cannot tell them apart",
                "deliver one of them: `columns` of the sink",
            )
    return stored


def _source(table: Table, stored: Mapping[str, Any]) -> str:
    if table.snapshot is None:
        nothing = [f"NULL::{_duckdb(type_)} AS {quoted(name)}" for name, type_ in stored.items()]
        return f"(SELECT {', '.join(nothing)} WHERE false)"
    return f"iceberg_scan({literal(table.metadata)}, snapshot_from_id = {table.snapshot})"


def _special(relation: Relation, stored: Mapping[str, Any]) -> str | None:
    """The column of values that their own column cannot hold, where the table has one yet."""
    name = "__special" if any(c.name == "_special" for c in relation.columns) else "_special"
    return name if isinstance(stored.get(name), dict) else None


def _column(name: str, stored: Any, column: Column | None, special: str | None, unpruned: Collection[str]) -> str:
    own = quoted(name)
    shown = own if column is None else _shown(own, name, stored, column, special)
    # A file's greatest number is told without NaN, which is greater. Of columns that it lacks a file tells nothing, and
    # DuckDB takes that for nothing to be found, also where they have a default.
    if shown == own and (name.lower() in unpruned or stored in ("float", "double")):
        shown = _unpruned(own)
    return shown if shown == own else f"{shown} AS {own}"


def _unpruned(own: str) -> str:
    """The same value, by which DuckDB skips nothing: what might fail is not pushed into a scan. It never does."""
    return f"CASE WHEN {own} IS NULL THEN NULL WHEN {own} IS NULL THEN error('') ELSE {own} END"


def _shown(own: str, name: str, stored: Any, column: Column, special: str | None) -> str:
    type_, _ = types.base(column.type, column.modifier)
    shown = own
    if isinstance(stored, dict) and type_.name == "interval":
        shown = f"to_months({own}.months) + to_days({own}.days) + to_microseconds({own}.microseconds)"
    elif stored == "string" and type_.name == "numeric" and type_.schema == "pg_catalog":
        shown = _numeric(own, name)
    elif stored == "string" and type_.name == "time" and type_.schema == "pg_catalog":
        shown = f"CAST({own} AS TIME)"
    elif stored == "string" and type_.name == "bpchar" and type_.schema == "pg_catalog":
        # PostgreSQL compares char(n) without the blanks at its end; they come back when the column itself is told.
        shown = f"rtrim({_unpruned(own)}, ' ')"
    elif special is not None and stored in ("date", "timestamp", "timestamptz"):
        # DuckDB writes BC after the day.
        text = f"regexp_replace({quoted(special)}[{literal(name)}], '^(\\S+)(.*) BC$', '\\1 (BC)\\2')"
        shown = f"coalesce({own}, TRY_CAST({text} AS {_ICEBERG[stored]}))"
    elif stored == "string" and type_.element is not None:
        shown = _array(own, name, type_.element)
    return shown


def _numeric(own: str, name: str) -> str:
    """PostgreSQL's text of a numeric as a decimal, if it is one: nothing is rounded."""
    precision, scale = NUMERIC
    decimals = f"length(rtrim(split_part({own}, '.', 2), '0'))"
    read = f"TRY_CAST({own} AS DECIMAL({precision}, {scale}))"
    told = f"{name} holds a number that numeric({precision},{scale}) does not: read it from the table with {STORED}"
    return (
        f"CASE WHEN {own} IS NULL OR {own} IN {_NOT_FINITE} THEN NULL"
        f" WHEN {decimals} <= {scale} AND {read} IS NOT NULL THEN {read} ELSE error({literal(told)}) END"
    )


def _array(own: str, name: str, element: Type) -> str:
    """PostgreSQL's text of an array as a list: of one dimension, counted from 1, of elements that DuckDB has."""
    base, _ = types.base(element, -1)
    if base.schema != "pg_catalog" or base.name not in _ELEMENTS:
        return own
    items = f"regexp_extract_all({own}, {literal(_ITEM)})"
    plain = "regexp_replace(i[2:-2], '\\\\(.)', '\\1', 'g')"
    read = f"CASE WHEN i = 'NULL' THEN NULL WHEN i[1] = '\"' THEN {plain} ELSE i END"
    listed = f"CAST(list_transform({items}, lambda i: {read}) AS {_ELEMENTS[base.name]}[])"
    told = f"{name} holds an array of several dimensions, or not counted from 1: read it from the table with {STORED}"
    is_plain = f"{own} LIKE '{{%' AND {own} NOT LIKE '{{{{%'"
    return f"CASE WHEN {is_plain} THEN {listed} WHEN {own} IS NOT NULL THEN error({literal(told)}) END"


def _duckdb(stored: Any) -> str:
    if isinstance(stored, str):
        return _ICEBERG.get(stored) or stored.upper()
    if stored.get("type") == "struct":
        parts = [f"{quoted(part['name'])} {_duckdb(part['type'])}" for part in stored["fields"]]
        return f"STRUCT({', '.join(parts)})"
    if stored.get("type") == "map":
        return f"MAP({_duckdb(stored['key'])}, {_duckdb(stored['value'])})"
    return f"{_duckdb(stored['element'])}[]"
