"""Tables that are added to and removed from the publication while capture runs each get a snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests import oracle
from tests.capturing import CaptureThread, current_lsn
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress

from tailrace import settings
from tailrace.capture.postgres.bootstrap import Bootstrap, TablesToCopy
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.change import Lsn
from tailrace.embedded.process import wait_until
from tailrace.errors import SourceRefused
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader
from tailrace.store import Store


def test_tables_to_copy() -> None:
    tables = TablesToCopy()
    assert tables.update({1, 2, 3}, Lsn(10)) == {1, 2, 3}
    tables.mark_copied({1, 2})
    tables.postpone({3}, until=100.0)
    assert tables.update({1, 2, 3, 4}, Lsn(20)) == {3, 4}
    assert tables.due_tables({3, 4}, now=50.0) == {4}
    assert tables.due_tables({3, 4}, now=100.0) == {3, 4}
    assert tables.update({2, 4}, Lsn(30)) == {4}
    assert not tables.has_postponed, "a dropped table is not an error"
    assert tables.update({1, 2, 4}, Lsn(40)) == {1, 4}
    assert tables.oldest_valid_lsn(1, Lsn(5)) == 30, "snapshots from before it left the publication do not count"
    assert tables.oldest_valid_lsn(2, Lsn(5)) == 5


@contextmanager
def capturing(given: settings.Settings) -> Iterator[tuple[CaptureThread, Bootstrap]]:
    store = Store.open(given.store.url, given.store.options)
    bootstrap = Bootstrap(given, store, poll_seconds=0.05)
    try:
        with CaptureThread(given, store, snapshots=bootstrap) as capture:
            assert bootstrap.wait(60)
            yield capture, bootstrap
    finally:
        bootstrap.stop()


def make_settings(database: Database, address: StoreAddress, url: str | None = None) -> settings.Settings:
    return settings.Settings(
        source=settings.SourceSettings(url=url or database.url),
        store=settings.StoreSettings(*address),
        capture=settings.CaptureSettings(seal_after_ms=5),
    )


def assert_is_in_the_log(database: Database, address: StoreAddress, table: str) -> None:
    """The newest snapshot and the changes since equal the table, row by row."""
    snapshot = SnapshotReader(*address).newest("public", table)
    assert snapshot is not None
    rows = Counter(oracle.typed_rows(snapshot.chunks()))
    for change in LogReader(*address).changes():
        if change.table == table and change.position.commit_lsn >= snapshot.lsn:
            assert change.relation is not None
            assert change.new is not None
            rows[oracle.to_typed(change.relation, change.new)] += 1
    with database.connect() as connection:
        there = oracle.rows(connection, "public", table)
    assert rows == Counter(oracle.to_typed(snapshot.relation, row) for row in there.elements())


def test_a_table_is_added_while_transactions_are_open(any_database: Database, file_address: StoreAddress) -> None:
    database = any_database
    database.execute("""
        CREATE TABLE first (id int PRIMARY KEY); CREATE TABLE late (id int PRIMARY KEY, v text);
        INSERT INTO late SELECT i, 'before' FROM generate_series(1, 100) i;
        CREATE PUBLICATION tailrace FOR TABLE first;
    """)
    snapshots = SnapshotReader(*file_address)
    with capturing(make_settings(database, file_address)) as (capture, bootstrap), database.connect() as connection:
        with database.connect(autocommit=False) as writer:
            writer.execute("INSERT INTO late VALUES (101, 'older than the publication knows the table')")
            connection.execute("ALTER PUBLICATION tailrace ADD TABLE late")
            assert wait_until(lambda: bootstrap.is_running, 30), "the new table is detected"
            writer.execute("INSERT INTO late VALUES (102, 'the same')")
        connection.execute("INSERT INTO late VALUES (103, 'while it is copied, or after')")
        assert wait_until(lambda: snapshots.newest("public", "late") is not None, 60)
        connection.execute("INSERT INTO late VALUES (104, 'after')")
        capture.wait_for(current_lsn(connection))
        assert bootstrap.wait(30)
        assert bootstrap.error is None
    assert_is_in_the_log(database, file_address, "late")
    assert len(snapshots.list()) == 2, "each table once"


def test_tables_are_added_and_removed(database: Database, file_address: StoreAddress) -> None:
    """An unreadable table does not delay others; a table that was removed for a while is copied again."""
    role = f"reader_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION; CREATE PUBLICATION tailrace FOR ALL TABLES")
    given = make_settings(database, file_address, database.server.url_of(database.name, role))
    snapshots = SnapshotReader(*file_address)
    try:
        with capturing(given) as (capture, bootstrap), database.connect() as connection:
            connection.execute("CREATE TABLE closed (id int PRIMARY KEY); INSERT INTO closed VALUES (1)")
            assert wait_until(lambda: bootstrap.error is not None, 60)
            assert isinstance(bootstrap.error, SourceRefused)
            assert "public.closed" in str(bootstrap.error)
            connection.execute(f"CREATE TABLE shown (id int); GRANT SELECT ON shown TO {role}".encode())
            connection.execute("INSERT INTO shown VALUES (1)")
            assert wait_until(lambda: snapshots.newest("public", "shown") is not None, 60)
            assert bootstrap.error is not None, "still"

            connection.execute(f"GRANT SELECT ON closed TO {role}".encode())
            by_hand = SnapshotJob(given)  # as `tailrace snapshot` does it
            by_hand.start()
            assert by_hand.wait(60)
            assert wait_until(lambda: bootstrap.error is None, 30), "the privilege was granted"

            # A publication for all tables cannot exclude one, but its replacement can.
            taken = len(snapshots.list("public", "shown"))
            connection.execute("DROP PUBLICATION tailrace; CREATE PUBLICATION tailrace FOR TABLE closed")
            oid = connection.execute("SELECT 'shown'::regclass::oid").fetchone()
            assert oid is not None
            assert wait_until(lambda: oid[0] in bootstrap._tables._unpublished_at, 30)
            connection.execute("INSERT INTO shown VALUES (2)")  # not published
            connection.execute("ALTER PUBLICATION tailrace ADD TABLE shown")
            assert wait_until(lambda: len(snapshots.list("public", "shown")) > taken, 60)
            connection.execute("INSERT INTO shown VALUES (3); DROP TABLE closed")
            capture.wait_for(current_lsn(connection))
            assert bootstrap.wait(30)
            assert bootstrap.error is None
        assert_is_in_the_log(database, file_address, "shown")
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_tailraces_own_tables_are_not_copied(database: Database, file_address: StoreAddress) -> None:
    database.execute("""
        CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE own (id int PRIMARY KEY);
        COMMENT ON TABLE own IS 'Tailrace: a cursor'; CREATE PUBLICATION tailrace FOR ALL TABLES;
    """)
    snapshots = SnapshotReader(*file_address)
    with capturing(make_settings(database, file_address)) as (_, bootstrap), database.connect() as connection:
        connection.execute("CREATE TABLE late (id int PRIMARY KEY); COMMENT ON TABLE late IS 'Tailrace: one more'")
        connection.execute("CREATE TABLE last (id int PRIMARY KEY)")
        assert wait_until(lambda: snapshots.newest("public", "last") is not None, 60)
        assert bootstrap.wait(30)
        assert {s.relation.name for s in snapshots.list()} == {"t", "last"}


def test_capture_continues_when_polling_fails(database: Database, file_address: StoreAddress) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION tailrace FOR ALL TABLES")
    with capturing(make_settings(database, file_address)) as (capture, bootstrap), database.connect() as connection:
        ended = connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'tailrace'"
            " AND datname = current_database() AND backend_type = 'client backend' AND query LIKE '%array_agg(c.oid)%'"
        ).fetchall()
        assert ended == [(True,)]
        connection.execute("CREATE TABLE u (id int PRIMARY KEY)")
        assert wait_until(lambda: SnapshotReader(*file_address).newest("public", "u") is not None, 60)
        assert bootstrap.wait(30)
        assert bootstrap.error is None
        assert capture.capture.reconnections == 0


def test_a_missing_publication_ends_the_wait(database: Database, file_address: StoreAddress) -> None:
    """`--until-lsn` without any table ends, because there is nothing to copy."""
    database.execute("CREATE PUBLICATION tailrace")
    with capturing(make_settings(database, file_address)) as (_, bootstrap):
        assert not bootstrap.is_running
        assert SnapshotReader(*file_address).list() == []
