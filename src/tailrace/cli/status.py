"""`tailrace status`: shows the source, the log and the sinks, on any machine that can reach them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.cli import Invocation, output
from tailrace.cli.status_line import sink_lag
from tailrace.ops.probe import log_status, sink_statuses, source_status
from tailrace.ops.status import LogStatus, Overview, SourceStatus
from tailrace.store import Store

if TYPE_CHECKING:
    from tailrace.delivery.status import SinkStatus

_COLOURS = {
    "new": "yellow",
    "running": "green",
    "starting": "blue",
    "loading": "blue",
    "paused": "yellow",
    "stopped": "yellow",
    "retrying": "red",
    "failed": "red",
}
_WIDE = 200


@click.command("status", short_help="Show the status of the source, the log and the sinks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def command(invocation: Invocation, as_json: bool) -> None:
    """Show the source's slot, the log, and for each sink its state, cursor, lag and last error.

    The status of a sink is the one it last published in the store, whatever machine it runs on. Its lag is measured
    now, by the end of the log, whether the sink runs, hangs, has stopped or never ran. If the source cannot be reached,
    the reason is shown instead of its status.

    Exits with 1 if something is wrong: a sink fails, is retried or reports nothing, or source or log cannot be read.
    """
    settings = invocation.audit_settings("store")
    store = Store.open(settings.store.url, settings.store.options)
    overview = Overview(
        source_status(settings) if settings.source.url else None,
        None,
        log_status(store),
        sink_statuses(store, settings.sinks),
    )
    if as_json:
        click.echo(json.dumps(overview.to_json(), indent=2, ensure_ascii=False))
    else:
        _show(overview)
    if overview.faults:
        raise SystemExit(1)


def _show(overview: Overview) -> None:
    # Without a terminal the width is unknown, so use one that truncates nothing.
    console = Console(highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDE)
    if overview.source is not None:
        _print(console, "source", _source(overview.source))
    assert overview.log is not None
    _print(console, "log", _log(overview.log))
    _print_sinks(console, overview.sinks)


def _print(console: Console, title: str, rows: Iterable[tuple[str, str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    for term, value in rows:
        grid.add_row(Text(f"  {term}", style="dim"), Text(value))
    console.print(Text(title, style="bold"))
    console.print(grid)
    console.print()


def _source(source: SourceStatus) -> list[tuple[str, str]]:
    if source.error is not None:
        return [("slot", source.slot), ("unknown", source.error)]
    return [
        ("slot", f"{source.slot}, {'in use' if source.is_active else 'not in use: is capture running?'}"),
        ("WAL held back", "-" if source.wal_held_bytes is None else output.size(source.wal_held_bytes)),
        ("acknowledged", str(source.confirmed_lsn or "-")),
    ] + ([] if source.wal_status in (None, "reserved") else [("WAL status", str(source.wal_status))])


def _log(log: LogStatus) -> list[tuple[str, str]]:
    if log.error is not None:
        return [("store", log.url), ("unknown", log.error)]
    if not log.segments:
        return [("store", log.url), ("empty", "run `tailrace capture` to start the log")]
    return [
        ("store", log.url),
        ("ends at", str(log.end_lsn)),
        ("changes", f"{log.first or '-'} to {log.last or '-'}"),
        ("last change", _ago(log.last_committed_at)),
        ("segments", f"{log.segments:,} in {log.objects:,} objects, {output.size(log.bytes)}"),
    ]


def _print_sinks(console: Console, sinks: Sequence[SinkStatus]) -> None:
    if not sinks:
        console.print(Text("no sinks", style="dim"))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", header_style="dim")
    for heading in ("SINK", "TYPE", "STATE", "DELIVERED TO"):
        table.add_column(heading, no_wrap=True)
    for heading in ("BEHIND", "OLDEST PENDING", "RATE", "CHANGES"):
        table.add_column(heading, justify="right", no_wrap=True)
    for sink in sinks:
        behind, age = sink_lag(sink)
        table.add_row(
            Text(sink.name),
            Text(sink.type),
            Text(sink.state, style=_COLOURS[sink.state]),
            str(sink.cursor or "-"),
            behind or "-",
            age or "-",
            f"{sink.changes_per_second:,.0f}/s",
            f"{sink.changes:,}",
        )
    console.print(table)
    for sink in sinks:
        if sink.last_error:
            hint = f". {sink.last_error_hint}" if sink.last_error_hint else ""
            console.print(Text(f"{sink.name}: {sink.last_error}{hint}", style="red"))
        if sink.dead_letters:
            command = f"`tailrace deadletter list {sink.name}`"
            console.print(Text(f"{sink.name}: {sink.dead_letters:,} dead letters: {command}", style="yellow"))
        if sink.is_silent(time.time()):
            console.print(Text(f"{sink.name}: last status {_ago(sink.updated_at)}; is it running?", style="yellow"))


def _ago(at: datetime | None) -> str:
    return "-" if at is None else f"{output.duration(time.time() - at.timestamp())} ago"
