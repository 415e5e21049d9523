"""The query server: a million rows to a client, compared with DuckDB in-process; TPC-H-like queries, with the source.

The lake is built from the source's own rows, without Spark, and the server runs in a separate process. A client that
only counts bytes shows the server's cost. psycopg's fetches into Python objects are compared with DuckDB's.
"""

from __future__ import annotations

import io
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.csv
from pyiceberg.catalog.sql import SqlCatalog

from bench.report import Report
from tailrace.capture.postgres import catalog as source_catalog
from tailrace.change import Lsn
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import free_port, wait_until
from tailrace.lake import point
from tailrace.lake.point import Point, PointTable, SnapshotSummary
from tailrace.store import Store

_ROWS = 1_000_000
_ROUNDS = 3
_WANT_EXPORT = 2.0
_TABLES = f"""
CREATE TABLE customer (c_custkey int PRIMARY KEY, c_name text, c_mktsegment text, c_nationkey int,
    c_acctbal numeric(12,2));
CREATE TABLE orders (o_orderkey int PRIMARY KEY, o_custkey int, o_orderstatus text, o_totalprice numeric(12,2),
    o_orderdate date, o_shippriority int);
CREATE TABLE lineitem (l_orderkey int, l_linenumber int, l_quantity numeric(12,2), l_extendedprice numeric(12,2),
    l_discount numeric(12,2), l_tax numeric(12,2), l_returnflag text, l_linestatus text, l_shipdate date,
    l_shipmode text, PRIMARY KEY (l_orderkey, l_linenumber));
CREATE TABLE t (id bigint PRIMARY KEY, customer int, amount numeric(12,2), placed_at timestamptz, is_paid bool,
    status text, note text);
INSERT INTO customer SELECT i, 'Customer#' || i,
    (ARRAY['BUILDING','AUTOMOBILE','MACHINERY','HOUSEHOLD','FURNITURE'])[1 + i % 5], i % 25,
    (i * 7919::bigint % 1000000) / 100.0 FROM generate_series(1, 25000) i;
INSERT INTO orders SELECT i, 1 + i * 31::bigint % 25000, (ARRAY['O','F','P'])[1 + i % 3],
    (i * 104729::bigint % 50000000) / 100.0, date '1992-01-01' + i % 2400, 0 FROM generate_series(1, {_ROWS // 4}) i;
INSERT INTO lineitem SELECT 1 + i / 4, i % 4, 1 + i % 50, (i * 15485863::bigint % 10000000) / 100.0, (i % 11) / 100.0,
    (i % 9) / 100.0, (ARRAY['A','N','R'])[1 + i % 3], (ARRAY['O','F'])[1 + i % 2],
    date '1992-01-02' + (i * 7::bigint % 2500)::int, (ARRAY['MAIL','SHIP','AIR','TRUCK','RAIL','FOB'])[1 + i % 6]
    FROM generate_series(0, {_ROWS - 1}) i;
INSERT INTO t SELECT i, i % 1000, (i * 7919::bigint % 10000000) / 100.0,
    timestamptz '2025-01-01 00:00:00+00' + i * interval '1.5 seconds', i % 2 = 0,
    (ARRAY['new','paid','sent','done'])[1 + i % 4], 'note number ' || i FROM generate_series(1, {_ROWS}) i;
VACUUM ANALYZE;
"""
_QUERIES = {
    "Q1 pricing summary": """SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
        sum(l_extendedprice * (1 - l_discount)), sum(l_extendedprice * (1 - l_discount) * (1 + l_tax)), count(*)
        FROM lineitem WHERE l_shipdate <= date '1998-09-02' GROUP BY 1, 2 ORDER BY 1, 2""",
    "Q3 shipping priority": """SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate
        FROM customer, orders, lineitem WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey
        AND l_orderkey = o_orderkey AND o_orderdate < date '1995-03-15' AND l_shipdate > date '1995-03-15'
        GROUP BY l_orderkey, o_orderdate ORDER BY revenue DESC, o_orderdate, l_orderkey LIMIT 10""",
    "Q6 forecast": """SELECT sum(l_extendedprice * l_discount) FROM lineitem WHERE l_shipdate >= date '1994-01-01'
        AND l_shipdate < date '1995-01-01' AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24""",
    "Q12 shipping modes": """SELECT l_shipmode, sum(CASE WHEN o_orderstatus = 'O' THEN 1 ELSE 0 END), count(*)
        FROM orders, lineitem WHERE o_orderkey = l_orderkey AND l_shipmode IN ('MAIL', 'SHIP') GROUP BY 1 ORDER BY 1""",
    "Q18 large customers": """SELECT c_name, o_orderkey, sum(l_quantity) FROM customer, orders, lineitem
        WHERE o_orderkey IN (SELECT l_orderkey FROM lineitem GROUP BY l_orderkey HAVING sum(l_quantity) > 180)
        AND c_custkey = o_custkey AND o_orderkey = l_orderkey GROUP BY 1, 2 ORDER BY 3 DESC, 2 LIMIT 10""",
    "one row by its key": "SELECT * FROM t WHERE id = 500000",
}
_NAMES = ("customer", "orders", "lineitem", "t")


def run(report: Report) -> None:
    report.title("Query server: 1M rows to a client, TPC-H-like queries")
    with Postgres(max_wal_size="8GB") as server, tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory:
        server.create_database("bench")
        with server.connect("bench", autocommit=True) as source:
            for statement in _TABLES.strip().split(";\n"):
                source.execute(statement.encode())
            lake = Path(directory) / "lake"
            _make_lake(source, lake)
            with _serving(Path(directory), lake) as port, psycopg.connect(_url(port), autocommit=True) as client:
                _export(report, client, lake)
                _queries(report, client, source)


def _make_lake(source: psycopg.Connection[Any], lake: Path) -> None:
    warehouse = Store.open(f"file://{lake}")
    catalog = SqlCatalog("bench", uri=f"sqlite:///{lake}/catalog.db", warehouse=f"file://{lake}")
    catalog.create_namespace("public")
    tables = []
    for name in _NAMES:
        (oid,) = source.execute("SELECT %s::regclass::oid", [name]).fetchone() or (0,)
        relation = source_catalog.describe(source, [oid])[oid]
        point.save_relation(warehouse, "lake", relation)
        rows = _rows(source, name, {c.name: c.type.name for c in relation.columns})
        table = catalog.create_table(f"public.{name}", rows.schema)
        summary = SnapshotSummary(Lsn(0x100), "", datetime.now(UTC), relation.digest)
        table.append(rows, snapshot_properties=summary.to_dict())
        snapshot = table.current_snapshot()
        assert snapshot is not None
        where = table.metadata_location.removeprefix("file://")
        tables.append(PointTable("public", name, "mirror", oid, Lsn(0), relation.digest, where, snapshot.snapshot_id))
    now = datetime.now(UTC)
    point.publish(warehouse, Point("lake", Lsn(0x100), now, now, "bench", tuple(tables)))


def _rows(source: psycopg.Connection[Any], name: str, columns: dict[str, str]) -> pa.Table:
    kinds = {
        "int4": pa.int32(),
        "int8": pa.int64(),
        "numeric": pa.decimal128(12, 2),
        "text": pa.string(),
        "bool": pa.bool_(),
        "date": pa.date32(),
        "timestamptz": pa.timestamp("us", "UTC"),
    }
    data = io.BytesIO()
    with source.cursor().copy(f"COPY {name} TO STDOUT (FORMAT csv)".encode()) as copy:
        for piece in copy:
            data.write(piece)
    data.seek(0)
    convert = pa.csv.ConvertOptions(
        column_types={c: kinds[t] for c, t in columns.items()}, true_values=["t"], false_values=["f"]
    )
    return pa.csv.read_csv(data, pa.csv.ReadOptions(column_names=list(columns)), convert_options=convert)


@contextmanager
def _serving(directory: Path, lake: Path) -> Iterator[int]:
    port = free_port()
    config = directory / "tailrace.toml"
    config.write_text(f'[[sink]]\ntype = "iceberg"\nname = "lake"\nwarehouse = "file://{lake}"\n')
    command = [sys.executable, "-m", "tailrace", "--config", str(config), "query", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            assert wait_until(lambda: _answers(port), 60), "the server did not answer in time"
            yield port
        finally:
            process.send_signal(signal.SIGTERM)


def _url(port: int) -> str:
    return f"postgresql://bench@127.0.0.1:{port}/bench"


def _answers(port: int) -> bool:
    try:
        psycopg.connect(_url(port)).close()
    except psycopg.OperationalError:
        return False
    return True


def _export(report: Report, client: psycopg.Connection[Any], lake: Path) -> None:
    report.section(f"1M rows of 7 columns, median of {_ROUNDS} rounds, {os.cpu_count()} cores for client and server")
    inside = duckdb.connect()
    files = f"SELECT * FROM read_parquet('{lake}/public/t/data/*.parquet')"
    arrow = _median(lambda: inside.execute(files).fetch_arrow_table())
    csv = _median(lambda: inside.execute(f"COPY ({files}) TO '/dev/null' (FORMAT csv)"))
    plain = files.replace("*", "* EXCLUDE (placed_at)", 1)
    objects = _median(lambda: inside.execute(plain).fetchall(), 1)
    report.line("DuckDB, into Arrow", f"{arrow:.2f} s")
    report.line("DuckDB, into text (CSV)", f"{csv:.2f} s")
    report.line("DuckDB, into Python objects", f"{objects:.2f} s", "without the timestamps, which it cannot return")
    port = client.info.port
    for what, statement in (
        ("SELECT, bytes counted", "SELECT * FROM t"),
        ("COPY text, bytes counted", "COPY t TO STDOUT"),
        ("COPY binary, bytes counted", "COPY t TO STDOUT (FORMAT binary)"),
    ):
        seconds = _median(partial(_count_bytes, port, statement))
        comparison = (
            f"{seconds / arrow:.1f} times DuckDB into Arrow, {seconds / csv:.1f} into text; want ≤ {_WANT_EXPORT:.0f}"
        )
        report.line(what, f"{seconds:.2f} s", comparison, ok=seconds / arrow <= _WANT_EXPORT)
    query = "SELECT id, customer, amount, is_paid, status, note FROM t"
    for what, binary in (("psycopg fetchall, text", False), ("psycopg fetchall, binary", True)):
        with client.cursor(binary=binary) as cursor:
            seconds = _median(partial(_fetch_all, cursor, query), 1)
        comparison = f"{seconds / objects:.1f} times DuckDB into objects; want ≤ {_WANT_EXPORT:.0f}"
        report.line(what, f"{seconds:.2f} s", comparison, ok=seconds / objects <= _WANT_EXPORT)


def _fetch_all(cursor: psycopg.Cursor[Any], query: str) -> list[Any]:
    return cursor.execute(query.encode()).fetchall()


def _count_bytes(port: int, statement: str) -> int:
    """Read all bytes of an answer as they come, and return their number."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        start = struct.pack("!i", 196_608) + b"user\0bench\0database\0bench\0\0"
        client.sendall(struct.pack("!i", len(start) + 4) + start)
        while not client.recv(65536).endswith(b"Z\0\0\0\x05I"):
            pass
        client.sendall(b"Q" + struct.pack("!i", len(statement) + 5) + statement.encode() + b"\0")
        buffer = bytearray(1 << 20)
        total = 0
        while True:
            count = client.recv_into(buffer)
            total += count
            if buffer[:count].endswith(b"Z\0\0\0\x05I"):
                return total


def _queries(report: Report, client: psycopg.Connection[Any], source: psycopg.Connection[Any]) -> None:
    report.section(f"the same queries on the source and on the lake, median of {_ROUNDS} rounds")
    for name, query in _QUERIES.items():
        assert client.execute(query.encode()).fetchall() == source.execute(query.encode()).fetchall(), name
        ours = _median(lambda query=query: client.execute(query.encode()).fetchall())  # type: ignore[misc]
        theirs = _median(lambda query=query: source.execute(query.encode()).fetchall())  # type: ignore[misc]
        report.line(
            name, f"{ours * 1000:,.0f} ms", f"PostgreSQL {theirs * 1000:,.0f} ms: {theirs / ours:.1f} times as fast"
        )


def _median(work: Callable[[], object], rounds: int = _ROUNDS) -> float:
    found = []
    for _ in range(rounds):
        began = time.monotonic()
        work()
        found.append(time.monotonic() - began)
    return sorted(found)[len(found) // 2]
