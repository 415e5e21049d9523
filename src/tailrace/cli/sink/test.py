"""`tailrace sink test`: the first rows that a sink would deliver, without its destination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
from rich.table import Table

from tailrace.cli import Invocation, output
from tailrace.cli.sink_choice import complete_sink, configured_sinks, find_sink
from tailrace.delivery.preview import PreviewRow, preview
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.delivery.task import run_in_process
from tailrace.log.terminal import printable

if TYPE_CHECKING:
    from tailrace.settings import Settings


@click.command("test")
@click.argument("name", shell_complete=complete_sink)
@click.option("--rows", "count", default=10, show_default=True, type=click.IntRange(1, 1000), help="How many rows.")
@click.option("--master", metavar="URL", help="Spark master, for a sink with sql or transform. Default: this machine.")
@click.pass_obj
def test(invocation: Invocation, name: str, count: int, master: str | None) -> None:
    """Print the first rows that the sink NAME would deliver. Its destination is not touched.

    Rows come from the snapshots in the log, if the sink starts from them, and then from changes, shaped as the sink's
    settings say. A statement (sql or transform) is checked and evaluated by Spark.
    """
    settings = invocation.settings("store")
    invocation.start_logging()
    sink = find_sink(configured_sinks(settings), name)
    rows = _preview(settings, sink, count, master)
    if not rows:
        click.echo(f"sink {name} would deliver nothing: the log has no rows for it")
    _print(rows)


def _preview(settings: Settings, sink: ConfiguredSink, count: int, master: str | None) -> list[PreviewRow]:
    if not (sink.common.sql or sink.common.transform):
        return preview(sink, settings.store, run_in_process, count)
    from tailrace.spark.session import session
    from tailrace.spark.statement import runner

    spark = session("tailrace sink test", master)
    stated, statement = runner.with_statement(spark, sink, settings.store)
    return preview(stated, settings.store, lambda tasks: runner.run_alone(spark, statement, tasks), count)


def _print(rows: Sequence[PreviewRow]) -> None:
    """One table for each run of rows of the same columns."""
    console = output.report_console()
    shown: tuple[object, ...] | None = None
    table: Table | None = None
    for row in rows:
        if (row.table, *row.values) != shown:
            if table is not None:
                console.print(table)
            shown = (row.table, *row.values)
            table = Table(title=printable(row.table), title_justify="left")
            for name in ("position", "operation", *row.values):
                table.add_column(printable(name), overflow="fold")
        assert table is not None
        cells = ("NULL" if value is None else printable(value) for value in row.values.values())
        table.add_row(str(row.position), row.operation, *cells)
    if table is not None:
        console.print(table)
