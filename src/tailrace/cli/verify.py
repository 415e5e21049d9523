"""`tailrace verify`: compares the rows of destinations with the source's, and has those that differ corrected."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import click
from rich.table import Table

from tailrace.cli import Invocation, output
from tailrace.cli.sink_choice import configured_sinks, find_sink
from tailrace.cli.stop_signal import on_stop
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.errors import ConfigError, SinkRefused, TailraceError
from tailrace.log.terminal import printable_lines
from tailrace.ops import supervisor_socket
from tailrace.settings import Settings
from tailrace.settings.pattern import TablePattern
from tailrace.spark import session
from tailrace.spark.session import processors
from tailrace.store import Store
from tailrace.verify.continuous import ContinuousVerification
from tailrace.verify.destination import check_source, check_verifiable
from tailrace.verify.difference import Difference
from tailrace.verify.record import VerificationRecord
from tailrace.verify.report import SinkReport
from tailrace.verify.row_repair import RepairTotals, repair_differences
from tailrace.verify.row_scan import SPARK_PROCESSORS, SparkOnDemand
from tailrace.verify.verification import Verification

_COULD_NOT_COMPARE = 2


@click.command("verify", short_help="Compare the rows of destinations with the source's, and repair them.")
@click.argument("names", nargs=-1, metavar="[SINK]...")
@click.option("--table", "tables", multiple=True, metavar="PATTERN", help="Compare only these tables. Repeatable.")
@click.option("--repair", "must_repair", is_flag=True, help="Have the sinks correct the rows that differ.")
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="How many rows to print of each table."
)
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait for capture and the sink to reach the source's position, and for a repair.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--continuous", is_flag=True, help="Verify again and again, as often and as fast as [verify] says, until a signal."
)
@click.option(
    "--master", metavar="URL", help="Spark master, for large tables of a lake. Default: all processors of this machine."
)
@click.pass_obj
def command(
    invocation: Invocation,
    names: tuple[str, ...],
    tables: tuple[str, ...],
    must_repair: bool,
    limit: int,
    wait_s: float,
    as_json: bool,
    continuous: bool,
    master: str | None,
) -> None:
    """Compare the rows at the destinations of SINKs with the source's, all at one position. Default: every sink that
    keeps rows.

    Capture and delivery go on meanwhile, and must run. Checksums of ranges of rows are compared first, then the rows of
    the ranges that differ. Each row that differs is printed with its key and its values, at the source and at the
    destination.

    Spark compares tables of a lake from fifty million rows on, on four processors or more, or on a cluster.

    With --repair, the process that delivers to the sink corrects these rows between two of its steps, and they are
    compared again.

    Exits with 0 if all rows are equal, with 1 if rows differ, with 2 if something could not be compared.
    """
    settings = invocation.settings()
    invocation.start_logging()
    patterns = tuple([TablePattern.parse(text) for text in tables])
    stopping = threading.Event()
    on_stop(stopping.set)
    spark = None
    if find_spec("pyspark") is not None and (master is not None or processors() >= SPARK_PROCESSORS):
        spark = SparkOnDemand(lambda packages: session("tailrace verify", master, packages=packages))
    if continuous:
        with supervisor_socket.report_to_supervisor(os.environ, dict, stopping.set):
            ContinuousVerification(settings, _chosen(settings, names), stopping, spark).run()
        return
    store = Store.open(settings.store.url, settings.store.options)
    found: list[dict[str, Any]] = []
    codes = [0]
    options = VerifyOptions(patterns, wait_s, must_repair, stopping.is_set, spark)
    for configured in _chosen(settings, names):
        if stopping.is_set():
            break
        try:
            report, totals = _verify(settings, configured, options)
        except TailraceError as error:
            codes.append(_COULD_NOT_COMPARE)
            found.append({"sink": configured.name, "error": str(error), "hint": error.hint})
            if not as_json:
                click.echo(printable_lines(f"sink {configured.name}: {error}\nhint: {error.hint}"), err=True)
            continue
        codes.append(report.exit_code)
        if not patterns:
            VerificationRecord.of([report]).save(store)
        found.append(report.to_json(limit) | {"rows_repaired": totals.applied})
        if not as_json:
            _show(report, totals, limit)
    if as_json:
        click.echo(json.dumps({"sinks": found}, indent=2, ensure_ascii=False))
    # Rows that differ are worse news than rows that could not be compared.
    raise SystemExit(1 if 1 in codes else max(codes))


def _chosen(settings: Settings, names: Sequence[str]) -> list[ConfiguredSink]:
    check_source(settings)
    configured = configured_sinks(settings)
    if names:
        chosen = [find_sink(configured, name) for name in dict.fromkeys(names)]
        for sink in chosen:
            check_verifiable(settings, sink)
        return chosen
    chosen, reasons = [], []
    for sink in configured:
        try:
            check_verifiable(settings, sink)
            chosen.append(sink)
        except (ConfigError, SinkRefused) as error:
            reasons.append(str(error))
    for reason in reasons:
        click.echo(f"not compared: {reason}", err=True)
    if not chosen:
        raise ConfigError("no sink keeps rows that could be compared")
    return chosen


@dataclass(frozen=True)
class VerifyOptions:
    tables: tuple[TablePattern, ...]
    wait_s: float
    must_repair: bool
    is_cancelled: Callable[[], bool]
    spark: SparkOnDemand | None


def _verify(settings: Settings, configured: ConfiguredSink, options: VerifyOptions) -> tuple[SinkReport, RepairTotals]:
    with _progress(configured.name) as update, contextlib.closing(options.spark or contextlib.ExitStack()):
        verification = Verification(
            settings,
            configured,
            options.tables,
            options.wait_s,
            options.is_cancelled,
            lambda table: update(f"sink {configured.name}: compared {table.table}, {table.rows:,} rows"),
            options.spark,
        )
        report = verification.run()
        if not options.must_repair:
            return report, RepairTotals()
        store = Store.open(settings.store.url, settings.store.options)
        return repair_differences(verification, report, store, options.wait_s)


@contextlib.contextmanager
def _progress(sink: str) -> Iterator[Callable[[str], None]]:
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    with output.live_line() as update:
        update(f"sink {sink}: waiting for the source's position")
        yield update


def _show(report: SinkReport, totals: RepairTotals, limit: int) -> None:
    shown = Table(box=None, pad_edge=False)
    for heading in ("table", "rows", "ranges", "differences", "time", ""):
        shown.add_column(heading, justify="right" if heading in ("rows", "ranges", "differences", "time") else "left")
    for table in report.tables:
        remark = "; ".join(filter(None, [table.error, table.hint if table.error else "", *table.notes]))
        more = "+" if table.ranges_unread else ""
        shown.add_row(
            table.table,
            f"{table.rows:,}",
            f"{table.ranges:,}",
            f"{len(table.differences):,}{more}",
            output.duration(table.seconds),
            remark,
        )
    console = output.report_console()
    console.print(f"sink {report.sink} at {report.cursor}, source at {report.source_lsn}")
    console.print(shown)
    for table in report.tables:
        for difference in table.differences[:limit]:
            click.echo(f"{table.table} {_describe(difference)}")
        if (more_rows := len(table.differences) - limit) > 0:
            click.echo(f"{table.table}: {more_rows:,} more rows differ")
        if table.ranges_unread:
            click.echo(f"{table.table}: {table.ranges_unread:,} more ranges differ, which were not read")
    if totals.rounds:
        click.echo(f"sink {report.sink}: {totals.applied:,} rows were corrected")
    click.echo(f"sink {report.sink}: {_verdict(report)} in {output.duration(report.seconds)}")


def _verdict(report: SinkReport) -> str:
    rows = sum(table.rows for table in report.tables)
    if report.differences:
        return f"{report.differences:,} rows differ"
    if not report.is_complete:
        return "no difference, but not everything could be compared"
    return f"all {rows:,} rows of {len(report.tables):,} tables are equal"


def _describe(difference: Difference) -> str:
    key = ", ".join(f"{name}={_quote(value)}" for name, value in difference.key_values.items())
    if difference.kind == "missing":
        return f"({key}): is missing at the destination"
    if difference.kind == "extra":
        return f"({key}): is not at the source"
    values = ", ".join(
        f"{name} is {_quote(source)} at the source and {_quote(found)} at the destination"
        for name, (source, found) in difference.values.items()
    )
    return f"({key}): {values}"


def _quote(value: str | None) -> str:
    if value is None:
        return "NULL"
    short = value if len(value) <= 100 else value[:100] + "…"
    return json.dumps(short, ensure_ascii=False)
