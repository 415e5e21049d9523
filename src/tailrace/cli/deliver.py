"""`tailrace deliver`: delivers the log to the sinks, until it is stopped or, with --once, to the end of the log."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from tailrace.cli import Invocation, output, status_line
from tailrace.cli.sink_choice import complete_sink, configured_sinks, find_sink
from tailrace.cli.stop_signal import on_stop
from tailrace.delivery import control
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.errors import ConfigError, SparkError, TailraceError
from tailrace.ops import supervisor_socket
from tailrace.ops.status import Overview
from tailrace.settings import Settings
from tailrace.store import Store

if TYPE_CHECKING:
    from tailrace.log.planner import Offset
    from tailrace.spark.engine import Engine

_POLL_SECONDS = 0.25


@click.command("deliver", short_help="Deliver changes from the log to the sinks.")
@click.option(
    "--sink",
    "names",
    multiple=True,
    metavar="NAME",
    help="Deliver only to this sink. May be repeated.",
    shell_complete=complete_sink,
)
@click.option(
    "--once", is_flag=True, help="Deliver what is in the log now, then exit: with 0, or with 1 if a sink failed."
)
@click.option("--master", metavar="URL", help="Spark master. Default: all processors of this machine.")
@click.pass_obj
def command(invocation: Invocation, names: tuple[str, ...], once: bool, master: str | None) -> None:
    """Deliver changes from the log to the configured sinks. Each sink continues from its own cursor.

    SIGTERM and Ctrl-C finish the current step, then exit with 0. A second signal exits at once; the next run repeats
    what was not finished. A sink that fails permanently stops alone. The command ends when all sinks have failed.
    """
    invocation.start_logging()
    settings = invocation.settings("store")
    configured = configured_sinks(settings)
    store = Store.open(settings.store.url, settings.store.options)
    chosen = [find_sink(configured, name) for name in dict.fromkeys(names)] or configured
    if once and (paused := [c.name for c in chosen if control.load(store, c.name).is_paused]):
        raise ConfigError(f"sink {paused[0]} is paused", f"tailrace sink resume {paused[0]}")
    stopping = threading.Event()
    on_stop(lambda: _stop(stopping))
    engines: list[Engine] = []
    """None until it is made, which may fail: that is reported too."""
    with supervisor_socket.report_to_supervisor(
        os.environ,
        lambda: {"sinks": [status for engine in engines for status in _statuses(engine)]},
        stopping.set,
        lambda message: _handle(engines, store, message),
    ):
        engine = _engine(settings, chosen, master)
        engines.append(engine)
        with _http_server(settings, store, chosen, engine, stopping):
            _run(engine, once, stopping)


def _engine(settings: Settings, chosen: Sequence[ConfiguredSink], master: str | None) -> Engine:
    from tailrace.spark import engine_session

    starting = engine_session.start(settings, chosen, master)
    from tailrace.spark.engine import Engine  # Java starts meanwhile

    return Engine(settings, chosen, starting=starting)


def _stop(stopping: threading.Event) -> None:
    if stopping.is_set() and not supervisor_socket.is_supervised(os.environ):
        # The second signal; a supervisor kills instead. Exiting at once is safe: durable writes are atomic, and Java
        # exits when its pipe closes.
        os._exit(130)
    stopping.set()


def _run(engine: Engine, once: bool, stopping: threading.Event) -> None:
    engine.prepare()
    on_stop(lambda: _stop(stopping))  # again: Spark has replaced the signal handlers
    end = engine.end() if once else None
    if not stopping.is_set():
        engine.start()
    display = threading.Thread(target=_show, args=(engine, stopping), name="display", daemon=True)
    if not supervisor_socket.is_supervised(os.environ):
        display.start()
    if end is not None:
        threading.Thread(target=_wait, args=(engine, end, stopping), name="once", daemon=True).start()
    while not stopping.wait(_POLL_SECONDS):
        if (code := engine.java_exit_code) is not None:
            stopping.set()
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            hint = "if memory ran out, give the machine more, or deliver to fewer sinks at once"
            raise SparkError(f"Spark's Java process {how}", hint)
        if not supervisor_socket.is_supervised(os.environ) and all(d.has_failed for d in engine.sinks.values()):
            stopping.set()
    engine.stop()
    if display.is_alive():
        display.join()
    _finish(engine, end)


def _wait(engine: Engine, end: Offset, stopping: threading.Event) -> None:
    engine.wait(end)
    stopping.set()


def _finish(engine: Engine, end: Offset | None) -> None:
    for delivery in engine.sinks.values():
        final = delivery.status()
        click.echo(f"sink {final.name} {final.state}: {final.changes:,} changes delivered, up to {final.cursor or '-'}")
    # A sink that its destination paused has not delivered everything, which --once has to report.
    failed = [d for d in engine.sinks.values() if d.error and (d.has_failed or (end and d.is_paused_by_destination))]
    for delivery in failed[:-1]:
        assert delivery.error is not None
        output.show_error(TailraceError(f"sink {delivery.name}: {delivery.error}", delivery.error.hint))
    if failed and (end is not None or len(failed) == len(engine.sinks)):
        assert failed[-1].error is not None
        raise failed[-1].error


def _show(engine: Engine, stopping: threading.Event) -> None:
    status_line.show_until(
        stopping, lambda: [status_line.of_sink(d.status()) for d in engine.sinks.values()], "tailrace.deliver"
    )


def _statuses(engine: Engine) -> list[dict[str, Any]]:
    return [json.loads(delivery.status().to_json()) for delivery in engine.sinks.values()]


def _handle(engines: Sequence[Engine], store: Store, message: dict[str, Any]) -> None:
    """Handle a control request that the supervisor received over HTTP, and has written to the store."""
    for engine in engines:
        match message:
            case {"pause": str(name)}:
                _control(engine, store, "pause", name)
            case {"resume": str(name)}:
                _control(engine, store, "resume", name)


def _http_server(
    settings: Settings, store: Store, chosen: Sequence[ConfiguredSink], engine: Engine, stopping: threading.Event
) -> contextlib.AbstractContextManager[object]:
    """Return the HTTP server if a port is set and no supervisor runs one."""
    if not settings.http.port or supervisor_socket.is_supervised(os.environ):
        return contextlib.nullcontext()
    from tailrace.ops.explorer import Explorer
    from tailrace.ops.http import Service, serve
    from tailrace.ops.metric_history import MetricHistory
    from tailrace.ops.probe import cached_overview, measured_overview

    def local_overview() -> Overview:
        return Overview(sinks=[delivery.status() for delivery in engine.sinks.values()])

    measured = measured_overview(store, local_overview)
    overview = cached_overview(settings, store, measured)
    service = Service(
        overview,
        local_overview,
        stopping.set,
        sinks=[c.name for c in chosen],
        pause=lambda name: _control(engine, store, "pause", name),
        resume=lambda name: _control(engine, store, "resume", name),
        history=MetricHistory(measured),
        explorer=Explorer(store, chosen, overview) if settings.http.explorer else None,
    )
    return serve(settings.http, service, [None])


def _control(engine: Engine, store: Store, verb: Literal["pause", "resume"], name: str) -> None:
    """Pause or resume a sink: at once if it runs here, else through a control request in the store."""
    if name in engine.sinks:
        getattr(engine.sinks[name], verb)()
    else:
        getattr(control, verb)(store, name)
