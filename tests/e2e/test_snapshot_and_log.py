"""While a random workload runs, a snapshot plus the changes from its LSN equals the table at all tested positions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from tests import oracle
from tests.capturing import CaptureThread, current_lsn
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.fixtures.store import StoreAddress
from tests.workload import Workload

from tailrace import settings
from tailrace.capture.postgres import catalog
from tailrace.capture.postgres.bootstrap import Bootstrap
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.capture.postgres.source_connection import connect
from tailrace.change import Change, Operation, Position
from tailrace.embedded.process import wait_until
from tailrace.errors import SnapshotError
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader, TableSnapshot
from tailrace.store import Store

_MARK = "oracle"
Tables = dict[tuple[str, str], oracle.Rows]


class _Marks:
    """Positions with known rows: a message in the log, and the rows of every table there."""

    def __init__(self, workload: Workload, connection: psycopg.Connection[Any]) -> None:
        self._workload = workload
        self._connection = connection
        self.rows: list[Tables] = []

    def set(self) -> None:
        with self._workload.paused():
            number = str(len(self.rows))
            self._connection.execute("SELECT pg_logical_emit_message(true, %s, %s::text)", [_MARK, number])
            tables = [(t.schema, t.name) for t in self._workload.tables]
            self.rows.append({table: oracle.rows(self._connection, *table) for table in tables})


@pytest.mark.parametrize("kind", ["18-file", "16-s3"])
def test_snapshot_plus_log_equals_the_table(kind: str, request: pytest.FixtureRequest) -> None:
    version, store_kind = kind.split("-")
    server = request.getfixturevalue(f"postgres{version}")
    address: StoreAddress = request.getfixturevalue(f"{store_kind}_address")
    database = make_database(server)
    try:
        marks = _captured_with_snapshots(database, address)
        taken = SnapshotReader(*address).list()
        log = list(LogReader(*address).changes())
        for lsn in {snapshot.lsn for snapshot in taken}:
            assert _compare([s for s in taken if s.lsn == lsn], log, marks) >= 3
        assert set(Counter(snapshot.relation.oid for snapshot in taken).values()) == {2}
    finally:
        drop_database(database)


def _captured_with_snapshots(database: Database, address: StoreAddress) -> list[Tables]:
    """Take snapshots at two times: with the slot, and on demand while streaming."""
    given = settings.Settings(
        source=settings.SourceSettings(url=database.url, tables=("*.*",)),
        store=settings.StoreSettings(*address),
        capture=settings.CaptureSettings(seal_after_ms=5),
        snapshot=settings.SnapshotSettings(chunk_bytes=64 * 1024, chunk_rows=50),
    )
    store = Store.open(*address)
    workload = Workload(database.connect, seed=23, exclusive=0.001, rest_s=0.01)
    workload.create()
    workload.run(60)
    bootstrap = Bootstrap(given, store)
    with database.connect() as connection:
        marks = _Marks(workload, connection)
        with workload, CaptureThread(given, store, snapshots=bootstrap) as capture:
            marks.set()
            assert bootstrap.wait(60)
            assert bootstrap.error is None
            bootstrap.stop()
            marks.set()
            _wait_for_commits(workload, 30)
            _take(given, marks)
            for _ in range(3):
                _wait_for_commits(workload, 20)
                marks.set()
            workload.stop()
            capture.wait_for(current_lsn(connection))
    return marks.rows


def _take(given: settings.Settings, marks: _Marks) -> None:
    """Take a snapshot of every table, and repeat it for those truncated meanwhile."""
    tables = None
    while True:
        job = SnapshotJob(given, tables)
        job.start()
        marks.set()
        try:
            assert job.wait(60)
            return
        except SnapshotError:
            with connect(given.source) as connection:
                published = catalog.published_tables(connection, given.source.publication)
            tables = [t for t in published if f"{t.schema}.{t.name}" in job.failures]


def _wait_for_commits(workload: Workload, transactions: int) -> None:
    end = workload.committed + transactions
    assert wait_until(lambda: workload.committed >= end, 60)


def _compare(taken: list[TableSnapshot], log: list[Change], marks: list[Tables]) -> int:
    """Apply the log from the snapshots on. Return the number of marks compared."""
    replica = oracle.Replica()
    for snapshot in taken:
        replica.load(snapshot.relation, oracle.typed_rows(snapshot.chunks()))
    oids = {snapshot.relation.oid for snapshot in taken}
    met = 0
    for change in log:
        if change.position < Position(taken[0].lsn, 0):
            continue
        if change.operation is Operation.MESSAGE and change.prefix == _MARK:
            expected = marks[int(change.content or b"")]
            for snapshot in taken:
                relation = snapshot.relation
                table = relation.schema, relation.name
                rows = expected[table]
                assert replica.rows(*table) == _type_rows(relation, rows), f"{table} at {change.position}"
            met += 1
        if change.relation is not None and change.relation.oid in oids:
            replica.apply(_type_images(change))
    return met


def _type_rows(relation: Any, rows: oracle.Rows) -> Counter[Any]:
    return Counter(oracle.to_typed(relation, row) for row in rows.elements())


def _type_images(change: Change) -> Change:
    assert change.relation is not None
    old, new = (image and oracle.to_typed(change.relation, image) for image in (change.old, change.new))
    return replace(change, old=old, new=new)
