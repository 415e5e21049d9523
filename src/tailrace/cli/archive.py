"""`tailrace archive`: writes the server's WAL to the store until it is stopped."""

from __future__ import annotations

import os
import threading
from dataclasses import replace

import click

from tailrace.change import Lsn
from tailrace.cli import Invocation, output, status_line
from tailrace.cli.stop_signal import on_stop
from tailrace.ops import supervisor_socket
from tailrace.ops.status import ArchiveStatus
from tailrace.rate import Rate
from tailrace.recovery.archive import Archive
from tailrace.store import Store


@click.command("archive", short_help="Write the server's WAL to the store.")
@click.option(
    "--synchronous",
    is_flag=True,
    help="Write WAL as it arrives. With synchronous_standby_names = 'tailrace_archive', a commit waits for the store.",
)
@click.option("--until-lsn", metavar="LSN", help="Stop once this LSN is durable.")
@click.option("--accept-gap", is_flag=True, help="Continue although the server no longer has WAL that is missing here.")
@click.option(
    "--accept-fork", is_flag=True, help="Follow a server that was promoted without the end of the archived WAL."
)
@click.pass_obj
def command(
    invocation: Invocation, synchronous: bool, until_lsn: str | None, accept_gap: bool, accept_fork: bool
) -> None:
    """Write the server's WAL to the store. Create the physical slot if it does not exist.

    Complete segments become objects; the open segment is stored in parts, every few seconds or, with --synchronous, at
    once. SIGTERM and Ctrl-C write what was received, then exit with 0. Transient failures are retried. A permanent
    failure ends the command with a hint about what to do.
    """
    settings = invocation.settings()
    if synchronous:
        settings = replace(settings, archive=replace(settings.archive, synchronous=True))
    invocation.start_logging()
    store = Store.open(settings.store.url, settings.store.options)
    until = Lsn.parse(until_lsn) if until_lsn else None
    archive = Archive(settings, store, until=until, accept_gap=accept_gap, accept_fork=accept_fork)
    on_stop(archive.stop)
    finished = threading.Event()
    reporter = threading.Thread(target=_report, args=(archive, finished), daemon=True)
    if not supervisor_socket.is_supervised(os.environ):
        reporter.start()
    try:
        with supervisor_socket.report_to_supervisor(
            os.environ, lambda: {"archive": ArchiveStatus.of(archive).to_json()}, archive.stop
        ):
            archive.run()
    finally:
        finished.set()
        if reporter.is_alive():
            reporter.join()
    done = archive.progress
    click.echo(
        f"archived {output.size(done.received_bytes)} of WAL in {output.size(done.stored_bytes)}; "
        f"durable to {archive.durable_lsn}"
    )


def _report(archive: Archive, finished: threading.Event) -> None:
    rate = Rate()

    def lines() -> list[status_line.StatusLine]:
        status = ArchiveStatus.of(archive)
        return [status_line.of_archive(status, rate.of(status.received_bytes))]

    status_line.show_until(finished, lines, "tailrace.archive")
