"""`tailrace capture`: writes the source's changes to the log until it is stopped."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable

import click

from tailrace.capture.capture import Capture
from tailrace.capture.postgres.publication_watch import PublicationWatch
from tailrace.capture.source import Snapshots, open_snapshots
from tailrace.change import Lsn
from tailrace.cli import Invocation, status_line
from tailrace.cli.stop_signal import on_stop
from tailrace.log.maintenance import LogMaintenance
from tailrace.ops import supervisor_socket
from tailrace.ops.status import CaptureStatus, Overview
from tailrace.quantity import count
from tailrace.rate import Rate
from tailrace.settings import Settings
from tailrace.store import Store


class _LsnParameter(click.ParamType[Lsn | str]):
    name = "LSN|current"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Lsn | str:  # noqa: ARG002
        return "current" if value == "current" else Lsn.parse(str(value))


@click.command("capture", short_help="Stream changes from the source into the log.")
@click.option(
    "--until-lsn",
    type=_LsnParameter(),
    help="Stop once this LSN is durable. `current` means the current LSN of the source.",
)
@click.option(
    "--accept-gap",
    is_flag=True,
    help="Continue although the source has lost changes that are not in the log, and take new snapshots.",
)
@click.pass_obj
def command(invocation: Invocation, until_lsn: Lsn | str | None, accept_gap: bool) -> None:
    """Stream changes from the source into the log. For PostgreSQL, create the slot and the publication if they do not
    exist. For SlateDB, follow the WAL from a checkpoint on.

    SIGTERM and Ctrl-C seal and acknowledge what is committed, then exit with 0. Transient failures are retried: a
    server restart, a lost network connection, a store that does not respond. A permanent failure ends the command with
    a hint about what to do.
    """
    invocation.start_logging()
    settings = invocation.settings()
    store = Store.open(settings.store.url, settings.store.options)
    snapshots = open_snapshots(settings, store) if settings.snapshot.on_start else None
    capture = Capture(settings, store, until=until_lsn, accept_gap=accept_gap, snapshots=snapshots)
    on_join = snapshots.look_now if snapshots else lambda: None
    watch = PublicationWatch(settings, store, on_join=on_join) if settings.slatedb is None else None

    def status() -> CaptureStatus:
        return CaptureStatus.of(capture, snapshots, watch)

    on_stop(capture.stop)
    with (
        supervisor_socket.report_to_supervisor(os.environ, lambda: {"capture": status().to_json()}, capture.stop),
        _http_server(settings, store, capture, status),
        watch or contextlib.nullcontext(),
    ):
        _run(settings, store, capture, snapshots, status)
    done = capture.progress
    changes, transactions = count(done.changes, "change"), count(done.transactions, "transaction")
    click.echo(f"captured {changes} in {transactions}; durable to {capture.durable_lsn}")


def _run(
    settings: Settings,
    store: Store,
    capture: Capture,
    snapshots: Snapshots | None,
    status: Callable[[], CaptureStatus],
) -> None:
    finished = threading.Event()
    reporter = threading.Thread(target=_report, args=(status, finished), daemon=True)
    if not supervisor_socket.is_supervised(os.environ):
        reporter.start()
    try:
        with LogMaintenance(store, settings.retention):
            capture.run()
        while snapshots and not capture.is_stopping and not snapshots.wait(0.2):
            pass  # with --until-lsn, the snapshots are finished too
    finally:
        if snapshots:
            snapshots.stop()
        finished.set()
        if reporter.is_alive():
            reporter.join()
    if snapshots and snapshots.error:
        raise snapshots.error


def _http_server(
    settings: Settings, store: Store, capture: Capture, status: Callable[[], CaptureStatus]
) -> contextlib.AbstractContextManager[object]:
    """Return the HTTP server if a port is set and no supervisor runs one."""
    if not settings.http.port or supervisor_socket.is_supervised(os.environ):
        return contextlib.nullcontext()
    from tailrace.ops.http import Service, serve
    from tailrace.ops.metric_history import MetricHistory
    from tailrace.ops.probe import cached_overview

    def local_overview() -> Overview:
        return Overview(capture=status())

    # Without an explorer: searches would take time from the replication stream.
    overview = cached_overview(settings, store, local_overview)
    service = Service(overview, local_overview, capture.stop, history=MetricHistory(local_overview))
    return serve(settings.http, service, [None])


def _report(status: Callable[[], CaptureStatus], finished: threading.Event) -> None:
    rate = Rate()

    def lines() -> list[status_line.StatusLine]:
        now = status()
        return [status_line.of_capture(now, rate.of(now.changes))]

    status_line.show_until(finished, lines, "tailrace.capture")
