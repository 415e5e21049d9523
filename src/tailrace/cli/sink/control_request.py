"""`tailrace sink pause | resume | reload | rewind | forget`: requests to a sink, through the store."""

from __future__ import annotations

import time

import click

from tailrace.cli import Invocation
from tailrace.cli.sink_choice import complete_sink, configured_sinks, find_sink
from tailrace.delivery import control, status
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.delivery.step import snapshots_in_reach
from tailrace.errors import ConfigError, SinkRefused, SnapshotError
from tailrace.log import planner
from tailrace.log.reader import LogReader
from tailrace.log.retention import CURSORS
from tailrace.log.snapshot import SnapshotReader
from tailrace.settings.parser import did_you_mean
from tailrace.settings.pattern import TablePattern
from tailrace.store import Store

_SOON = "within seconds, or when it is started"


@click.command("pause", short_help="Pause a sink until it is resumed.")
@click.argument("name", shell_complete=complete_sink)
@click.pass_obj
def pause(invocation: Invocation, name: str) -> None:
    """Pause the sink NAME until it is resumed. It finishes its step, and stays paused over restarts."""
    store, _ = _find(invocation, name)
    control.pause(store, name)
    click.echo(f"sink {name} stops within seconds and stays paused until `tailrace sink resume {name}`")


@click.command("resume", short_help="Resume a sink that is paused or has failed.")
@click.argument("name", shell_complete=complete_sink)
@click.pass_obj
def resume(invocation: Invocation, name: str) -> None:
    """Resume the sink NAME, which is paused or has failed."""
    store, _ = _find(invocation, name)
    control.resume(store, name)
    click.echo(f"sink {name} is resumed")


@click.command("reload", short_help="Load tables again from their newest snapshots.")
@click.argument("name", shell_complete=complete_sink)
@click.argument("tables", nargs=-1, required=True, metavar="TABLE...")
@click.pass_obj
def reload(invocation: Invocation, name: str, tables: tuple[str, ...]) -> None:
    """Load tables of the sink NAME again from their newest snapshots, while it continues with the others.

    A TABLE may be a pattern, such as 'public.*'. `tailrace snapshot TABLE` takes a new snapshot first.
    """
    store, sink = _find(invocation, name)
    if not sink.sink.keeps_tables:
        raise ConfigError(
            f"sink {name} delivers events and has no tables to reload",
            f"`tailrace sink rewind {name}` delivers the events again",
        )
    copied = [snapshot.relation for snapshot in SnapshotReader(store).newest_of_each()]
    for table in tables:
        pattern = TablePattern.parse(table)
        if copied and not any(pattern.matches(relation.schema, relation.name) for relation in copied):
            near = did_you_mean(table, sorted(relation.qualified_name for relation in copied))
            raise ConfigError(f"no table with a snapshot matches {table}{near}")
    control.reload(store, name, tables)
    click.echo(f"sink {name} reloads {', '.join(tables)} {_SOON}")


@click.command("rewind", short_help="Deliver again from an earlier position, time or snapshot.")
@click.argument("name", shell_complete=complete_sink)
@click.argument("where", metavar="LSN|TIME|snapshot|earliest|latest")
@click.pass_obj
def rewind(invocation: Invocation, name: str, where: str) -> None:
    """Have the sink NAME deliver again from an LSN or an ISO time, or load its tables again (`snapshot`).

    A sink that keeps tables loads them again from the newest snapshots at or before that position. For event sinks,
    rewinding publishes the events again. `latest` skips what is not delivered yet.
    """
    store, sink = _find(invocation, name)
    reader = LogReader(store)
    lsn = None if where == "snapshot" else planner.resolve_lsn(reader, where, "the position to rewind to")
    if lsn is not None:
        planner.start_offset(reader, lsn)  # raises if the log no longer has it
    if (where == "snapshot" or sink.sink.keeps_tables) and not snapshots_in_reach(SnapshotReader(store), lsn):
        raise SnapshotError(
            "there is no snapshot" + (f" at or before {lsn}" if lsn is not None else " that the log reaches back to"),
            "take one with `tailrace snapshot`, or rewind to a later position",
        )
    control.rewind(store, name, where)
    click.echo(f"sink {name} delivers again from {where} {_SOON}")


@click.command("forget", short_help="Remove a sink that is no longer configured from the store.")
@click.argument("name")
@click.pass_obj
def forget(invocation: Invocation, name: str) -> None:
    """Remove what the store knows of the sink NAME: its cursor, status, requests and dead letters.

    Retention then no longer retains the log for it. The sink must not be configured, nor run anywhere. Its destination
    is not touched.
    """
    settings = invocation.settings("store")
    if name in {str(raw["name"]) for raw in settings.sinks}:
        raise ConfigError(f"sink {name} is configured", "remove it from the settings first")
    store = Store.open(settings.store.url, settings.store.options)
    keys = [info.key for info in store.list(f"{CURSORS}/{name}/")]
    if not keys:
        raise ConfigError(f"the store knows no sink {name!r}", "`tailrace sink list` lists them")
    last = status.load(store, name)
    if last is not None and last.state != "stopped" and not last.is_silent(time.time()):
        raise SinkRefused(f"sink {name} is {last.state}: some process delivers to it", "stop that process first")
    for key in keys:
        store.delete(key)
    click.echo(f"sink {name} is forgotten")


def _find(invocation: Invocation, name: str) -> tuple[Store, ConfiguredSink]:
    settings = invocation.settings("store")
    sink = find_sink(configured_sinks(settings), name)
    return Store.open(settings.store.url, settings.store.options), sink
