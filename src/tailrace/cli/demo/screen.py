"""What the demo shows while it runs: a live picture on a terminal, a few lines elsewhere."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tailrace.change import Change, Operation
from tailrace.cli import reporting
from tailrace.cli.demo.asking import QUESTIONS, Asking
from tailrace.cli.demo.capturing import Capturing
from tailrace.cli.demo.replicating import Replicating
from tailrace.cli.demo.watching import Watching
from tailrace.log.rendering import to_line
from tailrace.rate import Rate

if TYPE_CHECKING:
    from tailrace.cli.demo.consuming import Consuming, Seen

_COLOURS = {Operation.INSERT: "green", Operation.UPDATE: "yellow", Operation.DELETE: "red"}
_PLAIN_SECONDS = 5.0
WITHOUT_SPARK = "none: it needs Spark, pip install 'tailrace[spark]'"


@dataclass(frozen=True)
class Running:
    """What there is to be shown."""

    capturing: Capturing
    watching: Watching
    replicating: Replicating | None
    asking: Asking | None
    consuming: Consuming | None


def show(console: Console, running: Running, seconds: float, stopped: threading.Event) -> None:
    """Until the time is over, or somebody stops it."""
    deadline = time.monotonic() + seconds
    (_show_live if console.is_terminal else _print_lines)(console, running, deadline, stopped)


def _show_live(console: Console, running: Running, deadline: float, stopped: threading.Event) -> None:
    rate = Rate()
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        while (left := deadline - time.monotonic()) > 0 and not stopped.wait(0.125):
            live.update(_picture(running, rate.of(running.watching.operations.total()), left))


def _picture(running: Running, rate: float, left: float) -> Group:
    capture, watching = running.capturing.capture, running.watching
    figures = Table.grid(padding=(0, 3))
    figures.add_row("changes", f"{watching.operations.total():,}", "inserts", f"{watching.operations['INSERT']:,}")
    figures.add_row("per second", f"{rate:,.0f}", "updates", f"{watching.operations['UPDATE']:,}")
    figures.add_row("commit → reader", _half(watching.delays), "deletes", f"{watching.operations['DELETE']:,}")
    figures.add_row("durable to", str(capture.durable_lsn), "segments", f"{capture.progress.segments:,}")
    figures.add_row(
        "last position",
        str(capture.progress.last_position or "–"),
        "payload",
        reporting.size(capture.progress.payload_bytes),
    )
    newest = Group(*[_line(change) for change in list(watching.recent)])
    return Group(
        Panel(figures, title=f"PostgreSQL → log, {left:.0f} s left", title_align="left"),
        Panel(_replica(running.replicating), title="log → replica", title_align="left"),
        *_lake(running.asking),
        *_stream(running.consuming),
        Panel(newest, title="newest changes, as a reader of the log sees them", title_align="left"),
    )


def _replica(replicating: Replicating | None) -> Table:
    figures = Table.grid(padding=(0, 3))
    if replicating is None:
        figures.add_row("replica", Text(WITHOUT_SPARK))
    else:
        figures.add_row("replica", replicating.state, "changes", f"{replicating.changes:,}")
        figures.add_row("commit → replica", _half(replicating.delays), "", "")
    return figures


def _lake(asking: Asking | None) -> list[Panel]:
    if asking is None or not asking.answers:
        return []
    lines = [Text(asking.command, style="bold"), *(Text(line, no_wrap=True) for line in answers(asking))]
    return [Panel(Group(*lines), title="log → Iceberg, queried over PostgreSQL's protocol", title_align="left")]


def _stream(consuming: Consuming | None) -> list[Panel]:
    if consuming is None or consuming.last is None:
        return []
    lines = [Text(consuming.command, style="bold"), *told(consuming.last)]
    return [Panel(Group(*lines), title="log → NATS JetStream, as a consumer sees it", title_align="left")]


def told(message: Seen, indent: str = "") -> list[Text]:
    """A message, cut to the screen's width."""
    return [_cut(f"{indent}{message.subject}  {message.id}"), _cut(f"{indent}    {message.text}")]


def answers(asking: Asking) -> list[str]:
    """The questions, each with what the lake says."""
    found = []
    for question, rows in zip(QUESTIONS, asking.answers, strict=False):
        told = "; ".join(" ".join(str(value) for value in row) for row in rows)
        found += [question, f"    {told or 'none at the moment'}"]
    return found


def _line(change: Change) -> Text:
    return _cut(to_line(change), _COLOURS.get(change.operation, ""))


def _cut(line: str, style: str = "") -> Text:
    return Text(line, style, no_wrap=True, overflow="ellipsis")


def _half(delays: list[float]) -> str:
    """The median of the newest."""
    newest = sorted(delays[-200:])
    return reporting.duration(newest[len(newest) // 2]) if newest else "–"


def _print_lines(console: Console, running: Running, deadline: float, stopped: threading.Event) -> None:
    watching, replicating = running.watching, running.replicating
    rate = Rate(_PLAIN_SECONDS)
    while (left := deadline - time.monotonic()) > 0 and not stopped.wait(min(_PLAIN_SECONDS, left)):
        count = watching.operations.total()
        click.echo(
            f"{count:,} changes, {rate.of(count):,.0f}/s, commit → reader {_half(watching.delays)},"
            f" durable to {running.capturing.capture.durable_lsn}"
        )
        if replicating is None:
            click.echo(f"    replica: {WITHOUT_SPARK}")
        elif not replicating.is_live:
            click.echo(f"    replica: {replicating.state}")
        else:
            click.echo(f"    replica: {replicating.changes:,} changes, commit → replica {_half(replicating.delays)}")
        if running.asking is not None and running.asking.answers:
            click.echo(f"    lake: {running.asking.command}")
            for line in answers(running.asking):
                click.echo(f"        {line}")
        if running.consuming is not None and running.consuming.last is not None:
            click.echo(f"    stream: {running.consuming.command}")
            for text in told(running.consuming.last, " " * 8):
                console.print(text, no_wrap=True, overflow="ellipsis")
        for change in list(watching.recent)[-2:]:
            click.echo(f"    {to_line(change)}")
