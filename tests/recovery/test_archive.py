"""The archive holds the server's WAL, byte for byte, whatever is killed, and only that server's."""

from __future__ import annotations

import os
import random
import re
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
    archive_end,
    assert_same_wal,
    back_up,
    configured,
    new_directory,
    restored,
)

from tailrace.change import Lsn
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.errors import ConfigError, CorruptError, FencedError, GapError, SourceRefused, StoreError, WrongSource
from tailrace.finding import Severity
from tailrace.recovery import compressed_object
from tailrace.recovery.check import inspect_archive
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.recovery.restore_plan import plan_restore
from tailrace.recovery.wal_archive import ArchivePosition, System, WalArchive
from tailrace.recovery.wal_segment import ArchiveKey, WalSegment
from tailrace.recovery.wal_writer import ArchiveProgress, WalWriter
from tailrace.settings import Settings, SourceSettings, StoreSettings
from tailrace.store import FileStore, ObjectInfo, Store

DYING_ARCHIVE = Path(__file__).with_name("dying_archive.py")
LARGE_SEGMENT = Path(__file__).with_name("large_segment.py")
ARCHIVE_FORKS = Path(__file__).with_name("archive_forks.py")
KILLS = int(os.environ.get("KILLS", "20"))
# In about a minute, a server writes a few segments a second.
_KILLS_OF_A_SERVER = 200


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


def test_killed_archives_hold_the_servers_wal(tmp_path: Path) -> None:
    for first in range(0, KILLS, _KILLS_OF_A_SERVER):
        _kill_archives(min(KILLS - first, _KILLS_OF_A_SERVER), first, tmp_path / f"store{first}")


def _kill_archives(kills: int, seed: int, root: Path) -> None:
    rng = random.Random(seed)
    store = Store.open(str(root))
    with running(18, wal_keep_size="8GB", max_wal_size="8GB", checkpoint_timeout="1h", autovacuum=False) as server:
        env = environment(Database(server, "postgres"), store.url) | {"TAILRACE_ARCHIVE_PART_AFTER_S": "0.1"}
        forks = subprocess.Popen(
            [sys.executable, str(ARCHIVE_FORKS)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert forks.stdin is not None
        assert forks.stdout is not None
        try:
            with _load(server):
                for number in range(kills):
                    before = sum(info.size for info in store.list("wal"))
                    print(number % 2, file=forks.stdin, flush=True)
                    pid = int(forks.stdout.readline())
                    assert wait_until(lambda n=before: sum(i.size for i in store.list("wal")) > n, 60)  # type: ignore[misc]
                    time.sleep(rng.uniform(0, 0.3))
                    os.kill(pid, signal.SIGKILL)
                    assert int(forks.stdout.readline()) == signal.SIGKILL, "the archive ended by itself"
        finally:
            os.killpg(forks.pid, signal.SIGKILL)
            forks.communicate()
        with server.connect() as connection:
            end = current_lsn(connection)
        archive_all(server, store)
        segments = assert_same_wal(server, store)
    archive = WalArchive.require(store)
    assert not archive.leftovers, "the parts of complete segments are removed"
    assert archive.last is not None
    assert archive.last.end >= end
    print(f"{kills} kills, {segments} segments")


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
            with pytest.raises(ConfigError, match=r"WAL is missing from .* on: the archive had it up to") as refused:
                plan_restore(store, RecoveryTarget("latest"), programs)
            before = Lsn.parse(re.findall(r"--to (\S+)", refused.value.hint)[0])
            assert plan_restore(store, RecoveryTarget("lsn", lsn=before), programs).ends_at_gap
            back_up(server, store)  # the archive covers everything after the gap
        for target in (RecoveryTarget("time", time=now[0]), RecoveryTarget("lsn", lsn=end)):
            with pytest.raises(ConfigError, match="cannot be restored"):  # commits in the gap are unknown
                plan_restore(store, target, programs)
    assert len(list(WalArchive.require(store).ranges())) == 2


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
    # The compressed segment, which is a quarter, is held once to archive it and twice to read it.
    assert 0 < archived < megabytes * 3 // 8 + 200
    assert 0 < read < megabytes * 5 // 8 + 200


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
            assert wait_until(lambda: archive_end(store) >= end, 60)
        assert_same_wal(server, store)
        with restored(server, store, RecoveryTarget("latest"), new_directory(workspace, "copy")) as copy:
            assert copy.rows("SELECT count(*), sum(hashtext(t::text)) FROM t") == rows


class ForgetfulStore(FileStore):
    """A store that fails once to create a whole segment, and once to list parts."""

    has_failed = False
    has_refused = False

    def create(self, key: str, data: bytes) -> bool:
        found = ArchiveKey.parse(key, 1 << 20)
        if found is not None and found.part is None and not self.has_refused:
            self.has_refused = True
            raise StoreError("no answer", "retrying")
        return super().create(key, data)

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        if prefix.endswith(".d") and not self.has_failed and next(super().list(prefix), None) is not None:
            self.has_failed = True
            raise StoreError("no answer", "retrying")
        return super().list(prefix, after)


def test_a_store_that_fails_to_create_a_segment_or_to_remove_parts_damages_nothing(tmp_path: Path) -> None:
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
    assert store.has_refused
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
    notes = [(Severity.NOTE, "summarize_wal"), (Severity.NOTE, "slot tailrace_archive")]
    assert found == [(Severity.ERROR, "store"), *warnings, *notes]
    working = replace(configured(server), store=StoreSettings(url=str(workspace / "store")))
    assert {f.severity for f in inspect_archive(working)} == {Severity.NOTE}
    assert not list(Store.open(str(workspace / "store")).list(""))


def test_check_names_what_prevents_archive_and_backups(workspace: Path) -> None:
    with running(18, wal_level="minimal", max_wal_senders=0, max_replication_slots=0) as server:
        with server.connect() as connection:
            connection.execute("CREATE ROLE weak LOGIN")
        source = SourceSettings(url=server.url_of("postgres", "weak"))
        found = inspect_archive(Settings(source=source, store=StoreSettings(url=str(workspace / "store"))))
        with ArchiveThread(configured(server), Store.open(str(workspace / "store"))) as thread:
            error = thread.failure()
    assert isinstance(error, SourceRefused)
    assert "set max_wal_senders = 10" in error.hint
    errors = {f.subject: f.fix for f in found if f.severity is Severity.ERROR}
    assert errors == {
        "role weak": 'ALTER ROLE "weak" REPLICATION;',
        "wal_level": "ALTER SYSTEM SET wal_level = 'replica';\n-- then restart the server",
        "max_replication_slots": "ALTER SYSTEM SET max_replication_slots = 4;\n-- then restart the server",
        "max_wal_senders": "ALTER SYSTEM SET max_wal_senders = 4;\n-- then restart the server",
    }
    incremental = next(f for f in found if f.subject == "summarize_wal")
    assert incremental.fix.startswith("ALTER SYSTEM SET summarize_wal = on;")


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
    assert Lsn.parse(before[1]) <= position.lsn <= archive_end(store)
