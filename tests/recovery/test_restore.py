"""A restored server has exactly the rows that the source had at that moment."""

from __future__ import annotations

import os
import random
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests import oracle
from tests.capturing import CaptureThread, current_lsn, tailrace
from tests.capturing import configured as capturing
from tests.fixtures.postgres import Database, running
from tests.fixtures.store import StoreAddress
from tests.recovery.scene import ArchiveThread, Rows, back_up, configured, new_directory, restored
from tests.workload import Workload

from tailrace.change import Lsn
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.errors import ConfigError, CorruptError, StoreError
from tailrace.log.reader import LogReader
from tailrace.recovery import backup_record, restore
from tailrace.recovery.backup_record import BackupRecord
from tailrace.recovery.data_directory import DataDirectory
from tailrace.recovery.recovery_server import RecoveryServer
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.recovery.restore_plan import plan_restore
from tailrace.recovery.wal_archive import WalArchive
from tailrace.recovery.wal_segment import WalSegment
from tailrace.recovery.wal_spool import WalSpool
from tailrace.store import FileStore, Store

_ROWS = "SELECT n, note FROM t ORDER BY n"


@dataclass
class Moment:
    target: RecoveryTarget
    rows: Rows
    excluded: int | None = None
    """The transaction that a restore must name as the first one left out."""


@dataclass
class History:
    """A server whose rows at some moments are known."""

    server: Postgres
    store: Store
    before: datetime
    """A time before the backup."""
    backups: list[BackupRecord]
    moments: dict[str, Moment] = field(default_factory=dict)


def make_history(server: Postgres, store: Store, *, incremental: bool = False) -> History:
    """Change rows, take a backup in between, and record each moment with the source's own rows."""
    moments: dict[str, Moment] = {}
    with (
        server.connect() as connection,
        ArchiveThread(configured(server, synchronous=True), store) as thread,
    ):

        def value(query: str) -> Any:
            row = connection.execute(query.encode()).fetchone()
            assert row is not None
            return row[0]

        def change(note: str) -> int:
            """One transaction; its id."""
            with connection.transaction():
                connection.execute("INSERT INTO t SELECT max(n) + 1, %s FROM t", [note])
                connection.execute("UPDATE t SET note = note || '.' WHERE n % 3 = 0")
                connection.execute("DELETE FROM t WHERE n = (SELECT min(n) FROM t)")
                return int(value("SELECT pg_current_xact_id()::text"))

        def rows() -> Rows:
            return connection.execute(_ROWS.encode()).fetchall()

        connection.execute("CREATE TABLE t (n int PRIMARY KEY, note text)")
        connection.execute("INSERT INTO t SELECT n, md5(n::text) FROM generate_series(1, 2000) n")
        before = value("SELECT clock_timestamp()")
        connection.execute("CREATE ROLE copier LOGIN REPLICATION; GRANT SELECT ON t TO copier")
        backups = [back_up(server, store, role="copier")]
        if incremental:
            change("after the backup")
            backups.append(back_up(server, store, "incremental", "copier"))
        moments["immediate"] = Moment(RecoveryTarget("immediate"), rows(), change("after the last backup"))
        now = value("SELECT clock_timestamp()")
        moments["time"] = Moment(RecoveryTarget.parse(now.isoformat()), rows(), change("a"))
        change("b")
        here = current_lsn(connection)
        moments["lsn"] = Moment(RecoveryTarget.parse(str(here)), rows(), change("c"))
        connection.execute("SELECT pg_create_restore_point('before the mistake')")
        moments["name"] = Moment(RecoveryTarget.parse("before the mistake"), rows(), change("d"))
        expected = rows()
        mistake = change("mistake")
        moments["xid"] = Moment(RecoveryTarget("xid", xid=mistake), expected, mistake)
        change("e")
        moments["latest"] = Moment(RecoveryTarget("latest"), rows())
        thread.wait_for(current_lsn(connection))
    return History(server, store, before, backups, moments)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    with running(18, summarize_wal=True, autovacuum=False, max_connections=150) as server:
        yield make_history(server, Store.open(str(tmp_path_factory.mktemp("store"))), incremental=True)


def check(history: History, name: str, workspace: Path, **options: Any) -> None:
    moment = history.moments[name]
    with restored(history.server, history.store, moment.target, new_directory(workspace, name), **options) as copy:
        assert copy.rows(_ROWS) == moment.rows
        following = copy.moment.next_commit
        assert (following.transaction if following else None) == moment.excluded
        assert copy.rows("SHOW archive_mode") == [("off",)]


@pytest.mark.parametrize("name", ["immediate", "time", "lsn", "name", "xid", "latest"])
def test_restored_rows_are_the_sources_at_that_moment(name: str, history: History, workspace: Path) -> None:
    check(history, name, workspace)


def test_promoted_copy_accepts_writes_and_starts_on_its_own(history: History, workspace: Path) -> None:
    directory = new_directory(workspace, "parent")
    data = new_directory(directory, "data")
    moment = history.moments["lsn"]
    with restored(history.server, history.store, moment.target, data, "promote") as copy:
        assert copy.rows(_ROWS) == moment.rows
    assert not (data / "tailrace_restore").exists()
    with Postgres(18, directory, fsync=False) as server, server.connect() as connection:
        assert connection.execute(_ROWS.encode()).fetchall() == moment.rows
        connection.execute("INSERT INTO t VALUES (-1, 'new')")
        assert connection.execute("SHOW archive_mode").fetchone() == ("off",)


def test_a_source_that_keeps_its_settings_elsewhere_is_restored(history: History, workspace: Path) -> None:
    """As on Debian: the copy has defaults then, and PostgreSQL does not recover with less than the source had."""
    programs = history.server.bin("postgres").parent
    moment = history.moments["latest"]
    plan = plan_restore(history.store, moment.target, programs)
    copy = DataDirectory(new_directory(workspace, "copy"))
    restore.write_directory(history.store, plan, copy)
    (copy.path / "postgresql.conf").write_text("")
    closed = workspace / "closed"
    closed.mkdir(mode=0o700)
    for name in ("postgres", "pg_controldata"):
        (closed / name).symlink_to(programs / name)
    if copy.owner[0] != os.geteuid():  # as root, the server runs as the directory's owner
        with pytest.raises(ConfigError, match=r"cannot be run by the owner of .*: Permission denied"):
            RecoveryServer(copy, closed, "postgres", {}, copy.path / "server.log").__enter__()
    with restore.recovering(plan, copy, programs, "pause", operator_settings={"work_mem": "5MB"}) as recovery:
        recovery.wait()
        with recovery.server.connect() as connection:
            assert connection.execute(_ROWS.encode()).fetchall() == moment.rows
            assert connection.execute("SHOW max_connections").fetchone() == ("150",)
            assert connection.execute("SHOW work_mem").fetchone() == ("5MB",)


def test_a_full_disk_is_an_error_with_a_hint_and_leaves_nothing(history: History, small_disk: Path) -> None:
    plan = plan_restore(history.store, RecoveryTarget("latest"), history.server.bin("postgres").parent)
    small_disk.chmod(0o755)
    copy = DataDirectory(new_directory(small_disk, "copy"))
    with pytest.raises(ConfigError, match="No space left on device") as failed:
        restore.write_directory(history.store, plan, copy)
    assert "enough space" in failed.value.hint
    assert not any(copy.path.iterdir())


def test_every_target_on_another_version_and_s3(s3_address: StoreAddress, workspace: Path) -> None:
    with running(16, autovacuum=False) as server:
        history = make_history(server, Store.open(*s3_address))
        for name in history.moments:
            check(history, name, workspace)


@pytest.mark.skipif(not Path("/usr/lib/postgresql/15/bin/postgres").exists(), reason="needs Debian's postgresql-15")
def test_the_oldest_version(file_address: StoreAddress, workspace: Path) -> None:
    with running(15, autovacuum=False) as server:
        history = make_history(server, Store.open(*file_address))
        for name in ("time", "latest"):
            check(history, name, workspace)


@pytest.mark.soak
@pytest.mark.parametrize("version", [16, 18])
def test_every_target_on_every_version_and_store(version: int, store_address: StoreAddress, workspace: Path) -> None:
    with running(version, autovacuum=False) as server:
        history = make_history(server, Store.open(*store_address))
        for name in history.moments:
            check(history, name, workspace)


def test_moments_outside_the_archive_are_refused_with_the_possible_range(history: History, workspace: Path) -> None:
    programs = history.server.bin("postgres").parent
    archive = WalArchive.require(history.store)
    assert archive.last is not None
    end = archive.last.end
    targets = (
        RecoveryTarget("time", time=history.before),
        RecoveryTarget("time", time=history.before + timedelta(days=1)),
        RecoveryTarget("lsn", lsn=archive.segments[0].segment.start),
        RecoveryTarget("lsn", lsn=Lsn(end + 1)),
    )
    for target in targets:
        with pytest.raises(ConfigError, match="cannot be restored") as refused:
            plan_restore(history.store, target, programs)
        assert f" to {end}, which is " in refused.value.hint
    for target in (RecoveryTarget("xid", xid=4_000_000_000), RecoveryTarget("name", name="nowhere")):
        with pytest.raises(ConfigError, match="the archive has no "):
            plan_restore(history.store, target, programs)
    occupied = DataDirectory(new_directory(workspace, "occupied"))
    (occupied.path / "file").touch()
    with pytest.raises(ConfigError, match="is not an empty directory"):
        occupied.prepare()


class OutageStore(FileStore):
    """A store that stops answering when recovery asks for WAL, until `is_back` is set."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.is_down = False
        self.refused = threading.Event()
        self.is_back = threading.Event()

    def get(self, key: str) -> bytes | None:
        if self.is_down and not self.is_back.is_set():
            self.refused.set()
            raise StoreError(f"{key}: no answer", "retrying")
        return super().get(key)


def test_a_store_that_does_not_answer_delays_recovery_and_ends_nothing(history: History, workspace: Path) -> None:
    assert isinstance(history.store, FileStore)
    store = OutageStore(history.store.root)
    programs = history.server.bin("postgres").parent
    moment = history.moments["latest"]
    plan = plan_restore(store, moment.target, programs)
    copy = DataDirectory(new_directory(workspace, "copy"))
    restore.write_directory(store, plan, copy)
    store.is_down = True
    with restore.recovering(plan, copy, programs, "pause") as recovery:
        assert store.refused.wait(30)
        wanted = copy.path / "tailrace_restore" / "spool"
        assert wait_until(lambda: any(path.suffix == ".wanted" for path in wanted.iterdir()), 30)
        assert recovery.server.is_running
        assert recovery.server.state() is None
        store.is_back.set()
        recovery.wait()
        with recovery.server.connect() as connection:
            assert connection.execute(_ROWS.encode()).fetchall() == moment.rows


@pytest.mark.parametrize("damage", ["flip", "remove"])
def test_damaged_and_missing_wal_aborts_recovery(damage: str, history: History, workspace: Path) -> None:
    """Without the checksum, PostgreSQL would take a damaged record for the end of the WAL, and promote."""
    programs = history.server.bin("postgres").parent
    plan = plan_restore(history.store, history.moments["latest"].target, programs)
    copy = DataDirectory(new_directory(workspace, "copy"))
    restore.write_directory(history.store, plan, copy)
    key = next(s.segment.key for s in plan.archive.segments if s.segment.end > plan.backup.start_lsn)
    content = history.store.get(key)
    assert content is not None
    try:
        if damage == "remove":
            history.store.delete(key)
        else:
            middle = len(content) // 2
            flipped = bytes([content[middle] ^ 0x10])
            history.store.replace(key, content[:middle] + flipped + content[middle + 1 :])
        with (
            restore.recovering(plan, copy, programs, "promote") as recovery,
            pytest.raises(CorruptError, match=r"is missing from the archive|checksum|decompress"),
        ):
            recovery.wait()
    finally:
        history.store.replace(key, content)


def test_a_damaged_backup_leaves_nothing_and_another_one_can_be_chosen(history: History, workspace: Path) -> None:
    moment = history.moments["latest"]
    directory = new_directory(workspace, "copy")
    env = os.environ | {"TAILRACE_STORE_URL": history.store.url}
    programs = str(history.server.bin("postgres").parent)
    command = tailrace("restore", str(directory), "--latest", "--promote", "--bin", programs)
    full, incremental = history.backups
    key = backup_record.data_key(incremental.id, 0)
    content = history.store.get(key)
    assert content is not None
    try:
        history.store.replace(key, content[:-1] + bytes([content[-1] ^ 1]))
        failed = subprocess.run(command, env=env, capture_output=True, text=True)
        assert failed.returncode == 1
        assert f"{key} has a wrong checksum" in failed.stderr
        assert "--backup ID" in failed.stderr
        assert not any(directory.iterdir())
        done = subprocess.run([*command, "--backup", full.id], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        verified = subprocess.run(tailrace("backup", "verify"), env=env, capture_output=True, text=True)
        assert verified.returncode == 1
        assert f"backup {full.id}: {full.files:,} files match the manifest" in verified.stdout
        assert f"backup {incremental.id}: DAMAGED: " in verified.stdout
    finally:
        history.store.replace(key, content)
    with pytest.raises(ConfigError, match="there is no backup nowhere"):
        plan_restore(history.store, moment.target, Path(programs), backup="nowhere")


def test_restored_server_equals_the_change_log_at_a_random_lsn(workspace: Path, file_address: StoreAddress) -> None:
    """One position for both worlds: the log up to a commit, and the server restored to that commit's LSN."""
    rng = random.Random(11)
    store = Store.open(*file_address)
    with running(18, autovacuum=False) as server:
        database = Database(server, "postgres")
        workload = Workload(lambda: database.connect(autocommit=True), seed=3)
        workload.create()
        database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
        with (
            ArchiveThread(configured(server, synchronous=True), store) as archive,
            CaptureThread(capturing(database), store) as capture,
            database.connect() as connection,
        ):
            back_up(server, store)
            workload.run(150)
            workload.stop()
            end = current_lsn(connection)
            archive.wait_for(end)
            capture.wait_for(end)
        changes = list(LogReader(store).changes())
        commits = sorted({change.position.commit_lsn for change in changes})
        lsn = rng.choice(commits[len(commits) // 4 :])
        replica = oracle.replay(change for change in changes if change.position.commit_lsn < lsn)
        target = RecoveryTarget("lsn", lsn=lsn)
        with (
            restored(server, store, target, new_directory(workspace, "copy")) as copy,
            copy.server.connect() as connection,
        ):
            for table in workload.tables:
                assert replica.rows(table.schema, table.name) == oracle.rows(connection, table.schema, table.name)
            assert copy.moment.next_commit is not None
            assert copy.moment.next_commit.lsn == lsn


def test_cli_restores_and_says_what_is_left_out(history: History, workspace: Path) -> None:
    moment = history.moments["xid"]
    directory = new_directory(workspace, "copy")
    env = os.environ | {"TAILRACE_STORE_URL": history.store.url}
    command = tailrace("restore", str(directory), "--before-xid", str(moment.excluded))
    programs = str(history.server.bin("postgres").parent)
    done = subprocess.run([*command, "--promote", "--bin", programs], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"first transaction that is left out: {moment.excluded}, commit at " in done.stdout
    assert "start the server with: pg_ctl -D " in done.stdout
    again = subprocess.run([*command, "--bin", programs], env=env, capture_output=True, text=True)
    assert again.returncode == 2
    assert "is not an empty directory" in again.stderr


def test_cli_pauses_shows_the_copy_and_says_how_to_promote_it(history: History, workspace: Path) -> None:
    moment = history.moments["name"]
    directory = new_directory(workspace, "copy")
    env = os.environ | {"TAILRACE_STORE_URL": history.store.url}
    programs = str(history.server.bin("postgres").parent)
    process = subprocess.Popen(
        tailrace("restore", str(directory), "--to", moment.target.name, "--bin", programs),
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        shown = next(line for line in process.stdout if line.startswith("recovery is paused"))
        conninfo = shown.partition("'")[2].rpartition("'")[0]
        with psycopg.connect(conninfo) as connection:
            assert connection.execute(_ROWS.encode()).fetchall() == moment.rows
            connection.execute("SELECT pg_wal_replay_resume()")  # which the backup's role may not do
        assert next(line for line in process.stdout if line.startswith("promoted: "))
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    assert not (directory / "postmaster.pid").exists()


def test_restore_command_reports_absence_only_if_the_store_did(history: History, workspace: Path) -> None:
    plan = plan_restore(history.store, history.moments["latest"].target, history.server.bin("postgres").parent)
    target = workspace / "target"

    def run(name: str) -> int:
        return subprocess.run(["/bin/sh", str(spool.script), name, str(target)], timeout=30).returncode

    begins = plan.backup.start_lsn
    with WalSpool(plan.archive, plan.history, begins, plan.end, workspace / "spool", lambda _: None) as spool:
        first = WalSegment.at(1, begins, plan.archive.system.segment_bytes)
        for _ in range(2):  # PostgreSQL asks for the first segment more than once
            assert run(first.name) == 0
            assert target.read_bytes() == plan.archive.read(first)
        assert run(WalSegment(1, first.number + 1000, first.bytes).name) == 1
        assert run("00000002.history") == 1
    dead = subprocess.Popen(["true"])
    dead.wait()
    spool.script.write_text(spool.script.read_text().replace(str(os.getpid()), str(dead.pid)))
    assert run("00000003.history") == 200, "recovery is aborted if the restore is dead"
