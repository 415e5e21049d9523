"""`tailrace capture`: the replication stream into the log, until told to stop."""

from __future__ import annotations

import contextlib
import os
import threading

import click

from tailrace.change import Lsn
from tailrace.cli import Invocation, lines, reporting
from tailrace.cli.signals import on_stop
from tailrace.log.upkeep import Upkeep
from tailrace.ops import channel
from tailrace.ops.status import CaptureStatus, Overview
from tailrace.rate import Rate
from tailrace.settings import Settings
from tailrace.source.bootstrap import Bootstrap
from tailrace.source.capture import Capture
from tailrace.store import Store


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
    reporting.log_to_stderr(invocation.log_level)
    store = Store.open(settings.store.url, settings.store.options)
    snapshots = Bootstrap(settings, store) if settings.snapshot.on_start else None
    capture = Capture(settings, store, until=until_lsn, accept_gap=accept_gap, snapshots=snapshots)

    on_stop(capture.stop)
    with (
        channel.told_to_supervisor(
            os.environ, lambda: {"capture": CaptureStatus.of(capture, snapshots).to_json()}, capture.stop
        ),
        _served(settings, store, capture, snapshots),
    ):
        _run(settings, store, capture, snapshots)
    done = capture.progress
    click.echo(
        f"captured {done.changes:,} changes in {done.transactions:,} transactions; durable to {capture.durable_lsn}"
    )


def _run(settings: Settings, store: Store, capture: Capture, snapshots: Bootstrap | None) -> None:
    finished = threading.Event()
    reporter = threading.Thread(target=_report, args=(capture, snapshots, finished), daemon=True)
    if not channel.is_supervised(os.environ):
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
        if reporter.is_alive():
            reporter.join()
    if snapshots and snapshots.error:
        raise snapshots.error


def _served(
    settings: Settings, store: Store, capture: Capture, snapshots: Bootstrap | None
) -> contextlib.AbstractContextManager[object]:
    """Over HTTP, where a port is set and no supervisor does it."""
    if not settings.http.port or channel.is_supervised(os.environ):
        return contextlib.nullcontext()
    from tailrace.ops.http import Server, Subject, routes
    from tailrace.ops.serving import overview

    def condition() -> Overview:
        return Overview(capture=CaptureStatus.of(capture, snapshots))

    subject = Subject(overview(settings, store, condition), condition, capture.stop)
    return Server(settings.http, routes(subject))


def _report(capture: Capture, snapshots: Bootstrap | None, finished: threading.Event) -> None:
    rate = Rate()

    def text() -> list[str]:
        status = CaptureStatus.of(capture, snapshots)
        return [lines.of_capture(status, rate.of(status.changes))]

    lines.shown(text, finished, "tailrace.capture")
