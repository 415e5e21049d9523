"""A drill restores a logged moment, and finds every difference between the restored server and the change log."""

from __future__ import annotations

import os
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.capturing import CaptureThread, current_lsn, environment, tailrace
from tests.capturing import configured as capturing
from tests.fixtures.postgres import Database, running
from tests.fixtures.store import StoreAddress
from tests.recovery.scene import ArchiveThread, back_up, configured, new_directory, promote, streaming_standby
from tests.workload import Workload

from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.change import Lsn
from tailrace.embedded.process import wait_until
from tailrace.errors import ConfigError
from tailrace.recovery import row_comparison
from tailrace.recovery.data_directory import DataDirectory
from tailrace.recovery.drill import Drill, choose_moment
from tailrace.recovery.drill_record import DrillRecord, TableDifference
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.recovery.restore_plan import plan_restore
from tailrace.recovery.standby import Standby, lay_out, running_alone
from tailrace.recovery.wal_archive import WalArchive
from tailrace.settings import StoreSettings
from tailrace.store import Store

_REPLAYED = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
DRILLS = int(os.environ.get("DRILLS", "2"))


@dataclass
class Drilled:
    database: Database
    store: Store
    before: Lsn
    """From a little later on, the log lacks changes of the table `unseen`."""
    locked: tuple[Lsn, Lsn]
    """Moments at which an open transaction and a prepared one have locked tables."""

    def drill(self, workspace: Path, lsn: Lsn | None = None) -> DrillRecord:
        programs = self.database.server.bin("postgres").parent
        directory = new_directory(workspace, "drill")
        return Drill(capturing(self.database), self.store, directory, programs, lsn).run()


@pytest.fixture(scope="module")
def drilled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drilled]:
    """A server with random changes of all types, of which the log has all but a few at the end."""
    store = Store.open(str(tmp_path_factory.mktemp("store")))
    with running(18, autovacuum=False, max_prepared_transactions=5) as server:
        database = Database(server, "postgres")
        workload = Workload(lambda: database.connect(autocommit=True), seed=5)
        workload.create()
        database.execute("CREATE TABLE unseen (a int, b text, note text, PRIMARY KEY (b, a))")
        database.execute("INSERT INTO unseen SELECT n, 'b' || n, 'as logged' FROM generate_series(1, 5000) n")
        published = ", ".join(table.qualified.as_string() for table in workload.tables)
        database.execute(f"CREATE PUBLICATION tailrace FOR TABLE unseen, {published}")
        settings = capturing(database)
        with (
            ArchiveThread(configured(server, synchronous=True), store) as archive,
            CaptureThread(settings, store) as capture,
            database.connect(autocommit=True) as connection,
        ):
            job = SnapshotJob(replace(settings, store=StoreSettings(url=store.url)))
            job.start()
            assert job.wait(120)
            back_up(server, store)
            workload.run(100)
            workload.stop()
            connection.execute("CREATE TABLE new (n int PRIMARY KEY)")
            connection.execute("ALTER PUBLICATION tailrace ADD TABLE new")
            connection.execute("INSERT INTO new VALUES (1)")
            before = current_lsn(connection)
            # A moment at which tables are locked: by an open transaction, and by a prepared one.
            with database.connect(autocommit=False) as other:
                other.execute("ALTER TABLE unseen ADD COLUMN later int")
                connection.execute("INSERT INTO new VALUES (2)")
                locked = current_lsn(connection)
                other.rollback()
                other.execute("LOCK TABLE new IN ACCESS EXCLUSIVE MODE")
                other.execute("PREPARE TRANSACTION 'waits'")
            connection.execute("SELECT pg_create_restore_point('x')")
            prepared = current_lsn(connection)
            connection.execute("ROLLBACK PREPARED 'waits'")
            # What a mistake of an operator, or a fault of capture, would do: changes that never reach the log.
            connection.execute("ALTER PUBLICATION tailrace DROP TABLE unseen")
            connection.execute("DELETE FROM unseen WHERE a = 7")
            connection.execute("UPDATE unseen SET note = 'never logged' WHERE a = 8")
            connection.execute("INSERT INTO unseen VALUES (9, 'twice', 'never logged')")
            connection.execute("ALTER PUBLICATION tailrace ADD TABLE unseen")
            connection.execute("UPDATE unseen SET note = 'logged again' WHERE a = 4000")
            end = current_lsn(connection)
            archive.wait_for(end)
            capture.wait_for(end)
        yield Drilled(database, store, before, (locked, prepared))


def test_drill_finds_every_row_of_random_moments_equal(drilled: Drilled, workspace: Path) -> None:
    for number in range(DRILLS):
        lsn = choose_moment(drilled.store)
        while lsn > drilled.before:
            lsn = choose_moment(drilled.store)
        record = drilled.drill(new_directory(workspace, str(number)), lsn)
        assert record.verdict == "equal", (record.error, record.differences)
        assert record.lsn == lsn
        assert record.tables >= 5
        assert record.rows >= 5000
        assert {table for table, _ in record.not_compared} <= {"public.new"}
        assert DrillRecord.last(drilled.store) == record


def test_drill_is_not_stopped_by_locks_of_that_moment(drilled: Drilled, workspace: Path) -> None:
    for number, lsn in enumerate(drilled.locked):
        record = drilled.drill(new_directory(workspace, str(number)), lsn)
        assert record.verdict == "equal", (record.error, record.differences)


def test_drill_standby_and_failover_on_another_version_and_s3(s3_address: StoreAddress, workspace: Path) -> None:
    store = Store.open(*s3_address)
    with running(16, autovacuum=False) as server, streaming_standby(server, workspace, "second") as second:
        database = Database(server, "postgres")
        database.execute(
            "CREATE TABLE t (n int PRIMARY KEY, cost numeric(8,2)); CREATE PUBLICATION tailrace FOR TABLE t;"
            "INSERT INTO t SELECT n, n / 7.0 FROM generate_series(1, 1000) n"
        )
        settings = capturing(database)
        with (
            ArchiveThread(configured(server, synchronous=True), store) as archive,
            CaptureThread(settings, store) as capture,
            database.connect(autocommit=True) as connection,
        ):
            job = SnapshotJob(replace(settings, store=StoreSettings(*s3_address)))
            job.start()
            assert job.wait(60)
            back_up(server, store)
            for n in range(5):
                connection.execute("UPDATE t SET cost = -cost WHERE n %% 5 = %s", [n])
            end = current_lsn(connection)
            archive.wait_for(end)
            capture.wait_for(end)
            programs = server.bin("postgres").parent
            record = Drill(settings, store, new_directory(workspace, "drill"), programs).run()
            assert (record.verdict, record.tables, record.rows) == ("equal", 1, 1000), record.error
            assert DrillRecord.last(store) == record
            copy = DataDirectory(new_directory(workspace, "standby"))
            laid_out = lay_out(store, plan_restore(store, RecoveryTarget("latest"), programs), copy, lambda _: None)
            connection.execute("DELETE FROM t WHERE n > 2")
            end = current_lsn(connection)
            archive.wait_for(end)
            with second.connect() as reader:
                assert wait_until(lambda: reader.execute(_REPLAYED, [str(end)]).fetchone() == (True,), 30)
        with running_alone(copy), Standby(store, copy, laid_out, programs) as standby:
            assert wait_until(lambda: _rows(standby) == [1, 2], 60)
            server.stop("immediate")
            promote(second)
            with ArchiveThread(configured(second, synchronous=True), store), second.connect() as promoted:
                promoted.execute("INSERT INTO t VALUES (7)")
                assert wait_until(lambda: _rows(standby) == [1, 2, 7], 60), "the standby follows the new primary"


def _rows(standby: Standby) -> list[int] | None:
    """The keys that the standby has; None while it does not accept connections."""
    if standby.poll() is None:
        return None
    with standby.server.connect() as reader:
        return [n for (n,) in reader.execute("SELECT n FROM t ORDER BY n").fetchall()]


def test_drill_lists_planted_differences_by_table_and_key(drilled: Drilled) -> None:
    env = environment(drilled.database, drilled.store.url)
    programs = str(drilled.database.server.bin("postgres").parent)
    archive = WalArchive.require(drilled.store)
    assert archive.last is not None
    command = tailrace("drill", "--to", str(archive.last.end), "--bin", programs)
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    record = DrillRecord.last(drilled.store)
    assert record is not None
    assert record.verdict == "different"
    assert set(record.differences) == {
        TableDifference("public.unseen", "7\tb7", "missing"),
        TableDifference("public.unseen", "8\tb8", "different"),
        TableDifference("public.unseen", "9\ttwice", "unexpected"),
    }
    assert "missing: public.unseen 7\tb7\n" in done.stdout
    assert "not compared: public.new: public.new has no snapshot" in done.stdout


def test_a_restore_that_fails_is_a_result(drilled: Drilled, workspace: Path) -> None:
    archive = WalArchive.require(drilled.store)
    key = archive.segments[1].segment.key
    content = drilled.store.get(key)
    assert content is not None
    try:
        drilled.store.replace(key, content[:-1] + b"x")
        record = drilled.drill(workspace, drilled.before)
    finally:
        drilled.store.replace(key, content)
    assert record.verdict == "failed"
    assert record.error is not None
    assert "checksum" in record.error
    assert DrillRecord.last(drilled.store) == record


def test_a_moment_needs_log_and_archive(file_address: StoreAddress) -> None:
    with pytest.raises(ConfigError, match="the log has no snapshot"):
        choose_moment(Store.open(*file_address))


@pytest.mark.parametrize("seed", range(30))
def test_comparison_finds_exactly_the_rows_that_differ(seed: int) -> None:
    rng = random.Random(seed)
    rows = [f"{n}\t{rng.randint(0, 3)}" for n in range(rng.randint(0, 300))]
    rows += rng.choices(rows, k=rng.randint(0, 5)) if rows and seed % 2 else []
    other = [row for row in rows if rng.random() > 0.01]
    other += [f"{n}\tnew" for n in range(1000, 1000 + rng.randint(0, 3))]
    rng.shuffle(other)
    cut = rng.randint(0, len(other))

    def text(part: list[str]) -> bytes:
        return "".join(f"{row}\n" for row in part).encode()

    found = row_comparison.compare(lambda: [text(rows)], lambda: [text(other[:cut]), text(other[cut:])], [0])
    expected, actual = Counter(rows), Counter(other)
    missing = Counter(row.split("\t")[0] for row in (expected - actual).elements())
    unexpected = Counter(row.split("\t")[0] for row in (actual - expected).elements())
    assert found.is_equal == (expected == actual)
    assert (found.rows, found.other_rows) == (len(rows), len(other))
    assert found.is_listed
    kinds = Counter((d.key, d.kind) for d in found.differences)
    for key in missing | unexpected:
        both = min(missing[key], unexpected[key])
        assert kinds[key, "different"] == both
        assert kinds[key, "missing"] == missing[key] - both
        assert kinds[key, "unexpected"] == unexpected[key] - both
