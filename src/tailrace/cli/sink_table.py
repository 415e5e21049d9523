"""The table of sinks that `tailrace status` and `tailrace sink list` print."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from tailrace.cli import output
from tailrace.cli.status_line import loading, sink_lag
from tailrace.delivery.status import SinkStatus
from tailrace.errors import sentences
from tailrace.log.terminal import printable
from tailrace.quantity import count

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


def show(sinks: Sequence[SinkStatus]) -> None:
    """Print the sinks, with their last errors and dead letters."""
    console = output.report_console()
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
        if sink.load_rows is not None and sink.load_total_rows is not None:
            behind = count(sink.load_total_rows - sink.load_rows, "row")
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
        if (load := loading(sink)) is not None:
            console.print(Text(f"{sink.name}: {load}", style="blue"))
        if sink.last_error:
            problem = sentences(f"{sink.name}: {sink.last_error}", sink.last_error_hint or "")
            console.print(Text(printable(problem), style="red"))
        if sink.dead_letters:
            command = f"`tailrace deadletter list {sink.name}`"
            console.print(Text(f"{sink.name}: {count(sink.dead_letters, 'dead letter')}: {command}", style="yellow"))
        if sink.is_stalled:
            since = output.duration(sink.stalled_seconds or 0)
            console.print(Text(f"{sink.name}: no step has ended for {since}: a slow destination?", style="yellow"))
        if sink.is_silent(time.time()):
            console.print(
                Text(f"{sink.name}: last status {output.ago(sink.updated_at)}; is it running?", style="yellow")
            )
