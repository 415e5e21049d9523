"""Snapshots of a real PostgreSQL: every row, every type, and only what is published."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from tests import oracle, values
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress

from tailrace import settings
from tailrace.capture.postgres import catalog
from tailrace.capture.postgres.snapshot_job import SnapshotJob, tables_without_snapshot
from tailrace.change import Relation
from tailrace.errors import ConfigError, SnapshotError, SourceRefused, TailraceError
from tailrace.log.snapshot import SnapshotReader, TableSnapshot, announcement
from tailrace.pgoutput import decoder, message
from tailrace.store import Store


def make_settings(database: Database, address: StoreAddress, **snapshot: Any) -> settings.Settings:
    return settings.Settings(
        source=settings.SourceSettings(url=database.url),
        store=settings.StoreSettings(url=address.url, options=address.options),
        snapshot=settings.SnapshotSettings(**snapshot),
    )


def take(database: Database, address: StoreAddress, **snapshot: Any) -> SnapshotJob:
    job = SnapshotJob(make_settings(database, address, **snapshot))
    job.start()
    assert job.wait(120)
    return job


def newest(address: StoreAddress, schema: str, table: str) -> TableSnapshot:
    found = SnapshotReader(*address).newest(schema, table)
    assert found is not None
    return found


def assert_is_the_table(database: Database, snapshot: TableSnapshot, heap: str | None = None, where: str = "") -> None:
    """Compare row by row with PostgreSQL's own text of the same columns."""
    relation = snapshot.relation
    names = [c.name for c in relation.columns]
    with database.connect() as connection:
        if where:
            connection.execute(f"CREATE TEMP VIEW chosen AS SELECT * FROM {heap} WHERE {where}".encode())
        schema = "pg_temp" if where else relation.schema
        rows = oracle.rows(connection, schema, "chosen" if where else relation.name, names)
    expected = Counter(oracle.to_typed(relation, row) for row in rows.elements())
    assert Counter(oracle.typed_rows(snapshot.chunks())) == expected
    assert snapshot.rows == expected.total()


def test_every_type_equals_the_streams(any_database: Database, request: pytest.FixtureRequest) -> None:
    """The same rows through COPY and through pgoutput have equal values."""
    kind = "s3" if any_database.server.version == 18 else "file"
    store_address: StoreAddress = request.getfixturevalue(f"{kind}_address")
    rng = random.Random(7)
    types = list(values.TYPES)
    with any_database.connect() as connection:
        connection.execute(values.DECLARATIONS)
        declared = ", ".join(f"c{i} {type_}" for i, type_ in enumerate(types))
        connection.execute(f"CREATE TABLE every (id int PRIMARY KEY, {declared})".encode())
        connection.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
        connection.execute("SELECT pg_create_logical_replication_slot('beside', 'pgoutput')")
        marks = ", ".join(f"%s::{type_}" for type_ in types)
        with connection.cursor() as cursor:
            rows = [(i, *(values.value(rng, type_) for type_ in types)) for i in range(200)]
            cursor.executemany(f"INSERT INTO every VALUES (%s, {marks})".encode(), rows)
        take(any_database, store_address, chunk_rows=90)
        snapshot = newest(store_address, "public", "every")
        relation, payloads = _read_stream(connection, "beside")
    assert snapshot.relation == relation
    assert sorted(chunk.rows for chunk in snapshot.manifest) == [20, 90, 90]
    assert_is_the_table(any_database, snapshot)

    streamed = decoder.decode(relation, payloads).new
    by_id = [("id", "ascending")]
    ours = pa.Table.from_batches(snapshot.chunks()).sort_by(by_id).combine_chunks()
    theirs = pa.Table.from_batches([streamed.batch.append_column("_special", streamed.special)]).sort_by(by_id)
    for name in ours.column_names:
        a, b = ours.column(name).combine_chunks(), theirs.column(name).combine_chunks()
        assert a.type == b.type
        if pa.types.is_floating(a.type):  # NaN is not equal to itself, but its bits are
            bits = pa.int32() if pa.types.is_float32(a.type) else pa.int64()
            a, b = a.view(bits), b.view(bits)
        assert a.equals(b), name


def _read_stream(connection: psycopg.Connection[Any], slot: str) -> tuple[Relation, pa.Array]:
    oracle.pin(connection)
    described, payloads = None, []
    for (payload,) in connection.execute(
        "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL, 'proto_version', '1',"
        " 'publication_names', 'tailrace')",
        [slot],
    ):
        match message.parse(payload):
            case message.RelationMessage() as found:
                described = catalog.relation(connection, found)
            case message.Insert():
                payloads.append(payload)
    assert described is not None
    return described, pa.array(payloads, pa.binary())


def test_only_published_rows_and_columns_are_copied(any_database: Database, file_address: StoreAddress) -> None:
    database = any_database
    database.execute("""
        CREATE TABLE plain (id int PRIMARY KEY, secret text, shown text);
        CREATE TABLE computed (a int PRIMARY KEY, b int GENERATED ALWAYS AS (a * 2) STORED, c text);
        CREATE TABLE bare ();
        CREATE TABLE empty (id int PRIMARY KEY, t text);
        CREATE TABLE unpublished (id int PRIMARY KEY);
        CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
        CREATE TABLE own (id int PRIMARY KEY); COMMENT ON TABLE own IS 'Tailrace: a cursor';
        CREATE TABLE parent (id int PRIMARY KEY);
        CREATE TABLE child () INHERITS (parent);
        CREATE TABLE altered (a int, gone text, id int PRIMARY KEY, b text);
        ALTER TABLE altered DROP gone, ADD late text DEFAULT 'früher';
        INSERT INTO plain SELECT i, 'hidden', repeat('é', i) FROM generate_series(1, 50) i;
        INSERT INTO computed (a, c) SELECT i, 'x' FROM generate_series(1, 5) i;
        INSERT INTO bare SELECT FROM generate_series(1, 4);
        INSERT INTO parent VALUES (1), (2);
        INSERT INTO child VALUES (3);
        INSERT INTO altered VALUES (1, 2, 'x'), (NULL, 3, NULL);
        CREATE PUBLICATION tailrace FOR TABLE plain (id, shown) WHERE (id % 2 = 0 AND shown <> '{}'),
            computed, bare, empty, ONLY parent, altered, own;
    """)
    job = take(database, file_address)
    reader = SnapshotReader(*file_address)
    assert {r.name for r in reader.tables()} == {"plain", "computed", "bare", "empty", "parent", "altered"}
    assert job.progress.tables_done == job.progress.tables == 6
    assert job.progress.rows == 25 + 5 + 4 + 2 + 2

    plain = newest(file_address, "public", "plain")
    assert [c.name for c in plain.relation.columns] == ["id", "shown"]
    assert_is_the_table(database, plain, "plain", "id % 2 = 0")
    computed = newest(file_address, "public", "computed")
    assert [c.name for c in computed.relation.columns] == ["a", "c"]
    assert computed.relation.generated == ("b",)
    for name in ("computed", "empty", "altered"):
        assert_is_the_table(database, newest(file_address, "public", name))
    assert newest(file_address, "public", "bare").rows == 4
    assert sum(len(b) for b in newest(file_address, "public", "bare").chunks()) == 4
    assert newest(file_address, "public", "empty").manifest == ()
    assert list(oracle.typed_rows(newest(file_address, "public", "parent").chunks())) == [(1,), (2,)]


@pytest.mark.parametrize("via_root", [True, False])
def test_partitions_as_the_publication_publishes_them(
    database: Database, file_address: StoreAddress, via_root: bool
) -> None:
    database.execute(f"""
        CREATE TABLE events (id int, kind text, body text, PRIMARY KEY (kind, id)) PARTITION BY LIST (kind);
        CREATE TABLE events_a PARTITION OF events FOR VALUES IN ('a');
        CREATE TABLE events_b (body text, dropped int, kind text NOT NULL, id int NOT NULL);
        ALTER TABLE events_b DROP dropped;
        ALTER TABLE events ATTACH PARTITION events_b FOR VALUES IN ('b');
        CREATE TABLE events_rest PARTITION OF events DEFAULT PARTITION BY HASH (id);
        CREATE TABLE events_rest0 PARTITION OF events_rest FOR VALUES WITH (MODULUS 2, REMAINDER 0);
        CREATE TABLE events_rest1 PARTITION OF events_rest FOR VALUES WITH (MODULUS 2, REMAINDER 1);
        CREATE TABLE hollow (id int PRIMARY KEY) PARTITION BY RANGE (id);
        INSERT INTO events SELECT i, chr(97 + i % 4), repeat(i::text, 5) FROM generate_series(1, 400) i;
        CREATE PUBLICATION tailrace FOR TABLE events, hollow WITH (publish_via_partition_root = {via_root});
    """)
    take(database, file_address)
    names = {relation.name for relation in SnapshotReader(*file_address).tables()}
    leaves = {"events_a", "events_b", "events_rest0", "events_rest1"}
    assert names == ({"events", "hollow"} if via_root else leaves)
    for name in names:
        assert_is_the_table(database, newest(file_address, "public", name))


def test_names_of_every_kind(database: Database, store_address: StoreAddress) -> None:
    names = [
        ("a.b", "c"),
        ("a", "b.c"),
        ('q"uo', "te'd"),
        ("..", "../x"),
        ("🐘" * 15, "é" * 31),
        ("x%2F", "\n\t {0} %s"),
    ]
    columns_ = ['"', "a.b", "%s", "{}", "é" * 31, "_special"]
    with database.connect() as connection:
        for number, (schema, name) in enumerate(names):
            table = sql.Identifier(schema, name)
            declared = sql.SQL(", ").join(sql.SQL("{} int").format(sql.Identifier(c)) for c in columns_)
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
            connection.execute(sql.SQL("CREATE TABLE {} ({})").format(table, declared))
            connection.execute(sql.SQL("INSERT INTO {} SELECT {}, 2, 3, 4, 5, 6").format(table, number))
        connection.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    take(database, store_address)
    for number, (schema, name) in enumerate(names):
        snapshot = newest(store_address, schema, name)
        assert list(oracle.typed_rows(snapshot.chunks())) == [(number, 2, 3, 4, 5, 6)]
        assert [c.name for c in snapshot.relation.columns] == columns_


def test_large_tables_are_split_over_workers(database: Database, file_address: StoreAddress) -> None:
    database.execute("""
        CREATE TABLE large (id int PRIMARY KEY, filler text);
        INSERT INTO large SELECT i, repeat('x', i % 300) FROM generate_series(1, 9000) i;
        DELETE FROM large WHERE id % 3 = 0;
        CREATE PUBLICATION tailrace FOR ALL TABLES;
    """)
    job = SnapshotJob(make_settings(database, file_address, workers=3, chunk_bytes=64 * 1024))
    job.start()
    assert len(job._workers) == 3
    assert job.wait(120)
    snapshot = newest(file_address, "public", "large")
    assert len(snapshot.manifest) > 9
    assert len({chunk.name for chunk in snapshot.manifest}) == len(snapshot.manifest)
    assert_is_the_table(database, snapshot)
    assert job.progress.estimated_rows == job.progress.rows == snapshot.rows
    assert job.progress.seconds_left is None


def test_later_changes_are_not_seen(database: Database, file_address: StoreAddress) -> None:
    """Rows that change after `start` returned are copied with their old values."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v int); CREATE PUBLICATION tailrace FOR ALL TABLES")
    database.execute("INSERT INTO t SELECT i, 0 FROM generate_series(1, 8000) i")
    job = SnapshotJob(make_settings(database, file_address, chunk_bytes=64 * 1024))
    job.start()
    database.execute("UPDATE t SET v = 1; INSERT INTO t VALUES (0, 1); DELETE FROM t WHERE id < 100")
    assert job.wait(120)
    rows = Counter(oracle.typed_rows(newest(file_address, "public", "t").chunks()))
    assert rows == Counter((i, 0) for i in range(1, 8001))


def test_missing_tables_and_repeated_snapshots(database: Database, file_address: StoreAddress) -> None:
    database.execute("""
        CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);
        CREATE PUBLICATION tailrace FOR ALL TABLES;
    """)
    store = Store.open(*file_address)
    with database.connect() as connection:
        tables = catalog.published_tables(connection, "tailrace")
        assert [t.name for t in tables_without_snapshot(store, tables)] == ["a", "b"]
        job = SnapshotJob(make_settings(database, file_address), tables[:1])
        job.start()
        assert job.wait(60)
        assert [t.name for t in tables_without_snapshot(store, tables)] == ["b"]
        assert [t.name for t in tables_without_snapshot(store, tables, since=type(job.lsn)(job.lsn + 1))] == ["a", "b"]
        # A re-created table is another table, even with the same name.
        connection.execute("DROP TABLE a; CREATE TABLE a (id int PRIMARY KEY)")
        assert [t.name for t in tables_without_snapshot(store, catalog.published_tables(connection, "tailrace"))] == [
            "a",
            "b",
        ]
    slots = database.rows("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
    assert slots == [(0,)]


def test_other_slots_receive_nothing_of_a_snapshot(database: Database, file_address: StoreAddress) -> None:
    """A consumer beside Tailrace must not meet messages that are not its own."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION tailrace FOR ALL TABLES")
    database.execute("SELECT pg_create_logical_replication_slot('beside', 'pgoutput')")
    job = take(database, file_address)
    received = database.rows(
        "SELECT data FROM pg_logical_slot_peek_binary_changes('beside', NULL, NULL, 'proto_version', '1',"
        " 'publication_names', 'tailrace', 'messages', 'true')"
    )
    assert received == []
    announced = json.loads(announcement(Store.open(*file_address)) or b"null")
    assert announced == {"id": job.finished[0].id, "oid": job.finished[0].relation.oid, "lsn": str(job.lsn)}


def test_a_least_privilege_role_suffices(database: Database, file_address: StoreAddress) -> None:
    role = f"reader_{database.name}"
    database.execute(f"""
        CREATE ROLE {role} LOGIN REPLICATION;
        CREATE TABLE open_ (id int PRIMARY KEY); CREATE TABLE closed (id int PRIMARY KEY);
        GRANT SELECT ON open_ TO {role};
        CREATE PUBLICATION tailrace FOR ALL TABLES;
        REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text, boolean) FROM PUBLIC;
    """)
    try:
        given = make_settings(database, file_address)
        source = settings.SourceSettings(url=database.server.url_of(database.name, role))
        job = SnapshotJob(settings.Settings(source, given.store, snapshot=given.snapshot))
        job.start()
        with pytest.raises(SourceRefused, match=r"public\.closed"):
            job.wait(60)
        assert list(job.failures) == ["public.closed"]
        assert [s.relation.name for s in SnapshotReader(*file_address).list()] == ["open_"]
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_table_altered_meanwhile_is_rejected(
    database: Database, file_address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Altered between snapshot and copy: with the new definition, its old rows would be wrong or missing."""
    changes = [
        "ALTER TABLE t0 ALTER v TYPE bigint",
        "TRUNCATE t1",
        "ALTER TABLE t2 RENAME TO u2",
        "DROP TABLE t3",
        "ALTER TABLE t4 RENAME v TO w",
        "ALTER TABLE t5 DROP v, ADD v int",
        "ALTER TABLE t6 RENAME TO u6; CREATE TABLE t6 (id int PRIMARY KEY, v int)",
    ]
    for number in range(len(changes)):
        database.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, v int); INSERT INTO t{number} VALUES (1, 1)")
    database.execute("CREATE TABLE other (id int PRIMARY KEY); CREATE PUBLICATION tailrace FOR ALL TABLES")
    job, go = _start_held(SnapshotJob(make_settings(database, file_address)), monkeypatch)
    for change in changes:
        database.execute(change)
    go.set()
    with pytest.raises(SnapshotError, match=r"7 tables could not be copied"):
        job.wait(60)
    assert set(job.failures) == {f"public.t{number}" for number in range(len(changes))}
    assert all(name in str(error) for name, error in job.failures.items())
    assert [s.relation.name for s in SnapshotReader(*file_address).list()] == ["other"]
    assert SnapshotReader(*file_address).orphans() == []


def _start_held(job: SnapshotJob, monkeypatch: pytest.MonkeyPatch) -> tuple[SnapshotJob, threading.Event]:
    """A started job whose workers hold the snapshot, but copy nothing before the event."""
    run, go = job._run, threading.Event()
    monkeypatch.setattr(job, "_run", lambda connection: (go.wait(), run(connection)))
    job.start()
    return job, go


def test_a_column_added_meanwhile_is_harmless(
    database: Database, file_address: StoreAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    job, go = _start_held(SnapshotJob(make_settings(database, file_address)), monkeypatch)
    database.execute("ALTER TABLE t ADD late int DEFAULT 3")
    go.set()
    assert job.wait(60)
    assert list(oracle.typed_rows(job.finished[0].chunks())) == [(1,)]


def test_waits_for_older_transactions_and_can_be_cancelled(database: Database, file_address: StoreAddress) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION tailrace FOR ALL TABLES")
    with database.connect() as busy:
        busy.execute("BEGIN")
        busy.execute("INSERT INTO t VALUES (1)")
        job = SnapshotJob(make_settings(database, file_address))
        failed: list[TailraceError] = []

        def start() -> None:
            try:
                job.start()
            except TailraceError as error:
                failed.append(error)

        thread = threading.Thread(target=start)
        thread.start()
        thread.join(1)
        assert thread.is_alive()
        job.cancel()
        thread.join(30)
        assert not thread.is_alive()
        busy.execute("ROLLBACK")
    assert [str(error) for error in failed] == ["the snapshot was cancelled"]


def test_a_store_in_memory_is_rejected(database: Database) -> None:
    with pytest.raises(ConfigError, match="memory"):
        SnapshotJob(make_settings(database, StoreAddress("memory://x", {})))
