"""A standby follows the source through the store, or directly, whatever is killed and whoever is promoted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.capturing import current_lsn, environment, tailrace
from tests.fixtures.postgres import Database, running
from tests.fixtures.store import StoreAddress
from tests.recovery.scene import ArchiveThread, back_up, configured, new_directory, promote, streaming_standby

from tailrace.change import Lsn
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.errors import ConfigError, CorruptError, StoreError, WrongSource
from tailrace.recovery import compressed_object, standby
from tailrace.recovery.archive_feed import ArchiveFeed
from tailrace.recovery.data_directory import DataDirectory
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.recovery.restore_plan import plan_restore
from tailrace.recovery.standby import Standby, Upstream
from tailrace.recovery.wal_archive import ArchivePosition, System, WalArchive
from tailrace.recovery.wal_segment import WalSegment, history_key
from tailrace.store import FileStore, Store

_ROWS = "SELECT n FROM t ORDER BY n"
_NOW = datetime(2026, 11, 18, tzinfo=UTC)


class StandbyThread:
    """A running standby that a thread watches, as the command does."""

    def __init__(self, server: Postgres, store: Store, directory: Path, upstream: Upstream | None = None) -> None:
        programs = server.bin("postgres").parent
        data = DataDirectory(directory)
        record = standby.find_standby(directory)
        if record is None:
            record = standby.lay_out(
                store, plan_restore(store, RecoveryTarget("latest"), programs), data, lambda _: None
            )
        self.running = Standby(store, data, record, programs, upstream)
        self.error: BaseException | None = None
        self._data = data
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @contextmanager
    def following(self) -> Iterator[StandbyThread]:
        with standby.running_alone(self._data), self.running:
            self._thread.start()
            try:
                yield self
            finally:
                self._stopping.set()
                self._thread.join()

    def _watch(self) -> None:
        try:
            while not self._stopping.wait(0.05):
                self.running.poll()
        except BaseException as error:
            self.error = error

    def rows(self) -> list[int] | None:
        try:
            with self.running.server.connect() as connection:
                return [n for (n,) in connection.execute(_ROWS.encode()).fetchall()]
        except psycopg.Error:
            return None

    def wait_for(self, rows: list[int]) -> None:
        assert wait_until(lambda: self.rows() == rows or self.error is not None, 60), self.rows()
        if self.error is not None:
            raise self.error

    def failure(self) -> BaseException:
        assert wait_until(lambda: self.error is not None, 60), "the standby goes on"
        assert self.error is not None
        return self.error


@pytest.fixture
def store(file_address: StoreAddress) -> Store:
    return Store.open(*file_address)


def _create(connection: psycopg.Connection[Any]) -> None:
    connection.execute("CREATE TABLE t (n int PRIMARY KEY)")
    connection.execute("INSERT INTO t VALUES (1)")


def test_standby_follows_the_store_over_kills_and_a_promotion(store: Store, workspace: Path) -> None:
    directory = new_directory(workspace, "standby")
    with running(18, wal_keep_size="1GB") as primary, streaming_standby(primary, workspace, "second") as second:
        with (
            primary.connect() as connection,
            ArchiveThread(configured(primary, synchronous=True), store) as archive,
        ):
            _create(connection)
            back_up(primary, store)
            with StandbyThread(primary, store, directory).following() as first_run:
                connection.execute("INSERT INTO t VALUES (2)")
                first_run.wait_for([1, 2])
                connection.execute("INSERT INTO t SELECT n FROM generate_series(3, 200000) n")  # several segments
                first_run.wait_for(list(range(1, 200001)))
                os.kill(int((directory / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
                assert "the restored server ended" in str(first_run.failure())
            connection.execute("DELETE FROM t WHERE n > 3")
            with StandbyThread(primary, store, directory).following() as second_run:
                second_run.wait_for([1, 2, 3])
            connection.execute("INSERT INTO t VALUES (4)")
            end = current_lsn(connection)
            archive.wait_for(end)
        assert wait_until(lambda: Database(second, "postgres").rows(_ROWS) == [(1,), (2,), (3,), (4,)], 30)
        with StandbyThread(primary, store, directory).following() as third_run:
            third_run.wait_for([1, 2, 3, 4])
            primary.stop("immediate")
            promote(second)
            with second.connect() as promoted, ArchiveThread(configured(second, synchronous=True), store):
                promoted.execute("INSERT INTO t VALUES (5)")
                third_run.wait_for([1, 2, 3, 4, 5])
                promoted.execute("INSERT INTO t VALUES (6)")
                third_run.wait_for([1, 2, 3, 4, 5, 6])
                assert third_run.error is None


def test_lost_and_damaged_wal_ends_the_standby_instead_of_the_wal(store: Store, workspace: Path) -> None:
    directory = new_directory(workspace, "standby")
    with running(18, wal_keep_size="1GB") as primary, primary.connect() as connection:
        with ArchiveThread(configured(primary, synchronous=True), store) as archive:
            _create(connection)
            back_up(primary, store)
            connection.execute("INSERT INTO t SELECT n FROM generate_series(2, 400000) n")
            connection.execute("SELECT pg_switch_wal()")
            connection.execute("INSERT INTO t VALUES (0)")
            archive.wait_for(current_lsn(connection))
        segments = [s.segment for s in WalArchive.require(store).segments if s.is_complete]
        victim = segments[-2]
        content = store.get(victim.key)
        assert content is not None
        latest, programs = RecoveryTarget("latest"), primary.bin("postgres").parent
        standby.lay_out(store, plan_restore(store, latest, programs), DataDirectory(directory), lambda _: None)
        store.delete(victim.key)
        with pytest.raises(ConfigError, match="WAL is missing from"):
            plan_restore(store, latest, programs)  # what a new standby would begin with
        with StandbyThread(primary, store, directory).following() as thread:
            error = thread.failure()
        assert isinstance(error, CorruptError)
        assert f"segment {victim} lacks the bytes" in str(error)
        store.create(victim.key, content[:-1] + b"x")
        with StandbyThread(primary, store, directory).following() as thread:
            error = thread.failure()
        assert isinstance(error, CorruptError)
        assert "wrong checksum" in str(error)
        store.replace(victim.key, content)
        with StandbyThread(primary, store, directory).following() as thread:
            thread.wait_for(list(range(400001)))


def test_command_continues_after_it_was_killed_and_can_be_promoted(store: Store, workspace: Path) -> None:
    directory = new_directory(workspace, "standby")
    with running(18) as primary, primary.connect() as connection:
        env = environment(Database(primary, "postgres"), store.url)
        command = tailrace("standby", str(directory), "--bin", str(primary.bin("postgres").parent))
        with ArchiveThread(configured(primary, synchronous=True), store):
            _create(connection)
            back_up(primary, store)
            with _command(command, env) as (killed, conninfo):
                again = subprocess.run(command, env=env, capture_output=True, text=True)
                assert again.returncode == 2
                assert "another `tailrace standby` runs on" in again.stderr
                killed.kill()
            abandoned = int((directory / "postmaster.pid").read_text().split()[0])
            os.kill(abandoned, 0)
            connection.execute("INSERT INTO t VALUES (2)")
            with _command(command, env) as (process, conninfo):
                assert wait_until(lambda: _rows(conninfo) == [1, 2], 60)
                assert int((directory / "postmaster.pid").read_text().split()[0]) != abandoned
                with psycopg.connect(conninfo, autocommit=True) as standby_connection:
                    standby_connection.execute("SELECT pg_promote()")
                    standby_connection.execute("INSERT INTO t VALUES (77)")
                assert process.stdout is not None
                assert next(line for line in process.stdout if line.startswith("promoted: "))
                process.terminate()
                assert process.wait(60) == 0
        again = subprocess.run(command, env=env, capture_output=True, text=True)
        assert again.returncode == 2
        assert "was promoted" in again.stderr


@contextmanager
def _command(command: list[str], env: dict[str, str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    printed = []
    try:
        for line in process.stdout:
            printed.append(line)
            if line.startswith("the standby accepts reads"):
                break
        yield process, printed[-1].partition("'")[2].rpartition("'")[0]
    finally:
        process.kill()
        printed.append(process.communicate()[0])
    assert "Traceback" not in "".join(printed)


def _rows(conninfo: str) -> list[int]:
    with psycopg.connect(conninfo) as connection:
        return [n for (n,) in connection.execute(_ROWS.encode()).fetchall()]


def test_streaming_standby_catches_up_from_the_store_and_then_streams(
    s3_address: StoreAddress, workspace: Path
) -> None:
    store = Store.open(*s3_address)
    directory = new_directory(workspace, "standby")
    with running(16, max_wal_size="64MB", min_wal_size="32MB") as primary, primary.connect() as connection:
        with ArchiveThread(configured(primary, synchronous=True), store) as archive:
            _create(connection)
            back_up(primary, store)
            for _ in range(3):  # the primary no longer has the WAL that follows the backup
                connection.execute("INSERT INTO t SELECT coalesce(max(n), 0) + 1 FROM t")
                connection.execute("SELECT pg_switch_wal()")
                connection.execute("CHECKPOINT")
            upstream = Upstream.prepare(configured(primary).source, "copy", store)
            archive.wait_for(current_lsn(connection))
            with StandbyThread(primary, store, directory, upstream).following() as thread:
                thread.wait_for([1, 2, 3, 4])
                # Nobody else may enter the directories of the sockets, so these ask for no password.
                for private in (thread.running._sockets, thread.running.server.socket_directory):
                    assert (private.stat().st_uid, private.stat().st_mode & 0o777) == (directory.stat().st_uid, 0o700)
                query = "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'copy'"
                assert wait_until(lambda: connection.execute(query).fetchone() == (1,), 30)
        with primary.connect() as other:
            other.execute("INSERT INTO t VALUES (5)")  # without the archive
        with StandbyThread(primary, store, directory, upstream).following() as thread:
            thread.wait_for([1, 2, 3, 4, 5])


def test_a_directory_that_is_no_standby_is_refused(workspace: Path) -> None:
    (workspace / "other").mkdir()
    (workspace / "other" / "file").touch()
    with pytest.raises(ConfigError, match="neither empty nor a complete standby"):
        standby.find_standby(workspace / "other")


class ShrinkingStore(FileStore):
    """A store in which a segment is completed and its parts are removed between a listing and the next request."""

    complete: WalSegment | None = None
    content = b""

    def list(self, prefix: str, after: str | None = None) -> Any:
        found = list(super().list(prefix, after))
        if self.complete is not None and prefix == self.complete.parts_prefix:
            compressed_object.create(self, self.complete.key, self.content)
            for info in found:
                self.delete(info.key)
            self.complete = None
        return iter(found)


def test_feed_reads_parts_as_they_appear_and_never_loses_a_byte(tmp_path: Path) -> None:
    """Random parts, overlapping ones, completion in the middle of a read: the WAL comes out whole and in order."""
    for seed in range(20):
        rng = random.Random(seed)
        store = ShrinkingStore(tmp_path / str(seed))
        system = System("1", 1 << 20)
        first = WalSegment(1, 5, system.segment_bytes)
        content = rng.randbytes(3 * first.bytes)
        feed = ArchiveFeed(store, system, 1, first.start)
        received = bytearray()
        segment = first
        for number in range(3):
            own = content[number * first.bytes : (number + 1) * first.bytes]
            at = 0
            while at < first.bytes:
                if rng.random() < 0.1:
                    store.complete, store.content = (segment, own) if rng.random() < 0.5 else (None, b"")
                    if store.complete is None:
                        compressed_object.create(store, segment.key, own)
                    break
                end = min(at + rng.randint(1, first.bytes // 8), first.bytes)
                start = max(at - rng.choice((0, 0, 100)), 0)
                compressed_object.create(store, segment.part_key(start, end), own[start:end])
                at = end
                if rng.random() < 0.5:
                    received += feed.read()
            else:
                compressed_object.create(store, segment.key, own)
            while len(received) < (number + 1) * first.bytes:
                received += feed.read()
            segment = segment.next
        assert received == content
        assert feed.read() == b""


def test_feed_tells_missing_wal_from_wal_that_is_not_there_yet(tmp_path: Path) -> None:
    system = System("1", 1 << 20)
    first = WalSegment(1, 5, system.segment_bytes)

    def feed(store: Store) -> ArchiveFeed:
        return ArchiveFeed(store, system, 1, first.start)

    empty = Store.open(str(tmp_path / "empty"))
    assert feed(empty).read() == b""
    later = Store.open(str(tmp_path / "later"))
    compressed_object.create(later, first.next.part_key(0, 4), b"abcd")
    with pytest.raises(CorruptError, match=r"lacks the bytes from 0/500000 on"):
        feed(later).read()
    recorded = Store.open(str(tmp_path / "recorded"))
    compressed_object.create(recorded, first.part_key(0, 4), b"abcd")
    reading = feed(recorded)
    assert reading.read() == b"abcd"
    position = ArchivePosition(1, Lsn(first.start + 4), _NOW)
    position.save(recorded)
    assert reading.read() == b""
    ArchivePosition(1, Lsn(first.start + 9), _NOW).save(recorded)
    reading = feed(recorded)
    reading.read()
    with pytest.raises(CorruptError, match="lacks the bytes"):
        reading.read()
    gap = Store.open(str(tmp_path / "gap"))
    compressed_object.create(gap, first.part_key(4, 8), b"efgh")
    with pytest.raises(CorruptError, match="does not follow"):
        feed(gap).read()


def test_feed_ends_at_a_fork_and_refuses_a_branch_that_was_lost(tmp_path: Path) -> None:
    system = System("1", 1 << 20)
    first = WalSegment(1, 5, system.segment_bytes)
    store = Store.open(str(tmp_path))
    compressed_object.create(store, first.part_key(0, 8), b"abcdefgh")
    store.create(history_key(2), f"1\t{Lsn(first.start + 6)}\tno recovery target specified\n".encode())
    feed = ArchiveFeed(store, system, 1, first.start)
    assert feed.read() == b"abcdefgh"
    with pytest.raises(WrongSource, match="this standby has WAL up to 0/500008"):
        feed.read()
    level = Store.open(str(tmp_path / "level"))
    compressed_object.create(level, first.part_key(0, 6), b"abcdef")
    level.create(history_key(2), f"1\t{Lsn(first.start + 6)}\tno recovery target specified\n".encode())
    feed = ArchiveFeed(level, system, 1, first.start)
    assert feed.read() == b"abcdef"
    assert feed.read() == b""
    assert feed.has_ended
    assert feed.next_timeline == 2


def test_a_store_that_does_not_answer_is_not_the_end(tmp_path: Path) -> None:
    class Down(FileStore):
        def get(self, key: str) -> bytes | None:
            raise StoreError(f"{key}: no answer", "retrying")

    with pytest.raises(StoreError):
        ArchiveFeed(Down(tmp_path), System("1", 1 << 20), 1, Lsn(0)).read()
