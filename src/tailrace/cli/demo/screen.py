"""The demo's display while it runs: live panels on a terminal, otherwise plain lines."""

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
from tailrace.cli import output
from tailrace.cli.demo.demo_capture import DemoCapture
from tailrace.cli.demo.demo_lake import QUERIES, DemoLake
from tailrace.cli.demo.demo_reader import DemoReader
from tailrace.cli.demo.demo_replica import DemoReplica
from tailrace.log.change_text import to_line
from tailrace.rate import Rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.cli.demo.demo_consumer import ConsumedMessage, DemoConsumer
    from tailrace.cli.demo.demo_mysql import DemoMysql
    from tailrace.cli.demo.demo_slatedb import DemoSlateDb

_COLOURS = {Operation.INSERT: "green", Operation.UPDATE: "yellow", Operation.DELETE: "red"}
_PLAIN_SECONDS = 5.0
WITHOUT_SPARK = "none: it needs Spark, pip install 'tailrace[spark]'"


@dataclass(frozen=True)
class DemoComponents:
    """The running parts of the demo. Those whose dependencies are not installed are None."""

    capture: DemoCapture
    reader: DemoReader
    replica: DemoReplica | None
    lake: DemoLake | None
    consumers: Sequence[DemoConsumer]
    mysql: DemoMysql | None = None
    carts: DemoSlateDb | None = None


def show(console: Console, components: DemoComponents, seconds: float, stopping: threading.Event) -> None:
    """Show the demo for `seconds`, or until `stopping` is set."""
    deadline = time.monotonic() + seconds
    (_show_live if console.is_terminal else _print_lines)(console, components, deadline, stopping)


def _show_live(console: Console, components: DemoComponents, deadline: float, stopping: threading.Event) -> None:
    rate = Rate()
    with Live(console=console, refresh_per_second=8, transient=True) as live:
        while (left := deadline - time.monotonic()) > 0 and not stopping.wait(0.125):
            live.update(_panels(components, rate.of(components.reader.operations.total()), left))


def _panels(components: DemoComponents, rate: float, left: float) -> Group:
    capture, reader = components.capture.capture, components.reader
    grid = Table.grid(padding=(0, 3))
    grid.add_row("changes", f"{reader.operations.total():,}", "inserts", f"{reader.operations['INSERT']:,}")
    grid.add_row("per second", f"{rate:,.0f}", "updates", f"{reader.operations['UPDATE']:,}")
    grid.add_row("commit → reader", _median(reader.delays), "deletes", f"{reader.operations['DELETE']:,}")
    grid.add_row("durable to", str(capture.durable_lsn), "segments", f"{capture.progress.segments:,}")
    grid.add_row(
        "last position",
        str(capture.progress.last_position or "–"),
        "payload",
        output.size(capture.progress.payload_bytes),
    )
    newest = Group(*[_line(change) for change in list(reader.recent)])
    return Group(
        Panel(grid, title=f"PostgreSQL → log, {left:.0f} s left", title_align="left"),
        Panel(_replica(components.replica), title="log → replica", title_align="left"),
        *_lake(components.lake),
        *_mysql(components.mysql),
        *_carts(components.carts),
        *(panel for consumer in components.consumers for panel in _stream(consumer)),
        Panel(newest, title="newest changes, as a reader of the log sees them", title_align="left"),
    )


def _replica(replica: DemoReplica | None) -> Table:
    grid = Table.grid(padding=(0, 3))
    if replica is None:
        grid.add_row("replica", Text(WITHOUT_SPARK))
    else:
        grid.add_row("replica", replica.state, "changes", f"{replica.changes:,}")
        grid.add_row("commit → replica", _median(replica.delays), "", "")
    return grid


def _lake(lake: DemoLake | None) -> list[Panel]:
    if lake is None or not lake.results:
        return []
    lines = [Text(lake.command, style="bold"), *(Text(line, no_wrap=True) for line in query_lines(lake))]
    return [Panel(Group(*lines), title="log → Iceberg, queried over the PostgreSQL protocol", title_align="left")]


def _mysql(mysql: DemoMysql | None) -> list[Panel]:
    if mysql is None:
        return []
    return [Panel(Text(mysql.command, style="bold"), title="log → MariaDB", title_align="left")]


def _carts(carts: DemoSlateDb | None) -> list[Panel]:
    if carts is None:
        return []
    lines = [Text(carts.command, style="bold"), Text(_carts_line(carts))]
    return [Panel(Group(*lines), title="SlateDB → a log of its own", title_align="left")]


def _carts_line(carts: DemoSlateDb) -> str:
    return f"{carts.writes:,} writes, {carts.changes:,} changes in the log"


def _stream(consumer: DemoConsumer) -> list[Panel]:
    if consumer.last is None:
        return []
    lines = [Text(consumer.command, style="bold"), *message_lines(consumer.last)]
    return [Panel(Group(*lines), title=consumer.title, title_align="left")]


def message_lines(message: ConsumedMessage, indent: str = "") -> list[Text]:
    """Return the lines of a message, truncated to the width of the screen."""
    return [_truncate(f"{indent}{message.destination}  {message.id}"), _truncate(f"{indent}    {message.text}")]


def query_lines(lake: DemoLake) -> list[str]:
    """Return each query, followed by its result."""
    lines = []
    for query, rows in zip(QUERIES, lake.results, strict=False):
        result = "; ".join(" ".join(str(value) for value in row) for row in rows)
        lines += [query, f"    {result or 'no rows at the moment'}"]
    return lines


def _line(change: Change) -> Text:
    return _truncate(to_line(change), _COLOURS.get(change.operation, ""))


def _truncate(line: str, style: str = "") -> Text:
    return Text(line, style, no_wrap=True, overflow="ellipsis")


def _median(delays: list[float]) -> str:
    """Return the median of the newest 200 delays."""
    newest = sorted(delays[-200:])
    return output.duration(newest[len(newest) // 2]) if newest else "–"


def _print_lines(console: Console, components: DemoComponents, deadline: float, stopping: threading.Event) -> None:
    reader, replica = components.reader, components.replica
    rate = Rate(_PLAIN_SECONDS)
    while (left := deadline - time.monotonic()) > 0 and not stopping.wait(min(_PLAIN_SECONDS, left)):
        count = reader.operations.total()
        click.echo(
            f"{count:,} changes, {rate.of(count):,.0f}/s, commit → reader {_median(reader.delays)},"
            f" durable to {components.capture.capture.durable_lsn}"
        )
        if replica is None:
            click.echo(f"    replica: {WITHOUT_SPARK}")
        elif not replica.is_live:
            click.echo(f"    replica: {replica.state}")
        else:
            click.echo(f"    replica: {replica.changes:,} changes, commit → replica {_median(replica.delays)}")
        if components.lake is not None and components.lake.results:
            click.echo(f"    lake: {components.lake.command}")
            for line in query_lines(components.lake):
                click.echo(f"        {line}")
        if components.mysql is not None:
            click.echo(f"    {components.mysql.name}: {components.mysql.command}")
        if components.carts is not None:
            click.echo(f"    {components.carts.name}: {_carts_line(components.carts)}")
        for consumer in components.consumers:
            if consumer.last is not None:
                click.echo(f"    {consumer.name}: {consumer.command}")
                for text in message_lines(consumer.last, " " * 8):
                    console.print(text, no_wrap=True, overflow="ellipsis")
        for change in list(reader.recent)[-2:]:
            click.echo(f"    {to_line(change)}")
