"""The server's DuckDB instance: its extensions, limits and locked configuration, and a catalog for each lake version.

All sessions share the instance, and so one memory budget, one thread pool and one file cache. Each version of the lake
is an attached in-memory catalog with the source's schemas. Its views are created when a statement first names them and
never change. Sessions at the same version share a catalog; sessions at different versions are isolated.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb

from tailrace.change import Column, Lsn, Type
from tailrace.errors import ConfigError
from tailrace.lake.options import IcebergOptions
from tailrace.owned_directory import OwnedDirectory
from tailrace.query import macro
from tailrace.query.lake_view import LakeVersion, LakeView
from tailrace.query.query_error import QueryError
from tailrace.query.scalar import registry
from tailrace.query.system_catalog import SystemCatalog, relation_size
from tailrace.query.system_catalog.system_row import CatalogTable
from tailrace.query.table_view import STORED, sql_literal, sql_name, stored_view_query, view_query
from tailrace.settings import QuerySettings

DuckDBConnection = Any
"""duckdb provides no type information for mypy."""

_EXTENSIONS: Final = ("avro", "httpfs", "iceberg")
# Up to this many catalogs without users are retained for later sessions.
_MAX_IDLE: Final = 16
_SETTINGS: Final = {
    # As in PostgreSQL: 5 / 2 is 2, NULLs come last unless DESC, names are folded. Sessions use UTC.
    "integer_division": "true",
    "default_null_order": "'NULLS_LAST_ON_ASC_FIRST_ON_DESC'",
    "preserve_identifier_case": "false",
    "TimeZone": "'UTC'",
    # Python variables never become tables, and nothing is installed from the network.
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
}
# obstore's name of an option → DuckDB's.
_S3: Final = {
    "access_key_id": "KEY_ID",
    "secret_access_key": "SECRET",
    "session_token": "SESSION_TOKEN",
    "token": "SESSION_TOKEN",
    "region": "REGION",
}


@dataclass
class _VersionCatalog:
    """The catalog of one version, and its number of users."""

    name: str
    version: LakeVersion
    unprunable: frozenset[str]
    """Columns that its views hide from file pruning."""
    schemas: set[str] = field(default_factory=set)
    views: set[tuple[str, str]] = field(default_factory=set)
    has_sizes: bool = False
    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class DuckDBEngine:
    def __init__(self, options: IcebergOptions, limits: QuerySettings, lake: LakeView) -> None:
        self._lake = lake
        self._users = tuple(limits.users)
        self._scratch = OwnedDirectory("query", limits.temp_directory)
        self._instance: DuckDBConnection = duckdb.connect(":memory:")
        self._lock = threading.Lock()
        self._catalogs: dict[tuple[LakeVersion, frozenset[str]], _VersionCatalog] = {}
        self._system_catalogs: dict[frozenset[Any], SystemCatalog] = {}
        self._number = 0
        self._empty_version: LakeVersion | None = None
        # Has no tables, so it can parse a statement without opening any.
        self._bare: DuckDBConnection = duckdb.connect(":memory:")
        try:
            self._prepare(options, limits)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._instance.close()
        self._bare.close()
        self._scratch.remove()

    def cursor(self) -> DuckDBConnection:
        return self._instance.cursor()

    def bare_cursor(self) -> DuckDBConnection:
        return self._bare.cursor()

    def empty_version(self, database: str) -> LakeVersion:
        """The version before anything was published, without tables."""
        with self._lock:
            if self._empty_version is None:
                self._empty_version = LakeVersion(Lsn(0), None, datetime.now(UTC), database, {})
            return self._empty_version

    def _prepare(self, options: IcebergOptions, limits: QuerySettings) -> None:
        run = self._instance.execute
        load_extensions(self._instance)
        for name, value in _SETTINGS.items():
            run(f"SET GLOBAL {name} = {value}")
        run(f"SET GLOBAL memory_limit = '{limits.memory_bytes or _half_of_memory()}B'")
        run(f"SET GLOBAL threads = {limits.threads or os.cpu_count() or 1}")
        run(f"SET GLOBAL temp_directory = {sql_literal(str(self._scratch.path))}")
        run(f"SET GLOBAL max_temp_directory_size = '{limits.temp_bytes}B'")
        if options.root.startswith("s3://"):
            run(_secret(options))
        run("ATTACH ':memory:' AS pg")
        registry.register(self._instance)
        for statement in macro.STATEMENTS:
            run(f"USE pg; {statement}")
        run("USE memory")
        # A local table's metadata may give locations with or without the scheme.
        roots = [options.root] if "://" in options.root else [options.root, f"file://{options.root}"]
        run(f"SET GLOBAL allowed_directories = [{', '.join(sql_literal(root + '/') for root in roots)}]")
        run("SET GLOBAL enable_external_access = false")
        run("SET GLOBAL lock_configuration = true")

    @contextmanager
    def lease(self, version: LakeVersion, unprunable: frozenset[str] = frozenset()) -> Iterator[CatalogLease]:
        """Hold the version's catalog while the context lasts."""
        with self._lock:
            catalog = self._catalogs.get((version, unprunable))
            if catalog is None:
                self._number += 1
                catalog = self._catalogs[version, unprunable] = _VersionCatalog(f"m{self._number}", version, unprunable)
                self._instance.execute(f"ATTACH ':memory:' AS {catalog.name}")
                self._instance.execute(macro.freshness(catalog.name, version))
            catalog.users += 1
        try:
            yield CatalogLease(self, catalog)
        finally:
            with self._lock:
                catalog.users -= 1
                self._evict()

    def _evict(self) -> None:
        idle = [catalog for catalog in self._catalogs.values() if catalog.users == 0]
        for catalog in idle[: max(0, len(idle) - _MAX_IDLE)]:
            del self._catalogs[catalog.version, catalog.unprunable]
            self._instance.execute(f"DETACH {catalog.name}")
        keys = {version.catalog_key for version, _ in self._catalogs}
        for key in [k for k in self._system_catalogs if k not in keys]:
            self._instance.execute(f"DETACH {self._system_catalogs.pop(key).name}")

    def _make_views(self, catalog: _VersionCatalog, names: Iterable[tuple[str, str]]) -> None:
        with catalog.lock:
            for schema, view in names:
                if (schema, view) in catalog.views:
                    continue
                folded = {(s.lower(), n.lower()): n for s, n in catalog.views}
                if (other := folded.get((schema.lower(), view.lower()))) is not None:
                    raise QueryError(
                        "0A000",
                        f"{schema}: {other} and {view} differ only in case, and DuckDB cannot distinguish them",
                        "One of them is available until the next batch is delivered. Rename the other with `route`.",
                    )
                name = view.removesuffix(STORED) if (schema, view) not in catalog.version.tables else view
                table = catalog.version.tables[schema, name]
                metadata = self._lake.metadata(table.metadata)
                if name == view:
                    query = view_query(table, self._lake.relation(table.relation), metadata, catalog.unprunable)
                else:
                    query = stored_view_query(table, metadata, catalog.unprunable)
                cursor = self._instance.cursor()
                try:
                    if schema not in catalog.schemas:
                        cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {catalog.name}.{sql_name(schema)}")
                        catalog.schemas.add(schema)
                    cursor.execute(f"CREATE VIEW {catalog.name}.{sql_name(schema)}.{sql_name(view)} AS {query}")
                finally:
                    cursor.close()
                catalog.views.add((schema, view))

    def _system_catalog(self, version: LakeVersion) -> SystemCatalog:
        with self._lock:
            found = self._system_catalogs.get(version.catalog_key)
            if found is None:
                self._number += 1
                found = SystemCatalog.make(
                    self._instance, f"c{self._number}", version, self._catalog_tables(version), self._users
                )
                self._system_catalogs[version.catalog_key] = found
            return found

    def _make_sizes(self, catalog: _VersionCatalog) -> None:
        with catalog.lock:
            if catalog.has_sizes:
                return
            tables = catalog.version.tables
            system = self._system_catalog(catalog.version)
            found = self._lake.metadata_files(table.metadata for table in tables.values())
            sizes = []
            for name, table in tables.items():
                rows, size = found[table.metadata].size(table.snapshot)
                sizes.append((system.tables[name], rows, size))
            cursor = self._instance.cursor()
            try:
                cursor.execute("BEGIN")
                relation_size.create(cursor, catalog.name, system.name, catalog.version.database, sizes)
                cursor.execute("COMMIT")
            finally:
                cursor.close()
            catalog.has_sizes = True

    def _catalog_tables(self, version: LakeVersion) -> list[CatalogTable]:
        """Each table with its columns. A changelog's additional columns are only in its metadata."""
        relations = self._lake.relations(table.relation for table in version.tables.values())
        found = []
        for number, table in enumerate(sorted(version.tables.values(), key=lambda t: (t.schema, t.name))):
            relation = relations[table.relation]
            columns = relation.columns
            oid = table.oid
            if table.kind == "changelog":
                declared = {column.name: column for column in columns}
                stored = self._lake.metadata(table.metadata).columns(table.snapshot)
                columns = tuple(declared.get(name) or _changelog_column(name, type_) for name, type_ in stored.items())
                oid = _CHANGELOG_OIDS + number
            found.append(CatalogTable(table, relation, columns, oid))
        return found


_CHANGELOG_OIDS: Final = 3_900_000_000
_CHANGELOG_TYPES: Final = {
    "long": (20, "int8"),
    "int": (23, "int4"),
    "timestamptz": (1184, "timestamptz"),
    "boolean": (16, "bool"),
}


def _changelog_column(name: str, type_: Any) -> Column:
    oid, word = _CHANGELOG_TYPES.get(type_, (25, "text")) if isinstance(type_, str) else (25, "text")
    return Column(name, Type(oid, "pg_catalog", word))


@dataclass(frozen=True)
class CatalogLease:
    """The right to use the catalog of one version: what a statement runs on."""

    engine: DuckDBEngine
    catalog: _VersionCatalog

    @property
    def version(self) -> LakeVersion:
        return self.catalog.version

    def prepare(self, tables: Iterable[tuple[str, str]]) -> None:
        """Create the views of these tables that do not exist yet."""
        names = list(tables)
        for name in names:
            if reason := self.version.absent.get(name):
                raise QueryError("55000", reason, "Use RESET tailrace.as_of or a later time.")
        self.engine._make_views(self.catalog, names)

    def prepare_sizes(self) -> None:
        """Create the functions that return the tables' rows and bytes, unless they exist."""
        self.engine._make_sizes(self.catalog)

    def cursor(self, search_path: Iterable[str], with_system_catalog: bool) -> DuckDBConnection:
        """A connection that resolves names to the version's tables, then the system catalog, then the macros."""
        path = [f"{self.catalog.name}.{sql_name(s)}" for s in search_path if s in self.catalog.schemas]
        path.append(f"{self.catalog.name}.main")
        if with_system_catalog:
            path.append(f"{self.engine._system_catalog(self.version).name}.main")
        cursor = self.engine.cursor()
        cursor.execute(f"SET search_path = {sql_literal(','.join([*path, 'pg.main']))}")
        return cursor

    def system_catalog(self) -> SystemCatalog:
        return self.engine._system_catalog(self.version)


def connect_to_lake(options: IcebergOptions) -> DuckDBConnection:
    """A connection of its own that reads the lake's tables, for code that serves no queries."""
    connection = duckdb.connect(":memory:")
    load_extensions(connection)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")  # it would print into a command's output
    if options.root.startswith("s3://"):
        connection.execute(_secret(options))
    return connection


def load_extensions(connection: DuckDBConnection) -> None:
    """Load the extensions that read Iceberg tables, from their wheels."""
    for name in _EXTENSIONS:
        connection.execute(f"LOAD {sql_literal(str(_extension(name)))}")


def _extension(name: str) -> Path:
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the DuckDB extension {name} is not installed", "run pip install 'tailrace[query]'")
    folder = Path(next(iter(spec.submodule_search_locations))) / "extensions" / f"v{duckdb.__version__}"
    return folder / f"{name}.duckdb_extension"


def _half_of_memory() -> int:
    """Half of the machine's memory: Spark, capture or PostgreSQL may run on it, too."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _secret(options: IcebergOptions) -> str:
    variables = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
    values = {key.lower().removeprefix("aws_"): value for key, value in {**variables, **options.options}.items()}
    parts = ["TYPE s3", f"SCOPE {sql_literal(options.root)}"]
    parts += [f"{word} {sql_literal(values[key])}" for key, word in _S3.items() if key in values]
    if endpoint := values.get("endpoint", values.get("endpoint_url")):
        scheme, _, host = endpoint.rpartition("://")
        parts += [f"ENDPOINT {sql_literal(host.rstrip('/'))}", f"USE_SSL {scheme != 'http'}"]
        parts.append(
            "URL_STYLE 'vhost'" if values.get("virtual_hosted_style_request") == "true" else "URL_STYLE 'path'"
        )
    return f"CREATE SECRET tailrace ({', '.join(parts)})"
