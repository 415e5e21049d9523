"""`tailrace capture`: the replication stream into the log, until told to stop."""

from __future__ import annotations

import logging
import sys
import threading
import time

import click

from tailrace.change import Lsn
from tailrace.cli import Invocation, reporting
from tailrace.cli.signals import on_stop
from tailrace.log.upkeep import Upkeep
from tailrace.source.bootstrap import Bootstrap
from tailrace.source.capture import Capture
from tailrace.store import Store

# Often enough to see that it lives, seldom enough for a log file.
_PLAIN_SECONDS = 30.0


class _Until(click.ParamType[Lsn | str]):
    name = "LSN|current"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Lsn | str:  # noqa: ARG002
        return "current" if value == "current" else Lsn.parse(str(value))


@click.command("capture", short_help="Stream changes into the log.")
@click.option(
    "--until-lsn",
    type=_Until(),
    help="Stop once this is durable; `current` is where the source stands now.",
)
@click.option(
    "--accept-gap",
    is_flag=True,
    help="Go on although the slot lost changes that the log does not have, and take new snapshots.",
)
@click.pass_obj
def command(invocation: Invocation, until_lsn: Lsn | str | None, accept_gap: bool) -> None:
    """Stream changes into the log; make slot and publication if they are missing.

    SIGTERM and Ctrl-C seal what is committed, acknowledge it and exit with 0. What may pass (a restart of the server,
    a cut network, a store that does not answer) is waited for. What may not is an error that says what to do.
    """
    settings = invocation.settings()
    reporting.log_to_stderr()
    store = Store.open(settings.store.url, settings.store.options)
    snapshots = Bootstrap(settings, store) if settings.snapshot.on_start else None
    capture = Capture(settings, store, until=until_lsn, accept_gap=accept_gap, snapshots=snapshots)

    on_stop(capture.stop)
    finished = threading.Event()
    reporter = threading.Thread(target=_report, args=(capture, snapshots, finished), daemon=True)
    reporter.start()
    try:
        with Upkeep(store, settings.retention):
            capture.run()
        while snapshots and not capture.is_stopping and not snapshots.wait(0.2):
            pass  # a script that asked for an LSN wants the tables too
    finally:
        if snapshots:
            snapshots.stop()
        finished.set()
        reporter.join()
    if snapshots and snapshots.error:
        raise snapshots.error
    done = capture.progress
    click.echo(
        f"captured {done.changes:,} changes in {done.transactions:,} transactions; durable to {capture.durable_lsn}"
    )


def _report(capture: Capture, snapshots: Bootstrap | None, finished: threading.Event) -> None:
    """A line that is kept up to date on a terminal; elsewhere a line now and then."""
    rate = reporting.Rate()

    def line() -> str:
        text = describe(capture, rate.of(capture.progress.changes))
        if snapshots and snapshots.is_running and (copying := snapshots.progress):
            text += f"; copying: {copying.tables_done}/{copying.tables} tables, {copying.rows:,} rows"
        return text

    if sys.stderr.isatty():
        with reporting.status_line() as update:
            while not finished.wait(0.25):
                update(line())
        return
    while not finished.wait(_PLAIN_SECONDS):
        logging.getLogger("tailrace.capture").info(line())


def describe(capture: Capture, rate: float) -> str:
    state = "streaming" if capture.is_streaming else "not connected"
    lag = max(capture.received_lsn - capture.durable_lsn, 0)
    text = f"{state}: {capture.progress.changes:,} changes, {rate:,.0f}/s, durable to {capture.durable_lsn}"
    text += f", {reporting.size(lag)} behind"
    if (committed := capture.progress.last_committed_at_us) is not None:
        text += f", last change {reporting.duration(time.time() - committed / 1e6)} ago"
    return text
