"""`tailrace bridge`: the drop-in for the PostgreSQL-to-NATS bridge, run by its environment and its flags."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

import click

from tailrace import sinks
from tailrace.bridge import environment
from tailrace.bridge.figures import Figures, alarm
from tailrace.bridge.http import routes
from tailrace.cli import Invocation, drop_in, reporting
from tailrace.cli.drop_in import DropIn
from tailrace.cli.run import supervise
from tailrace.ops.http import Server, Subject
from tailrace.ops.status import Overview
from tailrace.settings import Http, Secret, Settings

_log = logging.getLogger("tailrace.run")

_LINE_SECONDS: Final = 15.0
_LINES_PER_LOOK: Final = 2
"""At the slot: every 30 seconds."""


@click.group("bridge", short_help="PostgreSQL to NATS, with the bridge's environment.", invoke_without_command=True)
@click.option("--slot", default="cdc_slot", show_default=True, help="The replication slot; made if it is missing.")
@click.option("--pub", "publication", required=True, help="The publication.")
@click.option("--port", type=click.IntRange(1, 65535), default=9090, show_default=True, help="Of HTTP.")
@click.option("--json", "is_json", is_flag=True, help="JSON in place of MessagePack.")
@click.option("--zstd", "is_zstd", is_flag=True, help="Compress chunks of snapshots, with a dictionary per table.")
@click.pass_context
def command(ctx: click.Context, slot: str, publication: str, port: int, is_json: bool, is_zstd: bool) -> None:
    """Publish every change to NATS JetStream, and the rows of tables to whoever asks for them.

    The environment: PG_HOST, PG_PORT, PG_DB, POSTGRES_BRIDGE_USER, POSTGRES_BRIDGE_PASSWORD, NATS_HOST,
    NATS_BRIDGE_USER, NATS_BRIDGE_PASSWORD. The log is kept in ./tailrace-log/<slot>, or under TAILRACE_STORE_URL.
    Several may run side by side, each with a slot, a publication and a port of its own.
    """
    given = environment.read(os.environ, slot, publication, is_json=is_json, is_zstd=is_zstd)
    flags = [*["--json"] * is_json, *["--zstd"] * is_zstd]
    own = ("bridge", "--slot", slot, "--pub", publication, *flags)
    assert isinstance(ctx.obj, Invocation)
    ctx.obj = DropIn(None, ctx.obj.log_level, given=given, command=own)
    if ctx.invoked_subcommand is None:
        _run(ctx.obj, given, port)


def _run(invocation: DropIn, given: Settings, port: int) -> None:
    reporting.log_to_stderr(invocation.log_level)
    began = time.monotonic()
    # With one half of it there is no bridge: whoever started it must learn of that.
    last = supervise(invocation, given, partial(_serving, given, port, began), all_or_nothing=True)
    done = Figures.of(last, time.monotonic() - began)
    click.echo(
        f"stopped after {reporting.duration(done.uptime_seconds)}: {done.wal_messages:,} WAL messages received, "
        f"{done.cdc_events:,} events published, acknowledged to {done.lsn}"
    )


@contextlib.contextmanager
def _serving(given: Settings, port: int, began: float, subject: Subject) -> Iterator[None]:
    """HTTP, the line of figures, the watch over the slot."""
    from tailrace.bridge.streams import Streams  # here, where it is known that what they need is installed
    from tailrace.sinks.nats.options import NatsOptions

    slot, sink = given.source.slot, given.sinks[0]["name"]
    # Whoever watches is on another machine. He may look; to end it takes a token, or to be on this one.
    token = os.environ.get("TAILRACE_HTTP_TOKEN") or secrets.token_urlsafe()
    http = Http(host="0.0.0.0", token=Secret(token))  # noqa: S104
    streams = Streams(sinks.options(given, sink, NatsOptions, os.environ), sink)

    def figures(overview: Overview) -> Figures:
        return Figures.of(overview, time.monotonic() - began)

    over = threading.Event()

    def tell() -> None:
        for number in itertools.count(1):
            if over.wait(_LINE_SECONDS):
                return
            told = figures(subject.overview())
            click.echo(told.line())
            if number % _LINES_PER_LOOK == 0 and (said := alarm(slot, told.wal_lag_bytes)) is not None:
                _log.log(*said)

    with Server(http, routes(subject, figures, streams), port, trusts_local=True):
        teller = threading.Thread(target=tell, name="metrics", daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join()


command.add_command(drop_in.parts())
