"""How the demo ends: the database's rows against those that the log makes, and those of replica, lake and stream."""

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

from tailrace.change import Lsn
from tailrace.cli import reporting
from tailrace.cli.demo import auditing
from tailrace.cli.demo.capturing import Capturing
from tailrace.cli.demo.replicating import Replicating
from tailrace.cli.demo.screen import WITHOUT_SPARK, Running, answers, told
from tailrace.cli.demo.watching import Watching
from tailrace.embedded.process import wait_until
from tailrace.embedded.shop import TABLES
from tailrace.errors import TailraceError
from tailrace.log.reader import LogReader
from tailrace.source.connection import connect
from tailrace.store import Store

if TYPE_CHECKING:
    from tailrace.cli.demo.consuming import Consuming

_PATIENCE_S = 300.0

Row = tuple[bytes | None, ...]


def await_replica(console: Console, capturing: Capturing, replicating: Replicating, stopped: threading.Event) -> None:
    """Until the replica has everything. Who stops the demo before the replica is there does not want to wait for it."""
    with connect(capturing.source) as connection:
        lsn = _current(connection)
    capturing.wait(lambda: capturing.capture.durable_lsn >= lsn)
    if stopped.is_set() and not replicating.is_live:
        return
    stopped.clear()  # from now on Ctrl-C means: do not wait
    with console.status("the replica takes what is left …") if console.is_terminal else nullcontext():
        done = wait_until(
            lambda: replicating.error is not None or stopped.is_set() or replicating.has_all(), _PATIENCE_S
        )
    if not done:
        replicating.give_up()


def show(console: Console, running: Running, store: Store) -> None:
    capturing, watching, replicating = running.capturing, running.watching, running.replicating
    with connect(capturing.source) as connection:
        lsn = _current(connection)
        capturing.wait(lambda: capturing.capture.durable_lsn >= lsn)
        by_database = {table: _rows(connection, table) for table in TABLES}
    sides = {"log": _rows_by_log(store)}
    held = 0
    # A sink in the middle of something says so a moment later.
    if replicating is not None and replicating.error is None and wait_until(replicating.has_all, 5):
        with connect(replicating.address) as connection:
            sides["replica"] = {table: _rows(connection, table) for table in TABLES}
        if running.asking is not None:
            with running.asking.connect() as connection:
                sides["lake"] = {table: _rows(connection, table) for table in TABLES}
        if running.consuming is not None:
            held = running.consuming.finish()
            with connect(capturing.source) as connection:
                sides["stream"] = _rows_by_messages(connection, running.consuming)
    # Without a frame, so that 80 columns are enough.
    verdict = Table(title=f"rows at {lsn}", title_justify="left", show_edge=False, pad_edge=False)
    verdict.add_column("table")
    for side in ("database", *sides):
        verdict.add_column(side, justify="right")
    verdict.add_column("", no_wrap=True)
    different = []
    for table, rows in by_database.items():
        wrong = [side for side, found in sides.items() if found.get(table, []) != rows]
        different += wrong
        mark = f"[bold red]DIFFERENT: {', '.join(wrong)}[/]" if wrong else "[green]equal, row for row[/]"
        verdict.add_row(table, f"{len(rows):,}", *(f"{len(found.get(table, [])):,}" for found in sides.values()), mark)
    done = capturing.capture.progress
    wait_until(lambda: watching.operations.total() >= done.changes or watching.error is not None, 10)
    watching.check()
    console.print()
    console.print(verdict)
    size = sum(info.size for info in store.list("log"))
    console.print(
        f"{done.changes:,} changes in {done.transactions:,} transactions, {done.segments:,} segments, "
        f"{reporting.size(size)}; commit → reader {_half_and_most(watching.delays)}"
    )
    _tell_of_replica(console, replicating, compared="replica" in sides)
    if "lake" in sides and running.asking is not None:
        running.asking.ask()
        console.print("the lake, asked over PostgreSQL's protocol:")
        for line in answers(running.asking):
            console.print(f"  {line}", markup=False, soft_wrap=True)
    if "stream" in sides and running.consuming is not None:
        different += [] if _tell_of_stream(console, running.consuming, held, watching) else ["stream"]
    if "replica" in sides and replicating is not None:
        auditing.show(console, capturing.source, replicating.address.url)
    _tell_what_next(console, store)
    if different:
        raise TailraceError(
            f"the database and the {different[0]} differ", "this is a bug in Tailrace: please report it"
        )
    if replicating is not None and replicating.error is not None:
        raise replicating.error


def _tell_of_replica(console: Console, replicating: Replicating | None, *, compared: bool) -> None:
    if replicating is None:
        console.print(f"replica: {WITHOUT_SPARK}", markup=False)
    elif not compared:
        console.print(f"replica: not compared, it was {replicating.state}")
    elif replicating.delays:
        console.print(f"commit → replica {_half_and_most(replicating.delays)}, once it had caught up")


def _tell_of_stream(console: Console, consuming: Consuming, held: int, watching: Watching) -> bool:
    """Whether its messages are the log's changes, each once, in that order."""
    expected = watching.positions
    is_equal = held == len(expected) and consuming.positions == expected
    if is_equal:
        console.print(
            f"{held:,} messages in the stream: every change in the log, once and in its order,"
            f" except {watching.operations.total() - held} marks of Tailrace's own"
        )
    else:
        console.print(
            f"[bold red]DIFFERENT: {len(expected):,} changes in the log, {held:,} messages in the stream,"
            f" {len(consuming.positions):,} consumed[/]"
        )
    console.print("the newest of each kind, as a consumer sees them:")
    for message in consuming.newest.values():
        for line in told(message, "  "):
            console.print(line, no_wrap=True, overflow="ellipsis")
    return is_equal


def _tell_what_next(console: Console, store: Store) -> None:
    console.print("\nThe log is kept. What to try next:", style="bold")
    for what, arguments in (
        ("what is in it", f"log ls --store {store.url}"),
        ("one table's changes", f"log cat --json --table public.orders --store {store.url}"),
        ("that nobody touched it", f"log verify --store {store.url}"),
        ("your own database", "init    (then check, then run)"),
    ):
        console.print(f"  {what:<24} {_program()} {arguments}", soft_wrap=True)


def _half_and_most(delays: list[float]) -> str:
    p50, p95 = (quantiles(delays, n=20)[i] for i in (9, 18)) if len(delays) > 1 else (0.0, 0.0)
    return f"{reporting.duration(p50)} (half), {reporting.duration(p95)} (95 %)"


def _program() -> str:
    """What to type: the name if the shell would find it, else the path it was started by."""
    return "tailrace" if shutil.which("tailrace") else os.path.relpath(sys.argv[0])


def _current(connection: psycopg.Connection[Any]) -> Lsn:
    row = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
    assert row is not None
    return Lsn.parse(str(row[0]))


def _rows(connection: psycopg.Connection[Any], table: str) -> list[Row]:
    return _fetched(connection.execute(f"SELECT * FROM public.{table}"))  # noqa: S608


def _fetched(cursor: psycopg.Cursor[Any]) -> list[Row]:
    result = cursor.pgresult
    assert result is not None
    fields = range(result.nfields)
    return sorted(
        tuple([None if (v := result.get_value(r, f)) is None else bytes(v) for f in fields])
        for r in range(result.ntuples)
    )


def _rows_by_messages(connection: psycopg.Connection[Any], consuming: Consuming) -> dict[str, list[Row]]:
    """PostgreSQL itself makes rows of what the messages say."""
    found = {}
    for table, rows in consuming.rows.items():
        query = f"SELECT * FROM json_populate_recordset(NULL::public.{table}, %s::json)"  # noqa: S608
        found[table] = _fetched(connection.execute(query, [json.dumps(list(rows.values()))]))
    return found


def _rows_by_log(store: Store) -> dict[str, list[Row]]:
    """Follow every change by its key: what the tables must look like now."""
    tables: dict[str, dict[object, Any]] = {}
    for change in LogReader(store).changes():
        if change.relation is None:
            continue
        rows = tables.setdefault(change.relation.name, {})
        key = [i for i, column in enumerate(change.relation.columns) if column.is_identity]
        for image, is_there in ((change.old or change.new, False), (change.new, True)):
            if image is not None:
                identity = tuple([image[i] for i in key])
                rows.pop(identity, None)
                if is_there:
                    rows[identity] = tuple(image)
    return {name: sorted(rows.values()) for name, rows in tables.items()}
