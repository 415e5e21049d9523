"""The audit trail: the rate and latency from a change's commit until it is in `changes`, measured as Zemi does.

A load runs at the source while capture (a separate process) and the sink are running. The clock stops when the last
change of the load is in the table. Two alternatives are measured too: the same load on a table with a trigger that
writes a row for each change, and psycopg's `executemany` of the same rows into a table like `changes`.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from bench.delivery_latency import Capturing
from bench.report import Report
from tailrace import settings, sinks
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.spark.engine import Engine

_LIMIT_S = 300.0
_COMMITS = 1000
_WARMING = 300
_PER_SECOND = 50
_WARM_UP = 5
"""Loads before the first measured one. Java and the kernels compile during these, as in a long-running process."""

_TABLE = "(id bigint PRIMARY KEY, customer int, status text, amount numeric(10, 2), note text)"
_ROWS = "SELECT g, g % 1000, 'new', g % 100 + 0.5, 'note ' || g FROM generate_series"
_TRIGGER = """
CREATE TABLE trail (id bigserial PRIMARY KEY, "table" text, operation text, before jsonb, after jsonb,
                    committed_at timestamptz DEFAULT now());
CREATE INDEX ON trail ("table", ((coalesce(after, before)) ->> 'id'));
CREATE FUNCTION audited() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO trail ("table", operation, before, after)
    VALUES (TG_TABLE_NAME, TG_OP, to_jsonb(OLD), to_jsonb(NEW));
    RETURN NULL;
END $$;
CREATE TRIGGER audited AFTER INSERT OR UPDATE OR DELETE ON triggered FOR EACH ROW EXECUTE FUNCTION audited();
"""

Load = Callable[[psycopg.Connection[Any], str, int], tuple[int, int]]
"""Changes a table, starting at an id. Returns the number of changes and the last inserted id."""


def _insert_load(transactions: int, each: int) -> Load:
    """Return a load of consecutive transactions, as fast as they go."""

    def load(connection: psycopg.Connection[Any], table: str, first: int) -> tuple[int, int]:
        at = f"{first} + i * {each}"
        _loop(connection, transactions, f"INSERT INTO {table} {_ROWS}({at}, {at} + {each - 1}) g;")
        return transactions * each, first + transactions * each - 1

    return load


def _mixed_load(transactions: int, tenths: int) -> Load:
    """Return a load of half inserts, three tenths updates and a fifth deletes."""

    def load(connection: psycopg.Connection[Any], table: str, first: int) -> tuple[int, int]:
        connection.execute(f"INSERT INTO {table} {_ROWS}({first}, {first + 20 * tenths - 1}) g".encode())
        at = f"({first} + (20 + i * 5) * {tenths})"
        _loop(
            connection,
            transactions,
            f"INSERT INTO {table} {_ROWS}({at}, {at} + {5 * tenths - 1}) g;"
            f"UPDATE {table} SET status = 'paid' WHERE id BETWEEN {at} - {10 * tenths} AND {at} - {7 * tenths + 1};"
            f"DELETE FROM {table} WHERE id BETWEEN {at} - {20 * tenths} AND {at} - {18 * tenths + 1};",
        )
        return (20 + transactions * 10) * tenths, first + (20 + transactions * 5) * tenths - 1

    return load


def _large_load(connection: psycopg.Connection[Any], table: str, first: int) -> tuple[int, int]:
    for at in range(first, first + 25_000, 5_000):
        connection.execute(f"INSERT INTO {table} {_ROWS}({at}, {at + 4_999}) g".encode())
    return 25_000, first + 24_999


def _loop(connection: psycopg.Connection[Any], times: int, statements: str) -> None:
    """Run the statements repeatedly, each time in a transaction. The server loops, so the client adds no cost."""
    connection.execute(f"DO $$ BEGIN FOR i IN 0..{times - 1} LOOP {statements} COMMIT; END LOOP; END $$".encode())


_LOADS: dict[str, tuple[Load, int | None]] = {
    "10K inserts, 100 a transaction": (_insert_load(100, 100), 20_000),
    "10K mixed, 100 a transaction": (_mixed_load(100, 10), 15_000),
    "5 transactions of 5K inserts": (_large_load, 20_000),
    # A disk that makes 1,500 commits a second takes 15,000 changes: the load itself is the bottleneck in these.
    "10K inserts, 10 a transaction": (_insert_load(1_000, 10), None),
    "10K mixed, 10 a transaction": (_mixed_load(1_000, 1), None),
    "200K inserts, 10 a transaction": (_insert_load(20_000, 10), None),
}


def run(report: Report) -> None:
    report.title("Audit: changes a second, until all of them are in the table")
    with Postgres() as source, tempfile.TemporaryDirectory(prefix="tailrace-bench-") as store:
        with source.connect() as connection:
            connection.execute(f"CREATE TABLE t {_TABLE}".encode())
            connection.execute("ALTER TABLE t REPLICA IDENTITY FULL")
            connection.execute("CREATE TABLE ticks (id serial PRIMARY KEY, note text)")
            connection.execute("CREATE PUBLICATION tailrace FOR TABLE t, ticks")
            connection.execute(f"CREATE TABLE bare {_TABLE}; CREATE TABLE triggered {_TABLE}; {_TRIGGER}".encode())
        with Capturing(source, store):
            engine = _engine(source, store)
            try:
                with source.connect() as connection:
                    for round_ in range(_WARM_UP):
                        _, last = _insert_load(100, 100)(connection, "t", round_ * 1_000_000)
                        _await_row(source, "t", last)
                for name, (load, want) in _LOADS.items():
                    _throughput(report, source, name, load, want)
                _latency(report, source)
            finally:
                engine.stop()


def _engine(source: Postgres, store: str) -> Engine:
    """Start delivery into the captured database itself, as Bemi does."""
    configured = settings.Settings(
        store=settings.StoreSettings(url=store), sinks=({"type": "audit", "name": "audit", "url": source.url},)
    )
    wait_until(lambda: _is_captured(source), 60)
    engine = Engine(configured, sinks.from_settings(configured, {}))
    engine.start()
    with source.connect() as connection:
        connection.execute("INSERT INTO ticks (note) VALUES ('begin')")
        _await_row(source, "ticks", 1)
    return engine


def _is_captured(source: Postgres) -> bool:
    with source.connect() as connection:
        return connection.execute("SELECT active FROM pg_replication_slots").fetchone() == (True,)


def _throughput(report: Report, source: Postgres, name: str, load: Load, want: int | None) -> None:
    report.section(name)
    rates: dict[str, list[float]] = {"audited": [], "bare": [], "trigger": [], "executemany": []}
    for round_ in range(3):
        first = 1_000_000_000 + round_ * 1_000_000 + list(_LOADS).index(name) * 100_000_000
        with source.connect() as connection:
            before = _count(connection)
            began = time.monotonic()
            made, last = load(connection, "t", first)
            _await_row(source, "t", last)
            rates["audited"].append(made / (time.monotonic() - began))
            assert _count(connection) == before + made
            for kind, table in (("bare", "bare"), ("trigger", "triggered")):
                began = time.monotonic()
                load(connection, table, first)
                rates[kind].append(made / (time.monotonic() - began))
            rates["executemany"].append(made / _executemany(connection, made))
    rate = statistics.median(rates["audited"])
    report.line("no audit", f"{statistics.median(rates['bare']):,.0f} changes/s", "the load alone")
    report.line("with an audit trigger", f"{statistics.median(rates['trigger']):,.0f} changes/s", "the load alone")
    report.line("executemany", f"{statistics.median(rates['executemany']):,.0f} changes/s", "the writing alone")
    ok = None if want is None else rate >= want
    report.line("audited", f"{rate:,.0f} changes/s", f"want ≥ {want:,}" if want else "", ok=ok)


def _executemany(connection: psycopg.Connection[Any], count: int) -> float:
    """Return the seconds to write the trail's newest rows into a table with the same columns and indexes."""
    connection.execute("CREATE TEMPORARY TABLE IF NOT EXISTS copied (LIKE changes INCLUDING ALL)")
    connection.execute("TRUNCATE copied")
    rows = connection.execute(
        'SELECT id::text, database, schema, "table", operation, before::text, after::text, context::text, primary_key,'
        " committed_at::text, position, queued_at::text, xid, commit_position, ordinal FROM changes"
        " ORDER BY commit_position DESC, ordinal DESC LIMIT %s",
        [count],
    ).fetchall()
    began = time.monotonic()
    with connection.cursor() as cursor, connection.transaction():
        cursor.executemany(
            'INSERT INTO copied (id, database, schema, "table", operation, before, after, context, primary_key,'
            " committed_at, position, queued_at, xid, commit_position, ordinal)"
            f" VALUES ({', '.join(['%s'] * 15)})",
            rows,
        )
    return time.monotonic() - began


def _count(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT count(*) FROM changes").fetchone()
    return int(row[0]) if row else 0


def _await_row(source: Postgres, table: str, key: int) -> None:
    """Wait for the last row. All other rows arrive before it or with it."""
    found = 'SELECT FROM changes WHERE schema = %s AND "table" = %s AND primary_key = %s'
    with source.connect() as connection:

        def has_arrived() -> bool:
            exists = connection.execute("SELECT to_regclass('public.changes') IS NOT NULL").fetchone()
            return exists == (True,) and connection.execute(found, ["public", table, str(key)]).fetchone() is not None

        deadline = time.monotonic() + _LIMIT_S
        while not has_arrived():
            assert time.monotonic() < deadline, "changes did not arrive in time"
            time.sleep(0.005)


def _latency(report: Report, source: Postgres) -> None:
    report.section(f"single inserts, {_PER_SECOND} a second at random times: commit → in the table")
    committed: list[float] = []
    seen: list[float] = []
    finished = threading.Event()

    def watch() -> None:
        with source.connect() as connection:
            while not finished.wait(0.002):
                row = connection.execute("SELECT count(*) FROM changes WHERE commit_position > %s", [start]).fetchone()
                now = time.time()
                seen.extend([now] * ((row[0] if row else 0) - len(seen)))

    with source.connect() as connection:
        row = connection.execute("SELECT max(commit_position) FROM changes").fetchone()
        start = row[0] if row else 0
        watcher = threading.Thread(target=watch)
        watcher.start()
        rng = random.Random(1)
        try:
            for _ in range(_WARMING + _COMMITS):
                time.sleep(rng.expovariate(_PER_SECOND))
                connection.execute("INSERT INTO ticks (note) VALUES ('x')")
                committed.append(time.time())
            assert wait_until(lambda: len(seen) >= len(committed), 60), "changes did not arrive in time"
        finally:
            finished.set()
            watcher.join()
    spans = [1000 * (s - c) for s, c in zip(seen, committed, strict=True)][_WARMING:]
    cuts = statistics.quantiles(spans, n=100)
    for percent, want in ((50, 150), (95, 300)):
        figure = cuts[percent - 1]
        report.line(f"p{percent}", f"{figure:.0f} ms", f"want ≤ {want}", ok=figure <= want)
