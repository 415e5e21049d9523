"""`tailrace status`: source, log and sinks at a glance, from any machine that reaches them."""

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

from tailrace.cli import Invocation, reporting
from tailrace.ops.observing import log_status, sink_statuses, source_status
from tailrace.ops.status import LogStatus, Overview, SourceStatus
from tailrace.store import Store

if TYPE_CHECKING:
    from tailrace.sinks.status import SinkStatus

_COLOURS = {
    "running": "green",
    "starting": "blue",
    "loading": "blue",
    "paused": "yellow",
    "stopped": "yellow",
    "retrying": "red",
    "failed": "red",
}
# An engine writes every few seconds how its sinks are: who has been silent for this long does not run.
_SILENT_SECONDS = 30.0
_WIDE = 200


@click.command("status", short_help="Show source, log and sinks.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
@click.pass_obj
def command(invocation: Invocation, as_json: bool) -> None:
    """Show the source's slot, the log, and each sink: where it stands, how far behind, its last error.

    Sinks are shown as they last told it, in the store, wherever they run. A source that cannot be reached is left out.
    """
    settings = invocation.audit_settings("store")
    store = Store.open(settings.store.url, settings.store.options)
    told = Overview(
        source_status(settings) if settings.source.url else None,
        None,
        log_status(store),
        sink_statuses(store, [str(sink["name"]) for sink in settings.sinks]),
    )
    if as_json:
        raw = told.to_json()
        for sink, status in zip(raw["sinks"], told.sinks, strict=True):
            sink["is_silent"] = _is_silent(status)
        click.echo(json.dumps(raw, indent=2, ensure_ascii=False))
        return
    # Where no terminal says how wide it is, nothing is cut.
    console = Console(highlight=False, markup=False, soft_wrap=True, width=None if sys.stdout.isatty() else _WIDE)
    if told.source is not None:
        _print(console, "source", _source(told.source))
    assert told.log is not None
    _print(console, "log", _log(told.log))
    never = [str(s["name"]) for s in settings.sinks if s["name"] not in {status.name for status in told.sinks}]
    _print_sinks(console, told.sinks, never)


def _print(console: Console, title: str, rows: Iterable[tuple[str, str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    for term, value in rows:
        grid.add_row(Text(f"  {term}", style="dim"), Text(value))
    console.print(Text(title, style="bold"))
    console.print(grid)
    console.print()


def _source(source: SourceStatus) -> list[tuple[str, str]]:
    if source.error is not None:
        return [("slot", source.slot), ("not known", source.error)]
    return [
        ("slot", f"{source.slot}, {'in use' if source.is_active else 'not in use: does capture run?'}"),
        ("WAL held back", "-" if source.wal_held_bytes is None else reporting.size(source.wal_held_bytes)),
        ("acknowledged", str(source.confirmed_lsn or "-")),
    ] + ([] if source.wal_status in (None, "reserved") else [("WAL status", str(source.wal_status))])


def _log(log: LogStatus) -> list[tuple[str, str]]:
    if log.error is not None:
        return [("store", log.url), ("not known", log.error)]
    if not log.segments:
        return [("store", log.url), ("empty", "`tailrace capture` starts it")]
    return [
        ("store", log.url),
        ("ends at", str(log.end_lsn)),
        ("changes", f"{log.first or '-'} to {log.last or '-'}"),
        ("last change", _ago(log.last_committed_at)),
        ("segments", f"{log.segments:,} in {log.objects:,} objects, {reporting.size(log.bytes)}"),
    ]


def _print_sinks(console: Console, sinks: Sequence[SinkStatus], never: Sequence[str]) -> None:
    if not sinks and not never:
        console.print(Text("no sinks", style="dim"))
        return
    table = Table(box=None, padding=(0, 2, 0, 0), title_justify="left", header_style="dim")
    for heading in ("SINK", "TYPE", "STATE", "DELIVERED TO"):
        table.add_column(heading, no_wrap=True)
    for heading in ("BEHIND", "AGE", "RATE", "CHANGES"):
        table.add_column(heading, justify="right", no_wrap=True)
    for sink in sinks:
        table.add_row(
            Text(sink.name),
            Text(sink.type),
            Text(sink.state, style=_COLOURS[sink.state]),
            str(sink.cursor or "-"),
            "-" if sink.lag_bytes is None else reporting.size(sink.lag_bytes),
            reporting.duration(sink.lag_seconds) if sink.lag_seconds else "-",
            f"{sink.changes_per_second:,.0f}/s",
            f"{sink.changes:,}",
        )
    for name in never:
        table.add_row(Text(name), "", Text("never ran", style="dim"))
    console.print(table)
    for sink in sinks:
        if sink.last_error:
            hint = f". {sink.last_error_hint}" if sink.last_error_hint else ""
            console.print(Text(f"{sink.name}: {sink.last_error}{hint}", style="red"))
        if sink.set_aside:
            where = f"cursors/{sink.name}/set_aside/ of the store"
            console.print(Text(f"{sink.name}: {sink.set_aside:,} changes set aside, in {where}", style="yellow"))
        if _is_silent(sink):
            console.print(Text(f"{sink.name}: last heard of {_ago(sink.updated_at)}; does it run?", style="yellow"))


def _is_silent(sink: SinkStatus) -> bool:
    return sink.state != "stopped" and time.time() - sink.updated_at.timestamp() > _SILENT_SECONDS


def _ago(moment: datetime | None) -> str:
    return "-" if moment is None else f"{reporting.duration(time.time() - moment.timestamp())} ago"
