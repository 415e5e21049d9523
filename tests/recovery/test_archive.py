"""The archive holds the server's WAL, byte for byte, whatever is killed, and only that server's."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.capturing import current_lsn, environment, tailrace
from tests.fixtures.postgres import Database, running
from tests.fixtures.store import StoreAddress
from tests.recovery.scene import (
    ArchiveThread,
    archive_all,
    assert_same_wal,
    back_up,
    configured,
    new_directory,
    promote,
    restored,
    streaming_standby,
)

from tailrace.change import Lsn
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.errors import ConfigError, CorruptError, FencedError, GapError, StoreError, WrongSource
from tailrace.finding import Severity
from tailrace.recovery import compressed_object
from tailrace.recovery.check import inspect_archive
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.recovery.restore_plan import plan_restore
from tailrace.recovery.wal_archive import ArchivePosition, System, WalArchive
from tailrace.recovery.wal_segment import ArchiveKey, WalSegment
from tailrace.recovery.wal_writer import ArchiveProgress, WalWriter
from tailrace.settings import StoreSettings
from tailrace.store import FileStore, ObjectInfo, Store

DYING_ARCHIVE = Path(__file__).with_name("dying_archive.py")
LARGE_SEGMENT = Path(__file__).with_name("large_segment.py")
KILLS = int(os.environ.get("KILLS", "4"))


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """A server that keeps all of its WAL, to compare with."""
    with running(18, wal_keep_size="8GB", max_wal_size="8GB", checkpoint_timeout="1h", autovacuum=False) as made:
        yield made


@pytest.fixture(autouse=True)
def _no_slot(server: Postgres) -> Iterator[None]:
    yield
    with server.connect() as connection:
        assert wait_until(lambda: _drop_slot(connection), 30)


def _drop_slot(connection: psycopg.Connection[Any]) -> bool:
    connection.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        " WHERE slot_name = 'tailrace_archive' AND active_pid IS NULL"
    )
    return connection.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)


@contextmanager
def _load(server: Postgres) -> Iterator[None]:
    """Small and large transactions until the context exits."""
    stop = threading.Event()

    def work() -> None:
        with server.connect() as connection:
            connection.execute("CREATE TABLE load (n int, note text)")
            while not stop.wait(0.01):
                rows = random.choice((1, 1, 1, 20, 10_000))
                connection.execute("INSERT INTO load SELECT n, md5(n::text) FROM generate_series(1, %s) n", [rows])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_killed_archives_hold_the_servers_wal(server: Postgres, file_address: StoreAddress) -> None:
    rng = random.Random(KILLS)
    env = environment(Database(server, "postgres"), *file_address) | {"TAILRACE_ARCHIVE_PART_AFTER_S": "0.1"}
    store = Store.open(*file_address)
    with _load(server):
        for number in range(KILLS):
            before = sum(info.size for info in store.list("wal"))
            env["TAILRACE_ARCHIVE_SYNCHRONOUS"] = str(number % 2 == 0).lower()
            process = subprocess.Popen(tailrace("archive"), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            try:
                wait_until(
                    lambda p=process, n=before: p.poll() is not None or sum(i.size for i in store.list("wal")) > n,  # type: ignore[misc]
                    60,
                )
                time.sleep(rng.uniform(0, 0.4))
                assert process.poll() is None, process.stdout.read().decode() if process.stdout else ""
            finally:
                process.send_signal(signal.SIGKILL)
                process.communicate()
    with server.connect() as connection:
        end = current_lsn(connection)
    archive_all(server, store)
    segments = assert_same_wal(server, store)
    archive = WalArchive.require(store)
    assert not archive.leftovers, "the parts of complete segments are removed"
    assert archive.last is not None
    assert archive.last.end >= end
    print(f"{KILLS} kills, {segments} segments")


def test_commits_that_the_store_confirmed_survive_the_loss_of_the_server(workspace: Path) -> None:
    _lose_server(workspace)


@pytest.mark.soak
@pytest.mark.parametrize("round_", range(10))
def test_commits_survive_many_losses_of_the_server(round_: int, workspace: Path) -> None:
    _lose_server(workspace)


def _lose_server(workspace: Path) -> None:
    """Kill archive and server under load, delete the server's disk, restore, and look for every confirmed commit."""
    store = Store.open(str(workspace / "store"))
    confirmed: list[int] = []
    with running(18) as server:
        database = Database(server, "postgres")
        env = environment(database, store.url)
        database.execute("CREATE TABLE t (n int PRIMARY KEY)")
        puts = random.randint(100, 200)
        process = subprocess.Popen([sys.executable, str(DYING_ARCHIVE), str(puts)], env=env)
        try:
            assert wait_until(lambda: WalArchive.load(store) is not None, 60)
            done = subprocess.run(tailrace("backup"), env=env, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith("full backup 2")
            server.conf(synchronous_standby_names="tailrace_archive")
            waits = "SELECT sync_state FROM pg_stat_replication WHERE application_name = 'tailrace_archive'"
            assert wait_until(lambda: database.rows(waits) == [("sync",)], 30)
            clients = [
                threading.Thread(target=_commit_until_lost, args=(database, client, confirmed)) for client in range(4)
            ]
            for client in clients:
                client.start()
            assert process.wait(60) == -signal.SIGKILL
            server.kill9()
        finally:
            process.kill()
            process.wait()
        for client in clients:
            client.join()
        shutil.rmtree(server.data)
    with restored(server, store, RecoveryTarget("latest"), new_directory(workspace, "copy")) as copy:
        found = {n for (n,) in copy.rows("SELECT n FROM t")}
    assert confirmed
    assert not set(confirmed) - found
    print(f"{len(confirmed)} confirmed, {len(found)} found")


def _commit_until_lost(database: Database, client: int, confirmed: list[int]) -> None:
    with suppress(psycopg.OperationalError), database.connect() as connection:
        for n in range(client, 1_000_000, 4):
            connection.execute("INSERT INTO t VALUES (%s)", [n])
            confirmed.append(n)


def test_the_same_segment_with_other_bytes_is_refused(server: Postgres, file_address: StoreAddress) -> None:
    store = Store.open(*file_address)
    archive_all(server, store)
    archive = WalArchive.require(store)
    assert archive.last is not None
    open_segment = archive.last.segment
    part = store.get(open_segment.part_key(*archive.last.parts[0]))
    assert part is not None
    other = bytearray(compressed_object.decompress(part, "part"))
    other[-1] ^= 1
    store.replace(open_segment.part_key(*archive.last.parts[0]), compressed_object.compress(bytes(other)))
    with ArchiveThread(configured(server), store) as thread:
        error = thread.failure()
    assert isinstance(error, FencedError)
    assert str(error).startswith(f"the server's segment {open_segment} differs from the archive's")
    # A whole segment that appears while the archive runs.
    store.delete(open_segment.part_key(*archive.last.parts[0]))
    store.create(open_segment.key, compressed_object.compress(bytes(open_segment.bytes)))
    with pytest.raises(FencedError, match=r"exists with other bytes"):
        compressed_object.create(store, open_segment.key, b"WAL")


def test_another_servers_wal_is_refused(server: Postgres, file_address: StoreAddress) -> None:
    store = Store.open(*file_address)
    archive_all(server, store)
    with running(16) as other, ArchiveThread(configured(other), store) as thread:
        error = thread.failure()
    assert isinstance(error, WrongSource)
    assert str(error).startswith("the archive holds the WAL of system ")


def test_wal_that_the_server_no_longer_has_is_a_gap(file_address: StoreAddress) -> None:
    store = Store.open(*file_address)
    with running(18, max_wal_size="64MB", min_wal_size="32MB") as server:
        with ArchiveThread(configured(server, synchronous=True), store):
            back_up(server, store)
        with server.connect() as connection:
            connection.execute("SELECT pg_drop_replication_slot('tailrace_archive')")
            for _ in range(3):
                connection.execute("SELECT pg_switch_wal(), pg_logical_emit_message(false, 'x', 'y')")
                connection.execute("CHECKPOINT")
            end = current_lsn(connection)
        with ArchiveThread(configured(server), store) as thread:
            error = thread.failure()
        assert isinstance(error, GapError)
        assert "--accept-gap" in error.hint
        with ArchiveThread(configured(server, synchronous=True), store, accept_gap=True) as thread:
            thread.wait_for(end)
            with server.connect() as connection:
                connection.execute("CREATE TABLE later (n int)")
                now = connection.execute("SELECT clock_timestamp(), txid_current()").fetchone()
                thread.wait_for(current_lsn(connection))
            assert now is not None
            programs = server.bin("postgres").parent
            with pytest.raises(ConfigError, match="cannot be restored"):
                plan_restore(store, RecoveryTarget("time", time=now[0]), programs)
            back_up(server, store)  # the archive covers everything after the gap
        for target in (RecoveryTarget("time", time=now[0]), RecoveryTarget("lsn", lsn=end)):
            with pytest.raises(ConfigError, match="cannot be restored"):  # commits in the gap are unknown
                plan_restore(store, target, programs)
    assert len(list(WalArchive.require(store).ranges())) == 2


def test_two_servers_on_one_timeline_are_refused(workspace: Path, file_address: StoreAddress) -> None:
    store = Store.open(*file_address)
    with (
        running(18, wal_keep_size="1GB") as primary,
        streaming_standby(primary, workspace, "first") as first,
        streaming_standby(primary, workspace, "second") as second,
    ):
        archive_all(primary, store)
        with primary.connect() as connection:
            connection.execute("CREATE TABLE t (n int)")
            for standby in (first, second):
                _await_replay(standby, current_lsn(connection))
        primary.stop("immediate")
        for number, standby in enumerate((first, second)):
            promote(standby)
            with standby.connect() as promoted:
                promoted.execute("INSERT INTO t VALUES (%s)", [number])
        archive_all(first, store)
        with ArchiveThread(configured(second, synchronous=True), store) as thread:
            error = thread.failure()
    # Both branched off at the same LSN or not. Either way, what the archive holds is the first one's.
    assert isinstance(error, (WrongSource, FencedError))
    assert "history of timeline 2 differs" in str(error) or "differs from the archive's" in str(error)


def test_segments_of_another_size(workspace: Path, file_address: StoreAddress) -> None:
    _archive_with_segments(1, workspace, file_address)


@pytest.mark.soak
def test_segments_of_a_gigabyte(workspace: Path, file_address: StoreAddress) -> None:
    _archive_with_segments(1024, workspace, file_address)


def test_a_large_segment_takes_little_memory(tmp_path: Path) -> None:
    """A process archives a segment and reads it back."""
    _check_memory(256, tmp_path)


@pytest.mark.soak
def test_a_segment_of_a_gigabyte_takes_little_memory(tmp_path: Path) -> None:
    _check_memory(1024, tmp_path)


def _check_memory(megabytes: int, directory: Path) -> None:
    command = [sys.executable, str(LARGE_SEGMENT), str(directory), str(megabytes)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    archived, read = map(int, done.stdout.split())
    print(f"{megabytes} MB: {archived} MB to archive, {read} MB to archive and to read")
    assert (
        0 < max(archived, read) < megabytes * 3 // 4 + 250
    )  # the compressed segment, which is a quarter, is held twice


def _archive_with_segments(megabytes: int, workspace: Path, file_address: StoreAddress) -> None:
    store = Store.open(*file_address)
    with running(18, wal_keep_size="8GB") as server:
        server.stop()
        # Root may not run it, so it runs as the user that owns the files.
        owner = server.data.stat()
        subprocess.run(
            [server.bin("pg_resetwal"), f"--wal-segsize={megabytes}", "-D", server.data],
            check=True,
            capture_output=True,
            user=owner.st_uid,
            group=owner.st_gid,
            extra_groups=[],
        )
        server.conf(min_wal_size=f"{2 * megabytes}MB", max_wal_size=f"{4 * megabytes}MB")
        server.start()
        with server.connect() as connection, ArchiveThread(configured(server, part_after_s=0.2), store):
            connection.execute("CREATE TABLE t AS SELECT n, md5(n::text) FROM generate_series(1, 30000) n")
            back_up(server, store)
            connection.execute("INSERT INTO t SELECT n, 'later' FROM generate_series(1, 30000) n")
            end = current_lsn(connection)
            rows = connection.execute("SELECT count(*), sum(hashtext(t::text)) FROM t").fetchall()
            assert wait_until(lambda: _archive_end(store) >= end, 60)
        assert_same_wal(server, store)
        with restored(server, store, RecoveryTarget("latest"), new_directory(workspace, "copy")) as copy:
            assert copy.rows("SELECT count(*), sum(hashtext(t::text)) FROM t") == rows


def _archive_end(store: Store) -> Lsn:
    archive = WalArchive.load(store)
    return archive.last.end if archive is not None and archive.last is not None else Lsn(0)


def test_promotions_are_followed_and_a_lost_branch_is_refused(workspace: Path, file_address: StoreAddress) -> None:
    """The archive is behind the first fork and level with it; it is ahead of the second one."""
    store = Store.open(*file_address)
    with running(18, wal_keep_size="1GB") as primary, streaming_standby(primary, workspace, "first") as standby:
        with primary.connect() as connection, ArchiveThread(configured(primary, synchronous=True), store):
            connection.execute("CREATE TABLE t (n int)")
            back_up(primary, store)
            connection.execute("INSERT INTO t VALUES (1)")
            end = current_lsn(connection)
            assert wait_until(lambda: _archive_end(store) >= end, 30)
        with primary.connect() as connection:
            connection.execute("INSERT INTO t VALUES (2)")
            _await_replay(standby, current_lsn(connection))
        primary.stop("immediate")
        promote(standby)
        with streaming_standby(standby, workspace, "second") as second:
            with standby.connect() as promoted:
                promoted.execute("INSERT INTO t VALUES (3)")
                end = current_lsn(promoted)
            with ArchiveThread(configured(standby, synchronous=True), store) as thread:
                thread.wait_for(end)
                assert thread.archive.timeline == 2
            with restored(primary, store, RecoveryTarget("latest"), new_directory(workspace, "level")) as copy:
                assert copy.rows("SELECT n FROM t ORDER BY n") == [(1,), (2,), (3,)]
            _await_replay(second, end)
            _check_lost_branch(store, standby, second, workspace)


def _check_lost_branch(store: Store, primary: Postgres, standby: Postgres, workspace: Path) -> None:
    _disconnect(standby)
    with primary.connect() as connection:
        connection.execute("INSERT INTO t VALUES (4)")
        end = current_lsn(connection)
    with ArchiveThread(configured(primary, synchronous=True), store) as thread:
        thread.wait_for(end)
    primary.stop("immediate")
    promote(standby)
    with standby.connect() as promoted:
        promoted.execute("INSERT INTO t VALUES (5)")
        end = current_lsn(promoted)
    with ArchiveThread(configured(standby, synchronous=True), store) as thread:
        error = thread.failure()
    assert isinstance(error, WrongSource)
    assert str(error).startswith("timeline 3 branched off timeline 2 at ")
    assert "--accept-fork" in error.hint
    with ArchiveThread(configured(standby, synchronous=True), store, accept_fork=True) as thread:
        thread.wait_for(end)
    for timeline, rows in ((2, [1, 2, 3, 4]), (3, [1, 2, 3, 5])):
        directory = new_directory(workspace, f"branch{timeline}")
        with restored(standby, store, RecoveryTarget("latest"), directory, timeline=timeline) as copy:
            assert [n for (n,) in copy.rows("SELECT n FROM t ORDER BY n")] == rows


def _await_replay(standby: Postgres, lsn: Lsn) -> None:
    with standby.connect() as connection:
        query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        assert wait_until(lambda: connection.execute(query, [str(lsn)]).fetchone() == (True,), 30)


def _disconnect(standby: Postgres) -> None:
    """Stop the standby's stream, so that it misses what follows."""
    with standby.connect() as connection:
        connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
        connection.execute("SELECT pg_reload_conf()")
        query = "SELECT count(*) FROM pg_stat_wal_receiver"
        assert wait_until(lambda: connection.execute(query).fetchone() == (0,), 30)


class ForgetfulStore(FileStore):
    """A store that fails to list parts once."""

    has_failed = False

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        if prefix.endswith(".d") and not self.has_failed and next(super().list(prefix), None) is not None:
            self.has_failed = True
            raise StoreError("no answer", "retrying")
        return super().list(prefix, after)


def test_a_store_that_fails_to_remove_parts_damages_nothing(tmp_path: Path) -> None:
    store = ForgetfulStore(tmp_path)
    segment = WalSegment(1, 7, 1 << 20)
    content = random.Random(1).randbytes(segment.bytes)
    writer = WalWriter(store, segment, 60.0, ArchiveProgress(), lambda: None)
    half = segment.bytes // 2
    writer.offer(segment.start, memoryview(content)[:half])
    writer.write_due_part(now=True)
    assert wait_until(lambda: writer.durable_lsn == segment.start + half, 10)
    writer.offer(Lsn(segment.start + half), memoryview(content)[half:])
    assert wait_until(lambda: writer.durable_lsn == segment.end, 10)
    writer.close()
    assert store.has_failed
    assert writer.error is None
    assert [info.key for info in store.list("")] == [segment.key]
    assert compressed_object.read(store, segment.key) == content
    writer.abort()


def test_check_warns_about_remote_apply_and_a_store_that_is_down(server: Postgres, workspace: Path) -> None:
    (workspace / "occupied").touch()
    broken = replace(configured(server), store=StoreSettings(url=str(workspace / "occupied")))
    server.conf(synchronous_commit="remote_apply", synchronous_standby_names="other, tailrace_archive")
    try:
        found = [(f.severity, f.subject) for f in inspect_archive(broken)]
    finally:
        server.conf(synchronous_commit="on", synchronous_standby_names="")
    warnings = [(Severity.WARNING, "synchronous_commit"), (Severity.WARNING, "synchronous_standby_names")]
    assert found == [(Severity.ERROR, "store"), *warnings, (Severity.NOTE, "slot tailrace_archive")]
    working = replace(configured(server), store=StoreSettings(url=str(workspace / "store")))
    assert [f.severity for f in inspect_archive(working)] == [Severity.NOTE]
    assert not list(Store.open(str(workspace / "store")).list(""))


def test_missing_parts_and_overlaps_with_other_bytes_are_refused(file_address: StoreAddress) -> None:
    store = Store.open(*file_address)
    segment = WalSegment(1, 3, 1 << 20)
    compressed_object.create(store, segment.part_key(0, 4), b"abcd")
    compressed_object.create(store, segment.part_key(2, 6), b"cdef")
    archive = WalArchive(store, System("1", segment.bytes), ())
    content = archive.read(segment)
    assert content is not None
    assert content[:7] == b"abcdef\0"
    compressed_object.create(store, segment.part_key(7, 8), b"h")
    with pytest.raises(CorruptError, match="does not follow"):
        archive.read(segment)
    store.delete(segment.part_key(7, 8))
    compressed_object.create(store, segment.part_key(3, 8), b"xefgh")
    with pytest.raises(CorruptError, match="differs from the part before"):
        archive.read(segment)


@pytest.mark.parametrize("size", [1 << 20, 16 << 20, 1 << 30])
def test_segment_names_are_postgresqls(size: int, server: Postgres) -> None:
    for lsn in (Lsn(0), Lsn.parse("0/FFFFFFFF"), Lsn.parse("1/0"), Lsn.parse("ABC/DEF01234")):
        segment = WalSegment.at(5, lsn, size)
        assert segment.start <= lsn < segment.end
        assert WalSegment.parse(segment.name, size) == segment
        assert ArchiveKey.parse(segment.key, size) == ArchiveKey(segment, None)
        assert ArchiveKey.parse(segment.part_key(1, 77), size) == ArchiveKey(segment, (1, 77))
        if size == 16 << 20:
            with server.connect() as connection:
                found = connection.execute(
                    "SELECT pg_walfile_name(%s::pg_lsn)", [str(Lsn(segment.start + 1))]
                ).fetchone()
                assert found == (f"00000001{segment.name[8:]}",)


def test_position_names_a_time_that_the_archive_covers(server: Postgres, file_address: StoreAddress) -> None:
    store = Store.open(*file_address)
    with server.connect() as connection:
        before = connection.execute("SELECT clock_timestamp(), pg_current_wal_flush_lsn()::text").fetchone()
        archive_all(server, store)
        after = connection.execute("SELECT clock_timestamp()").fetchone()
    position = ArchivePosition.load(store)
    assert before is not None
    assert after is not None
    assert position is not None
    assert before[0] < position.at < after[0]
    assert Lsn.parse(before[1]) <= position.lsn <= _archive_end(store)
