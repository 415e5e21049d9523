"""What a session's statements see: the lake's tables at one version, the system catalogs, settings, parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from tailrace import types
from tailrace.change import Column, Type
from tailrace.query import system_catalog
from tailrace.query.duckdb_engine import CatalogLease
from tailrace.query.lake_view import LakeView
from tailrace.query.lexer import tokenize, without_space
from tailrace.query.query_error import QueryError
from tailrace.query.session_settings import SessionSettings
from tailrace.query.sql import pg_type
from tailrace.query.sql.catalog import Source
from tailrace.query.sql.scope import NamedColumn
from tailrace.query.sql.typed import Typed, representation
from tailrace.query.system_catalog import SystemRelation, system_relations
from tailrace.query.system_catalog.relation_size import LIVE_ROWS, RELATION_PAGES, RELATION_ROWS
from tailrace.query.table_view import STORED, shown_columns, sql_name, stored_columns

_DOMAINS: Final = {
    "sql_identifier": "name", "character_data": "varchar", "cardinal_number": "int4", "yes_or_no": "varchar",
    "time_stamp": "timestamptz",
}  # fmt: skip
_STORED_TYPES: Final = {
    "boolean": "bool", "int": "int4", "long": "int8", "float": "float4", "double": "float8", "date": "date",
    "time": "time", "timestamp": "timestamp", "timestamptz": "timestamptz", "string": "text", "uuid": "uuid",
    "binary": "bytea",
}  # fmt: skip
_FRESHNESS: Final = (
    ("lsn", "text"),
    ("committed_at", "timestamptz"),
    ("published_at", "timestamptz"),
    ("age_seconds", "float8"),
)
_TABLE_FUNCTIONS: Final = {
    "pg_get_keywords": (
        ("word", "text"), ("catcode", "char"), ("barelabel", "bool"), ("catdesc", "text"), ("baredesc", "text")
    ),
    "pg_show_all_settings": (("name", "text"), ("setting", "text")),
    "pg_available_extensions": (("name", "name"), ("default_version", "text"), ("comment", "text")),
}  # fmt: skip


@dataclass
class SessionCatalog:
    lease: CatalogLease
    lake: LakeView
    settings: SessionSettings
    database: str
    constants: dict[str, str]
    set_config: Callable[[str, str, bool], None]
    parameter: Callable[[int], Typed]
    tables: set[tuple[str, str]] = field(default_factory=set)
    """The lake's tables that the statement reads."""
    is_system: bool = False
    """Whether the statement reads the system catalogs."""

    def source(self, database: str | None, schema: str | None, name: str) -> Source:
        if database is not None and database != self.database:
            raise QueryError("0A000", f'cross-database references are not implemented: "{database}.{schema}.{name}"')
        version = self.lease.version
        known = version.tables
        if schema in (None, "pg_catalog") and (found := _system().get(("pg_catalog", name))) is not None:
            return self._system(found)
        if schema == "information_schema" and (found := _system().get((schema, name))) is not None:
            return self._system(found)
        for place in [schema] if schema is not None else self.settings.search_path:
            if (place, name) in version.absent:
                self.tables.add((place, name))
                self.lease.prepare([(place, name)])  # raises the reason
            if (place, name) in known:
                return self._table(place, name)
            if name.endswith(STORED) and (place, name.removesuffix(STORED)) in known:
                return self._stored(place, name)
        full = ".".join(filter(None, (schema, name)))
        hint = "" if version.tables or version.absent else "Nothing has been delivered to the lake yet."
        raise QueryError("42P01", f'relation "{full}" does not exist', hint)

    def _table(self, schema: str, name: str) -> Source:
        self.tables.add((schema, name))
        table = self.lease.version.tables[schema, name]
        relation = self.lake.relation(table.relation)
        shown = shown_columns(table, relation, self.lake.metadata(table.metadata))
        columns = tuple(NamedColumn(n, _column(n, stored, column)) for n, stored, column in shown)
        # A table whose replica identity is an index may have another primary key, or none.
        key = frozenset(relation.key if table.kind == "mirror" and relation.identity in ("d", "f") else ())
        return Source(f"{sql_name(schema)}.{sql_name(name)}", columns, schema, key)

    def _stored(self, schema: str, name: str) -> Source:
        self.tables.add((schema, name))
        table = self.lease.version.tables[schema, name.removesuffix(STORED)]
        stored = stored_columns(table, self.lake.metadata(table.metadata))
        columns = tuple(NamedColumn(n, _stored_column(n, type_)) for n, type_ in stored.items())
        return Source(f"{sql_name(schema)}.{sql_name(name)}", columns, schema)

    def _system(self, relation: SystemRelation) -> Source:
        self.is_system = True
        place = "info" if relation.schema == "information_schema" else "main"
        columns = tuple(NamedColumn(n, _system_column(relation, n)) for n in relation.columns)
        sql = f"{self.lease.system_catalog().name}.{place}.{sql_name(relation.name)}"
        return Source(sql, columns, relation.schema)

    def table_function(self, name: str) -> Source | None:
        if name == "tailrace.freshness":
            return Source("tailrace_freshness()", _typed_columns(_FRESHNESS), None)
        if name in _TABLE_FUNCTIONS:
            return Source(f"{name}()", _typed_columns(_TABLE_FUNCTIONS[name]), None)
        return None

    def type(self, schema: str | None, name: str) -> Type | None:
        for table in self.lease.version.tables.values():
            for column in self.lake.relation(table.relation).columns:
                for type_ in _types_in(column.type):
                    if type_.name == name and schema in (None, type_.schema):
                        return type_
        return None

    def oid(self, kind: str, name: str) -> int | None:
        parts = [token.name for token in without_space(tokenize(name)) if token.name is not None]
        known = self.lease.system_catalog()
        if kind == "regtype":
            word = parts[-1] if parts else ""
            built_in = pg_type.find_built_in(word)
            return built_in.oid if built_in is not None else known.types.get(word)
        if kind == "regnamespace":
            return known.schemas.get(parts[-1] if parts else "")
        if kind != "regclass":
            return None
        if len(parts) == 2:
            return known.tables.get((parts[0], parts[1]))
        path = ["pg_catalog", *self.settings.search_path]
        return next((known.tables[s, parts[0]] for s in path if (s, parts[0]) in known.tables), None)

    def constant(self, name: str) -> str | None:
        return self.constants.get(name)

    def setting(self, name: str) -> str | None:
        return self.settings.get(name)

    def search_path(self) -> list[str]:
        schemas = {schema for schema, _ in self.lease.version.tables} | {"public"}
        return [s for s in self.settings.search_path if s in schemas]


_SYSTEM: dict[tuple[str, str], SystemRelation] = {}


def _system() -> dict[tuple[str, str], SystemRelation]:
    if not _SYSTEM:
        _SYSTEM.update({(r.schema, r.name): r for r in system_relations()})
    return _SYSTEM


def _typed_columns(columns: Any) -> tuple[NamedColumn, ...]:
    return tuple(NamedColumn(n, Typed(f"{{t}}.{sql_name(n)}", pg_type.built_in(t))) for n, t in columns)


def _types_in(type_: Type) -> list[Type]:
    found = [type_]
    if type_.element is not None:
        found += _types_in(type_.element)
    if type_.base is not None:
        found += _types_in(type_.base)
    return found


def _column(name: str, stored: Any, column: Column | None) -> Typed:
    if column is None:
        return _stored_column(name, stored)
    base, modifier = types.base(column.type, column.modifier)
    sql = f"{{t}}.{sql_name(name)}"
    scale = None
    if base.name == "numeric" and isinstance(stored, str) and stored.startswith("decimal"):
        scale = types.numeric_modifier(modifier)[1]
    return Typed(sql, column.type, modifier, scale=scale)


def _stored_column(name: str, stored: Any) -> Typed:
    """A column as the lake stores it."""
    sql = f"{{t}}.{sql_name(name)}"
    if isinstance(stored, str) and stored in _STORED_TYPES:
        return Typed(sql, pg_type.built_in(_STORED_TYPES[stored]))
    if isinstance(stored, str) and stored.startswith("decimal"):
        return Typed(sql, pg_type.NUMERIC, scale=int(stored.rstrip(")").rpartition(",")[2]))
    return Typed(f"CAST({sql} AS VARCHAR)", pg_type.TEXT)


def _system_column(relation: SystemRelation, name: str) -> Typed:
    if (relation.name, name) == ("pg_class", "reltuples"):
        return Typed(f"{RELATION_ROWS}({{t}}.oid)", pg_type.built_in("float4"))
    if (relation.name, name) == ("pg_class", "relpages"):
        return Typed(f"{RELATION_PAGES}({{t}}.oid)", pg_type.INT4)
    if name == "n_live_tup":
        return Typed(f"{LIVE_ROWS}({{t}}.relid)", pg_type.INT8)
    type_name = relation.columns[name]
    type_ = pg_type.find_built_in(_DOMAINS.get(type_name, type_name)) or pg_type.TEXT
    sql = f"{{t}}.{sql_name(name)}"
    stored = system_catalog.duckdb_type(type_name)
    if type_.element is not None:
        return Typed(sql, type_, is_list=True)
    if representation(type_) != stored and not (
        representation(type_) in ("SMALLINT", "INTEGER") and stored == "INTEGER"
    ):
        return Typed(sql, pg_type.TEXT) if stored == "VARCHAR" else Typed(sql, pg_type.INT8)
    return Typed(sql, type_)
