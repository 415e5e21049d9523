"""The one DuckDB of a server: its extensions, its limits, its lock; and moments as catalogs inside it.

All sessions share it, and so one budget of memory, one pool of threads and one cache of files. A moment of the lake is
an attached catalog in memory with the source's schemas, whose views are made when a statement first names them and
never change: sessions at the same moment share them, sessions at different moments never meet.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
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
from tailrace.query import functions
from tailrace.query.catalogue import Catalogue
from tailrace.query.catalogue.rows import Shown
from tailrace.query.failure import Failure
from tailrace.query.lake import Lake, Moment
from tailrace.query.shape import STORED, literal, quoted, select, select_stored
from tailrace.settings import Query
from tailrace.sinks.iceberg.options import IcebergOptions

Connection = Any
"""duckdb has no types that mypy could read."""

_EXTENSIONS: Final = ("avro", "httpfs", "iceberg")
# Moments that nobody stands at are kept for who comes next, up to this many.
_KEPT: Final = 16
_SETTINGS: Final = {
    # As PostgreSQL: 5 / 2 is 2, NULLs come last unless DESC, names are folded, the session is at UTC.
    "integer_division": "true",
    "default_null_order": "'NULLS_LAST_ON_ASC_FIRST_ON_DESC'",
    "preserve_identifier_case": "false",
    "TimeZone": "'UTC'",
    # No Python variable, and nothing from the network, is ever a table.
    "python_enable_replacements": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
}
# As obstore names them, as DuckDB does.
_S3: Final = {
    "access_key_id": "KEY_ID",
    "secret_access_key": "SECRET",
    "session_token": "SESSION_TOKEN",
    "token": "SESSION_TOKEN",
    "region": "REGION",
}


@dataclass
class _Attached:
    """A moment's catalog, and how many use it now."""

    name: str
    moment: Moment
    unpruned: frozenset[str]
    """Columns by which its views let no file be skipped."""
    schemas: set[str] = field(default_factory=set)
    views: set[tuple[str, str]] = field(default_factory=set)
    users: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class Engine:
    def __init__(self, options: IcebergOptions, limits: Query, lake: Lake) -> None:
        self._lake = lake
        self._users = tuple(limits.users)
        self._scratch = tempfile.TemporaryDirectory(prefix="tailrace-query-", dir=limits.temp_directory)
        self._instance: Connection = duckdb.connect(":memory:")
        self._lock = threading.Lock()
        self._attached: dict[tuple[Moment, frozenset[str]], _Attached] = {}
        self._catalogues: dict[frozenset[Any], Catalogue] = {}
        self._number = 0
        self._nothing: Moment | None = None
        # Knows no tables, so that it tells which ones a statement names without opening any.
        self._bare: Connection = duckdb.connect(":memory:")
        try:
            self._prepare(options, limits)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._instance.close()
        self._bare.close()
        self._scratch.cleanup()

    def cursor(self) -> Connection:
        return self._instance.cursor()

    def bare_cursor(self) -> Connection:
        return self._bare.cursor()

    def nothing(self, database: str) -> Moment:
        """The moment before anything was published: no tables."""
        with self._lock:
            if self._nothing is None:
                self._nothing = Moment(Lsn(0), None, datetime.now(UTC), database, {})
            return self._nothing

    def _prepare(self, options: IcebergOptions, limits: Query) -> None:
        run = self._instance.execute
        load_extensions(self._instance)
        for name, value in _SETTINGS.items():
            run(f"SET GLOBAL {name} = {value}")
        run(f"SET GLOBAL memory_limit = '{limits.memory_bytes or _half_of_memory()}B'")
        run(f"SET GLOBAL threads = {limits.threads or os.cpu_count() or 1}")
        run(f"SET GLOBAL temp_directory = {literal(self._scratch.name)}")
        run(f"SET GLOBAL max_temp_directory_size = '{limits.temp_bytes}B'")
        if options.root.startswith("s3://"):
            run(_secret(options))
        run("ATTACH ':memory:' AS pg")
        for statement in functions.STATEMENTS:
            run(f"USE pg; {statement}")
        run("USE memory")
        # Whoever wrote a local table may have written its locations either way.
        roots = [options.root] if "://" in options.root else [options.root, f"file://{options.root}"]
        run(f"SET GLOBAL allowed_directories = [{', '.join(literal(root + '/') for root in roots)}]")
        run("SET GLOBAL enable_external_access = false")
        run("SET GLOBAL lock_configuration = true")

    @contextmanager
    def standing_at(self, moment: Moment, unpruned: frozenset[str] = frozenset()) -> Iterator[Standing]:
        """The moment's catalog, held for as long as the context lasts."""
        with self._lock:
            attached = self._attached.get((moment, unpruned))
            if attached is None:
                self._number += 1
                attached = self._attached[moment, unpruned] = _Attached(f"m{self._number}", moment, unpruned)
                self._instance.execute(f"ATTACH ':memory:' AS {attached.name}")
                self._instance.execute(functions.freshness(attached.name, moment))
            attached.users += 1
        try:
            yield Standing(self, attached)
        finally:
            with self._lock:
                attached.users -= 1
                self._forget()

    def _forget(self) -> None:
        idle = [a for a in self._attached.values() if a.users == 0]
        for attached in idle[: max(0, len(idle) - _KEPT)]:
            del self._attached[attached.moment, attached.unpruned]
            self._instance.execute(f"DETACH {attached.name}")
        shapes = {moment.shape for moment, _ in self._attached}
        for shape in [s for s in self._catalogues if s not in shapes]:
            self._instance.execute(f"DETACH {self._catalogues.pop(shape).name}")

    def _make_views(self, attached: _Attached, names: Iterable[tuple[str, str]]) -> None:
        with attached.lock:
            for schema, shown in names:
                if (schema, shown) in attached.views:
                    continue
                folded = {(s.lower(), n.lower()): n for s, n in attached.views}
                if (other := folded.get((schema.lower(), shown.lower()))) is not None:
                    raise Failure(
                        "0A000",
                        f"{schema}: {other} and {shown} differ only in case, and DuckDB cannot tell them apart",
                        "one of them is shown until the next step is delivered; give the other a name with `route`",
                    )
                name = shown.removesuffix(STORED) if (schema, shown) not in attached.moment.tables else shown
                table = attached.moment.tables[schema, name]
                metadata = self._lake.metadata(table.metadata)
                if name == shown:
                    query = select(table, self._lake.relation(table.relation), metadata, attached.unpruned)
                else:
                    query = select_stored(table, metadata, attached.unpruned)
                cursor = self._instance.cursor()
                try:
                    if schema not in attached.schemas:
                        cursor.execute(f"CREATE SCHEMA IF NOT EXISTS {attached.name}.{quoted(schema)}")
                        attached.schemas.add(schema)
                    cursor.execute(f"CREATE VIEW {attached.name}.{quoted(schema)}.{quoted(shown)} AS {query}")
                finally:
                    cursor.close()
                attached.views.add((schema, shown))

    def _catalogue(self, moment: Moment) -> Catalogue:
        with self._lock:
            found = self._catalogues.get(moment.shape)
            if found is None:
                self._number += 1
                found = Catalogue.make(self._instance, f"c{self._number}", moment, self._shown(moment), self._users)
                self._catalogues[moment.shape] = found
            return found

    def _shown(self, moment: Moment) -> list[Shown]:
        """Each table with its columns. Those that a changelog has of its own, only its metadata tells."""
        relations = self._lake.relations(table.relation for table in moment.tables.values())
        found = []
        for number, table in enumerate(sorted(moment.tables.values(), key=lambda t: (t.schema, t.name))):
            relation = relations[table.relation]
            columns = relation.columns
            oid = table.oid
            if table.kind == "changelog":
                declared = {column.name: column for column in columns}
                stored = self._lake.metadata(table.metadata).columns(table.snapshot)
                columns = tuple(declared.get(name) or _own_column(name, type_) for name, type_ in stored.items())
                oid = _CHANGELOG_OIDS + number
            found.append(Shown(table, relation, columns, oid))
        return found


_CHANGELOG_OIDS: Final = 3_900_000_000
_OWN_TYPES: Final = {
    "long": (20, "int8"),
    "int": (23, "int4"),
    "timestamptz": (1184, "timestamptz"),
    "boolean": (16, "bool"),
}


def _own_column(name: str, type_: Any) -> Column:
    oid, word = _OWN_TYPES.get(type_, (25, "text")) if isinstance(type_, str) else (25, "text")
    return Column(name, Type(oid, "pg_catalog", word))


@dataclass(frozen=True)
class Standing:
    """What a statement runs on: the catalog of one moment."""

    engine: Engine
    attached: _Attached

    @property
    def moment(self) -> Moment:
        return self.attached.moment

    def prepare(self, tables: Iterable[tuple[str, str]]) -> None:
        """Make the views of these tables, where nobody has."""
        wanted = list(tables)
        for name in wanted:
            if reason := self.moment.absent.get(name):
                raise Failure("55000", reason, "RESET tailrace.as_of, or choose a later moment")
        self.engine._make_views(self.attached, wanted)

    def cursor(self, search_path: Iterable[str], with_catalogue: bool) -> Connection:
        """A connection that finds the moment's tables first, then PostgreSQL's catalogue and functions."""
        path = [f"{self.attached.name}.{quoted(s)}" for s in search_path if s in self.attached.schemas]
        path.append(f"{self.attached.name}.main")
        if with_catalogue:
            path.append(f"{self.engine._catalogue(self.moment).name}.main")
        cursor = self.engine.cursor()
        cursor.execute(f"SET search_path = {literal(','.join([*path, 'pg.main']))}")
        return cursor

    def catalogue(self) -> Catalogue:
        return self.engine._catalogue(self.moment)


def load_extensions(connection: Connection) -> None:
    """What DuckDB reads Iceberg tables with, from their wheels."""
    for name in _EXTENSIONS:
        connection.execute(f"LOAD {literal(str(_extension(name)))}")


def _extension(name: str) -> Path:
    spec = importlib.util.find_spec(f"duckdb_extension_{name}")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"DuckDB's extension {name} is not installed", "pip install 'tailrace[query]'")
    folder = Path(next(iter(spec.submodule_search_locations))) / "extensions" / f"v{duckdb.__version__}"
    return folder / f"{name}.duckdb_extension"


def _half_of_memory() -> int:
    """Spark, capture or PostgreSQL may run beside us."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def _secret(options: IcebergOptions) -> str:
    variables = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
    given = {key.lower().removeprefix("aws_"): value for key, value in {**variables, **options.options}.items()}
    parts = ["TYPE s3", f"SCOPE {literal(options.root)}"]
    parts += [f"{word} {literal(given[key])}" for key, word in _S3.items() if key in given]
    if endpoint := given.get("endpoint", given.get("endpoint_url")):
        scheme, _, host = endpoint.rpartition("://")
        parts += [f"ENDPOINT {literal(host.rstrip('/'))}", f"USE_SSL {scheme != 'http'}"]
        parts.append("URL_STYLE 'vhost'" if given.get("virtual_hosted_style_request") == "true" else "URL_STYLE 'path'")
    return f"CREATE SECRET tailrace ({', '.join(parts)})"
