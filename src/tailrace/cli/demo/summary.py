"""The demo's summary: compares the database's rows with those in the log, the replica, the lake and the stream."""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from contextlib import nullcontext
from statistics import quantiles
from typing import TYPE_CHECKING, Any

import psycopg
from rich.console import Console
from rich.table import Table

from tailrace.capture.postgres.source_connection import connect
from tailrace.change import Lsn
from tailrace.cli import output
from tailrace.cli.demo import audit_trail
from tailrace.cli.demo.demo_capture import DemoCapture
from tailrace.cli.demo.demo_reader import DemoReader
from tailrace.cli.demo.demo_replica import DemoReplica
from tailrace.cli.demo.screen import WITHOUT_SPARK, DemoComponents, message_lines, query_lines
from tailrace.embedded.process import wait_until
from tailrace.embedded.shop import TABLES
from tailrace.errors import TailraceError
from tailrace.log.reader import LogReader
from tailrace.store import Store

if TYPE_CHECKING:
    from tailrace.cli.demo.demo_consumer import DemoConsumer
    from tailrace.cli.demo.demo_slatedb import DemoSlateDb

_TIMEOUT_S = 300.0

Row = tuple[bytes | None, ...]


def await_replica(console: Console, capture: DemoCapture, replica: DemoReplica, stopping: threading.Event) -> None:
    """Wait until the replica has every change. If the demo was stopped before the replica caught up, do not wait."""
    with connect(capture.source) as connection:
        lsn = _current_lsn(connection)
    capture.wait(lambda: capture.capture.durable_lsn >= lsn)
    if stopping.is_set() and not replica.is_live:
        return
    stopping.clear()  # from here on, Ctrl-C means: do not wait
    with console.status("waiting for the replica …") if console.is_terminal else nullcontext():
        done = wait_until(lambda: replica.error is not None or stopping.is_set() or replica.has_all(), _TIMEOUT_S)
    if not done:
        replica.give_up()


def show(console: Console, components: DemoComponents, store: Store) -> None:
    """Print the comparison and the summary. Raise if the rows differ or the replica has failed."""
    capture, reader, replica = components.capture, components.reader, components.replica
    with connect(capture.source) as connection:
        lsn = _current_lsn(connection)
        capture.wait(lambda: capture.capture.durable_lsn >= lsn)
        expected = {table: _rows(connection, table) for table in TABLES}
    sides = {"log": _rows_from_log(store)}
    message_counts: dict[str, int] = {}
    # A sink in the middle of a step reports its cursor shortly after.
    if replica is not None and replica.error is None and wait_until(replica.has_all, 5):
        with connect(replica.address) as connection:
            sides["replica"] = {table: _rows(connection, table) for table in TABLES}
        if components.lake is not None:
            with components.lake.connect() as connection:
                sides["lake"] = {table: _rows(connection, table) for table in TABLES}
        if components.mysql is not None:
            sides[components.mysql.name] = components.mysql.rows()
        for consumer in components.consumers:
            message_counts[consumer.name] = consumer.finish()
            with connect(capture.source) as connection:
                sides[consumer.name] = _rows_from_messages(connection, consumer)
    # Without a border, so that it fits into 80 columns.
    verdict = Table(title=f"rows at {lsn}", title_justify="left", show_edge=False, pad_edge=False)
    verdict.add_column("table")
    for side in ("database", *sides):
        verdict.add_column(side, justify="right")
    verdict.add_column("", no_wrap=True)
    different = []
    for table, rows in expected.items():
        differing = [side for side, tables in sides.items() if tables.get(table, []) != rows]
        different += differing
        mark = f"[bold red]DIFFERENT: {', '.join(differing)}[/]" if differing else "[green]equal, row for row[/]"
        verdict.add_row(
            table, f"{len(rows):,}", *(f"{len(tables.get(table, [])):,}" for tables in sides.values()), mark
        )
    done = capture.capture.progress
    wait_until(lambda: reader.operations.total() >= done.changes or reader.error is not None, 10)
    reader.check()
    console.print()
    console.print(verdict)
    size = sum(info.size for info in store.list("log"))
    console.print(
        f"{done.changes:,} changes in {done.transactions:,} transactions, {done.segments:,} segments, "
        f"{output.size(size)}; commit → reader {_percentiles(reader.delays)}"
    )
    _print_replica(console, replica, compared="replica" in sides)
    if "lake" in sides and components.lake is not None:
        components.lake.query()
        console.print("the lake, queried over the PostgreSQL protocol:")
        for line in query_lines(components.lake):
            console.print(f"  {line}", markup=False, soft_wrap=True)
    for consumer in components.consumers:
        if consumer.name in sides:
            is_equal = _print_messages(console, consumer, message_counts[consumer.name], reader)
            different += [] if is_equal else [consumer.name]
    if components.carts is not None and not _print_carts(console, components.carts):
        different.append(components.carts.name)
    if "replica" in sides and replica is not None:
        audit_trail.show(console, capture.source, replica.address.url)
    _print_next_steps(console, store)
    if different:
        raise TailraceError(
            f"the database and the {different[0]} differ", "this is a bug in Tailrace: please report it"
        )
    if replica is not None and replica.error is not None:
        raise replica.error


def _print_replica(console: Console, replica: DemoReplica | None, *, compared: bool) -> None:
    if replica is None:
        console.print(f"replica: {WITHOUT_SPARK}", markup=False)
    elif not compared:
        console.print(f"replica: not compared, it was {replica.state}")
    elif replica.delays:
        console.print(f"commit → replica {_percentiles(replica.delays)}, once it had caught up")


def _print_messages(console: Console, consumer: DemoConsumer, message_count: int, reader: DemoReader) -> bool:
    """Print the newest messages. Return whether the server has every change of the log once, in order."""
    expected = reader.positions
    is_equal = message_count == len(expected) and consumer.has_every(expected)
    if is_equal:
        console.print(
            f"{message_count:,} messages in {consumer.place}: every change in the log, once and {consumer.order}"
        )
    else:
        console.print(
            f"[bold red]DIFFERENT: {len(expected):,} changes in the log, {message_count:,} messages in"
            f" {consumer.place}, {len(consumer.positions):,} consumed[/]"
        )
    console.print("the newest message of each operation, as a consumer sees it:")
    for message in consumer.newest.values():
        for line in message_lines(message, "  "):
            console.print(line, no_wrap=True, overflow="ellipsis")
    return is_equal


def _print_carts(console: Console, carts: DemoSlateDb) -> bool:
    """Print the comparison of the SlateDB database with its log. Return whether they are equal."""
    scanned, logged = carts.finish()
    mark = "[green]equal, row for row[/]" if scanned == logged else "[bold red]DIFFERENT[/]"
    console.print(f"{carts.name}: {len(scanned):,} rows in SlateDB, {len(logged):,} in snapshot and log: {mark}")
    console.print(
        f"{carts.changes:,} changes, each with what merges made of its row: {_program()} log cat --store "
        f"{carts.store.url}",
        soft_wrap=True,
    )
    return scanned == logged


def _print_next_steps(console: Console, store: Store) -> None:
    console.print("\nThe log is still there. Next steps:", style="bold")
    for step, arguments in (
        ("list its segments", f"log ls --store {store.url}"),
        ("print a table's changes", f"log cat --json --table public.orders --store {store.url}"),
        ("verify its hash chain", f"log verify --store {store.url}"),
        ("use your own database", "init    (then check, then run)"),
    ):
        console.print(f"  {step:<24} {_program()} {arguments}", soft_wrap=True)


def _percentiles(delays: list[float]) -> str:
    p50, p95 = (quantiles(delays, n=20)[i] for i in (9, 18)) if len(delays) > 1 else (0.0, 0.0)
    return f"{output.duration(p50)} (median), {output.duration(p95)} (95 %)"


def _program() -> str:
    """Return the command name if the shell finds it, else the path that this program was started with."""
    return "tailrace" if shutil.which("tailrace") else os.path.relpath(sys.argv[0])


def _current_lsn(connection: psycopg.Connection[Any]) -> Lsn:
    row = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
    assert row is not None
    return Lsn.parse(str(row[0]))


def _rows(connection: psycopg.Connection[Any], table: str) -> list[Row]:
    return _result_rows(connection.execute(f"SELECT * FROM public.{table}"))  # noqa: S608


def _result_rows(cursor: psycopg.Cursor[Any]) -> list[Row]:
    result = cursor.pgresult
    assert result is not None
    fields = range(result.nfields)
    return sorted(
        tuple([None if (v := result.get_value(r, f)) is None else bytes(v) for f in fields])
        for r in range(result.ntuples)
    )


def _rows_from_messages(connection: psycopg.Connection[Any], consumer: DemoConsumer) -> dict[str, list[Row]]:
    """Let PostgreSQL itself convert the messages to rows."""
    by_table = {}
    for table, rows in consumer.rows.items():
        query = f"SELECT * FROM json_populate_recordset(NULL::public.{table}, %s::json)"  # noqa: S608
        by_table[table] = _result_rows(connection.execute(query, [json.dumps(list(rows.values()))]))
    return by_table


def _rows_from_log(store: Store) -> dict[str, list[Row]]:
    """Apply every change in the log by its key. Return the resulting rows of each table."""
    tables: dict[str, dict[object, Any]] = {}
    for change in LogReader(store).changes():
        if change.relation is None:
            continue
        rows = tables.setdefault(change.relation.name, {})
        key = [i for i, column in enumerate(change.relation.columns) if column.is_identity]
        for image, is_present in ((change.old or change.new, False), (change.new, True)):
            if image is not None:
                identity = tuple([image[i] for i in key])
                rows.pop(identity, None)
                if is_present:
                    rows[identity] = tuple(image)
    return {name: sorted(rows.values()) for name, rows in tables.items()}
