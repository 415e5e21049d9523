"""`tailrace demo`: a shop on an embedded PostgreSQL, captured, delivered to another, a lake and a stream; compared."""

from __future__ import annotations

import importlib.util
import logging
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console

from tailrace import settings
from tailrace.cli import reporting
from tailrace.cli.demo import screen, summary
from tailrace.cli.demo.asking import Asking
from tailrace.cli.demo.asking import is_possible as has_lake
from tailrace.cli.demo.capturing import Capturing
from tailrace.cli.demo.replicating import Replicating, is_possible
from tailrace.cli.demo.watching import Watching
from tailrace.cli.signals import on_stop
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.shop import Shop
from tailrace.store import Store

if TYPE_CHECKING:
    from tailrace.cli.demo.consuming import Consuming


@click.command("demo", short_help="A shop on an embedded PostgreSQL, captured and replicated live.")
@click.option("--seconds", type=click.FloatRange(min=1), default=30.0, show_default=True, help="How long it runs.")
def command(seconds: float) -> None:
    """Start an embedded PostgreSQL with a small shop, capture its changes into a log, deliver them to another
    PostgreSQL, its audit trail, an Iceberg lake and a NATS stream, and show what flows. While it runs, the lake answers
    psql, and the stream has whoever listens.

    Ends by itself with a comparison: the rows that the database has, against those that the log makes, those that the
    replica and the lake have, and those that a consumer of the stream makes of its messages; then prints some of these,
    one order's history, and takes a change back. Without Spark (pip install 'tailrace[spark]') there is none of this
    but the log; the lake needs tailrace[query] too, the stream tailrace[nats].
    """
    console = Console(highlight=False)
    reporting.log_to_stderr(logging.ERROR)
    directory = Path(tempfile.mkdtemp(prefix="tailrace-demo-"))
    store = Store.open(str(directory / "store"))
    console.print("starting PostgreSQL 18 with a small shop …")
    stopped = threading.Event()
    with ExitStack() as stack:
        server = stack.enter_context(Postgres())
        shop = Shop(server)
        configured = settings.Settings(
            source=settings.Source(url=server.url), store=settings.Store(url=str(directory / "store"))
        )
        capturing = stack.enter_context(Capturing(configured, store))
        watching = stack.enter_context(Watching(store))
        replicating = asking = consuming = None
        if is_possible():
            warehouse = directory / "lake" if has_lake() else None
            consuming = stack.enter_context(_consuming()) if _has_stream() else None
            replicating = stack.enter_context(Replicating(configured, watching, warehouse, consuming))
            asking = stack.enter_context(Asking(warehouse)) if warehouse is not None else None
        running = screen.Running(capturing, watching, replicating, asking, consuming)
        on_stop(stopped.set)  # Ctrl-C ends the demo early, with its summary
        with shop:
            screen.show(console, running, seconds, stopped)
        if replicating is not None:
            summary.await_replica(console, capturing, replicating, stopped)
        summary.show(console, running, store)


def _has_stream() -> bool:
    """Whether what the sink `nats` needs is installed."""
    return all(importlib.util.find_spec(name) for name in ("msgpack", "zstandard"))


def _consuming() -> Consuming:
    from tailrace.cli.demo.consuming import Consuming

    return Consuming()
