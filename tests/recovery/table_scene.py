"""A captured database whose tables are restored into other databases, for the tests of table restores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from tests import oracle
from tests.capturing import CaptureThread
from tests.fixtures.postgres import Database, drop_database, make_database

from tailrace import settings
from tailrace.capture.postgres.schema_recorder import SchemaRecorder
from tailrace.capture.postgres.session import PostgresSource
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.change import Lsn
from tailrace.log.reader import LogReader
from tailrace.recovery import log_moment, table_restore
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.recovery.restored_table import Name
from tailrace.recovery.table_restore import DatabaseDestination, PlannedRestore, RestoreProgress
from tailrace.store import Store

# What a person would compare, by PostgreSQL's own functions. Schemas are left out, as a restore may choose another.
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity, a.attgenerated, a.attstorage,
       a.attcollation::regcollation::text, pg_get_expr(d.adbin, d.adrelid), col_description(a.attrelid, a.attnum)
FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %s::regclass AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_CONSTRAINTS = """
SELECT conname, pg_get_constraintdef(oid), obj_description(oid, 'pg_constraint') FROM pg_constraint
WHERE conrelid = %s::regclass ORDER BY conname
"""
_INDEXES = """
SELECT pg_get_indexdef(indexrelid), obj_description(indexrelid, 'pg_class') FROM pg_index
WHERE indrelid = %s::regclass ORDER BY 1
"""
_TABLE = """
SELECT relreplident, reloptions, obj_description(oid, 'pg_class'), pg_get_expr(relpartbound, oid),
       CASE WHEN relkind = 'p' THEN pg_get_partkeydef(oid) END,
       (SELECT array_agg(i.indexrelid::regclass::text) FROM pg_index i WHERE i.indrelid = c.oid AND i.indisreplident)
FROM pg_class c WHERE oid = %s::regclass
"""
_SEQUENCES = """
SELECT s.seqrelid::regclass::text, a.attname, s.seqtypid::regtype::text, s.seqstart, s.seqincrement, s.seqmax,
       s.seqcycle
FROM pg_sequence s JOIN pg_depend p ON p.objid = s.seqrelid AND p.refobjid = %s::regclass AND p.deptype IN ('a', 'i')
JOIN pg_attribute a ON a.attrelid = p.refobjid AND a.attnum = p.refobjsubid ORDER BY 1
"""


def definition(connection: psycopg.Connection[Any], table: str) -> dict[str, list[tuple[Any, ...]]]:
    """The table's definition, as PostgreSQL prints its parts."""
    queries = {"columns": _COLUMNS, "constraints": _CONSTRAINTS, "indexes": _INDEXES, "table": _TABLE}
    queries["sequences"] = _SEQUENCES
    return {name: connection.execute(query.encode(), [table]).fetchall() for name, query in queries.items()}


@dataclass
class Scene:
    database: Database
    given: settings.Settings
    store: Store
    connection: psycopg.Connection[Any]
    capture: CaptureThread
    rows: dict[Lsn, dict[Name, oracle.Rows]] = field(default_factory=dict)

    @property
    def reader(self) -> LogReader:
        return LogReader(self.store)

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.encode())

    def snapshot(self) -> None:
        job = SnapshotJob(self.given)
        job.start()
        assert job.wait(60)

    def mark(self, *tables: Name) -> Lsn:
        """Remember the rows, and return the LSN after them, once the log has it. Nothing else may write meanwhile."""
        found = {name: oracle.rows(self.connection, *name) for name in tables}
        row = self.connection.execute("SELECT pg_logical_emit_message(true, 'mark', '')::text").fetchone()
        assert row is not None
        lsn = Lsn.parse(row[0])
        self.capture.wait_for(Lsn(lsn + 1))
        self.rows[lsn] = found
        return lsn

    @property
    def recorder(self) -> SchemaRecorder:
        source = self.capture.capture.source
        assert isinstance(source, PostgresSource)
        return source.schema_recorder

    def record_definitions(self) -> None:
        """Have the definitions as they are now in the store."""
        recorder = self.recorder
        recorder.stop()
        recorder._read_all_at = 0.0
        recorder.start()
        recorder.stop()
        assert recorder.error is None
        recorder.start()

    def restore(
        self,
        destination: Database,
        tables: Sequence[Name],
        target: RecoveryTarget | Lsn,
        where: str | None = None,
        schema: str | None = None,
    ) -> tuple[list[PlannedRestore], RestoreProgress]:
        lsn = target if isinstance(target, Lsn) else log_moment.resolve(self.reader, target)
        planned = table_restore.plan(
            self.reader, tables, lsn, lambda name: (schema or name[0], name[1]), is_subset=where is not None
        )
        blocks = table_restore.direct_blocks(self.reader)
        return planned, table_restore.restore(planned, DatabaseDestination(destination.url), blocks, where)


@contextmanager
def scene(database: Database, directory: Path, publication: str = "FOR ALL TABLES") -> Iterator[Scene]:
    address = settings.StoreSettings(str(directory / "store"))
    given = settings.Settings(
        source=settings.SourceSettings(url=database.url),
        store=address,
        capture=settings.CaptureSettings(seal_after_ms=5, segment_bytes=64 * 1024),
        snapshot=settings.SnapshotSettings(chunk_bytes=64 * 1024, chunk_rows=40),
    )
    database.execute(f"CREATE PUBLICATION tailrace {publication}")
    store = Store.open(address.url)
    with (
        database.connect(client_encoding="UTF8", autocommit=True) as connection,
        CaptureThread(given, store) as capture,
    ):
        yield Scene(database, given, store, connection, capture)


@contextmanager
def new_database(source: Database) -> Iterator[Database]:
    """An empty database on the same server."""
    database = make_database(source.server)
    try:
        yield database
    finally:
        drop_database(database)
