"""`sql` and `transform` of a sink, end to end: the replica equals the result of the same SELECT on the source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from tests.capturing import CaptureThread, configured, current_lsn
from tests.fixtures.postgres import Database, drop_database, make_database

import tailrace.spark
from tailrace import settings, sinks
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.cli import main
from tailrace.embedded.process import wait_until
from tailrace.errors import ConfigError
from tailrace.log.reader import LogReader
from tailrace.spark.engine import Engine
from tailrace.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "store"))


@pytest.fixture
def replica(database: Database) -> Iterator[Database]:
    replica = make_database(database.server)
    yield replica
    drop_database(replica)


@contextmanager
def delivering(spark: SparkSession, store: Store, *raw: dict[str, Any]) -> Iterator[Engine]:
    given = settings.Settings(store=settings.StoreSettings(store.url), sinks=raw)
    engine = Engine(given, sinks.from_settings(given, {}), spark=spark)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


@contextmanager
def capturing(database: Database, store: Store) -> Iterator[CaptureThread]:
    """Capture after a snapshot of all tables."""
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    given = replace(configured(database), store=settings.StoreSettings(store.url))
    with CaptureThread(given, store) as captured:
        job = SnapshotJob(given)
        job.start()
        assert job.wait(60)
        yield captured


def catch_up(database: Database, captured: CaptureThread, engine: Engine) -> None:
    """Wait until the sinks have everything that is committed now."""
    with database.connect(autocommit=True) as connection:
        connection.execute("SELECT pg_logical_emit_message(true, 'test', '')")
        captured.wait_for(current_lsn(connection))
    assert engine.wait(engine.end(), 120), [(s.status(), s.error and s.error.hint) for s in engine.sinks.values()]


def texts(database: Database, query: str) -> list[tuple[Any, ...]]:
    """The rows as PostgreSQL prints them, sorted."""
    return sorted(database.rows(f"SELECT s::text FROM ({query}) s"))


def sink_test(directory: Path, store: Store, raw: dict[str, Any], *options: str) -> list[list[str]]:
    """The rows that the command prints, without their positions."""
    lines = ["[store]", f"url = {json.dumps(store.url)}", "[[sink]]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in raw.items() if not isinstance(value, dict)]
    for key, table in raw.items():
        if isinstance(table, dict):
            lines += [f"[sink.{key}]", *(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in table.items())]
    config = directory / "tailrace.toml"
    config.write_text("\n".join(lines))
    arguments = ["--config", str(config), "sink", "test", str(raw["name"]), *options]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = [line.strip("│┃ ").split("│") for line in result.output.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in row[1:]] for row in rows]


def test_a_replica_has_the_rows_that_the_statement_selects(
    spark: SparkSession, database: Database, replica: Database, store: Store, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, status text, total numeric(10,2), at time)")
    database.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    database.execute("INSERT INTO orders SELECT i, 'new', i - 5, '10:00' FROM generate_series(1, 20) i")
    statement = "SELECT id, upper(status) AS status, total * 2 AS gross, at FROM orders WHERE total > 0"
    raw = {"type": "postgres", "name": "replica", "url": replica.url, "sql": statement, "route": "public.good_orders"}

    def compare() -> None:
        catch_up(database, captured, engine)
        assert texts(replica, "SELECT * FROM good_orders") == texts(database, statement)

    with capturing(database, store) as captured, delivering(spark, store, raw) as engine:
        compare()
        database.execute("INSERT INTO orders VALUES (100, 'x', 5, '24:00'), (101, 'y', -5, NULL), (102, NULL, 1, NULL)")
        database.execute("UPDATE orders SET total = -total WHERE id < 10 OR id > 100")
        database.execute("UPDATE orders SET status = 'paid' WHERE id % 2 = 0")
        database.execute("UPDATE orders SET id = id + 1000 WHERE id % 5 = 0")
        database.execute("DELETE FROM orders WHERE id % 7 = 0")
        compare()
        database.execute("TRUNCATE orders; INSERT INTO orders VALUES (1, 'again', 1, '12:00:00.5')")
        compare()
    replica.execute("DROP TABLE good_orders")
    shown = sink_test(tmp_path, store, raw, "--rows", "17")
    assert shown[:2] == [["SNAPSHOT", "6", "NEW", "2.00", "10:00:00"], ["SNAPSHOT", "7", "NEW", "4.00", "10:00:00"]]
    assert shown[15:] == [["INSERT", "100", "X", "10.00", "24:00:00"], ["INSERT", "102", "NULL", "2.00", "NULL"]]
    plain = {key: value for key, value in raw.items() if key != "sql"} | {"columns": {"public.orders": "id, total"}}
    assert sink_test(tmp_path, store, plain, "--rows", "1") == [["SNAPSHOT", "1", "-4.00"]]
    assert not replica.rows("SELECT 1 FROM pg_tables WHERE tablename = 'good_orders'")


def read_lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in directory.rglob("*.jsonl") for line in path.read_text().splitlines()]


def decorated(orders: DataFrame) -> DataFrame:
    return orders.select("id", f.concat("kind", f.lit("!")).alias("kind"))


def test_statements_of_several_sinks_over_one_log(
    spark: SparkSession, database: Database, replica: Database, store: Store, tmp_path: Path
) -> None:
    """With unknown old values, other tables, functions, events, and a table whose columns change."""
    database.execute("CREATE TABLE customers (id int PRIMARY KEY, name text)")
    database.execute("INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bob')")
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, kind text, total numeric, body text, customer int)")
    database.execute("ALTER TABLE orders ALTER body SET STORAGE EXTERNAL")
    large = "repeat('0123456789', 1000)"
    database.execute(f"INSERT INTO orders SELECT i, 'k', i, {large}, 1 + i % 3 FROM generate_series(1, 9) i")
    # Spark's statement and PostgreSQL's.
    statements = {
        "partial": ("SELECT id, upper(kind) AS kind, body FROM orders WHERE id % 4 <> 0",) * 2,
        "star": ("SELECT * FROM orders",) * 2,
        "joined": (
            "SELECT o.id AS number, c.name AS customer FROM orders o LEFT JOIN state.customers c ON c.id = o.customer",
            "SELECT o.id AS number, c.name AS customer FROM orders o LEFT JOIN customers c ON c.id = o.customer",
        ),
    }
    raw: list[dict[str, Any]] = [
        {"type": "postgres", "name": name, "url": replica.url, "sql": ours, "route": f"{name}.orders"}
        for name, (ours, _) in statements.items()
    ]
    events = "SELECT id, _operation AS what, id * 1.5 FROM orders WHERE _operation IN ('DELETE', 'TRUNCATE')"
    raw.append({"type": "files", "name": "events", "url": str(tmp_path / "events"), "format": "jsonl", "sql": events})

    stream = (
        "SELECT `table` AS name, operation, get_json_object(key, '$.id') AS id FROM changes WHERE operation = 'DELETE'"
    )
    raw.append({"type": "files", "name": "stream", "url": str(tmp_path / "stream"), "format": "jsonl", "sql": stream})
    statements["function"] = "", "SELECT id, kind || '!' AS kind FROM orders"
    function = {"transform": f"{__name__}:decorated", "tables": ["public.orders"], "route": "function.orders"}
    raw.append({"type": "postgres", "name": "function", "url": replica.url, **function})

    def compare() -> None:
        catch_up(database, captured, engine)
        for name, (_, theirs) in statements.items():
            assert texts(replica, f"SELECT * FROM {name}.orders") == texts(database, theirs), name

    with capturing(database, store) as captured, delivering(spark, store, *raw) as engine:
        compare()
        database.execute("UPDATE orders SET kind = 'unsent' WHERE id < 4; UPDATE orders SET id = -4 WHERE id = 5")
        database.execute(f"DELETE FROM orders WHERE id = 6; INSERT INTO orders VALUES (60, 'n', 1.50, {large}, 2)")
        database.execute("ALTER TABLE orders ADD COLUMN note text DEFAULT 'none'")
        database.execute("ALTER TABLE orders RENAME COLUMN total TO amount; UPDATE orders SET note = 'x' WHERE id = 7")
        compare()
        assert [(line["operation"], line["key"]) for line in read_lines(tmp_path / "events")] == [("DELETE", {"id": 6})]
        streamed = [(line["table"], line["after"]) for line in read_lines(tmp_path / "stream")]
        assert streamed == [("changes", {"name": "orders", "operation": "DELETE", "id": "6"})]


def test_a_statement_over_changes_knows_the_context_of_a_transaction_in_several_segments(
    spark: SparkSession, database: Database, store: Store, tmp_path: Path
) -> None:
    """The application sends the context last: by then, most of the transaction's changes are in earlier segments."""
    database.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    statement = "SELECT get_json_object(after, '$.id') AS id, context FROM changes WHERE `table` = 'notes'"
    raw = {"type": "files", "name": "stream", "url": str(tmp_path / "stream"), "format": "jsonl", "sql": statement}
    raw["start"] = "earliest"
    with CaptureThread(configured(database, segment_bytes=4096), store) as captured:
        database.execute(
            "INSERT INTO notes SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 500) i;"
            """SELECT pg_logical_emit_message(true, '_bemi', '{"user": 7}')"""
        )
        with delivering(spark, store, raw) as engine:
            catch_up(database, captured, engine)
    assert len(list(LogReader(store).list())) > 3, "the transaction spans segments"
    found = sorted((int(line["after"]["id"]), line["after"]["context"]) for line in read_lines(tmp_path / "stream"))
    assert found == [(id, '{"user": 7}') for id in range(1, 501)]


def test_missing_or_invalid_values_stop_the_sink_with_a_reason(
    spark: SparkSession, database: Database, replica: Database, store: Store
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, kind text, body text)")
    database.execute("ALTER TABLE orders ALTER body SET STORAGE EXTERNAL")
    database.execute("INSERT INTO orders VALUES (1, '7', repeat('0123456789', 1000))")
    statements = {
        "old": ("SELECT id FROM orders WHERE kind > 'a'", "uses kind, but UPDATE at", "REPLICA IDENTITY FULL"),
        "unsent": ("SELECT id, length(body) AS size FROM orders", "uses body, but UPDATE at", "REPLICA IDENTITY FULL"),
        "cast": ("SELECT id, CAST(kind AS int) AS kind FROM orders", "on a row (CAST_INVALID_INPUT)", "try_cast"),
        "column": ("SELECT id, nope FROM orders", "`nope`", "sql of column"),
    }
    raw = [
        {"type": "postgres", "name": name, "url": replica.url, "sql": sql, "route": f"{name}.orders"}
        for name, (sql, _, _) in statements.items()
    ]
    with capturing(database, store) as captured, delivering(spark, store, *raw) as engine:
        assert wait_until(lambda: engine.sinks["column"].has_failed, 60)
        database.execute("UPDATE orders SET kind = 'secret'")
        with database.connect(autocommit=True) as connection:
            captured.wait_for(current_lsn(connection))
        assert wait_until(lambda: all(sink.has_failed for sink in engine.sinks.values()), 60)
        for name, (sql, reason, hint) in statements.items():
            error = engine.sinks[name].error
            assert error is not None
            assert f"sink {name}: the statement {sql!r}" in str(error)
            assert reason in str(error)
            assert hint in error.hint
            assert "secret" not in str(error)


def test_a_dataframe_of_changes_is_written_to_a_sink(
    spark: SparkSession, database: Database, replica: Database, store: Store, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, kind text, at time, total numeric(10,2))")
    raw: dict[str, Any] = {"type": "postgres", "name": "frame", "url": replica.url, "tables": ["public.orders"]}
    given = settings.Settings(store=settings.StoreSettings(store.url), sinks=(raw,))
    selected = "SELECT id, upper(kind) AS kind, at, total FROM orders"

    def deliver(checkpoint: str) -> None:
        with database.connect(autocommit=True) as connection:
            captured.wait_for(current_lsn(connection))
        orders = spark.readStream.format("tailrace").option("table", "public.orders").load(store.url)
        writer = tailrace.spark.sink(orders.withColumn("kind", f.upper("kind")), "frame", given)
        query = writer.option("checkpointLocation", str(tmp_path / checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination(60)
        assert texts(replica, "SELECT * FROM orders") == texts(database, selected)

    with capturing(database, store) as captured:
        tailrace.spark.register(spark)
        database.execute("INSERT INTO orders SELECT i, 'a', '24:00', i FROM generate_series(1, 9) i")
        database.execute("UPDATE orders SET id = 70 WHERE id = 7; DELETE FROM orders WHERE id = 8")
        deliver("first")
        # Without its checkpoint the query starts over, and the sink's cursor tells what it already has.
        database.execute("UPDATE orders SET kind = kind || id WHERE id < 5; DELETE FROM orders WHERE id = 5")
        deliver("second")
        with pytest.raises(ConfigError, match="no _operation"):
            tailrace.spark.sink(spark.readStream.format("rate").load(), "frame", given)
