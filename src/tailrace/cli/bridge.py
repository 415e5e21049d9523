"""`tailrace bridge`: the drop-in replacement for the PostgreSQL-to-NATS bridge, with its environment and flags."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import click

from tailrace import sinks
from tailrace.background import BackgroundThread
from tailrace.bridge import bridge_environment
from tailrace.bridge.http import routes
from tailrace.bridge.status import BridgeStatus, wal_alarm
from tailrace.cli import Invocation, compatibility, output
from tailrace.cli.compatibility import CompatibleInvocation
from tailrace.cli.run import supervise
from tailrace.ops.http import HttpServer, Service
from tailrace.ops.status import Overview
from tailrace.settings import HttpSettings, Secret, Settings

_log = logging.getLogger("tailrace.run")

_LINE_SECONDS: Final = 15.0
_LINES_PER_WAL_CHECK: Final = 2
"""The WAL retained by the slot is checked every 30 seconds."""


@click.group(
    "bridge",
    short_help="Publish changes to NATS; replaces the PostgreSQL-to-NATS bridge.",
    invoke_without_command=True,
)
@click.option("--slot", default="cdc_slot", show_default=True, help="Replication slot. Created if it does not exist.")
@click.option("--pub", "publication", required=True, help="Publication. Created if it does not exist and the role may.")
@click.option("--port", type=click.IntRange(1, 65535), default=9090, show_default=True, help="Port of the HTTP server.")
@click.option("--json", "is_json", is_flag=True, help="Encode messages as JSON instead of MessagePack.")
@click.option("--zstd", "is_zstd", is_flag=True, help="Compress snapshot chunks, with a dictionary per table.")
@click.pass_context
def command(ctx: click.Context, slot: str, publication: str, port: int, is_json: bool, is_zstd: bool) -> None:
    """Publish every change to NATS JetStream, and table snapshots to consumers that request them.

    This replaces the PostgreSQL-to-NATS bridge, and reads the same environment variables: PG_HOST, PG_PORT, PG_DB,
    POSTGRES_BRIDGE_USER, POSTGRES_BRIDGE_PASSWORD, NATS_HOST, NATS_BRIDGE_USER, NATS_BRIDGE_PASSWORD. The log is stored
    in ./tailrace-log/<slot>, or under TAILRACE_STORE_URL. Several bridges can run side by side, each with its own slot,
    publication and port.
    """
    settings = bridge_environment.read(os.environ, slot, publication, is_json=is_json, is_zstd=is_zstd)
    flags = [*["--json"] * is_json, *["--zstd"] * is_zstd]
    command_line = ("bridge", "--slot", slot, "--pub", publication, *flags)
    assert isinstance(ctx.obj, Invocation)
    ctx.obj = CompatibleInvocation(
        None, ctx.obj.log_level, ctx.obj.log_format, own_settings=settings, command=command_line
    )
    if ctx.invoked_subcommand is None:
        _run(ctx.obj, settings, port)


def _run(invocation: CompatibleInvocation, settings: Settings, port: int) -> None:
    invocation.start_logging()
    started_at = time.monotonic()
    # If either capture or delivery fails, nothing is bridged, so the command must fail too.
    last = supervise(invocation, settings, partial(_serve, settings, port, started_at), all_or_nothing=True)
    final = BridgeStatus.of(last, time.monotonic() - started_at)
    click.echo(
        f"stopped after {output.duration(final.uptime_seconds)}: {final.wal_messages:,} WAL messages received, "
        f"{final.cdc_events:,} events published, acknowledged to {final.lsn}"
    )


@contextlib.contextmanager
def _serve(settings: Settings, port: int, started_at: float, service: Service) -> Iterator[None]:
    """Serve HTTP, print the METRICS line, and check the WAL retained by the slot, until the context exits."""
    # Imported here: `supervise` has checked by now that the extra `nats` is installed.
    from tailrace.bridge.stream_info import StreamInfo
    from tailrace.sinks.nats.options import NatsOptions

    slot, sink = settings.source.slot, settings.sinks[0]["name"]
    # Monitoring runs on other machines, so status is readable there. A shutdown needs the token, or a local client.
    token = os.environ.get("TAILRACE_HTTP_TOKEN") or secrets.token_urlsafe()
    http = HttpSettings(host="0.0.0.0", token=Secret(token))  # noqa: S104
    streams = StreamInfo(sinks.read_options(settings, sink, NatsOptions, os.environ), sink)

    def bridge_status(overview: Overview) -> BridgeStatus:
        return BridgeStatus.of(overview, time.monotonic() - started_at)

    # The monitors of the bridge that this replaces read without a token.
    with (
        HttpServer(http, routes(service, bridge_status, streams), port, trusts_local=True, guards_reads=False),
        _Metrics(slot, lambda: bridge_status(service.overview())),
    ):
        yield


class _Metrics(BackgroundThread):
    """Prints the METRICS line, and checks the WAL that the slot retains."""

    def __init__(self, slot: str, status: Callable[[], BridgeStatus]) -> None:
        super().__init__("metrics")
        self._slot = slot
        self._status = status

    def _run(self) -> None:
        for number in itertools.count(1):
            if self._stopping.wait(_LINE_SECONDS):
                return
            status = self._status()
            click.echo(status.to_log_line())
            if number % _LINES_PER_WAL_CHECK == 0 and (alarm := wal_alarm(self._slot, status.wal_lag_bytes)):
                _log.log(*alarm)


command.add_command(compatibility.process_group())
