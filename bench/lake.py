"""The lake: draining a ready log into Iceberg, the cost of a change as tables grow, freshness, and maintenance.

The baselines are Spark's own: `writeTo().append()` of the same typed rows, and MERGE with matched clauses only.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import numpy as np
import pyarrow as pa

from bench.delivery_latency import Capturing
from bench.ready_log import FINISHED, ReadyLog, make
from bench.replica import INSERTS
from bench.report import Report
from bench.throughput import ROW, TABLE
from tailrace import settings, sinks
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.lake import point
from tailrace.lake.options import IcebergOptions
from tailrace.query.duckdb_engine import load_extensions
from tailrace.sinks.iceberg import properties
from tailrace.spark import register
from tailrace.spark.engine import Engine
from tailrace.spark.session import session
from tailrace.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LIMIT_S = 600.0
_ROUNDS = 3
_COLUMNS = ("id", "customer", "amount", "placed_at", "is_paid", "status", "note")
_MIXED = f"""
DO $$ BEGIN FOR i IN 0..499 LOOP
    INSERT INTO t SELECT {ROW} FROM generate_series(1000001 + i * 500, 1000500 + i * 500) g;
    UPDATE t SET status = 'sent', amount = amount + 1
        WHERE id = ANY (ARRAY(SELECT 1 + (i * 300 + g)::bigint * 7919 % 1000000 FROM generate_series(1, 300) g));
    DELETE FROM t WHERE id BETWEEN i * 200 + 1 AND i * 200 + 200;
    COMMIT;
END LOOP; END $$
"""


def run(report: Report) -> None:
    with _start_spark() as (spark, directory), Postgres(max_wal_size="8GB", checkpoint_timeout="1h") as server:
        _backlog(report, spark, server, directory)
        _curve(report, spark, server, directory)
    _freshness(report)
    _maintenance(report)


@contextmanager
def _start_spark() -> Iterator[tuple[SparkSession, Path]]:
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        options = IcebergOptions(warehouse=f"file://{name}/plain")
        (Path(name) / "plain").mkdir()
        plain = {
            "spark.sql.catalog.plain": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        } | {f"spark.sql.catalog.plain.{key}": value for key, value in properties.catalog_properties(options).items()}
        spark = session("bench", packages=properties.packages(options), settings=plain)
        try:
            register(spark)
            spark.sql("CREATE NAMESPACE plain.public")
            yield spark, Path(name)
        finally:
            spark.stop()


def _backlog(report: Report, spark: SparkSession, server: Postgres, directory: Path) -> None:
    report.title("Lake: a ready log drained into Iceberg")
    log = make(server, "inserts", str(directory / "log"), [TABLE.format(name="t")], [INSERTS])
    frame = spark.read.format("tailrace").option("table", "public.t").load(log.store_url).select(*_COLUMNS)
    frame.write.parquet(str(directory / "typed"))
    typed = spark.read.parquet(str(directory / "typed"))
    ours: list[float] = []
    theirs: list[float] = []
    for round_ in range(_ROUNDS + 1):
        lake = directory / f"lake{round_}"
        ours.append(_deliver(spark, log.store_url, lake))
        spark.sql("DROP TABLE IF EXISTS plain.public.t")
        typed.limit(0).writeTo("plain.public.t").tableProperty("format-version", "3").create()
        began = time.monotonic()
        typed.writeTo("plain.public.t").append()
        theirs.append(time.monotonic() - began)
        _compare(log, lake)
        if round_ < _ROUNDS:
            shutil.rmtree(lake)
    ratio = statistics.median(t / o for t, o in zip(theirs[1:], ours[1:], strict=True))
    report.section("1M inserts, 1,000 a transaction; median of three rounds after one to warm up")
    report.line(
        "Spark's writeTo().append()", f"{1_000_000 / statistics.median(theirs[1:]):,.0f} rows/s", "from Parquet"
    )
    report.line("deliver", f"{1_000_000 / statistics.median(ours[1:]):,.0f} rows/s", "from the log; rows compared")
    report.line("ratio", f"{ratio:.2f}", "want ≥ 0.6", ok=ratio >= 0.6)
    with log.connect() as connection:
        connection.execute(_MIXED.encode())
        connection.execute(f"UPDATE {FINISHED} SET id = 2".encode())
    log.capture_rest()
    seconds = _deliver(spark, log.store_url, lake)
    _compare(log, lake)
    report.section("500K mixed over a table of 1M: half inserts, three tenths updates all over it, a fifth deletes")
    report.line("deliver", f"{500_000 / seconds:,.0f} changes/s", "rows compared")
    log.drop_slots()


def _engine_for(spark: SparkSession | None, store_url: str, lake: Path, **more: int) -> Engine:
    sink = {"type": "iceberg", "name": "lake", "warehouse": f"file://{lake}", **more}
    configured = settings.Settings(store=settings.StoreSettings(url=store_url), sinks=(sink,))
    return Engine(configured, sinks.from_settings(configured, {}), spark=spark)


def _deliver(spark: SparkSession, store_url: str, lake: Path) -> float:
    """Deliver as `tailrace deliver --once` does, on an existing session, and return the seconds."""
    engine = _engine_for(spark, store_url, lake, interval_ms=0)
    began = time.monotonic()
    engine.start()
    try:
        delivered = engine.wait(engine.end(), _LIMIT_S)
        seconds = time.monotonic() - began
        assert delivered, engine.sinks["lake"].error or "not delivered in time"
    finally:
        engine.stop()
    return seconds


_SUMS = (
    "count(*), sum(id)::numeric, sum(customer)::numeric, sum(amount), min(placed_at)::text, max(placed_at)::text,"
    " sum(CASE WHEN is_paid THEN id END)::numeric, sum(id * length(status))::numeric, min(note), count(DISTINCT note)"
)


def _compare(log: ReadyLog, lake: Path) -> None:
    with log.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        expected = connection.execute(f"SELECT {_SUMS} FROM t".encode()).fetchone()
    found = _duckdb().execute(f"SELECT {_SUMS} FROM {_scan(lake)}".replace("::numeric", "::decimal(38)")).fetchone()
    assert expected is not None
    assert found is not None
    assert [str(v) for v in expected] == [str(v) for v in found], "the rows differ from the source's"


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    load_extensions(connection)
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _scan(lake: Path, table: str = "public.t") -> str:
    found = point.load(Store.open(str(lake)), "lake")
    assert found is not None
    named = next(t for t in found.tables if t.name == table)
    return f"iceberg_scan('{named.metadata}', snapshot_from_id = {named.snapshot})"


def _curve(report: Report, spark: SparkSession, server: Postgres, directory: Path) -> None:
    report.title("Lake: the cost of updates all over a table, compared with Spark's MERGE (matched clauses only)")
    for rows in (1_000_000, 10_000_000):
        lake, store = directory / f"curve{rows}", str(directory / f"log{rows}")
        database = f"curve{rows}"
        fill = f"INSERT INTO t SELECT {ROW} FROM generate_series(1, {rows}) g"
        log = make(server, database, store, [TABLE.format(name="t")], [fill])
        _deliver(spark, store, lake)
        spark.sql("DROP TABLE IF EXISTS plain.public.t")
        spark.sql(
            "CREATE TABLE plain.public.t USING iceberg TBLPROPERTIES ('format-version' = '3',"
            " 'write.update.mode' = 'merge-on-read', 'write.merge.mode' = 'merge-on-read') AS SELECT * FROM parquet."
            f"`{lake}/public/t-*/data/*.parquet`"
        )
        report.section(f"into {rows:,} rows")
        for changes in (1_000, 10_000, 100_000):
            ours = _updates(spark, log, lake, changes, rows)
            merge = [_merge(spark, changes, rows) for _ in range(2)][-1]
            report.line(f"{changes:,} updates", f"{ours:.2f} s", f"MERGE {merge:.2f} s; ratio {merge / ours:.1f}")
        log.drop_slots()


def _updates(spark: SparkSession, log: ReadyLog, lake: Path, changes: int, rows: int) -> float:
    """Return the seconds of the second of two steps in one session, as in a session that has run for a while."""
    seconds = []
    engine = _engine_for(spark, log.store_url, lake, interval_ms=0)
    engine.start()
    try:
        assert engine.wait(engine.end(), _LIMIT_S)
        for turn in range(2):
            with log.connect() as connection:
                connection.execute(
                    f"UPDATE t SET amount = amount + 1 WHERE id = ANY (ARRAY(SELECT 1 + (g::bigint * 7919 + {turn})"
                    f" * 104729 % {rows} FROM generate_series(1, {changes}) g))".encode()
                )
            engine.sinks["lake"].pause()
            log.capture_rest()
            began = time.monotonic()
            engine.sinks["lake"].resume()
            assert engine.wait(engine.end(), _LIMIT_S)
            seconds.append(time.monotonic() - began)
    finally:
        engine.stop()
    return seconds[-1]


def _merge(spark: SparkSession, changes: int, rows: int) -> float:
    ids = 1 + np.unique(np.random.default_rng(changes).integers(0, rows, changes))
    spark.createDataFrame(pa.table({"id": ids})).createOrReplaceTempView("changed")
    began = time.monotonic()
    spark.sql(
        "MERGE INTO plain.public.t USING changed ON t.id = changed.id WHEN MATCHED THEN UPDATE SET amount = amount + 1"
    )
    return time.monotonic() - began


_PER_SECOND = 2_000
_SECONDS = 60
_WARMING_S = 20


def _freshness(report: Report) -> None:
    report.title(f"Lake: commit → visible to a query, {_PER_SECOND:,} changes a second")
    with Postgres() as source, tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory:
        store, lake = f"{directory}/store", Path(directory) / "lake"
        _fill(source)
        with Capturing(source, store):
            ages = _measure_freshness(source, store, lake)
        cuts = statistics.quantiles(ages, n=100)
        report.section(f"{_SECONDS} seconds after {_WARMING_S} to warm up")
        report.line("p50", f"{cuts[49]:.2f} s", "want ≤ 3", ok=cuts[49] <= 3)
        report.line("p95", f"{cuts[94]:.2f} s")


def _measure_freshness(source: Postgres, store_url: str, lake: Path) -> list[float]:
    _await_snapshots(store_url)
    engine = _engine_for(None, store_url, lake)
    engine.start()
    ages: list[float] = []
    try:
        assert wait_until(lambda: engine.wait(engine.end(), 0), 120), engine.sinks["lake"].error
        with _writing(source), source.connect() as connection:
            time.sleep(_WARMING_S)
            seen = _newest(lake)
            until = time.monotonic() + _SECONDS
            while time.monotonic() < until:
                newest = _newest(lake)
                now = time.time()
                for (at,) in connection.execute(
                    "SELECT extract(epoch FROM at)::float8 FROM ticks WHERE id > %s AND id <= %s", [seen, newest]
                ).fetchall():
                    ages.append(now - at)
                seen = newest
                time.sleep(0.02)
    finally:
        engine.stop()
    return ages


def _await_snapshots(store_url: str) -> None:
    store = Store.open(store_url)
    assert wait_until(lambda: sum(i.key.endswith("meta.json") for i in store.list("snapshots")) == 2, 60)


def _newest(lake: Path) -> int:
    row = _duckdb().execute(f"SELECT max(id) FROM {_scan(lake, 'public.ticks')}").fetchone()
    return int(row[0] or 0) if row else 0


_STEPS = 150


def _maintenance(report: Report) -> None:
    report.title("Lake: files and bytes under a load, before and after maintenance")
    with Postgres() as source, tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory:
        store, lake = f"{directory}/store", Path(directory) / "lake"
        _fill(source)
        with Capturing(source, store):
            _await_snapshots(store)
            # Steps as often as possible instead of once a second, so that an hour's files do not take an hour.
            engine = _engine_for(None, store, lake, interval_ms=0, compact_bytes=0, history_minutes=1_000_000)
            engine.start()
            try:
                with _writing(source):
                    reached = wait_until(lambda: _snapshots(lake) >= _STEPS, _LIMIT_S)
                assert reached, engine.sinks["lake"].error or f"{_snapshots(lake)} steps"
            finally:
                engine.stop()
            report.section(f"public.t after {_STEPS} steps at {_PER_SECOND:,} changes a second")
            _print_size(report, "before", lake)
            engine = _engine_for(None, store, lake, history_minutes=0)
            engine.start()
            try:
                wait_until(lambda: _snapshots(lake) <= 2, _LIMIT_S)
                remaining = _snapshots(lake)
                assert remaining <= 2, engine.sinks["lake"].error or f"{remaining} snapshots are left"
            finally:
                engine.stop()
            _print_size(report, "after", lake)


def _print_size(report: Report, what: str, lake: Path) -> None:
    files = [path for path in lake.glob("public/t-*/**/*") if path.is_file()]
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        _duckdb().execute(f"SELECT sum(amount) FROM {_scan(lake)}").fetchall()
        seconds.append(time.monotonic() - began)
    size = sum(path.stat().st_size for path in files)
    report.line(
        what, f"{len(files):,} files", f"{size / 1e6:,.0f} MB; a sum over the table takes {1000 * min(seconds):,.0f} ms"
    )


def _snapshots(lake: Path) -> int:
    found = point.load(Store.open(str(lake)), "lake")
    named = {t.name: t for t in found.tables} if found else {}
    return len(json.loads(Path(named["public.t"].metadata).read_bytes())["snapshots"]) if "public.t" in named else 0


def _fill(source: Postgres) -> None:
    with source.connect() as connection:
        connection.execute(TABLE.format(name="t").encode())
        connection.execute(f"INSERT INTO t SELECT {ROW} FROM generate_series(1, 100000) g".encode())
        connection.execute("CREATE TABLE ticks (id serial PRIMARY KEY, at timestamptz DEFAULT clock_timestamp())")


@contextmanager
def _writing(source: Postgres) -> Iterator[None]:
    stop = threading.Event()
    writers = [threading.Thread(target=work, args=(source, stop)) for work in (_write, _tick)]
    for writer in writers:
        writer.start()
    try:
        yield
    finally:
        stop.set()
        for writer in writers:
            writer.join()


def _write(source: Postgres, stop: threading.Event) -> None:
    """Commit transactions of ten changes: inserts, updates and deletes."""
    rng, top, low = random.Random(1), 100_000, 1
    with source.connect() as connection:
        due = time.monotonic()
        while not stop.is_set():
            some = ", ".join(str(rng.randint(low + 2, top)) for _ in range(3))
            connection.execute(
                f"INSERT INTO t SELECT {ROW} FROM generate_series({top + 1}, {top + 5}) g;"
                f"UPDATE t SET amount = amount + 1 WHERE id IN ({some});"
                f"DELETE FROM t WHERE id BETWEEN {low} AND {low + 1}".encode()
            )
            top, low = top + 5, low + 2
            due += 10 / _PER_SECOND
            time.sleep(max(0.0, due - time.monotonic()))


def _tick(source: Postgres, stop: threading.Event) -> None:
    with source.connect() as connection:
        while not stop.wait(0.05):
            connection.execute("INSERT INTO ticks DEFAULT VALUES")
