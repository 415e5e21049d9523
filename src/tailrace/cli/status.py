"""`tailrace status`: shows the source, the log and the sinks, on any machine that can reach them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tailrace.capture.postgres.uncaptured import UncapturedTable
from tailrace.capture.source import SourceStatus, source_status
from tailrace.cli import Invocation, output, sink_table
from tailrace.log.terminal import printable
from tailrace.ops.probe import log_status, recovery_status, sink_statuses, verification_records
from tailrace.ops.sink_meter import SinkMeter
from tailrace.ops.status import LogStatus, Overview, RecoveryStatus
from tailrace.quantity import count
from tailrace.store import Store

_WATCH_S: Final = 2.0
"""Sinks publish their status as often."""


@click.command("status", short_help="Show the status of the source, the log and the sinks.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--watch", is_flag=True, help="Show the status again every two seconds, until Ctrl-C.")
@click.pass_obj
def command(invocation: Invocation, as_json: bool, watch: bool) -> None:
    """Show the source's slot, the log, and for each sink its state, cursor, lag and last error. If the store has an
    archive of WAL, also show how far it is, the newest backup and the last drill.

    The status of a sink is the one it last published in the store, whatever machine it runs on. Its lag is measured
    now, by the end of the log, whether the sink runs, hangs, has stopped or never ran. If the source cannot be reached,
    the reason is shown instead of its status. Tables that source.tables matches and that are not captured are listed
    with the reason.

    Exits with 1 if something is wrong, and says what: capture does not run, a sink fails, is retried or reports
    nothing, the archive does not run, the last drill found a difference, or source or log cannot be read.
    """
    settings = invocation.audit_settings("store")
    store = Store.open(settings.store.url, settings.store.options)
    meter = SinkMeter(store)

    def show() -> Overview:
        overview = Overview(
            source_status(settings, store) if settings.has_source else None,
            None,
            log_status(store),
            sink_statuses(store, settings.sinks, meter),
            recovery=recovery_status(settings, store),
            verified=verification_records(store),
        )
        if watch:
            click.clear()  # nothing happens without a terminal
        if as_json:
            click.echo(json.dumps(overview.to_json(), indent=None if watch else 2, ensure_ascii=False))
        else:
            _show(overview)
        return overview

    overview = show()
    with contextlib.suppress(KeyboardInterrupt):  # the way to end it
        while watch:
            time.sleep(_WATCH_S)
            overview = show()
    if overview.faults:
        raise SystemExit(1)


def _show(overview: Overview) -> None:
    console = output.report_console()
    if overview.source is not None:
        _print(console, "source", _source(overview.source))
    if overview.uncaptured:
        _print(console, "not captured", _uncaptured(overview.uncaptured))
    assert overview.log is not None
    _print(console, "log", _log(overview.log))
    if overview.recovery is not None:
        _print(console, "recovery", _recovery(overview.recovery))
    sink_table.show(overview.sinks)
    for record in overview.verified:
        text = f"{record.sink}: compared with the source {output.ago(record.verified_at)} at {record.position}: "
        text += f"{record.differences:,} of {record.rows:,} rows differ" if record.differences else "no row differs"
        if record.tables_not_compared:
            text += f"; {record.tables_not_compared:,} of {record.tables:,} tables could not be compared entirely"
        is_good = not record.differences and not record.tables_not_compared
        console.print(Text(printable(text), style="dim" if is_good else "red" if record.differences else "yellow"))
    for fault in overview.faults:
        console.print(Text(printable(f"wrong: {fault}"), style="bold red"), soft_wrap=True)


def _print(console: Console, title: str, rows: Iterable[tuple[str, str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    for term, value in rows:
        grid.add_row(Text(f"  {term}", style="dim"), Text(printable(value)))
    console.print(Text(title, style="bold"))
    console.print(grid)
    console.print()


def _source(source: SourceStatus) -> list[tuple[str, str]]:
    if source.error is not None:
        return [("source" if source.kind != "postgresql" else "slot", source.slot), ("error", source.error)]
    if source.kind != "postgresql":
        oldest, unread = source.oldest_wal_age_s, source.unread_age_s
        return [
            (source.kind, source.slot),
            ("oldest WAL file", "-" if oldest is None else f"{output.duration(oldest)} old"),
            ("not captured", f"since {output.duration(unread)}" if unread else "nothing"),
            ("captured to", str(source.confirmed_lsn or "-")),
        ]
    return [
        ("slot", f"{source.slot}, {_use(source)}"),
        ("WAL held back", "-" if source.wal_held_bytes is None else output.size(source.wal_held_bytes)),
        ("acknowledged", str(source.confirmed_lsn or "-")),
        *([] if source.wal_status in (None, "reserved") else [("WAL status", str(source.wal_status))]),
        *([] if source.tables_captured is None else [("tables", f"{source.tables_captured:,} captured")]),
    ]


def _use(source: SourceStatus) -> str:
    if source.silent_seconds is not None:
        return f"in use, but capture has sent nothing for {output.duration(source.silent_seconds)}: does it hang?"
    return "in use" if source.is_active else "not in use: is capture running?"


def _uncaptured(tables: Sequence[UncapturedTable]) -> Iterator[tuple[str, str]]:
    for table in tables:
        yield table.qualified_name, table.reason
        if table.fix:
            yield "", table.fix


def _log(log: LogStatus) -> list[tuple[str, str]]:
    if log.error is not None:
        return [("store", log.url), ("error", log.error)]
    if not log.segments:
        return [("store", log.url), ("empty", "run `tailrace capture` to start the log")]
    return [
        ("store", log.url),
        ("ends at", str(log.end_lsn)),
        ("changes", f"{log.first or '-'} to {log.last or '-'}"),
        ("last change", output.ago(log.last_committed_at)),
        ("segments", f"{log.segments:,} in {count(log.objects, 'object')}, {output.size(log.bytes)}"),
    ]


def _recovery(recovery: RecoveryStatus) -> list[tuple[str, str]]:
    if recovery.error is not None:
        return [("error", recovery.error)]
    behind = "unknown" if recovery.lag_bytes is None else output.size(recovery.lag_bytes)
    runs = {True: "in use", False: "not in use: is `tailrace archive` running?", None: "unknown"}
    backup, drill = "none: run `tailrace backup`", "none: run `tailrace drill`"
    if recovery.last_backup is not None:
        backup = f"{recovery.last_backup}, {recovery.last_backup_kind}, {output.ago(recovery.last_backup_at)}"
    if recovery.last_drill_at is not None:
        drill = f"{recovery.last_drill_verdict}, {output.ago(recovery.last_drill_at)}"
        if recovery.last_drill_error is not None:
            drill += f": {recovery.last_drill_error}"
        else:
            drill += f", to {recovery.last_drill_lsn}"
            drill += f", {count(recovery.last_drill_tables or 0, 'table')}, {recovery.last_drill_rows:,} rows"
            drill += f", {output.duration(recovery.last_drill_seconds or 0)}"
    return [
        ("archive slot", f"{recovery.slot}, {runs[recovery.is_archiving]}"),
        ("archived up to", f"{recovery.archived_lsn} on timeline {recovery.timeline}, {behind} behind the server"),
        ("all WAL until", output.ago(recovery.covered_at)),
        ("open segment", count(recovery.parts, "part")),
        ("backups", f"{recovery.backups:,}"),
        ("newest backup", backup),
        ("last drill", drill),
    ]
