"""Snapshots on request, and the example consumer that uses them."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import random
import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgpack
import nats
import pytest
import zstandard
from nats.aio.client import Client
from psycopg.conninfo import make_conninfo
from pyspark.sql import SparkSession
from tests.capturing import current_lsn
from tests.fixtures.postgres import Database
from tests.sinks.nats_bus import Bus

from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.change import Lsn
from tailrace.embedded.nats import NatsServer
from tailrace.embedded.process import wait_until
from tailrace.log import published_table
from tailrace.log.snapshot import SnapshotReader
from tailrace.log.snapshot_request import pending_requests
from tailrace.sinks.nats import snapshot_responder, snapshot_task
from tailrace.spark.executor import SparkExecutor

_EXAMPLE = Path(__file__).parents[2] / "examples" / "nats_to_sqlite.py"


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server per test, since streams and bucket have their default names."""
    with NatsServer() as one:
        yield one


async def _request(client: Client, table: str) -> bytes:
    """Request a snapshot; a fresh one for `orders!`."""
    answer = await client.request(f"snapshot.request.{table.rstrip('!')}", b"fresh" * table.endswith("!"), timeout=30)
    return answer.data


def _chunks(server: NatsServer, subject: str, count: int) -> list[tuple[str, bytes]]:
    async def read() -> list[tuple[str, bytes]]:
        client = await nats.connect(server.url)
        try:
            subscription = await client.jetstream(timeout=30).subscribe(subject, ordered_consumer=True)
            found = [await subscription.next_msg(timeout=30) for _ in range(count)]
            await subscription.unsubscribe()
            return [(message.subject, message.data) for message in found]
        finally:
            await client.close()

    return asyncio.run(read())


def _request_all(server: NatsServer, *tables: str) -> list[bytes]:
    """Request snapshots of several tables at once and return the answers."""

    async def request() -> list[bytes]:
        client = await nats.connect(server.url)
        try:
            return list(await asyncio.gather(*(_request(client, table) for table in tables)))
        finally:
            await client.close()

    return asyncio.run(request())


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_rows_in_chunks_and_then_the_metadata(
    database: Database, server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    monkeypatch.setattr(snapshot_task, "CHUNK_ROWS", 4)
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric, at timestamptz, tags text[], d jsonb)")
    database.execute(
        "INSERT INTO orders SELECT g, g * 1.10, '2026-01-31 12:00:00.5+00', '{a,b}', '{\"n\": 1}'"
        " FROM generate_series(1, 10) g"
    )
    bus = Bus(database, server, tmp_path, encoding=encoding)
    decoded = msgpack.unpackb if encoding == "msgpack" else json.loads
    with bus.running():
        database.execute("UPDATE orders SET total = NULL WHERE id = 3")
        database.execute("DELETE FROM orders WHERE id = 10")
        bus.reach()
        first, second, unknown = _request_all(server, "orders", "orders", "nothing")
        assert first == second, "simultaneous requests share one snapshot"
        meta = decoded(first)
        assert meta.keys() == {"snapshot_id", "lsn", "timestamp", "batch_count", "row_count", "table"}
        assert (meta["table"], meta["batch_count"], meta["row_count"]) == ("orders", 3, 9)
        assert meta["snapshot_id"] == f"snap-{meta['timestamp']}"
        assert decoded(unknown)["error"] == "there is no table nothing"
        chunks = _chunks(server, f"init.snap.orders.{meta['snapshot_id']}.*", 3)
        assert [subject.rpartition(".")[2] for subject, _ in chunks] == ["0", "1", "2"]
        published = [decoded(data) for _, data in chunks]
        assert all(chunk.keys() == {"table", "operation", "snapshot_id", "chunk", "lsn", "data"} for chunk in published)
        assert {(c["table"], c["operation"], c["snapshot_id"], c["lsn"]) for c in published} == {
            ("orders", "snapshot", meta["snapshot_id"], meta["lsn"])
        }
        rows = sorted((row for chunk in published for row in chunk["data"]), key=lambda row: row["id"])
        assert rows == [
            {
                "id": n,
                "total": None if n == 3 else f"{n * 1.10:.2f}",
                "at": "2026-01-31T12:00:00.5Z",
                "tags": "{a,b}",
                "d": {"n": 1},
            }
            for n in range(1, 10)
        ]
        ((_, last),) = _chunks(server, "init.meta.orders", 1)
        assert last == first


def test_a_fresh_snapshot_from_the_source(database: Database, server: NatsServer, tmp_path: Path) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    database.execute("INSERT INTO orders SELECT generate_series(1, 10)")
    bus = Bus(database, server, tmp_path)
    with bus.running():
        bus.reach()
        snapshots = SnapshotReader(bus.store)
        (before,) = snapshots.list("public", "orders")
        database.execute("DELETE FROM orders WHERE id > 7")
        with database.connect() as connection:
            lsn = current_lsn(connection)
        first, second = (msgpack.unpackb(answer) for answer in _request_all(server, "orders!", "orders!"))
        assert first == second, "simultaneous requests share one snapshot"
        assert first["row_count"] == 7
        assert Lsn.parse(first["lsn"]) >= lsn
        ((_, chunk),) = _chunks(server, f"init.snap.orders.{first['snapshot_id']}.*", 1)
        assert sorted(row["id"] for row in msgpack.unpackb(chunk)["data"]) == list(range(1, 8))
        old, fresh = snapshots.list("public", "orders")
        assert old == before
        assert fresh.lsn >= lsn, "taken after the request"
        _request_all(server, "orders")
        assert len(snapshots.list("public", "orders")) == 2, "without `fresh` the source is not involved"
        assert not list(bus.store.list("requests"))


@pytest.mark.parametrize("zstd", [False, True])
def test_executors_publish_a_large_table(
    database: Database,
    server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark: SparkSession,
    zstd: bool,
) -> None:
    """Every row is published once, and chunk numbers have no gaps although the parts differ in length."""
    monkeypatch.setattr(snapshot_task, "_SMALL_BYTES", 0)
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    database.execute("INSERT INTO items SELECT g, 'item ' || g % 100 FROM generate_series(1, 40000) g")
    bus = Bus(database, server, tmp_path, chunk_bytes=256 * 1024, zstd=zstd)
    bus.executor, bus.parallelism = SparkExecutor(spark.sparkContext, "bus"), 2
    with bus.running():
        snapshot = SnapshotReader(bus.store).newest("public", "items")
        assert snapshot is not None
        assert len(snapshot.manifest) > 2
        database.execute("UPDATE items SET name = 'changed' WHERE id % 1000 = 0; DELETE FROM items WHERE id > 39990")
        database.execute("INSERT INTO items SELECT g, 'new' FROM generate_series(50001, 50010) g")
        bus.reach()
        meta = msgpack.unpackb(_request_all(server, "items")[0])
        chunks = _chunks(server, f"init.snap.items.{meta['snapshot_id']}.*", meta["batch_count"])
        dictionary = _chunks(server, f"init.dict.items.{meta['snapshot_id']}", 1)[0][1] if zstd else b""
    reader = zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(dictionary))
    published = [msgpack.unpackb(reader.decompress(data) if zstd else data) for _, data in chunks]
    assert sorted(chunk["chunk"] for chunk in published) == list(range(meta["batch_count"]))
    assert all(subject.endswith(f".{chunk['chunk']}") for (subject, _), chunk in zip(chunks, published, strict=True))
    rows = Counter((row["id"], row["name"]) for chunk in published for row in chunk["data"])
    with database.connect() as connection:
        assert rows == Counter(connection.execute("SELECT id, name FROM items").fetchall())
    assert meta["row_count"] == 40_000


def test_a_request_waits_for_the_first_snapshot_of_a_table(
    database: Database, server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_responder, "_CAPTURE_TIMEOUT", timedelta(seconds=0.5))
    monkeypatch.setattr(snapshot_responder, "_CAPTURE_POLL_S", 0.1)
    database.execute("CREATE TABLE small (id int PRIMARY KEY); INSERT INTO small VALUES (1)")
    database.execute("CREATE TABLE slow (id int PRIMARY KEY, note text); INSERT INTO slow VALUES (1, 'x'), (2, 'y')")
    is_ready, finish = threading.Event(), SnapshotJob._finish

    def finished(self: SnapshotJob, table: Any) -> None:
        assert table.plan.relation.name != "slow" or is_ready.wait(60)
        finish(self, table)

    monkeypatch.setattr(SnapshotJob, "_finish", finished)
    bus = Bus(database, server, tmp_path)
    bus.waits_for_snapshots = False
    with bus.running(), ThreadPoolExecutor() as pool:
        try:
            assert wait_until(lambda: SnapshotReader(bus.store).newest("public", "small") is not None, 60)
            bus.reach()
            answer = pool.submit(_request_all, server, "slow")
            assert wait_until(lambda: any(request.is_seen for request in pending_requests(bus.store)), 30)
            # Other requests are answered meanwhile, and the table is already described.
            assert msgpack.unpackb(_request_all(server, "small")[0])["row_count"] == 1
            described = msgpack.unpackb(_chunks(server, "$KV.schemas.slow", 1)[0][1])
            assert [column["name"] for column in described["columns"]] == ["id", "note"]
            assert not answer.done()
        finally:
            is_ready.set()
        assert msgpack.unpackb(answer.result(60)[0])["row_count"] == 2


def test_the_answer_says_why_there_is_no_snapshot(
    database: Database, server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_responder, "_CAPTURE_TIMEOUT", timedelta(seconds=0.5))
    database.execute("CREATE TABLE hidden (id int PRIMARY KEY); CREATE TABLE seen (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    database.execute("CREATE ROLE reader LOGIN REPLICATION PASSWORD 'reader'; GRANT SELECT ON seen TO reader")
    database.execute("GRANT EXECUTE ON FUNCTION pg_control_system TO reader")
    url = make_conninfo(database.url, user="reader", password="reader")
    bus = Bus(database, server, tmp_path, source=url)
    bus.waits_for_snapshots = False
    try:
        with bus.running():
            assert wait_until(lambda: SnapshotReader(bus.store).newest("public", "seen") is not None, 60)
            bus.reach()
            answer = msgpack.unpackb(_request_all(server, "hidden")[0])
            assert "permission denied for table hidden" in answer["error"]
            assert answer["hint"]
            bus.bootstrap.stop()  # capture no longer answers
            answer = msgpack.unpackb(_request_all(server, "seen!")[0])
            assert answer["error"] == "capture does not answer the request for a snapshot"
    finally:
        database.execute("DROP OWNED BY reader; DROP ROLE reader")


def test_renamed_dropped_and_unpublished_tables(database: Database, server: NatsServer, tmp_path: Path) -> None:
    database.execute("CREATE TABLE old (id int PRIMARY KEY); CREATE TABLE gone (id int PRIMARY KEY)")
    database.execute("CREATE TABLE again (id int PRIMARY KEY, first text); INSERT INTO again VALUES (1, 'x')")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    bus = Bus(database, server, tmp_path)
    with bus.running():
        database.execute("ALTER TABLE old RENAME TO new; INSERT INTO new VALUES (1), (2); DROP TABLE gone")
        database.execute("DROP TABLE again; CREATE TABLE again (id int PRIMARY KEY, second text)")
        database.execute("INSERT INTO again VALUES (2, 'y')")
        bus.reach()
        oids = set(database.rows("SELECT oid FROM pg_class WHERE relname IN ('new', 'again')"))
        assert wait_until(lambda: {(r.oid,) for r in published_table.load(bus.store)} == oids, 30)
        new, old, gone, again = (
            msgpack.unpackb(answer) for answer in _request_all(server, "new", "old", "gone", "again!")
        )
        assert (new["table"], new["row_count"]) == ("new", 2)
        assert "public.old has no snapshot" in old["error"]
        assert gone["error"] == "public.gone is no longer published: it was dropped, or removed"
        ((_, chunk),) = _chunks(server, f"init.snap.again.{again['snapshot_id']}.*", 1)
        assert msgpack.unpackb(chunk)["data"] == [{"id": 2, "second": "y"}]


def test_truncate_of_tables_with_the_same_name(database: Database, server: NatsServer, tmp_path: Path) -> None:
    """One record truncates all of them, and their ids contain the same name: each is published once."""
    database.execute("CREATE SCHEMA a; CREATE TABLE a.t (id int PRIMARY KEY)")
    database.execute("CREATE SCHEMA b; CREATE TABLE b.t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    bus = Bus(database, server, tmp_path, schema_in_subject=True)
    with bus.running():
        database.execute("TRUNCATE a.t, u, b.t")
        bus.reach()
        published = [msgpack.unpackb(data) for _, data in _chunks(server, "cdc.*.*.truncate", 3)]
        first, second = (payload["msg_id"] for payload in published if payload["table"] == "t")
        assert sorted(payload["subject"] for payload in published) == [
            "cdc.a.t.truncate",
            "cdc.b.t.truncate",
            "cdc.public.u.truncate",
        ]
        assert re.fullmatch("[0-9a-f]+-t-truncate", first)
        assert re.fullmatch(f"{first}-[12]", second)


def test_chunks_do_not_exceed_the_maximum_payload(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)")
    database.execute("INSERT INTO notes SELECT g, repeat('x', 900) FROM generate_series(1, 50) g")
    database.execute("CREATE TABLE novels (id int PRIMARY KEY, body text)")
    database.execute("INSERT INTO novels VALUES (1, 'short'), (2, repeat('x', 9000))")
    with NatsServer(max_payload=8192) as server:
        bus = Bus(database, server, tmp_path)
        with bus.running():
            bus.reach()
            meta = msgpack.unpackb(_request_all(server, "notes")[0])
            assert meta["row_count"] == 50
            assert meta["batch_count"] > 5
            chunks = _chunks(server, f"init.snap.notes.{meta['snapshot_id']}.*", meta["batch_count"])
            error = msgpack.unpackb(_request_all(server, "novels")[0])["error"]
            assert re.fullmatch(
                "a row of novels makes a message of 9,[0-9]{3} bytes, and the server accepts 7,680", error
            )
    assert all(len(data) <= 8192 for _, data in chunks)
    assert sorted(row["id"] for _, data in chunks for row in msgpack.unpackb(data)["data"]) == list(range(1, 51))


def test_the_example_copies_the_source(database: Database, server: NatsServer, tmp_path: Path) -> None:
    """It starts while the source is changing: keys change, rows are inserted and deleted, a column with a default is
    added."""
    spec = importlib.util.spec_from_file_location("nats_to_sqlite", _EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    database.execute("CREATE TABLE accounts (id int PRIMARY KEY, owner text, large text)")
    database.execute("ALTER TABLE accounts ALTER large SET STORAGE EXTERNAL")
    database.execute("INSERT INTO accounts SELECT g, 'o' || g, repeat('y', 3000) FROM generate_series(1, 200) g")
    bus = Bus(database, server, tmp_path, zstd=True)
    path = tmp_path / "copy.db"
    with bus.running():
        bus.reach()
        ended = threading.Event()
        load = threading.Thread(target=_work, args=(database, ended))
        load.start()
        stop = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            try:
                assert wait_until(lambda: ended.is_set() or bus.cursor > 0, 30)
                consumer = pool.submit(
                    lambda: asyncio.run(example.follow(server.url, "accounts", ["id"], str(path), stop))
                )
                assert wait_until(lambda: ended.is_set() or consumer.done(), 120)
                wait_until(lambda: consumer.done() or _rows_in_sqlite(path) == _rows_at_source(database), 120)
            finally:
                stop.set()
                load.join()
        consumer.result()
        copied, source = _rows_in_sqlite(path), _rows_at_source(database)
        assert not list(copied - source)[:3]
        assert not list(source - copied)[:3]


def _work(database: Database, ended: threading.Event) -> None:
    rng = random.Random(5)
    with database.connect(autocommit=True) as connection:
        for number in range(600):
            if number == 300:
                connection.execute("ALTER TABLE accounts ADD COLUMN note text DEFAULT 'none'")
            id = rng.randint(1, 250)
            connection.execute(
                rng.choice(
                    [
                        "INSERT INTO accounts (id, owner) VALUES (%(n)s, 'new') ON CONFLICT DO NOTHING",
                        "UPDATE accounts SET owner = owner || '!' WHERE id = %(n)s",
                        "UPDATE accounts SET id = %(n)s + 1000 WHERE id = %(n)s"
                        " AND NOT EXISTS (SELECT FROM accounts WHERE id = %(n)s + 1000)",
                        "DELETE FROM accounts WHERE id = %(n)s",
                    ]
                ),
                {"n": id},
            )
    ended.set()


def _rows_at_source(database: Database) -> Counter[Any]:
    with database.connect() as connection:
        return Counter(connection.execute("SELECT id, owner, large, note FROM accounts").fetchall())


def _rows_in_sqlite(path: Path) -> Counter[Any]:
    copy = sqlite3.connect(path)
    try:
        return Counter(copy.execute("SELECT id, owner, large, note FROM accounts").fetchall())
    except sqlite3.OperationalError:
        return Counter()  # missing, or being written
    finally:
        copy.close()


def test_chunks_are_compressed_with_a_dictionary(database: Database, server: NatsServer, tmp_path: Path) -> None:
    """A consumer with the dictionary reads the small rows, of which few bytes are transferred."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, customer text, status text, placed_at timestamptz)")
    database.execute(
        "INSERT INTO orders SELECT g, 'customer ' || g % 100, (ARRAY['new', 'paid', 'sent'])[1 + g % 3],"
        " '2026-01-31 12:00:00+00'::timestamptz + g * interval '1 minute' FROM generate_series(1, 25000) g"
    )
    database.execute("CREATE TABLE few (id int PRIMARY KEY)")
    database.execute("INSERT INTO few VALUES (1)")
    bus = Bus(database, server, tmp_path, zstd=True)
    with bus.running():
        bus.reach()
        meta, few = (msgpack.unpackb(answer) for answer in _request_all(server, "orders", "few"))
        assert (meta["row_count"], meta["batch_count"]) == (25_000, 3), "chunks of 10,000"
        ((_, dictionary),) = _chunks(server, f"init.dict.orders.{meta['snapshot_id']}", 1)
        chunks = [data for _, data in _chunks(server, f"init.snap.orders.{meta['snapshot_id']}.*", 3)]
        reader = zstandard.ZstdDecompressor(dict_data=zstandard.ZstdCompressionDict(dictionary))
        plain = [reader.decompress(data) for data in chunks]
        rows = [row for data in plain for row in msgpack.unpackb(data)["data"]]
        assert sorted(row["id"] for row in rows) == list(range(1, 25_001))
        assert {row["status"] for row in rows} == {"new", "paid", "sent"}
        assert sum(map(len, chunks)) < 0.15 * sum(map(len, plain)), "at least 85 % smaller"
        # One row is too little to train a dictionary.
        ((_, data),) = _chunks(server, f"init.snap.few.{few['snapshot_id']}.*", 1)
        assert msgpack.unpackb(zstandard.ZstdDecompressor().decompress(data))["data"] == [{"id": 1}]
