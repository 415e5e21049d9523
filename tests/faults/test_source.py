"""A source that restarts, crashes, is disconnected, promoted or replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests import oracle
from tests.capturing import (
    CaptureThread,
    Witness,
    capture_to_end,
    changes_in_log,
    configured,
    current_lsn,
    environment,
    tailrace,
)
from tests.fixtures.network import proxy
from tests.fixtures.postgres import Database, drop_database, make_database, running
from tests.workload import Workload

from tailrace import settings
from tailrace.change import Lsn, Position
from tailrace.embedded.process import wait_until
from tailrace.errors import FencedError, GapError, SlotLost, SourceRefused, WrongSource
from tailrace.log.reader import LogReader
from tailrace.log.segment import SourceIdentity
from tailrace.log.verify import verify
from tailrace.log.writer import LogWriter
from tailrace.log_rows import LogRows
from tailrace.store import Store

TABLE = "CREATE TABLE t (id serial PRIMARY KEY, note text); CREATE PUBLICATION tailrace FOR TABLE t"


@pytest.fixture
def own() -> Iterator[Database]:
    """A database on a server that the test may crash."""
    with running(18, wal_sender_timeout="2s") as server:
        database = make_database(server)
        yield database
        drop_database(database)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "store"))


@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_the_server_restarts_under_load(mode: str, own: Database, store: Store) -> None:
    """Crash recovery may rewind the slot; repeated changes are dropped by position."""
    workload = Workload(lambda: own.connect(autocommit=True), seed=3, survive=True, rest_s=0.005)
    workload.create()
    own.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    with own.connect(autocommit=True) as connection:
        Witness(connection)
    with CaptureThread(configured(own), store) as run, workload:
        for _ in range(4):
            seen = run.capture.progress.changes
            run.wait(lambda seen=seen: run.capture.progress.changes > seen + 200)
            own.server.stop(mode)  # type: ignore[arg-type]
            own.server.start()
        seen = run.capture.progress.changes
        run.wait(lambda: run.capture.progress.changes > seen)
        workload.stop()
        with own.connect(autocommit=True) as connection:
            up_to = current_lsn(connection)
            run.wait_for(up_to)
            assert run.capture.reconnections >= 4
            assert changes_in_log(store) == Witness.existing(connection).changes(up_to)
            replica = oracle.replay(LogReader(store).changes())
            for table in workload.tables:
                assert replica.rows(table.schema, table.name) == oracle.rows(connection, table.schema, table.name)
    assert not list(verify(store))


def test_capture_does_not_delay_a_fast_shutdown(own: Database, store: Store) -> None:
    """At shutdown the server waits until everything it sent is confirmed, including WAL without captured changes."""
    own.execute(TABLE)
    with CaptureThread(configured(own), store) as run:
        own.execute("CREATE TABLE unpublished AS SELECT generate_series(1, 10000)")
        stopping = threading.Thread(target=own.server.stop, args=("fast",))
        stopping.start()
        stopping.join(20)
        assert not stopping.is_alive()
        own.server.start()
        own.execute("INSERT INTO t (note) VALUES ('after')")
        with own.connect() as connection:
            run.wait_for(current_lsn(connection))
    assert len(changes_in_log(store)) == 1


def test_capture_survives_a_network_outage(own: Database, store: Store) -> None:
    own.execute(TABLE)
    with proxy(own.server) as network, own.connect(autocommit=True) as connection:
        witness = Witness(connection)
        through = replace(configured(own), source=settings.SourceSettings(url=network.url(own.server, own.name)))
        with CaptureThread(through, store) as run:
            for number in range(3):
                connection.execute("INSERT INTO t (note) SELECT 'x' FROM generate_series(1, 500)")
                network.cut()
                # Not while it connects, which would be another failure.
                run.wait(lambda number=number: run.capture.reconnections > number and run.capture.is_streaming)
                run.wait_for(current_lsn(connection))
        assert changes_in_log(store) == witness.changes(current_lsn(connection))


def test_a_half_open_connection_is_detected(own: Database, store: Store) -> None:
    own.execute(TABLE)
    with proxy(own.server) as network, own.connect(autocommit=True) as connection:
        through = replace(
            configured(own, status_interval_s=0.2),
            source=settings.SourceSettings(url=network.url(own.server, own.name)),
        )
        with CaptureThread(through, store) as run:
            network.silence()
            connection.execute("INSERT INTO t (note) VALUES ('unheard')")
            run.wait_for(current_lsn(connection))
            assert run.capture.reconnections >= 1
    assert len(changes_in_log(store)) == 1


def test_the_second_capture_on_a_slot_is_fenced(own: Database, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the first one goes on while the second one starts."""
    own.execute(TABLE)
    with CaptureThread(configured(own), store) as first:
        open_writer = LogWriter.open

        def open_and_fall_behind(store: Store, source: SourceIdentity) -> LogWriter:
            writer = open_writer(store, source)
            own.execute("INSERT INTO t (note) VALUES ('meanwhile')")
            query = "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'tailrace'"
            assert wait_until(lambda: Lsn.parse(own.rows(query)[0][0]) > writer.end_lsn, 20)
            return writer

        second = CaptureThread(configured(own), store)
        monkeypatch.setattr(LogWriter, "open", open_and_fall_behind)
        with pytest.raises(FencedError, match="is active"):
            second.capture.run()
        own.execute("INSERT INTO t (note) VALUES ('a')")
        with own.connect() as connection:
            first.wait_for(current_lsn(connection))
        assert first.capture.reconnections == 0


def test_a_second_writer_of_a_log_is_fenced(database: Database, store: Store) -> None:
    database.execute(TABLE)
    with CaptureThread(configured(database), store) as run:
        database.execute("INSERT INTO t (note) VALUES ('a')")
        with database.connect() as connection:
            run.wait_for(current_lsn(connection))
        last = LogReader(store).last()
        header = last.metadata() if last else None
        assert header is not None
        LogWriter(store, header.source, header).append(LogRows.empty(), 0, Lsn(header.end_lsn + 1))
        database.execute("INSERT INTO t (note) VALUES ('b')")
        failure = run.failure()
        assert isinstance(failure, FencedError)
        assert "another capture" in failure.hint


def test_a_dropped_slot_stops_capture_until_the_gap_is_accepted(database: Database, store: Store) -> None:
    database.execute(TABLE)
    with database.connect(autocommit=True) as connection:
        with CaptureThread(configured(database), store) as run:
            connection.execute("INSERT INTO t (note) VALUES ('before')")
            run.wait_for(current_lsn(connection))
        connection.execute("SELECT pg_drop_replication_slot('tailrace')")
        connection.execute("INSERT INTO t (note) VALUES ('lost')")
        with pytest.raises(SlotLost) as raised:
            CaptureThread(configured(database), store).capture.run()
        assert "--accept-gap" in raised.value.hint
        with CaptureThread(configured(database), store, accept_gap=True) as run:
            connection.execute("INSERT INTO t (note) VALUES ('after')")
            run.wait_for(current_lsn(connection))
    # A reader that does not accept the gap stops at it.
    with pytest.raises(GapError):
        changes_in_log(store)
    assert [b"before" in s.payload for s in changes_in_log(store, across_gaps=True)] == [True, False]
    assert not list(verify(store))


def test_a_slot_advanced_by_another_client_is_a_gap(database: Database, store: Store) -> None:
    database.execute(TABLE)
    with database.connect(autocommit=True) as connection:
        with CaptureThread(configured(database), store) as run:
            connection.execute("INSERT INTO t (note) VALUES ('before')")
            run.wait_for(current_lsn(connection))
        connection.execute("INSERT INTO t (note) VALUES ('swallowed')")
        connection.execute("SELECT pg_replication_slot_advance('tailrace', pg_current_wal_lsn())")
        with pytest.raises(GapError) as raised:
            CaptureThread(configured(database), store).capture.run()
        assert "--accept-gap" in raised.value.hint


def test_a_recreated_slot_is_a_gap(database: Database, store: Store) -> None:
    database.execute(TABLE)
    with database.connect(autocommit=True) as connection:
        with CaptureThread(configured(database), store) as run:
            run.wait_for(current_lsn(connection))
        connection.execute("SELECT pg_drop_replication_slot('tailrace')")
        connection.execute("SELECT pg_create_logical_replication_slot('tailrace', 'pgoutput')")
        with pytest.raises(GapError):
            CaptureThread(configured(database), store).capture.run()


def test_a_slot_without_its_wal_stops_capture(store: Store) -> None:
    with running(18, max_slot_wal_keep_size="1MB", min_wal_size="32MB", max_wal_size="32MB") as server:
        database = make_database(server)
        database.execute(TABLE)
        with database.connect(autocommit=True) as connection:
            with CaptureThread(configured(database), store) as run:
                connection.execute("INSERT INTO t (note) VALUES ('a')")
                run.wait_for(current_lsn(connection))
            for _ in range(4):
                connection.execute("SELECT pg_switch_wal()")
                connection.execute("INSERT INTO t (note) SELECT repeat('x', 1000) FROM generate_series(1, 2000)")
            connection.execute("CHECKPOINT")
        with pytest.raises(SlotLost) as raised:
            CaptureThread(configured(database), store).capture.run()
        assert "max_slot_wal_keep_size" in raised.value.hint
        drop_database(database)


def test_another_system_is_rejected(own: Database, database: Database, store: Store) -> None:
    for each in (database, own):
        each.execute(TABLE)
    with CaptureThread(configured(database), store) as run, database.connect() as connection:
        run.wait_for(current_lsn(connection))
    with pytest.raises(WrongSource, match="system id"):
        CaptureThread(configured(own), store).capture.run()


def test_another_slot_for_the_same_log_is_rejected(database: Database, store: Store) -> None:
    database.execute(TABLE)
    with CaptureThread(configured(database), store) as run, database.connect() as connection:
        run.wait_for(current_lsn(connection))
    other = replace(configured(database), source=settings.SourceSettings(url=database.url, slot="other"))
    with pytest.raises(WrongSource, match="slot"):
        CaptureThread(other, store).capture.run()


def _promote(server_database: Database) -> None:
    """The same data on a new timeline, as after a failover."""
    server = server_database.server
    server.stop("fast")
    signal_file = server.data / "standby.signal"
    signal_file.touch()
    owner = server.data.stat()
    os.chown(signal_file, owner.st_uid, owner.st_gid)
    server.start()
    with server.connect(autocommit=True) as connection:
        connection.execute("SELECT pg_promote()")


def test_a_promoted_source_is_followed(own: Database, store: Store) -> None:
    own.execute(TABLE)
    with CaptureThread(configured(own), store) as run:
        own.execute("INSERT INTO t (note) VALUES ('timeline 1')")
        with own.connect() as connection:
            run.wait_for(current_lsn(connection))
    _promote(own)
    with CaptureThread(configured(own), store) as run:
        own.execute("INSERT INTO t (note) VALUES ('timeline 2')")
        with own.connect() as connection:
            run.wait_for(current_lsn(connection))
    assert [b"timeline 2" in s.payload for s in changes_in_log(store)] == [False, True]
    last = LogReader(store).last()
    header = last.metadata() if last else None
    assert header is not None
    assert header.source.timeline == 2


def test_a_fork_that_lacks_changes_of_the_log_is_rejected(own: Database, store: Store) -> None:
    own.execute(TABLE)
    with CaptureThread(configured(own), store) as run, own.connect() as connection:
        run.wait_for(current_lsn(connection))
    last = LogReader(store).last()
    header = last.metadata() if last else None
    assert header is not None
    # Changes that the old primary wrote after the new one branched off.
    LogWriter(store, header.source, header).append(LogRows.empty(), 0, Lsn(header.end_lsn + (1 << 30)))
    _promote(own)
    with pytest.raises(WrongSource, match="timeline"):
        CaptureThread(configured(own), store).capture.run()


def test_unpublished_traffic_does_not_retain_wal(
    database: Database, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.capture.sealer._IDLE_SECONDS", 0.1)
    database.execute(TABLE + "; CREATE TABLE unpublished (n int)")
    with database.connect(autocommit=True) as connection, CaptureThread(configured(database), store) as run:
        for _ in range(3):
            connection.execute("INSERT INTO unpublished SELECT generate_series(1, 1000)")
            lsn = current_lsn(connection)

            def confirmed(lsn: Lsn = lsn) -> bool:
                query = (
                    "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = 'tailrace'"
                )
                return connection.execute(query, (str(lsn),)).fetchone() == (True,)

            run.wait(confirmed)
    assert changes_in_log(store) == []
    # The log ends where the slot was acknowledged, so a restart sees no gap.
    with CaptureThread(configured(database), store) as run:
        assert run.capture.durable_lsn >= lsn


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_seal_acknowledge_and_exit_0(number: signal.Signals, database: Database, store: Store) -> None:
    database.execute(TABLE)
    env = environment(database, store.url)
    env |= {"TAILRACE_CAPTURE_SEAL_AFTER_MS": "60000", "TAILRACE_CAPTURE_STATUS_INTERVAL_S": "0.1"}
    process = subprocess.Popen(tailrace("capture"), env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with database.connect(autocommit=True) as connection:
        active = "SELECT active FROM pg_replication_slots WHERE slot_name = 'tailrace'"
        assert wait_until(lambda: connection.execute(active).fetchone() == (True,), 30)
        connection.execute("INSERT INTO t (note) VALUES ('sealed at once')")
        connection.execute("INSERT INTO t (note) VALUES ('sealed at the end')")
        lsn = current_lsn(connection)
        received = (
            "SELECT bool_or(write_lsn >= %s::pg_lsn) FROM pg_stat_replication WHERE application_name = 'tailrace'"
        )
        assert wait_until(lambda: connection.execute(received, (str(lsn),)).fetchone() == (True,), 30)
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
        confirmed = "SELECT confirmed_flush_lsn::text, active FROM pg_replication_slots WHERE slot_name = 'tailrace'"
        row = connection.execute(confirmed).fetchone()
    assert row is not None
    assert len(changes_in_log(store)) == 2
    assert LogReader(store).end_lsn() == Lsn.parse(row[0])
    assert not row[1]
    assert "captured 2 changes in 2 transactions" in out


def test_a_first_start_that_waits_for_a_transaction_can_be_stopped(own: Database, store: Store) -> None:
    """PostgreSQL creates a slot only once older transactions have ended, which may take hours."""
    own.execute(TABLE)
    env = environment(own, store.url)
    with own.connect() as open_transaction, own.connect(autocommit=True) as connection:
        open_transaction.execute("BEGIN")
        open_transaction.execute("INSERT INTO t (note) VALUES ('open')")
        process = subprocess.Popen(tailrace("capture"), env=env, stderr=subprocess.PIPE, text=True)
        waiting = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
        try:
            assert wait_until(lambda: connection.execute(waiting).fetchone() == (True,), 30)
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
        assert process.returncode == 0, err
        open_transaction.execute("COMMIT")
    capture_to_end(env)
    own.execute("INSERT INTO t (note) VALUES ('after')")
    capture_to_end(env)
    assert [change.after for change in LogReader(store).changes()] == [{"id": 2, "note": "after"}]


def test_a_role_that_may_not_create_uses_existing_objects(database: Database, store: Store) -> None:
    """An administrator created slot and publication; the role has only REPLICATION and SELECT."""
    role = f"plain_{database.name}"
    database.execute(
        f"{TABLE}; CREATE ROLE {role} LOGIN REPLICATION; GRANT USAGE ON SCHEMA public TO {role};"
        f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"
    )
    database.execute("SELECT pg_create_logical_replication_slot('tailrace', 'pgoutput')")
    as_role = replace(
        configured(database), source=settings.SourceSettings(url=database.server.url_of(database.name, role))
    )
    with CaptureThread(as_role, store) as run:
        database.execute("INSERT INTO t (note) VALUES ('a')")
        with database.connect() as connection:
            run.wait_for(current_lsn(connection))
    assert len(changes_in_log(store)) == 1
    database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_missing_privilege_is_reported(database: Database, store: Store) -> None:
    role = f"none_{database.name}"
    database.execute(f"{TABLE}; CREATE ROLE {role} LOGIN")
    as_role = replace(
        configured(database), source=settings.SourceSettings(url=database.server.url_of(database.name, role))
    )
    with pytest.raises(SourceRefused) as raised:
        CaptureThread(as_role, store).capture.run()
    assert "tailrace check" in raised.value.hint
    database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_two_phase_commit_across_a_restart_is_captured_once(own: Database, store: Store) -> None:
    own.server.conf(max_prepared_transactions=5)
    own.server.restart()
    own.execute(TABLE)
    env = environment(own, store.url)
    capture_to_end(env)
    with own.connect(autocommit=True) as connection:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t (note) VALUES ('prepared')")
        connection.execute("PREPARE TRANSACTION 'p'")
    capture_to_end(env)
    assert changes_in_log(store) == []
    own.server.restart()
    own.execute("COMMIT PREPARED 'p'")
    capture_to_end(env)
    capture_to_end(env)
    changes = list(LogReader(store).changes())
    assert [c.after for c in changes] == [{"id": 1, "note": "prepared"}]
    assert changes[0].position > Position(Lsn(0), 0)
