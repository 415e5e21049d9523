"""`tailrace run`: capture and all sinks, kept running, and told about over HTTP."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterator

import click

from tailrace.cli import Invocation, lines, reporting
from tailrace.cli.deliver import configured_sinks
from tailrace.cli.signals import on_stop
from tailrace.errors import TailraceError
from tailrace.ops.http import DEFAULT_PORT, Server, Subject, routes
from tailrace.ops.serving import overview
from tailrace.ops.status import Overview
from tailrace.ops.supervisor import Supervisor
from tailrace.rate import Rate
from tailrace.settings import Http, Settings
from tailrace.sinks import status
from tailrace.store import Store

_log = logging.getLogger("tailrace.run")

_POLL_SECONDS = 0.25


@click.command("run", short_help="Capture and deliver, kept running, with HTTP.")
@click.option("--master", metavar="URL", help="A Spark cluster's; this machine's processors where it is not given.")
@click.pass_obj
def command(invocation: Invocation, master: str | None) -> None:
    """Run capture and all sinks, each as a process of its own, and start again what died.

    SIGTERM and Ctrl-C: sinks finish their step, capture seals and acknowledges what is committed, exit with 0; a second
    one ends at once, and loses nothing either. What fails for good stays down and is told at /health, while the rest
    goes on; when nothing is left, it ends with 1.
    """
    reporting.log_to_stderr(invocation.log_level)
    settings = invocation.settings()
    ports = () if settings.http.port == 0 else (settings.http.port or DEFAULT_PORT,)
    supervise(invocation, settings, lambda subject: served(settings.http, subject, ports), master)
    click.echo("stopped")


@contextlib.contextmanager
def served(http: Http, subject: Subject, ports: Collection[int]) -> Iterator[None]:
    with contextlib.ExitStack() as serving:
        # All ports are taken before anybody is served.
        for server in [Server(http, routes(subject), port) for port in ports]:
            serving.enter_context(server)
        yield


def supervise(
    invocation: Invocation,
    settings: Settings,
    serve: Callable[[Subject], contextlib.AbstractContextManager[None]],
    master: str | None = None,
    grace_s: float | None = None,
    *,
    all_or_nothing: bool = False,
) -> Overview:
    """Until somebody wants it to end, or nothing is left that runs; with `all_or_nothing`, or something failed. How it
    was in the end. `serve` tells the world of it meanwhile."""
    sinks = {c.name: c.common.type for c in configured_sinks(settings)}
    store = Store.open(settings.store.url, settings.store.options)
    deliver = invocation.child("deliver", *(["--master", master] if master else []))
    supervisor = Supervisor(invocation.child("capture"), deliver, sinks, _relay)
    over = threading.Event()

    def stop() -> None:
        if over.is_set():
            supervisor.kill()
        over.set()

    with serve(_subject(settings, store, supervisor, list(sinks), over.set)):
        on_stop(stop)
        supervisor.start()
        showing = threading.Thread(target=_show, args=(supervisor, over), name="showing", daemon=True)
        showing.start()
        while not over.wait(_POLL_SECONDS):
            if supervisor.is_over or (all_or_nothing and supervisor.failures):
                break
        failures = supervisor.failures
        is_asked = over.is_set()
        over.set()
        showing.join()
        if is_asked:
            _log.info("stopping: sinks finish their step, then capture seals what is committed")
        supervisor.stop(grace_s)
    if not is_asked and failures:
        raise TailraceError(failures[-1].message, failures[-1].hint)
    return supervisor.condition()


def _subject(
    settings: Settings, store: Store, supervisor: Supervisor, sinks: list[str], shutdown: Callable[[], None]
) -> Subject:
    # First into the store, where it lasts; then to the engine, which hears it at once.
    def pause(name: str) -> None:
        status.pause(store, name)
        supervisor.tell_sinks({"pause": name})

    def resume(name: str) -> None:
        status.resume(store, name)
        supervisor.tell_sinks({"resume": name})

    return Subject(
        overview(settings, store, supervisor.condition), supervisor.condition, shutdown, sinks, pause, resume
    )


def _relay(child: str, line: str) -> None:
    """A child's line among ours; on a terminal without breaking what is shown live."""
    if sys.stderr.isatty():
        reporting.console().print(f"{child} | {line}", markup=False, soft_wrap=True)
    else:
        # One write: lines of two children must not run into each other.
        sys.stderr.write(f"{child} | {line}\n")
        sys.stderr.flush()


def _show(supervisor: Supervisor, over: threading.Event) -> None:
    rate = Rate()

    def text() -> list[str]:
        told = supervisor.condition()
        assert told.capture is not None
        captured = lines.of_capture(told.capture, rate.of(told.capture.changes))
        return [f"capture {captured}", *(lines.of_sink(sink) for sink in told.sinks)]

    lines.shown(text, over, "tailrace.run")
