"""Draining a ready log into a replica, compared with PostgreSQL's own logical replication of the same changes.

Both write to a second server, each into its own database, one after the other. The order alternates from round to
round, so that the caches and background work that one leaves behind do not always affect the same one. Both clocks stop
when everything is visible at the destination; then the rows are compared with the source's.

The ratio does not show two differences. The subscription decodes the WAL while it is timed; Tailrace did so during
capture ("captured before" is how long that took). The subscription's worker commits without waiting for its disk, as is
PostgreSQL's default for it; the sink waits.
"""

from __future__ import annotations

import hashlib
import statistics
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench import timed_sink
from bench.ready_log import BEFORE, FINISHED, ReadyLog, make
from bench.report import Report
from bench.throughput import ROW, TABLE
from tailrace import settings, sinks
from tailrace.embedded.postgres import Postgres
from tailrace.spark import engine_session
from tailrace.spark.engine import Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LIMIT_S = 600.0

INSERTS = f"""
DO $$ BEGIN FOR i IN 0..999 LOOP
    INSERT INTO t SELECT {ROW} FROM generate_series(i * 1000 + 1, i * 1000 + 1000) g; COMMIT;
END LOOP; END $$
"""

_QUOTED_ROW = ROW.replace("'", "''").replace("%", "%%")
_MIX = f"""
CREATE PROCEDURE mix(tables text[], changes int, transactions int) LANGUAGE plpgsql AS $$
DECLARE lows int[]; highs int[]; low int; high int; at int; name text;
BEGIN
    FOR i IN 1..array_length(tables, 1) LOOP
        EXECUTE format('SELECT coalesce(min(id), 1), coalesce(max(id) + 1, 1) FROM %I', tables[i]) INTO low, high;
        lows[i] := low;
        highs[i] := high;
    END LOOP;
    FOR i IN 0..transactions - 1 LOOP
        at := 1 + i % array_length(tables, 1);
        name := tables[at];
        EXECUTE format('INSERT INTO %I SELECT {_QUOTED_ROW} FROM generate_series(%s, %s) g',
                       name, highs[at], highs[at] + changes / 2 - 1);
        highs[at] := highs[at] + changes / 2;
        EXECUTE format('UPDATE %I SET status = ''sent'', amount = amount + 1 WHERE id = ANY (ARRAY(SELECT
                        %s + g::bigint * 7919 %% %s FROM generate_series(1, %s) g))',
                       name, lows[at], highs[at] - lows[at], changes * 3 / 10);
        EXECUTE format('DELETE FROM %I WHERE id BETWEEN %s AND %s', name, lows[at], lows[at] + changes / 5 - 1);
        lows[at] := lows[at] + changes / 5;
        COMMIT;
    END LOOP;
END $$
"""
"""In each transaction: half inserts, three tenths updates all over the table, a fifth deletes of its oldest rows."""


MIX = (
    _MIX,
    "CALL mix('{a,b,c}', 10, 12000)",
    "CALL mix('{c,d,e}', 10000, 26)",
    "CALL mix('{a,d,b,e}', 10, 12000)",
    "DROP PROCEDURE mix",
)
"""Half a million changes of the tables a to e, in transactions of 10 and of 10,000."""


@dataclass(frozen=True)
class _Load:
    name: str
    changes: int
    tables: tuple[str, ...]
    statements: tuple[str, ...]
    want: float


@dataclass(frozen=True)
class _Drain:
    seconds: float
    starting: float = 0.0
    """Seconds until the first step began: opening the sink, creating tables, starting the query."""
    staging: float = 0.0
    committing: float = 0.0
    steps: int = 0


_LOADS = (
    _Load("1M inserts, 1,000 a transaction", 1_000_000, ("t",), (INSERTS,), 0.6),
    _Load(
        "500K mixed, 5 tables, 10 or 10,000 a transaction",
        500_000,
        ("a", "b", "c", "d", "e"),
        MIX,
        0.4,
    ),
)


def run(report: Report, rounds: int = 3) -> None:
    report.title("Replica: a ready log drained into PostgreSQL, compared with CREATE SUBSCRIPTION on the same changes")
    began = time.monotonic()
    spark = engine_session.start(settings.Settings(), ()).wait()
    started = time.monotonic() - began
    try:
        with _server() as source, _server() as destination:
            for load in _LOADS:
                with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory:
                    _measure(report, spark, started, source, destination, load, directory, rounds)
    finally:
        spark.stop()


def _server() -> Postgres:
    return Postgres(max_wal_size="8GB", checkpoint_timeout="1h")


def _measure(
    report: Report,
    spark: SparkSession,
    started: float,
    source: Postgres,
    destination: Postgres,
    load: _Load,
    directory: str,
    rounds: int,
) -> None:
    number = _LOADS.index(load)
    tables = [TABLE.format(name=table) for table in load.tables]
    log = make(source, f"load{number}", directory, tables, load.statements)
    ours: list[_Drain] = []
    theirs: list[_Drain] = []
    for round_ in range(rounds):
        turns = [(_deliver, ours), (_subscribe, theirs)]
        for way, drains in turns if round_ % 2 == 0 else reversed(turns):
            database = f"load{number}_{way.__name__.strip('_')}_{round_}"
            destination.create_database(database)
            drains.append(way(log, spark, destination, database))
            _compare(log, destination, database)
            with destination.connect() as connection:
                connection.execute(f"DROP DATABASE {database} WITH (FORCE)".encode())
    ratio = statistics.median(t.seconds / o.seconds for t, o in zip(theirs, ours, strict=True))
    best = min(ours, key=lambda drain: drain.seconds)
    report.section(load.name)
    report.line("CREATE SUBSCRIPTION", _rates(load.changes, theirs), "changes/s, slowest and fastest round")
    report.line("deliver", _rates(load.changes, ours), "Spark was already running; rows compared")
    report.line("ratio", f"{ratio:.2f}", f"want ≥ {load.want}", ok=ratio >= load.want)
    begun = statistics.median(t.seconds / (o.seconds - o.starting) for t, o in zip(theirs, ours, strict=True))
    report.line("ratio from the first step on", f"{begun:.2f}", "what a longer drain approaches")
    report.line("until the first step", f"{best.starting:.1f} s", "of the fastest: open the sink, start the query")
    report.line("read, decode, stage", f"{best.staging:.1f} s", f"in {best.steps} steps")
    report.line("apply and commit", f"{best.committing:.1f} s")
    report.line("Spark's start", f"{started:.1f} s", f"excluded above; the first drain took {ours[0].seconds:.1f} s")
    report.line("captured before", f"{log.capture_seconds:.1f} s", "by capture, including its start")
    log.drop_slots()


def _rates(changes: int, drains: list[_Drain]) -> str:
    rates = sorted(changes / drain.seconds for drain in drains)
    return f"{rates[0]:,.0f} – {rates[-1]:,.0f}"


def _deliver(log: ReadyLog, spark: SparkSession, destination: Postgres, database: str) -> _Drain:
    """Deliver as `tailrace deliver --once` does, on an existing session."""
    configured = settings.Settings(
        store=settings.StoreSettings(url=log.store_url),
        sinks=({"type": timed_sink.TYPE, "name": database, "url": destination.url_of(database)},),
    )
    timed_sink.STEPS.clear()
    engine = Engine(configured, sinks.from_settings(configured, {}), spark=spark)
    began = time.time()
    engine.start()
    try:
        delivered = engine.wait(engine.end(), _LIMIT_S)
        seconds = time.time() - began
        assert delivered, engine.sinks[database].error or "not delivered in time"
    finally:
        engine.stop()
    steps = timed_sink.STEPS
    staging = sum(step.staged - step.begun for step in steps)
    committing = sum(step.committed - step.staged for step in steps)
    return _Drain(seconds, steps[0].begun - began, staging, committing, len(steps))


def _subscribe(log: ReadyLog, _: SparkSession, destination: Postgres, database: str) -> _Drain:
    slot = f"subscribed_{database}"
    with log.connect() as connection:
        connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [BEFORE, slot])
    with destination.connect(database) as connection:
        for table in log.tables:
            columns = "(id int PRIMARY KEY)" if table == FINISHED else None
            statement = f"CREATE TABLE {table} {columns}" if columns else TABLE.format(name=table)
            connection.execute(statement.encode())
        connection.execute(
            f"CREATE SUBSCRIPTION {slot} CONNECTION '{log.server.url_of(log.database)}' PUBLICATION tailrace"
            f" WITH (enabled = false, create_slot = false, slot_name = '{slot}', copy_data = false)".encode()
        )
        began = time.monotonic()
        connection.execute(f"ALTER SUBSCRIPTION {slot} ENABLE".encode())
        query = f"SELECT count(*) FROM {FINISHED}".encode()
        while connection.execute(query).fetchone() != (1,):
            assert time.monotonic() - began < _LIMIT_S, "the subscription did not finish in time"
            time.sleep(0.02)
        seconds = time.monotonic() - began
        connection.execute(f"DROP SUBSCRIPTION {slot}".encode())
    return _Drain(seconds)


def _compare(log: ReadyLog, destination: Postgres, database: str) -> None:
    """Compare all rows of all tables, as PostgreSQL prints them, in key order."""
    for table in log.tables:
        copy = f"COPY (SELECT * FROM {table} ORDER BY id) TO STDOUT".encode()
        digests = []
        for server, name in ((log.server, log.database), (destination, database)):
            digest = hashlib.sha256()
            with server.connect(name) as connection, connection.cursor().copy(copy) as rows:
                for part in rows:
                    digest.update(part)
            digests.append(digest.hexdigest())
        assert digests[0] == digests[1], f"{database}: the rows of {table} differ from the source's"
