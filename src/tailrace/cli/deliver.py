"""`tailrace deliver`: the log to its sinks, until told to stop, or as far as it goes now."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import click

from tailrace import sinks
from tailrace.cli import Invocation, lines, reporting
from tailrace.cli.signals import on_stop
from tailrace.errors import ConfigError, SparkError
from tailrace.ops import channel
from tailrace.ops.status import Overview
from tailrace.settings import Settings
from tailrace.settings.pattern import TablePattern
from tailrace.settings.reading import did_you_mean
from tailrace.sinks import Configured, status
from tailrace.store import Store

if TYPE_CHECKING:
    from tailrace.log.plan import Offset
    from tailrace.spark.delivery import Engine

_EXAMPLE = """\
add one to tailrace.toml, such as
  [[sink]]
  type = "postgres"
  name = "replica"
  url = "postgresql://user@host/database\""""

_POLL_SECONDS = 0.25


@click.command("deliver", short_help="Deliver the log to its sinks.")
@click.option("--sink", "names", multiple=True, metavar="NAME", help="Only this one; may be given more than once.")
@click.option("--once", is_flag=True, help="Everything that is in the log now, then exit: 0, or 1 if a sink failed.")
@click.option(
    "--rewind",
    metavar="LSN|TIME|snapshot",
    help="Deliver again from there on. Needs one --sink; a sink that keeps tables loads them anew.",
)
@click.option(
    "--reload",
    "tables",
    multiple=True,
    metavar="TABLE",
    help="Let a sink load a table anew from its newest snapshot, wherever it runs; then exit. Needs one --sink.",
)
@click.option("--master", metavar="URL", help="A Spark cluster's; this machine's processors where it is not given.")
@click.option("--pause", metavar="NAME", help="Let a sink rest, wherever it runs, until it is resumed; then exit.")
@click.option("--resume", metavar="NAME", help="Let it deliver again; then exit.")
@click.pass_obj
def command(
    invocation: Invocation,
    names: tuple[str, ...],
    once: bool,
    rewind: str | None,
    tables: tuple[str, ...],
    master: str | None,
    pause: str | None,
    resume: str | None,
) -> None:
    """Deliver the log to the sinks of the settings, each from where it stands.

    SIGTERM and Ctrl-C: a step under way is finished, exit with 0; a second one ends at once, and what was not finished
    is done again by the next run. A sink that fails for good stops alone; when all have, so does the command.
    """
    settings = invocation.settings("store")
    reporting.log_to_stderr(invocation.log_level)
    configured = configured_sinks(settings)
    store = Store.open(settings.store.url, settings.store.options)
    if pause is not None or resume is not None:
        _pause_and_resume(store, configured, pause, resume)
        return
    chosen = _chosen(configured, names)
    if tables:
        _reload(store, chosen, names, tables)
        return
    if rewind is not None and len(names) != 1:
        raise ConfigError("--rewind needs exactly one --sink", "say which: what it has delivered is delivered again")
    if once and (paused := [c.name for c in chosen if status.wish(store, c.name).is_paused]):
        raise ConfigError(f"sink {paused[0]} is paused", f"tailrace deliver --resume {paused[0]}")
    engine = _engine(settings, chosen, master)
    over = threading.Event()
    on_stop(lambda: _stop(over))
    with (
        channel.told_to_supervisor(
            os.environ, lambda: {"sinks": _figures(engine)}, over.set, lambda what: _heed(engine, store, what)
        ),
        _served(settings, store, chosen, engine, over),
    ):
        _run(engine, once, (names[0], rewind) if rewind is not None else None, over)


def configured_sinks(settings: Settings) -> list[Configured]:
    found = sinks.configured(settings, os.environ)
    if not found:
        raise ConfigError("no sink is configured", _EXAMPLE)
    return found


def _chosen(configured: Sequence[Configured], names: Sequence[str]) -> list[Configured]:
    for name in names:
        _check_name(configured, name)
    return [c for c in configured if not names or c.name in names]


def _check_name(configured: Sequence[Configured], name: str) -> None:
    known = [c.name for c in configured]
    if name not in known:
        raise ConfigError(f"there is no sink {name!r}{did_you_mean(name, known)}")


def _pause_and_resume(store: Store, configured: Sequence[Configured], pause: str | None, resume: str | None) -> None:
    for name in filter(None, (pause, resume)):
        _check_name(configured, name)
    if pause is not None:
        status.pause(store, pause)
        click.echo(f"sink {pause} is paused: it rests within seconds, and until `tailrace deliver --resume {pause}`")
    if resume is not None:
        status.resume(store, resume)
        click.echo(f"sink {resume} is resumed")


def _reload(store: Store, chosen: Sequence[Configured], names: Sequence[str], tables: Sequence[str]) -> None:
    if len(names) != 1:
        raise ConfigError("--reload needs exactly one --sink", "say which sink is to load the table anew")
    if not chosen[0].sink.keeps_tables:
        raise ConfigError(f"sink {names[0]} tells what happened, and keeps no tables", "--rewind tells it again")
    for table in tables:
        TablePattern.parse(table)
    status.reload(store, names[0], tables)
    click.echo(f"sink {names[0]} loads {', '.join(tables)} anew within seconds, or when it is started")


def _engine(settings: Settings, chosen: Sequence[Configured], master: str | None) -> Engine:
    try:
        from tailrace.spark.delivery import Engine
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("pyspark", "py4j"):
            raise
        raise SparkError("pyspark is not installed", "pip install 'tailrace[spark]'") from None
    return Engine(settings, chosen, master=master)


def _stop(over: threading.Event) -> None:
    if over.is_set():
        # Somebody is in a hurry. Nothing durable is ever half done, and Java ends with the pipe it reads from.
        os._exit(130)
    over.set()


def _run(engine: Engine, once: bool, rewind: tuple[str, str] | None, over: threading.Event) -> None:
    engine.prepare()
    on_stop(lambda: _stop(over))  # Spark has put its own in the place of ours
    if rewind is not None:
        name, where = rewind
        engine.sinks[name].rewind(where)
        click.echo(f"sink {name} is rewound: it delivers from {engine.sinks[name].cursor} on")
    end = engine.end() if once else None
    if not over.is_set():
        engine.start()
    showing = threading.Thread(target=_show, args=(engine, over), name="showing", daemon=True)
    if not channel.is_supervised(os.environ):
        showing.start()
    if end is not None:
        threading.Thread(target=_wait, args=(engine, end, over), name="once", daemon=True).start()
    while not over.wait(_POLL_SECONDS):
        if engine.is_broken:
            over.set()
            raise SparkError("the Java process of Spark is gone", "start again; if it ran out of memory, give it more")
        if not channel.is_supervised(os.environ) and all(d.has_failed for d in engine.sinks.values()):
            over.set()
    engine.stop()
    if showing.is_alive():
        showing.join()
    _conclude(engine, end)


def _wait(engine: Engine, end: Offset, over: threading.Event) -> None:
    engine.wait(end)
    over.set()


def _conclude(engine: Engine, end: Offset | None) -> None:
    for delivery in engine.sinks.values():
        told = delivery.status()
        click.echo(f"sink {told.name} {told.state}: {told.changes:,} changes delivered, up to {told.cursor or '-'}")
    failed = [d for d in engine.sinks.values() if d.has_failed and d.error is not None]
    for delivery in failed[:-1]:
        assert delivery.error is not None
        click.echo(f"error: sink {delivery.name}: {delivery.error}\nhint: {delivery.error.hint}", err=True)
    if failed and (end is not None or len(failed) == len(engine.sinks)):
        assert failed[-1].error is not None
        raise failed[-1].error


def _show(engine: Engine, over: threading.Event) -> None:
    lines.shown(lambda: [lines.of_sink(d.status()) for d in engine.sinks.values()], over, "tailrace.deliver")


def _figures(engine: Engine) -> list[dict[str, Any]]:
    return [json.loads(delivery.status().to_json()) for delivery in engine.sinks.values()]


def _heed(engine: Engine, store: Store, what: dict[str, Any]) -> None:
    """What the supervisor was asked over HTTP."""
    match what:
        case {"pause": str(name)}:
            _act(engine, store, "pause", name)
        case {"resume": str(name)}:
            _act(engine, store, "resume", name)


def _served(
    settings: Settings, store: Store, chosen: Sequence[Configured], engine: Engine, over: threading.Event
) -> contextlib.AbstractContextManager[object]:
    """Over HTTP, where a port is set and no supervisor does it."""
    if not settings.http.port or channel.is_supervised(os.environ):
        return contextlib.nullcontext()
    from tailrace.ops.http import Server, Subject, routes
    from tailrace.ops.serving import overview

    def condition() -> Overview:
        return Overview(sinks=[delivery.status() for delivery in engine.sinks.values()])

    subject = Subject(
        overview(settings, store, condition),
        condition,
        over.set,
        sinks=[c.name for c in chosen],
        pause=lambda name: _act(engine, store, "pause", name),
        resume=lambda name: _act(engine, store, "resume", name),
    )
    return Server(settings.http, routes(subject))


def _act(engine: Engine, store: Store, verb: Literal["pause", "resume"], name: str) -> None:
    """At once where the sink is there already; else it finds it in the store."""
    if name in engine.sinks:
        getattr(engine.sinks[name], verb)()
    else:
        getattr(status, verb)(store, name)
