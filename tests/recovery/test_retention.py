"""Whatever retention removes, every moment of the window can be restored, and no chain is broken."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from tests.capturing import current_lsn
from tests.fixtures.postgres import running
from tests.fixtures.store import StoreAddress
from tests.recovery.scene import ArchiveThread, Rows, back_up, configured, new_directory, restored

from tailrace.change import Lsn
from tailrace.embedded.postgres import Postgres
from tailrace.errors import ConfigError
from tailrace.recovery import backup_reader, expiry
from tailrace.recovery.backup_record import BackupRecord, chain, list_backups
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.recovery.restore_plan import plan_restore
from tailrace.recovery.wal_archive import WalArchive
from tailrace.store import Store

_ROWS = "SELECT n, note FROM t ORDER BY n"
RESTORES = int(os.environ.get("RESTORES", "2"))


@dataclass(frozen=True)
class _Moment:
    at: datetime
    lsn: Lsn
    rows: Rows


def test_every_moment_of_the_window_restores(workspace: Path, file_address: StoreAddress) -> None:
    _retain(random.Random(1), 5, 1, workspace, Store.open(*file_address))


@pytest.mark.soak
def test_every_moment_of_a_longer_window_restores(workspace: Path, file_address: StoreAddress) -> None:
    _retain(random.Random(1), 10, RESTORES, workspace, Store.open(*file_address))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 8))
def test_every_moment_of_many_windows_restores(seed: int, workspace: Path, file_address: StoreAddress) -> None:
    _retain(random.Random(seed), 40, 25, workspace, Store.open(*file_address))


def _retain(rng: random.Random, steps: int, restores: int, workspace: Path, store: Store) -> None:
    """Take backups, change rows and expire, all at random, and restore moments of the window after each expiry."""
    moments: list[_Moment] = []
    removed = 0
    with running(18, summarize_wal=True, autovacuum=False) as server, server.connect() as connection:
        connection.execute("CREATE TABLE t (n int, note text)")
        with ArchiveThread(configured(server, synchronous=True), store) as archive:
            back_up(server, store)
            for number in range(steps):
                moments.append(_change(connection, number))
                _back_up(rng, server, store)
                archive.wait_for(current_lsn(connection))
                if number % 5 == 4:
                    removed += _expire(rng, moments, server, store)
                    for _ in range(restores * 5 // steps):
                        _restore(rng, moments, server, store, workspace)
    assert removed, "the test must remove something"


def _change(connection: psycopg.Connection[tuple[object, ...]], number: int) -> _Moment:
    connection.execute("INSERT INTO t SELECT %s, md5(g::text) FROM generate_series(1, 500) g", [number])
    connection.execute("DELETE FROM t WHERE n = %s", [number - 3])
    connection.execute("SELECT pg_switch_wal()")
    return _Moment(datetime.now(UTC), current_lsn(connection), connection.execute(_ROWS.encode()).fetchall())


def _back_up(rng: random.Random, server: Postgres, store: Store) -> None:
    choice = rng.choice(("none", "full", "incremental", "incremental"))
    if choice != "none":
        record = back_up(server, store, "full" if choice == "full" else "incremental")
        if rng.random() < 0.7:
            _verify(store, record)


def _verify(store: Store, record: BackupRecord) -> None:
    backup_reader.verify(store, record)
    record.mark_verified(store, datetime.now(UTC))


def _expire(rng: random.Random, moments: list[_Moment], server: Postgres, store: Store) -> int:
    """Expire all that is before a random moment. Return how many backups were removed."""
    begins = rng.choice(moments[len(moments) // 2 :]).at
    inside = [m for m in moments if m.at >= begins and _is_restorable(m, server, store)]
    now = datetime.now(UTC)
    plan = expiry.find_expired(store, WalArchive.require(store), now - begins, now)
    expiry.remove(store, plan)
    moments[:] = inside
    records = list_backups(store)
    for record in records:
        assert chain(record, records)[0].parent is None
    for moment in inside:
        assert _is_restorable(moment, server, store), f"{moment.lsn} was in the window, and can no longer be restored"
    return len(plan.backups)


def _is_restorable(moment: _Moment, server: Postgres, store: Store) -> bool:
    try:
        plan_restore(store, RecoveryTarget("lsn", lsn=moment.lsn), server.bin("postgres").parent)
    except ConfigError:
        return False
    return True


def _restore(rng: random.Random, moments: list[_Moment], server: Postgres, store: Store, workspace: Path) -> None:
    moment = rng.choice(moments)
    directory = new_directory(workspace, f"copy{len(list(workspace.iterdir()))}")
    with restored(server, store, RecoveryTarget("lsn", lsn=moment.lsn), directory) as copy:
        assert copy.rows(_ROWS) == moment.rows
