"""The maintenance thread merges and removes segments, and its failures do not stop capture."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest
from tests.capturing import CaptureThread, changes_in_log, configured, current_lsn
from tests.fixtures.postgres import Database

from tailrace.errors import StoreError
from tailrace.log import maintenance
from tailrace.log.maintenance import LogMaintenance
from tailrace.log.verify import verify
from tailrace.settings import RetentionSettings
from tailrace.store import FileStore, Store


def test_maintenance_while_capture_runs(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_EVERY_SECONDS", 0.05)
    database.execute("CREATE TABLE t (id serial PRIMARY KEY); CREATE PUBLICATION tailrace FOR TABLE t")
    store = Store.open(str(tmp_path))
    with (
        CaptureThread(configured(database), store) as run,
        LogMaintenance(store, RetentionSettings(), older_than=timedelta(0)),
        database.connect(autocommit=True) as connection,
    ):
        for _ in range(40):
            connection.execute("INSERT INTO t DEFAULT VALUES")
            run.wait_for(current_lsn(connection))
        run.wait(lambda: any("-" in info.key for info in store.list("log")))
    assert [s.ordinal for s in changes_in_log(store)] == [0] * 40
    assert len({s.payload for s in changes_in_log(store)}) == 40
    assert not list(verify(store))


def test_failures_are_logged_and_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance, "_EVERY_SECONDS", 0.01)
    tried = threading.Semaphore(0)

    class Away(FileStore):
        def list(self, prefix: str, after: str | None = None) -> object:  # type: ignore[override]
            tried.release()
            raise StoreError("away", "")

    with LogMaintenance(Away(tmp_path), RetentionSettings()):
        for _ in range(3):
            assert tried.acquire(timeout=10)
    assert "maintenance of the log failed: away" in caplog.text
