"""`tailrace run`: runs capture and all sinks under a supervisor, and serves their status over HTTP."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import click

from tailrace.cli import Invocation, output, status_line
from tailrace.cli.sink_choice import configured_sinks
from tailrace.cli.stop_signal import on_stop
from tailrace.delivery import control
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.errors import TailraceError
from tailrace.ops.explorer import Explorer
from tailrace.ops.http import DEFAULT_PORT, Service, serve
from tailrace.ops.metric_history import MetricHistory
from tailrace.ops.probe import cached_overview, measured_overview
from tailrace.ops.status import Overview
from tailrace.ops.supervisor import Supervisor
from tailrace.rate import Rate
from tailrace.settings import Settings
from tailrace.store import Store

_log = logging.getLogger("tailrace.run")

_POLL_SECONDS = 0.25


@click.command("run", short_help="Run capture and all sinks under a supervisor, with HTTP.")
@click.option("--master", metavar="URL", help="Spark master. Default: all processors of this machine.")
@click.pass_obj
def command(invocation: Invocation, master: str | None) -> None:
    """Run capture and the configured sinks in two child processes, and restart a process that dies.

    With `enabled = true` in [archive], a third one archives the WAL; in [verify], another one compares the rows of the
    destinations with the source's.

    SIGTERM and Ctrl-C stop in order: the sinks finish their step, capture seals and acknowledges what is committed, and
    the command exits with 0. A second signal stops at once, and loses nothing either. A sink or an archive that fails
    permanently stays down and is reported at /health, while the rest continues. If capture fails permanently, or
    nothing is left running, the command stops in order and exits with 1.
    """
    invocation.start_logging()
    settings = invocation.settings()
    ports = () if settings.http.port == 0 else (settings.http.port or DEFAULT_PORT,)
    supervise(invocation, settings, lambda service: serve(settings.http, service, ports), master)
    click.echo("stopped")


def supervise(
    invocation: Invocation,
    settings: Settings,
    serve_status: Callable[[Service], contextlib.AbstractContextManager[None]],
    master: str | None = None,
    grace_s: float | None = None,
    *,
    all_or_nothing: bool = False,
) -> Overview:
    """Run capture and the sinks until a stop is requested, capture fails permanently or nothing is left running. Return
    their final status.

    `serve_status` serves the status meanwhile. With `grace_s`, a stop takes about that long at most. With
    `all_or_nothing`, the first permanent failure stops everything.
    """
    configured = configured_sinks(settings)
    sinks = {sink.name: sink.common.type for sink in configured}
    store = Store.open(settings.store.url, settings.store.options)
    spark = ["--master", master] if master else []
    deliver = invocation.child_command("deliver", *spark)
    archive = invocation.child_command("archive") if settings.archive.enabled else None
    relay = partial(_relay, invocation.log_format)
    verify = invocation.child_command("verify", "--continuous", *spark) if settings.verify.enabled else None
    supervisor = Supervisor(invocation.child_command("capture"), deliver, sinks, relay, archive=archive, verify=verify)
    stopping = threading.Event()

    def stop() -> None:
        if stopping.is_set():
            supervisor.kill()
        stopping.set()

    with serve_status(_service(settings, store, supervisor, configured, stopping.set)):
        on_stop(stop)
        supervisor.start()
        display = threading.Thread(target=_show, args=(supervisor, stopping), name="display", daemon=True)
        display.start()
        while not stopping.wait(_POLL_SECONDS):
            if supervisor.is_finished or supervisor.has_lost_capture or (all_or_nothing and supervisor.failures):
                break
        failures = supervisor.failures
        is_requested = stopping.is_set()
        stopping.set()
        display.join()
        if is_requested:
            _log.info("stopping: sinks finish their step, then capture seals what is committed")
        supervisor.stop(grace_s)
    if not is_requested and failures:
        raise TailraceError(failures[-1].message, failures[-1].hint)
    return supervisor.overview()


def _service(
    settings: Settings,
    store: Store,
    supervisor: Supervisor,
    sinks: Sequence[ConfiguredSink],
    shutdown: Callable[[], None],
) -> Service:
    # First write the request to the store, where it survives restarts; then send it to the engine, which acts at once.
    def pause(name: str) -> None:
        control.pause(store, name)
        supervisor.send_to_sinks({"pause": name})

    def resume(name: str) -> None:
        control.resume(store, name)
        supervisor.send_to_sinks({"resume": name})

    measured = measured_overview(store, supervisor.overview)
    overview = cached_overview(settings, store, measured)
    return Service(
        overview,
        supervisor.overview,
        shutdown,
        [sink.name for sink in sinks],
        pause,
        resume,
        MetricHistory(measured),
        Explorer(store, sinks, overview) if settings.http.explorer else None,
    )


def _relay(log_format: str, child: str, line: str) -> None:
    """Print a line of a child process. On a terminal, it does not disturb the live display."""
    line = output.with_process(child, line) if log_format == "json" else f"{child} | {line}"
    if output.is_live():
        output.console().print(line, markup=False, soft_wrap=True)
    else:
        # One write, so that the lines of two processes do not mix.
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _show(supervisor: Supervisor, stopping: threading.Event) -> None:
    rate, archive_rate = Rate(), Rate()

    def lines() -> list[status_line.StatusLine]:
        overview = supervisor.overview()
        assert overview.capture is not None
        capture = status_line.of_capture(overview.capture, rate.of(overview.capture.changes))
        archive = []
        if overview.archive is not None:
            received = archive_rate.of(overview.archive.received_bytes)
            archive = [_named("archive", status_line.of_archive(overview.archive, received))]
        return [_named("capture", capture), *archive, *(status_line.of_sink(sink) for sink in overview.sinks)]

    status_line.show_until(stopping, lines, "tailrace.run")


def _named(component: str, line: status_line.StatusLine) -> status_line.StatusLine:
    return replace(line, text=f"{component} {line.text}")
