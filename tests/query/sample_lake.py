"""Lakes for the query tests: tables of a real PostgreSQL as Iceberg tables, written without Spark, and their points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table as IcebergTable

from tailrace import types
from tailrace.capture.postgres import catalog as source_catalog
from tailrace.change import Column, Lsn, Relation
from tailrace.column_name import unused_name
from tailrace.lake import point
from tailrace.lake.options import IcebergOptions
from tailrace.lake.point import Kind, Point, PointTable, SnapshotSummary
from tailrace.store import Store
from tailrace.text import SPECIAL

SINK = "lake"
START = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
_ARROW = {"int2": pa.int32(), "time": pa.string(), "uuid": pa.uuid()}


@dataclass
class SampleLake:
    """A lake in a directory or a bucket, as the sink would write it."""

    options: IcebergOptions
    database: str
    catalog: SqlCatalog
    tables: dict[str, PointTable] = field(default_factory=dict)
    cursor: Lsn = field(default=Lsn(0x1000))
    committed_at: datetime = START

    @classmethod
    def under(cls, directory: Path, database: str, url: str = "", options: dict[str, str] | None = None) -> SampleLake:
        warehouse = url or f"file://{directory}/warehouse"
        settings = IcebergOptions(warehouse=warehouse, options=options or {})
        properties = {"uri": f"sqlite:///{directory}/catalog.db", "warehouse": warehouse}
        if options:
            properties |= {
                "s3.endpoint": options["endpoint"],
                "s3.access-key-id": options["access_key_id"],
                "s3.secret-access-key": options["secret_access_key"],
                "s3.region": options["region"],
            }
        return cls(settings, database, SqlCatalog(SINK, **properties))

    @property
    def store(self) -> Store:
        return Store.open(self.options.warehouse, self.options.options)

    def step(self, connection: psycopg.Connection[Any], names: Sequence[str], kind: Kind = "mirror") -> Point:
        """Write the current rows of these tables at one new cursor, and publish the point."""
        self.cursor = Lsn(self.cursor + 0x100)
        self.committed_at += timedelta(minutes=1)
        for name in names:
            self.replace(connection, name, kind)
        return self.publish()

    def replace(self, connection: psycopg.Connection[Any], name: str, kind: Kind = "mirror") -> None:
        relation = relation_of(connection, name)
        point.save_relation(self.store, SINK, relation)
        rows = rows_of(connection, relation)
        table = self._table(relation, rows.schema)
        summary = SnapshotSummary(self.cursor, "", self.committed_at, relation.digest)
        write = table.append if table.current_snapshot() is None else table.overwrite
        write(rows, snapshot_properties=summary.to_dict())
        snapshot = table.current_snapshot()
        since = self.tables[name].since if name in self.tables else self.cursor
        self.tables[name] = PointTable(
            relation.schema, relation.name, kind, relation.oid, since, relation.digest,
            table.metadata_location.removeprefix("file://"), snapshot.snapshot_id if snapshot else None,
        )  # fmt: skip

    def _table(self, relation: Relation, schema: pa.Schema) -> IcebergTable:
        name = (relation.schema, relation.name)
        self.catalog.create_namespace_if_not_exists(relation.schema)
        if not self.catalog.table_exists(name):
            return self.catalog.create_table(name, schema)
        table = self.catalog.load_table(name)
        with table.update_schema(allow_incompatible_changes=True) as update:
            update.union_by_name(schema)
        return self.catalog.load_table(name)

    def refresh(self, name: str) -> None:
        """Publish the point with the current metadata of a table."""
        old = self.tables[name]
        table = self.catalog.load_table((old.schema, old.table))
        self.tables[name] = replace(old, metadata=table.metadata_location.removeprefix("file://"))
        self.publish()

    def files_of(self, name: str) -> dict[str, int]:
        """The data files of a table's newest snapshot, with their sizes on disk."""
        table = self.catalog.load_table((self.tables[name].schema, self.tables[name].table))
        paths = [task.file.file_path.removeprefix("file://") for task in table.scan().plan_files()]
        return {path: Path(path).stat().st_size for path in paths}

    def publish(self) -> Point:
        tables = tuple(self.tables.values())
        found = Point(SINK, self.cursor, self.committed_at, datetime.now(UTC), self.database, tables)
        point.publish(self.store, found)
        return found


def relation_of(connection: psycopg.Connection[Any], name: str) -> Relation:
    (oid,) = connection.execute("SELECT %s::regclass::oid", [name]).fetchone() or (0,)
    return source_catalog.describe(connection, [oid])[oid]


def rows_of(connection: psycopg.Connection[Any], relation: Relation) -> pa.Table:
    """Rows as the sink writes them: a value that its column cannot hold is NULL, with its text in `_special`."""
    columns = ", ".join(f'"{c.name}"' for c in relation.columns)
    result = connection.pgconn.exec_(f'SELECT {columns} FROM "{relation.schema}"."{relation.name}"'.encode())
    cells = [[result.get_value(row, n) for n in range(len(relation.columns))] for row in range(result.ntuples)]
    found = [[None if cell is None else cell.decode() for cell in row] for row in cells]
    specials: list[list[tuple[str, str]]] = [[] for _ in found]
    arrays = {}
    for number, column in enumerate(relation.columns):
        arrays[column.name] = _array(column, [row[number] for row in found], specials)
    if any(specials):
        arrays[unused_name("_special", relation)] = pa.array(specials, pa.map_(pa.string(), pa.string()))
    return pa.table(arrays)


def _array(column: Column, texts: Sequence[str | None], specials: list[list[tuple[str, str]]]) -> pa.Array:
    base, _ = types.base(column.type, column.modifier)
    if base.name in ("time", "uuid"):
        if base.name == "uuid":
            return pa.array([None if t is None else bytes.fromhex(t.replace("-", "")) for t in texts], pa.uuid())
        return pa.array(texts, pa.string())
    mapped = types.mapping(column)
    values: list[Any] = []
    for row, text in enumerate(texts):
        value = mapped.arrow_value(None if text is None else text.encode())
        is_date = base.name in ("date", "timestamp", "timestamptz")
        # The sink writes BC dates to their own column; pyiceberg cannot.
        if value is SPECIAL or (is_date and (text or "").endswith(("infinity", "BC"))):
            specials[row].append((column.name, text or ""))
            value = None
        values.append(value)
    kind = _ARROW.get(base.name, mapped.arrow)
    if pa.types.is_temporal(kind):
        return pa.array(values, pa.int32() if kind == pa.date32() else pa.int64()).view(kind)
    return pa.array(values, kind)
