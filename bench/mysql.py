"""Draining a ready log into MariaDB, compared with PyMySQL writing the same rows alone; and the latency.

The bare writer is what a careful script would do with the decoded changes. It loads inserts with LOAD DATA. It writes
mixed changes a thousand at a time, each thousand reduced to its net change, with an upsert and a delete of many rows.
Its clock covers this and the encoding; what writing alone took is printed, too. Its tables have the same definition. It
commits after every 50,000 rows. Both clocks stop when everything is committed; then the rows are compared with the
source's.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from bench.message_sink import chunks, measure_latency
from bench.ready_log import ReadyLog, make
from bench.replica import INSERTS, MIX
from bench.report import Report
from bench.throughput import TABLE
from tailrace import settings, sinks
from tailrace.change import Relation
from tailrace.delivery.coalesce import coalesce
from tailrace.embedded.mariadb import MariaDbServer
from tailrace.embedded.postgres import Postgres
from tailrace.log.decoding import INSERT, TableChanges
from tailrace.sinks.database import table_write
from tailrace.sinks.database.replica import DestinationTable
from tailrace.sinks.database.staged_rows import RowBatch
from tailrace.sinks.mysql import load_data
from tailrace.sinks.mysql.identifier import quote
from tailrace.sinks.mysql.options import MysqlOptions
from tailrace.sinks.mysql.session import MysqlSession
from tailrace.sinks.mysql.staging import RowFormat
from tailrace.sinks.mysql.stored_row import stored_rows
from tailrace.sinks.mysql.table_definition import DefinitionFormat
from tailrace.sinks.mysql.table_name import TableName
from tailrace.spark import engine_session
from tailrace.spark.engine import Engine

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LIMIT_S = 600.0
_STATEMENT_ROWS = 1000
_COMMIT_ROWS = 50_000


@dataclass(frozen=True)
class _MysqlLoad:
    name: str
    changes: int
    tables: tuple[str, ...]
    statements: tuple[str, ...]


_LOADS = (
    _MysqlLoad("1M inserts, 1,000 a transaction", 1_000_000, ("t",), (INSERTS,)),
    _MysqlLoad("500K mixed, 5 tables, 10 or 10,000 a transaction", 500_000, ("a", "b", "c", "d", "e"), MIX),
)


def run(report: Report, rounds: int = 3) -> None:
    report.title("MySQL: a ready log drained into MariaDB, compared with PyMySQL writing the same rows alone")
    spark = engine_session.start(settings.Settings(), ()).wait()
    try:
        with Postgres() as source, MariaDbServer() as destination:
            for number, load in enumerate(_LOADS):
                with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory:
                    tables = [TABLE.format(name=table) for table in load.tables]
                    log = make(source, f"load{number}", directory, tables, load.statements)
                    _measure(report, spark, log, load, destination, rounds)
                    log.drop_slots()
    finally:
        spark.stop()
    with MariaDbServer() as destination:
        _measure_latency(report, destination)


def _measure(
    report: Report, spark: SparkSession, log: ReadyLog, load: _MysqlLoad, destination: MariaDbServer, rounds: int
) -> None:
    ours: list[float] = []
    bare: list[float] = []
    written: list[float] = []
    for round_ in range(rounds + 1):
        with _database(destination, f"bare{round_}") as url:
            total_s, writing_s = _write_alone(log, url)
            bare.append(total_s)
            written.append(writing_s)
        with _database(destination, f"ours{round_}") as url:
            ours.append(_deliver(log, spark, url))
            if round_ == rounds:
                _compare(log, load, url)
    # The first round is slower: Spark's Java is not compiled yet.
    del ours[0], bare[0], written[0]
    report.section(load.name)
    ratio = statistics.median(b / o for b, o in zip(bare, ours, strict=True))
    report.line("PyMySQL alone", _rates(load.changes, bare), "changes/s, slowest and fastest round")
    report.line("deliver", _rates(load.changes, ours), "Spark was already running; rows compared")
    report.line("ratio", f"{ratio:.2f}", "want ≥ 0.5", ok=ratio >= 0.5)
    alone = statistics.median(w / o for w, o in zip(written, ours, strict=True))
    report.line(
        "ratio to its writing alone", f"{alone:.2f}", "changes were reduced and encoded before the clock started"
    )


def _rates(changes: int, seconds: Sequence[float]) -> str:
    return f"{changes / max(seconds):,.0f} – {changes / min(seconds):,.0f}"


@contextmanager
def _database(server: MariaDbServer, name: str) -> Iterator[str]:
    _execute(server, f"CREATE DATABASE {name}")
    yield f"{server.url.rpartition('/')[0]}/{name}"
    _execute(server, f"DROP DATABASE {name}")


def _execute(server: MariaDbServer, statement: str) -> None:
    with closing(MysqlSession(MysqlOptions(url=server.url))) as session:
        session.execute(statement)


def _deliver(log: ReadyLog, spark: SparkSession, url: str) -> float:
    name = url.rpartition("/")[2]
    configured = settings.Settings(
        store=settings.StoreSettings(url=log.store_url), sinks=({"type": "mysql", "name": name, "url": url},)
    )
    engine = Engine(configured, sinks.from_settings(configured, {}), spark=spark)
    began = time.monotonic()
    engine.start()
    try:
        delivered = engine.wait(engine.end(), _LIMIT_S)
        seconds = time.monotonic() - began
        assert delivered, engine.sinks[name].error or "not delivered in time"
    finally:
        engine.stop()
    return seconds


@dataclass
class _BareWriter:
    """What to write for one run of changes, ready to be sent."""

    table: str
    names: list[str]
    rows: int
    lines: list[bytes] = field(default_factory=list)
    statements: list[bytes] = field(default_factory=list)

    def write(self, session: MysqlSession) -> None:
        if self.lines:
            _, warnings = session.load(self.table, self.names, self.lines)
            assert warnings == 0
        for statement in self.statements:
            session.execute(statement)


def _write_alone(log: ReadyLog, url: str) -> tuple[float, float]:
    """Return how long it took to write the changes, and how much of that was spent on writing itself."""
    with closing(MysqlSession(MysqlOptions(url=url))) as session:
        database = url.rpartition("/")[2]
        format = DefinitionFormat(session.flavour, MysqlOptions(url=url).policy(), is_history=False)
        runs = list(_blocks_of_changes(log))
        for relation in {run.relation.name: run.relation for run in runs}.values():
            name = TableName(database, relation.name)
            session.execute(format.of(DestinationTable(relation, ("public", relation.name)), name).create)
        began, writing_s, waiting = time.monotonic(), 0.0, 0
        for number, run in enumerate(runs, 1):
            name = TableName(database, run.relation.name)
            writer = _bare_writer(table_write.of_changes(run), run.relation, name, format)
            encoded = time.monotonic()
            writer.write(session)
            waiting += writer.rows
            if waiting >= _COMMIT_ROWS or number == len(runs):
                session.commit()
                waiting = 0
            writing_s += time.monotonic() - encoded
        return time.monotonic() - began, writing_s


def _blocks_of_changes(log: ReadyLog) -> Iterator[TableChanges]:
    """Inserts as they come, and other changes by the thousand."""
    for run in coalesce(chunks(log)):
        if (run.operation == INSERT).all():
            yield run
            continue
        for start in range(0, len(run), _STATEMENT_ROWS):
            yield run.take(np.arange(start, min(start + _STATEMENT_ROWS, len(run))))


def _bare_writer(
    change: table_write.TableWrite[RowBatch], relation: Relation, name: TableName, format: DefinitionFormat
) -> _BareWriter:
    columns = format.columns(relation)
    rows = RowFormat(columns)
    writer = _BareWriter(name.sql, [column.name for column in columns], sum(map(len, change.rows())))
    if change.inserted is not None and change.deleted is None and not change.updated:
        writer.lines = list(load_data.lines(rows.encode(change.inserted), len(change.inserted)))
        return writer
    if change.deleted is not None:
        for literals in _blocks(load_data.row_literals(rows.encode(change.deleted))):
            writer.statements.append(f"DELETE FROM {name.sql} WHERE (id) IN (".encode() + b",".join(literals) + b")")
    listed = ", ".join(map(quote, writer.names))
    sets = ", ".join([f"{quote(n)} = VALUES({quote(n)})" for n in writer.names])
    upserted = [*(group.rows for group in change.updated), *([change.inserted] if change.inserted is not None else [])]
    for batch in upserted:
        for literals in _blocks(load_data.row_literals(rows.encode(batch))):
            insert = f"INSERT INTO {name.sql} ({listed}) VALUES ".encode() + b",".join(literals)
            writer.statements.append(insert + f" ON DUPLICATE KEY UPDATE {sets}".encode())
    return writer


def _blocks(literals: list[bytes]) -> Iterator[list[bytes]]:
    for start in range(0, len(literals), _STATEMENT_ROWS):
        yield literals[start : start + _STATEMENT_ROWS]


def _compare(log: ReadyLog, load: _MysqlLoad, url: str) -> None:
    """Compare all rows of all tables with the source's, as PostgreSQL prints them."""
    options = MysqlOptions(url=url)
    with closing(MysqlSession(options)) as session, log.connect() as connection:
        format = DefinitionFormat(session.flavour, options.policy(), is_history=False)
        connection.execute("SET TimeZone = 'UTC'")
        for table in load.tables:
            (text,) = session.rows(f"SELECT relation FROM tailrace_tables WHERE table_name = '{table}'")[0]
            columns = format.columns(Relation.from_json(text))
            found = stored_rows(session, TableName(options.url_database, table), columns)
            result = connection.execute(f"SELECT * FROM {table}".encode()).pgresult
            assert result is not None
            cells = range(result.nfields)
            expected = {tuple([result.get_value(row, cell) for cell in cells]) for row in range(result.ntuples)}
            assert len(found) == len(expected), f"{table}: {len(found)} rows, and {len(expected)} at the source"
            assert set(found) == expected, f"the rows of {table} differ from the source's"


def _measure_latency(report: Report, destination: MariaDbServer) -> None:
    def watch(seen: list[float], finished: threading.Event) -> None:
        with closing(MysqlSession(MysqlOptions(url=destination.url))) as session:
            newest = 0
            while not finished.wait(0.002):
                count = session.value("SELECT max(id) FROM t") or 0
                session.commit()
                seen.extend([time.time()] * (count - newest))
                newest = count

    measure_latency(report, "MySQL", {"type": "mysql", "url": destination.url}, watch)
