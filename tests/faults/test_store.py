"""A store that fails, answers late or wrongly: no change is lost or duplicated, and the server never lacks a reply."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from tests.capturing import CaptureThread, Witness, changes_in_log, configured, current_lsn
from tests.fixtures.postgres import Database, drop_database, make_database, running

from tailrace.embedded.process import wait_until
from tailrace.errors import CorruptError, StoreError, StoreRefused
from tailrace.log import segment
from tailrace.log.verify import verify
from tailrace.store import FileStore, Store


class FaultyStore(FileStore):
    """A directory whose `create` first calls `fault`."""

    fault: Callable[[str, bytes], None] = staticmethod(lambda _key, _data: None)
    tries = 0

    def create(self, key: str, data: bytes) -> bool:
        self.tries += 1
        self.fault(key, data)
        return super().create(key, data)


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> FaultyStore:
    return FaultyStore(tmp_path_factory.mktemp("store"))


@pytest.fixture(autouse=True)
def table(database: Database) -> None:
    database.execute("CREATE TABLE t (id serial PRIMARY KEY, note text); CREATE PUBLICATION tailrace FOR TABLE t")


def test_a_failing_store_is_retried_until_it_answers(database: Database, store: FaultyStore) -> None:
    failures = iter([True, True, False, True])

    def fault(key: str, data: bytes) -> None:
        if next(failures, False):
            raise StoreError("unavailable", "")

    with database.connect(autocommit=True) as connection:
        witness = Witness(connection)
        with CaptureThread(configured(database), store) as run:
            store.fault = fault
            for _ in range(3):
                connection.execute("INSERT INTO t (note) VALUES ('a'), ('b')")
                run.wait_for(current_lsn(connection))
            assert run.capture.reconnections == 0
        assert changes_in_log(store) == witness.changes(current_lsn(connection))


def test_a_put_that_timed_out_after_storing_succeeds(database: Database, store: FaultyStore) -> None:
    stored: list[str] = []

    def fault(key: str, data: bytes) -> None:
        if key not in stored:
            stored.append(key)
            assert FileStore.create(store, key, data)
            raise StoreError("timed out", "")

    with database.connect(autocommit=True) as connection:
        witness = Witness(connection)
        with CaptureThread(configured(database), store) as run:
            store.fault = fault
            connection.execute("INSERT INTO t (note) VALUES ('a')")
            run.wait_for(current_lsn(connection))
        assert stored
        assert changes_in_log(store) == witness.changes(current_lsn(connection))
        assert not list(verify(store))


def test_capture_stops_even_if_the_store_is_unavailable(
    database: Database, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.capture.sealer._CLOSE_SECONDS", 0.3)

    def fault(key: str, data: bytes) -> None:
        raise StoreError("unavailable", "")

    run = CaptureThread(configured(database), store)
    with run:
        before = store.tries
        store.fault = fault
        database.execute("INSERT INTO t (note) VALUES ('a')")
        run.wait(lambda: store.tries > before)
        run.capture.stop()
        assert isinstance(run.failure(), StoreError)
    # Only what is in the log was acknowledged, so the next run receives the rest.
    store.fault = lambda _key, _data: None
    with CaptureThread(configured(database), store, until="current") as again:
        again.wait(lambda: not again.capture.is_streaming)
    assert [seen.payload[:1] for seen in changes_in_log(store)] == [b"I"]


def test_a_full_disk_stops_capture_and_loses_nothing(database: Database, store: FaultyStore) -> None:
    def fault(key: str, data: bytes) -> None:
        raise StoreRefused("disk full", "free some space")

    with database.connect(autocommit=True) as connection:
        witness = Witness(connection)
        with CaptureThread(configured(database), store) as run:
            store.fault = fault
            connection.execute("INSERT INTO t (note) VALUES ('a')")
            assert isinstance(run.failure(), StoreRefused)
        store.fault = lambda _key, _data: None
        up_to = current_lsn(connection)
        with CaptureThread(configured(database), store) as run:
            run.wait_for(up_to)
        assert changes_in_log(store) == witness.changes(up_to)


def test_a_truncated_segment_is_rejected_at_start(database: Database, store: FaultyStore) -> None:
    with database.connect(autocommit=True) as connection, CaptureThread(configured(database), store) as run:
        connection.execute("INSERT INTO t (note) VALUES ('a')")
        run.wait_for(current_lsn(connection))
    newest = max(info.key for info in store.list(segment.PREFIX))
    data = store.get(newest)
    assert data is not None
    (store.root / newest).write_bytes(data[: len(data) // 2])
    run = CaptureThread(configured(database), store)
    with pytest.raises(CorruptError) as raised:
        run.capture.run()
    assert newest in str(raised.value)
    assert "restore" in raised.value.hint


@pytest.fixture
def impatient() -> Iterator[Database]:
    """A server that disconnects clients that do not answer within a second."""
    with running(18, wal_sender_timeout="1s") as server:
        database = make_database(server)
        yield database
        drop_database(database)


def test_a_slow_store_never_delays_replies(impatient: Database, store: FaultyStore) -> None:
    impatient.execute("CREATE TABLE t (id serial PRIMARY KEY, note text); CREATE PUBLICATION tailrace FOR TABLE t")
    go_on = threading.Event()

    def fault(key: str, data: bytes) -> None:
        go_on.wait()

    with impatient.connect(autocommit=True) as connection:
        witness = Witness(connection)
        with CaptureThread(configured(impatient, segment_bytes=64 * 1024), store) as run:
            store.fault = fault
            connection.execute("INSERT INTO t (note) SELECT repeat('x', 100) FROM generate_series(1, 5000)")
            row = connection.execute("SELECT backend_start::text FROM pg_stat_replication").fetchone()
            # Four of the server's timeouts pass, by its own clock, while the store delays capture.
            connection.execute("SELECT pg_sleep(4)")
            assert connection.execute("SELECT backend_start::text FROM pg_stat_replication").fetchone() == row
            go_on.set()
            run.wait_for(current_lsn(connection))
            assert run.capture.reconnections == 0
        assert changes_in_log(store) == witness.changes(current_lsn(connection))


def test_memory_is_bounded_while_the_store_is_unavailable(database: Database, store: FaultyStore) -> None:
    go_on = threading.Event()

    def fault(key: str, data: bytes) -> None:
        go_on.wait()

    with CaptureThread(configured(database, segment_bytes=64 * 1024), store) as run:
        store.fault = fault
        database.execute("INSERT INTO t (note) SELECT repeat('x', 1000) FROM generate_series(1, 20000)")
        sealer = run.capture.sealer
        assert sealer is not None
        assert wait_until(lambda: sealer.is_full, 30)
        held = sealer._inbox_bytes
        assert held < 64 * 1024 + (2 << 20)  # the limit, and one receive beyond it
        go_on.set()
        with database.connect(autocommit=True) as connection:
            run.wait_for(current_lsn(connection))
    assert len(changes_in_log(store)) == 20000


def test_every_store_creates_once(store_address: tuple[str, dict[str, str]]) -> None:
    _check_creates_once(Store.open(*store_address))


def test_a_file_system_without_nameless_files_creates_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    _check_creates_once(Store.open(str(tmp_path)))


def test_a_directory_goes_with_its_last_file_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def create_and_delete(number: int) -> bool:
        own = Store.open(str(tmp_path))
        for turn in range(400):
            key = f"wal/1.d/{number}-{turn}"
            own.prepare("wal/1.d")
            if turn % 2:
                own.replace(key, b"part")
            elif not own.create(key, b"part"):
                return False
            if own.get(key) != b"part":
                return False
            own.delete(key)
        return True

    for _ in range(2):
        with ThreadPoolExecutor() as pool:
            assert all(pool.map(create_and_delete, range(3)))
        assert not list(tmp_path.iterdir())
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)


def test_a_new_directory_is_private_and_an_existing_one_stays_as_it_is(tmp_path: Path) -> None:
    Store.open(str(tmp_path / "above" / "store"))
    assert (tmp_path / "above" / "store").stat().st_mode & 0o777 == 0o700
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o755)
    Store.open(str(tmp_path / "shared"))
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("key", ["../x", "log/../../x", "/etc/x", ""])
def test_no_key_leads_out_of_a_directory(tmp_path: Path, key: str) -> None:
    opened = Store.open(str(tmp_path / "store"))
    (tmp_path / "x").write_bytes(b"secret")
    for act in (
        lambda: opened.create(key, b"planted"),
        lambda: opened.replace(key, b"planted"),
        lambda: opened.source(key),
        lambda: opened.get(key),
        lambda: opened.get_range(key, 0, 6),
        lambda: opened.delete(key),
    ):
        with suppress(StoreRefused, StoreError):
            assert act() is None, "an object that is not there"
    assert (tmp_path / "x").read_bytes() == b"secret"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store", "x"]


def _check_creates_once(opened: Store) -> None:
    assert opened.create("log/a b%2F.x", b"one")
    assert opened.create("log/a b%2F.x", b"one"), "the same bytes are a repeated PUT"
    assert not opened.create("log/a b%2F.x", b"other")
    assert opened.get("log/a b%2F.x") == b"one"
    assert [info.key for info in opened.list("log")] == ["log/a b%2F.x"]
    opened.create("log/deep/er/x", b"x")
    opened.create("log/deeper/x", b"x")
    assert list(opened.directories("log")) == ["deep", "deeper"]
    assert list(opened.directories("absent")) == []
    for key in ("log/deep/er/x", "log/deeper/x"):
        opened.delete(key)
    assert opened.get("log/absent") is None
    assert opened.head("log/absent") is None
    opened.delete("log/a b%2F.x")
    assert list(opened.list("log")) == []
