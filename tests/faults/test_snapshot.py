"""Interrupted snapshots: none is visible in part, and finished tables are not copied again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests import oracle
from tests.capturing import capture_to_end, environment, tailrace
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress

from tailrace import settings
from tailrace.capture.postgres import catalog
from tailrace.capture.postgres.snapshot_job import SnapshotJob, tables_without_snapshot
from tailrace.embedded.process import wait_until
from tailrace.errors import SnapshotError, SourceError, StoreError
from tailrace.log.snapshot import SnapshotReader
from tailrace.store import Store

_TABLES = 4


@pytest.fixture
def filled_database(database: Database) -> Database:
    """Tables that take workers some time, one much longer than the others."""
    for number in range(_TABLES):
        database.execute(f"""
            CREATE TABLE t{number} (id int PRIMARY KEY, v text);
            INSERT INTO t{number} SELECT i, md5(i::text) FROM generate_series(1, {30 * 10**number}) i;
        """)
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    return database


def make_settings(database: Database, address: StoreAddress, **snapshot: Any) -> settings.Settings:
    return settings.Settings(
        source=settings.SourceSettings(url=database.url),
        store=settings.StoreSettings(url=address.url, options=address.options),
        snapshot=settings.SnapshotSettings(chunk_bytes=64 * 1024, **snapshot),
    )


def start_job(database: Database, address: StoreAddress) -> SnapshotJob:
    """Start a job for the tables without a snapshot."""
    with database.connect() as connection:
        tables = tables_without_snapshot(Store.open(*address), catalog.published_tables(connection, "tailrace"))
    job = SnapshotJob(make_settings(database, address), tables)
    job.start()
    return job


def finished_snapshots(database: Database, address: StoreAddress) -> dict[str, str]:
    """The finished snapshots, table → id, each of which must be complete."""
    found = SnapshotReader(*address).list()
    with database.connect() as connection:
        for snapshot in found:
            relation = snapshot.relation
            rows = oracle.rows(connection, relation.schema, relation.name)
            assert Counter(oracle.typed_rows(snapshot.chunks())) == Counter(
                oracle.to_typed(relation, row) for row in rows
            )
    assert len({s.relation.name for s in found}) == len(found), "a table was copied twice"
    return {snapshot.relation.name: snapshot.id for snapshot in found}


def test_a_worker_is_killed(filled_database: Database, file_address: StoreAddress) -> None:
    before: dict[str, str] = {}
    for kill_after in (0, 2):
        job = start_job(filled_database, file_address)
        busy: list[int] = []
        while not busy or job.progress.tables_done + len(before) < kill_after:
            assert not job.wait(0.001)
            busy = [w.process.pid or 0 for w in job._workers if w.task is not None]
        os.kill(busy[0], signal.SIGKILL)
        with pytest.raises(SnapshotError, match="killed by signal 9"):
            job.wait(30)
        after = finished_snapshots(filled_database, file_address)
        assert before.items() <= after.items()
        assert SnapshotReader(*file_address).orphans() == []
        before = after
    assert "t3" not in before
    assert start_job(filled_database, file_address).wait(60)
    assert set(finished_snapshots(filled_database, file_address)) == {f"t{n}" for n in range(_TABLES)}
    assert before.items() <= finished_snapshots(filled_database, file_address).items()


def test_the_whole_process_is_killed(filled_database: Database, store_address: StoreAddress) -> None:
    rng = random.Random(11)
    env = environment(filled_database, *store_address) | {"TAILRACE_SNAPSHOT_CHUNK_BYTES": str(64 * 1024)}
    capture_to_end(env)
    before: dict[str, str] = {}
    left_orphans = 0
    for _ in range(3):
        run = subprocess.Popen(tailrace("snapshot", "--missing"), env=env, stderr=subprocess.DEVNULL)
        wait_until(lambda run=run: bool(SnapshotReader(*store_address).orphans()) or run.poll() is not None, 60)  # type: ignore[misc]
        time.sleep(rng.uniform(0, 0.2))
        workers = psutil.Process(run.pid).children(recursive=True) if run.poll() is None else []
        run.kill()
        run.wait()
        # The workers detect the end of their parent, and exit.
        _, alive = psutil.wait_procs(workers, timeout=30)
        assert alive == []
        left_orphans += len(SnapshotReader(*store_address).orphans())
        after = finished_snapshots(filled_database, store_address)
        assert before.items() <= after.items()
        before = after
    done = subprocess.run(tailrace("snapshot", "--missing"), env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert before.items() <= finished_snapshots(filled_database, store_address).items()
    assert set(finished_snapshots(filled_database, store_address)) == {f"t{n}" for n in range(_TABLES)}
    assert SnapshotReader(*store_address).orphans() == []
    assert left_orphans or len(before) == _TABLES, "the kills came too early to prove anything"


def test_the_connection_is_lost(filled_database: Database, file_address: StoreAddress) -> None:
    job = start_job(filled_database, file_address)
    assert wait_until(lambda: job.progress.tables_done >= 1, 30)
    with filled_database.connect() as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL"
        )
    with pytest.raises(SourceError):
        job.wait(30)
    assert 1 <= len(finished_snapshots(filled_database, file_address)) < _TABLES
    assert start_job(filled_database, file_address).wait(60)
    assert len(finished_snapshots(filled_database, file_address)) == _TABLES


def test_the_store_fails(
    filled_database: Database, file_address: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.capture.postgres.snapshot_job._STORE_ATTEMPTS", 2)
    job = SnapshotJob(make_settings(filled_database, file_address))
    obstacle = tmp_path / "store" / "snapshots"
    obstacle.write_text("in the way")
    job.start()
    with pytest.raises(StoreError, match=r"public\.t\d"):
        job.wait(30)
    obstacle.unlink()
    assert SnapshotReader(*file_address).list() == []


def test_a_job_is_cancelled(filled_database: Database, file_address: StoreAddress) -> None:
    job = start_job(filled_database, file_address)
    assert wait_until(lambda: job.progress.tables_done >= 1, 30)
    job.cancel()
    with pytest.raises(SnapshotError, match="cancelled"):
        job.wait(10)
    assert len(finished_snapshots(filled_database, file_address)) == job.progress.tables_done < _TABLES
    assert SnapshotReader(*file_address).orphans() == []


def test_a_job_does_not_remove_the_chunks_of_another(filled_database: Database, file_address: StoreAddress) -> None:
    first = start_job(filled_database, file_address)
    assert wait_until(lambda: bool(SnapshotReader(*file_address).orphans()), 30)
    with filled_database.connect() as connection:
        small = [t for t in catalog.published_tables(connection, "tailrace") if t.name == "t0"]
    second = SnapshotJob(make_settings(filled_database, file_address), small)
    second.start()
    assert second.wait(60)
    assert first.wait(60)
    for snapshot in SnapshotReader(*file_address).list():
        assert sum(len(batch) for batch in snapshot.chunks()) == snapshot.rows
