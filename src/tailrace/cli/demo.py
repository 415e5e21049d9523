"""`tailrace demo`: a shop on an embedded PostgreSQL, captured live; then the log is compared with the database."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

import click
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tailrace import settings
from tailrace.change import Change, Lsn, Operation
from tailrace.cli import reporting
from tailrace.cli.signals import on_stop
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.embedded.shop import TABLES, Shop
from tailrace.errors import TailraceError
from tailrace.log.reader import LogReader
from tailrace.log.rendering import to_line
from tailrace.source.capture import Capture
from tailrace.source.connection import connect
from tailrace.store import Store

_COLOURS = {Operation.INSERT: "green", Operation.UPDATE: "yellow", Operation.DELETE: "red"}
_RECENT = 8
_PLAIN_SECONDS = 5.0


@click.command("demo", short_help="A shop on an embedded PostgreSQL, captured live.")
@click.option("--seconds", type=click.FloatRange(min=1), default=30.0, show_default=True, help="How long it runs.")
def command(seconds: float) -> None:
    """Start an embedded PostgreSQL with a small shop, capture its changes into a log, and show what flows.

    Ends by itself with a comparison: the rows that the log makes, against the rows that the database has.
    """
    console = Console(highlight=False)
    directory = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    store = Store.open(str(directory / "store"))
    console.print("starting PostgreSQL 18 with a small shop …")
    with Postgres() as server:
        shop = Shop(server)
        configured = settings.Settings(source=settings.Source(url=server.url))
        with _Capturing(configured, store) as capturing, _Watching(store) as watching:
            stopped = threading.Event()
            on_stop(stopped.set)  # Ctrl-C ends the demo early, with its summary
            with shop:
                if console.is_terminal:
                    _show_live(console, capturing, watching, seconds, stopped)
                else:
                    _print_lines(capturing, watching, seconds, stopped)
            _summarise(console, capturing, watching, store)


class _Capturing:
    """Capture in a thread; leaving the context seals and stops it."""

    def __init__(self, configured: settings.Settings, store: Store) -> None:
        self.source = configured.source
        self.capture = Capture(configured, store)
        self._error: TailraceError | None = None
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)

    def __enter__(self) -> _Capturing:
        self._thread.start()
        self.wait(lambda: self.capture.is_streaming)
        return self

    def __exit__(self, *_: object) -> None:
        self.capture.stop()
        self._thread.join()

    def wait(self, condition: Callable[[], bool]) -> None:
        done = wait_until(lambda: condition() or self._error is not None, 60)
        if self._error is not None:
            raise self._error
        if not done:
            raise TailraceError("capture does not get on", "is the machine overloaded? try again")

    def _run(self) -> None:
        try:
            self.capture.run()
        except TailraceError as error:
            self._error = error


@dataclass
class _Watching:
    """A reader of the log, as any program could be: counts, keeps the newest, notes how late each arrived."""

    store: Store
    operations: Counter[str] = field(default_factory=Counter)
    recent: deque[Change] = field(default_factory=lambda: deque(maxlen=_RECENT))
    delays: list[float] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    error: TailraceError | None = None

    def __enter__(self) -> _Watching:
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join()

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def _run(self) -> None:
        try:
            self._follow()
        except TailraceError as error:
            self.error = error

    def _follow(self) -> None:
        for change in LogReader(self.store).follow(stop=self.stop, poll_seconds=0.01):
            self.operations[change.operation] += 1
            self.recent.append(change)
            self.delays.append(time.time() - change.committed_at.timestamp())

    @property
    def delay(self) -> str:
        """Commit to reader, of the newest."""
        newest = self.delays[-200:]
        return reporting.duration(sorted(newest)[len(newest) // 2]) if newest else "–"


def _show_live(
    console: Console, capturing: _Capturing, watching: _Watching, seconds: float, stopped: threading.Event
) -> None:
    rate = reporting.Rate()
    deadline = time.monotonic() + seconds
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        while (left := deadline - time.monotonic()) > 0 and not stopped.wait(0.125):
            live.update(_screen(capturing, watching, rate.of(watching.operations.total()), left))


def _screen(capturing: _Capturing, watching: _Watching, rate: float, left: float) -> Group:
    capture = capturing.capture
    figures = Table.grid(padding=(0, 3))
    figures.add_row("changes", f"{watching.operations.total():,}", "inserts", f"{watching.operations['INSERT']:,}")
    figures.add_row("per second", f"{rate:,.0f}", "updates", f"{watching.operations['UPDATE']:,}")
    figures.add_row("commit → reader", watching.delay, "deletes", f"{watching.operations['DELETE']:,}")
    figures.add_row("durable to", str(capture.durable_lsn), "segments", f"{capture.progress.segments:,}")
    figures.add_row(
        "last position",
        str(capture.progress.last_position or "–"),
        "payload",
        reporting.size(capture.progress.payload_bytes),
    )
    newest = Group(*[_line(change) for change in list(watching.recent)])
    return Group(
        Panel(figures, title=f"PostgreSQL → log, {left:.0f} s left", title_align="left"),
        Panel(newest, title="newest changes, as a reader of the log sees them", title_align="left"),
    )


def _line(change: Change) -> Text:
    return Text(to_line(change), style=_COLOURS.get(change.operation, ""), no_wrap=True, overflow="ellipsis")


def _print_lines(capturing: _Capturing, watching: _Watching, seconds: float, stopped: threading.Event) -> None:
    rate = reporting.Rate(_PLAIN_SECONDS)
    rate.of(0)
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0 and not stopped.wait(min(_PLAIN_SECONDS, left)):
        count = watching.operations.total()
        click.echo(
            f"{count:,} changes, {rate.of(count):,.0f}/s, commit → reader {watching.delay},"
            f" durable to {capturing.capture.durable_lsn}"
        )
        for change in list(watching.recent)[-2:]:
            click.echo(f"    {to_line(change)}")


def _summarise(console: Console, capturing: _Capturing, watching: _Watching, store: Store) -> None:
    with connect(capturing.source) as connection:
        lsn = Lsn.parse(str(connection.execute("SELECT pg_current_wal_lsn()").fetchone()[0]))  # type: ignore[index]
        capturing.wait(lambda: capturing.capture.durable_lsn >= lsn)
        by_log = _rows_by_log(store)
        verdict = Table(title=f"the log against the database, at {lsn}", title_justify="left")
        for column in ("table", "rows in the database", "rows by the log", ""):
            verdict.add_column(column, justify="left" if column in ("table", "") else "right")
        equal = True
        for table in TABLES:
            result = connection.execute(f"SELECT * FROM public.{table}").pgresult  # noqa: S608
            assert result is not None
            fields = range(result.nfields)
            rows = sorted(
                tuple([None if (v := result.get_value(r, f)) is None else bytes(v) for f in fields])
                for r in range(result.ntuples)
            )
            same = rows == sorted(by_log.get(table, {}).values())
            equal &= same
            mark = "[green]equal, row for row[/]" if same else "[bold red]DIFFERENT[/]"
            verdict.add_row(table, f"{len(rows):,}", f"{len(by_log.get(table, {})):,}", mark)
    done = capturing.capture.progress
    wait_until(lambda: watching.operations.total() >= done.changes or watching.error is not None, 10)
    watching.check()
    size = sum(info.size for info in store.list("log"))
    p50, p95 = (quantiles(watching.delays, n=20)[i] for i in (9, 18)) if len(watching.delays) > 1 else (0.0, 0.0)
    console.print()
    console.print(verdict)
    console.print(
        f"{done.changes:,} changes in {done.transactions:,} transactions, {done.segments:,} segments, "
        f"{reporting.size(size)}; commit → reader {reporting.duration(p50)} (half), {reporting.duration(p95)} (95 %)"
    )
    console.print("\nThe log is kept. What to try next:", style="bold")
    for what, arguments in (
        ("what is in it", f"log ls --store {store.url}"),
        ("one table's changes", f"log cat --json --table public.orders --store {store.url}"),
        ("that nobody touched it", f"log verify --store {store.url}"),
        ("your own database", "init    (then check, then capture)"),
    ):
        console.print(f"  {what:<24} {_program()} {arguments}", soft_wrap=True)
    if not equal:
        raise TailraceError("the log and the database differ", "this is a bug in Tailrace: please report it")


def _program() -> str:
    """What to type: the name if the shell would find it, else the path it was started by."""
    return "tailrace" if shutil.which("tailrace") else os.path.relpath(sys.argv[0])


def _rows_by_log(store: Store) -> dict[str, dict[object, tuple[object, ...]]]:
    """Follow every change by its key: what the tables must look like now."""
    tables: dict[str, dict[object, tuple[object, ...]]] = {}
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
    return tables
