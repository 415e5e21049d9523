"""PostgreSQL's system catalogs for a lake version: pg_catalog, information_schema and the functions that query them.

All relations of PostgreSQL 18 exist with their columns (`relations.txt`). Most are empty, as in a database without
rules or triggers. The rows are derived from the source's relation descriptions; no table is opened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

import pyarrow as pa

from tailrace.query.lake_view import LakeVersion
from tailrace.query.system_catalog import lookup_macro
from tailrace.query.system_catalog.system_row import ARRAY_RECV, CatalogTable, Row, SystemRows
from tailrace.types import SQL_NAMES

_TYPES: Final = {
    "bool": pa.bool_(),
    "int2": pa.int32(),
    "int4": pa.int32(),
    "cardinal_number": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "xid": pa.int64(),
    "regtype": pa.int64(),
    "float4": pa.float32(),
    "int2vector": pa.list_(pa.int32()),
    "oidvector": pa.list_(pa.int64()),
    "timestamptz": pa.timestamp("us", "UTC"),
    "time_stamp": pa.timestamp("us", "UTC"),
}
"""All other types are text."""
_DUCKDB: Final = {
    "bool": "BOOLEAN", "int2": "INTEGER", "int4": "INTEGER", "cardinal_number": "INTEGER", "int8": "BIGINT",
    "oid": "BIGINT", "xid": "BIGINT", "regtype": "BIGINT", "float4": "FLOAT", "timestamptz": "TIMESTAMPTZ",
    "time_stamp": "TIMESTAMPTZ",
}  # fmt: skip
_DEFAULTS: Final = {"bool": False, "int2": 0, "int4": 0, "oid": 0, "xid": 0, "float4": 0.0, "char": "", "regtype": 0}
# Columns of older versions that their clients still query.
_OLDER_COLUMNS: Final = {
    "pg_database": {"daticulocale": "text"},
    "pg_collation": {"colliculocale": "text"},
}
_SETTINGS: Final = {
    "max_index_keys": "32",
    "max_identifier_length": "63",
    "server_version_num": "180000",
    "standard_conforming_strings": "on",
    "default_transaction_read_only": "on",
    "lc_collate": "C.UTF-8",
}
_UNKNOWN: Final = frozenset(("relpages", "relallvisible", "relallfrozen"))
"""Numbers that the catalog does not know: NULL, not 0."""


@dataclass(frozen=True)
class SystemRelation:
    schema: str
    name: str
    oid: int
    kind: str
    columns: Mapping[str, str]


@cache
def system_relations() -> tuple[SystemRelation, ...]:
    found = []
    for line in files(__package__).joinpath("relations.txt").read_text("utf-8").splitlines():
        name, oid, kind, *columns = line.split(" ")
        schema, _, name = name.partition(".")
        typed = dict(c.split(":") for c in columns)
        found.append(SystemRelation(schema, name, int(oid), kind, typed | _OLDER_COLUMNS.get(name, {})))
    return tuple(found)


@cache
def names() -> frozenset[str]:
    """The names of all relations that can be used without a schema."""
    return frozenset(r.name for r in system_relations() if r.schema == "pg_catalog")


@dataclass(frozen=True)
class SystemCatalog:
    name: str
    """The attached DuckDB catalog: `main` holds pg_catalog, `info` holds information_schema."""
    tables: Mapping[tuple[str, str], int]
    """(schema, name) → OID, for every relation."""
    types: Mapping[str, int]
    schemas: Mapping[str, int]

    @staticmethod
    def make(
        instance: Any, name: str, version: LakeVersion, tables: Sequence[CatalogTable], users: Sequence[str]
    ) -> SystemCatalog:
        rows = SystemRows(version, tables, users).rows
        rows["pg_type"] += _built_in_types(rows)
        rows["pg_settings"] += [{"name": key, "setting": value} for key, value in _SETTINGS.items()]
        system = [r for r in system_relations() if r.oid]
        rows["pg_class"] += [
            {
                "oid": r.oid,
                "relname": r.name,
                "relnamespace": 11,
                "relowner": 10,
                "relkind": r.kind,
                "relpersistence": "p",
            }
            for r in system
        ]
        rows["_relations"] += [{"_oid": r.oid, "_text": r.name, "_visible": True} for r in system]
        rows["_names"] += [{"_oid": r.oid, "_text": name} for r in system for name in (r.name, f"{r.schema}.{r.name}")]
        cursor = instance.cursor()
        try:
            cursor.execute(f"ATTACH ':memory:' AS {name}")
            cursor.execute(f"CREATE SCHEMA {name}.info")
            cursor.execute(f"SET search_path = '{name}.main,pg.main'")
            cursor.execute("BEGIN")  # a transaction per statement would cost as much as all of them
            for relation in system_relations():
                place = "info" if relation.schema == "information_schema" else "main"
                _create(cursor, place, relation.name, relation.columns, rows.get(relation.name, ()))
            for lookup_table, columns in lookup_macro.LOOKUP_TABLES.items():
                _create(cursor, "main", lookup_table, columns, rows.get(lookup_table, ()))
            for statement in lookup_macro.statements(name):
                cursor.execute(statement)
            cursor.execute("COMMIT")
        finally:
            cursor.close()
        types = {row["typname"]: row["oid"] for row in rows["pg_type"]}
        schemas = {row["nspname"]: row["oid"] for row in rows["pg_namespace"]}
        names_of_schemas = {oid: schema for schema, oid in schemas.items()}
        found = {(names_of_schemas[row["relnamespace"]], row["relname"]): row["oid"] for row in rows["pg_class"]}
        return SystemCatalog(name, found, types, schemas)


def _built_in_types(rows: dict[str, list[Row]]) -> list[Row]:
    found: list[Row] = []
    names: dict[int, str] = {}
    lines = files(__package__).joinpath("types.txt").read_text("utf-8").splitlines()
    for line in lines:
        oid, name, length, kind, category, element, array, base, relation = line.split(" ")
        names[int(oid)] = name
        found.append(
            {
                "oid": int(oid), "typname": name, "typnamespace": 11, "typowner": 10, "typlen": int(length),
                "typtype": kind, "typcategory": category, "typelem": int(element), "typarray": int(array),
                "typbasetype": int(base), "typrelid": int(relation), "typisdefined": True, "typdelim": ",",
                "typtypmod": -1, "typinput": "array_in" if category == "A" else f"{name}in",
                "typreceive": str(ARRAY_RECV) if category == "A" and name.startswith("_") else None,
            }
        )  # fmt: skip
    for row in found:
        is_array = row["typcategory"] == "A" and row["typelem"] in names
        base = names[row["typelem"]] if is_array else row["typname"]
        entry = SQL_NAMES.get(base, base) + ("[]" if is_array else "")
        rows["_types"].append({"_oid": row["oid"], "_text": entry, "_base": base})
    return found


def _create(cursor: Any, place: str, name: str, columns: Mapping[str, str], rows: Sequence[Row]) -> None:
    typed = [f'"{column}" {duckdb_type(type_)}' for column, type_ in columns.items()]
    cursor.execute(f'CREATE TABLE {place}."{name}" ({", ".join(typed)})')
    if not rows:
        return
    schema = pa.schema([(column, _arrow(type_)) for column, type_ in columns.items()])
    # Of activity and visibility, nothing is known.
    is_statistic = name.startswith("pg_stat_")
    defaults = {c: _DEFAULTS.get(type_) for c, type_ in columns.items() if not (is_statistic or c in _UNKNOWN)}
    cursor.register("new_rows", pa.Table.from_pylist([defaults | row for row in rows], schema))
    cursor.execute(f'INSERT INTO {place}."{name}" SELECT * FROM new_rows')  # noqa: S608
    cursor.unregister("new_rows")


def _arrow(type_: str) -> pa.DataType:
    if type_.startswith("_"):
        return pa.list_(_TYPES.get(type_[1:], pa.string()))
    return _TYPES.get(type_, pa.string())


def duckdb_type(type_: str) -> str:
    """The DuckDB type of a system relation's column."""
    if type_.endswith("vector"):
        return "BIGINT[]"
    if type_.startswith("_"):
        return f"{duckdb_type(type_[1:])}[]"
    return _DUCKDB.get(type_, "VARCHAR")
