"""The archive follows promotions, and refuses a server whose WAL branched off before the archive's end."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.capturing import current_lsn
from tests.fixtures.postgres import running
from tests.fixtures.store import StoreAddress
from tests.recovery.scene import (
    ArchiveThread,
    archive_all,
    archive_end,
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
from tailrace.errors import CorruptError, FencedError, WrongSource
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.recovery.restore_plan import plan_restore
from tailrace.recovery.wal_archive import WalArchive
from tailrace.recovery.wal_segment import history_key
from tailrace.store import Store

_ROWS = "SELECT n FROM t ORDER BY n"


def test_promotions_are_followed_and_a_lost_branch_is_refused(workspace: Path, file_address: StoreAddress) -> None:
    """The archive is behind the first fork, level with the second one, and ahead of the third one."""
    store = Store.open(*file_address)
    with running(18, wal_keep_size="1GB") as primary, streaming_standby(primary, workspace, "first") as first:
        with primary.connect() as connection:
            connection.execute("CREATE TABLE t (n int)")
            with ArchiveThread(configured(primary, synchronous=True), store) as archive:
                back_up(primary, store)
                connection.execute("INSERT INTO t VALUES (1)")
                archive.wait_for(current_lsn(connection))
            connection.execute("INSERT INTO t VALUES (2)")
            _await_replay(first, current_lsn(connection))
        primary.stop("immediate")
        before = archive_end(store)
        promote(first)
        with streaming_standby(first, workspace, "second") as second:
            _insert_and_archive(first, store, 3)
            assert before < _fork(store, 2)
            _check_rows(primary, store, workspace, [1, 2, 3])
            _switch_over(first, store, 4)
            before = archive_end(store)
            promote(second)
            with streaming_standby(second, workspace, "third") as third:
                end = _insert_and_archive(second, store, 5)
                assert before == _fork(store, 3)
                _check_rows(primary, store, workspace, [1, 2, 3, 4, 5])
                _await_replay(third, end)
                _check_lost_branch(store, second, third, workspace)


def _insert_and_archive(server: Postgres, store: Store, n: int) -> Lsn:
    """Insert a row, archive it, and return the end of the WAL."""
    with server.connect() as connection, ArchiveThread(configured(server, synchronous=True), store) as thread:
        connection.execute("INSERT INTO t VALUES (%s)", [n])
        end = current_lsn(connection)
        thread.wait_for(end)
    return end


def _switch_over(server: Postgres, store: Store, n: int) -> None:
    """Stop the server in order, so that its standby and the archive get all of its WAL."""
    with ArchiveThread(configured(server, synchronous=True), store) as archive:
        with server.connect() as connection:
            connection.execute("INSERT INTO t VALUES (%s)", [n])
            archive.wait_for(current_lsn(connection))
        server.stop()


def _fork(store: Store, timeline: int) -> Lsn:
    found = WalArchive.require(store).history(timeline).switch_point(timeline - 1)
    assert found is not None
    return found


def _check_rows(server: Postgres, store: Store, workspace: Path, rows: list[int], timeline: int | None = None) -> None:
    directory = new_directory(workspace, f"copy{len(list(workspace.iterdir()))}")
    with restored(server, store, RecoveryTarget("latest"), directory, timeline=timeline) as copy:
        assert [n for (n,) in copy.rows(_ROWS)] == rows


def _check_lost_branch(store: Store, primary: Postgres, standby: Postgres, workspace: Path) -> None:
    _disconnect(standby)
    _insert_and_archive(primary, store, 6)
    primary.stop("immediate")
    before = archive_end(store)
    promote(standby)
    with standby.connect() as promoted:
        promoted.execute("INSERT INTO t VALUES (7)")
        end = current_lsn(promoted)
    with ArchiveThread(configured(standby, synchronous=True), store) as thread:
        error = thread.failure()
    assert isinstance(error, WrongSource)
    assert str(error).startswith("timeline 4 branched off timeline 3 at ")
    assert "--accept-fork" in error.hint
    with ArchiveThread(configured(standby, synchronous=True), store, accept_fork=True) as thread:
        thread.wait_for(end)
    assert _fork(store, 4) < before
    _check_rows(standby, store, workspace, [1, 2, 3, 4, 5, 6], timeline=3)
    _check_rows(standby, store, workspace, [1, 2, 3, 4, 5, 7], timeline=4)
    _check_missing_objects(store, standby.bin("postgres").parent)


def _check_missing_objects(store: Store, programs: Path) -> None:
    """What is lost from the store is not taken for the end of the WAL, nor a branch for the whole archive."""
    history = store.get(history_key(4))
    assert history is not None
    store.delete(history_key(4))
    with pytest.raises(CorruptError, match=r"00000004\.history is missing"):
        plan_restore(store, RecoveryTarget("latest"), programs)
    store.create(history_key(4), history)
    last = WalArchive.require(store).last
    assert last is not None
    parts = [info.key for info in store.list(last.segment.parts_prefix)]
    for key in parts:
        store.delete(key)
    with pytest.raises(CorruptError, match=r"had WAL of timeline 4 up to .*, and has none of it"):
        plan_restore(store, RecoveryTarget("latest"), programs)
    assert plan_restore(store, RecoveryTarget("latest"), programs, timeline=3)


def test_slot_from_before_a_promotion_is_read_from_its_beginning(workspace: Path, file_address: StoreAddress) -> None:
    store = Store.open(*file_address)
    with running(18) as primary, streaming_standby(primary, workspace, "standby") as standby:
        with standby.connect() as connection:
            connection.execute("SELECT pg_create_physical_replication_slot('tailrace_archive', true)")
        with primary.connect() as connection:
            for _ in range(2):
                connection.execute("SELECT pg_switch_wal(), pg_logical_emit_message(false, 'x', 'y')")
            _await_replay(standby, current_lsn(connection))
        primary.stop("immediate")
        promote(standby)
        archive_all(standby, store)
    first, second = WalArchive.require(store).ranges()
    assert (first.timeline, second.timeline) == (1, 2)
    assert first.end == _fork(store, 2)


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
