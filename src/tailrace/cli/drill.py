"""`tailrace drill`: restores a random logged moment and compares it with the change log."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import click

from tailrace.change import Lsn
from tailrace.cli import Invocation, output, status_line
from tailrace.cli.restored_server import SET_OPTION, find_programs, parse_settings
from tailrace.cli.status_line import StatusLine
from tailrace.cli.stop_signal import on_stop
from tailrace.embedded.installation import unprivileged_user
from tailrace.owned_directory import OwnedDirectory
from tailrace.quantity import count
from tailrace.recovery.drill import Drill, DrillProgress
from tailrace.recovery.drill_record import DrillRecord
from tailrace.store import Store


@click.command("drill", short_help="Restore a random moment, and prove that it is right.")
@click.option("--to", "lsn", metavar="LSN", help="The moment. Default: a random commit that the log has.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Where the copy is made, and removed again. Default: the system's directory for temporary files.",
)
@click.option(
    "--bin", "bin_directory", type=click.Path(path_type=Path), help="Where PostgreSQL's programs are. Default: PATH."
)
@SET_OPTION
@click.pass_obj
def command(
    invocation: Invocation,
    lsn: str | None,
    directory: Path | None,
    bin_directory: Path | None,
    server_settings: tuple[str, ...],
) -> None:
    """Restore the server to a random moment in a temporary directory, and compare every published table, row for row,
    with the snapshot and the change log at that moment.

    Stores the result, which `tailrace status` and the metrics show. Exits with 1 if rows differ, which are listed by
    table and key, or if the restore fails. The source is never contacted.
    """
    settings = invocation.settings("source", "store")
    invocation.start_logging()
    store = Store.open(settings.store.url, settings.store.options)
    own_settings = parse_settings(server_settings)
    programs = find_programs(store, bin_directory)
    cancelled = threading.Event()
    on_stop(cancelled.set)
    progress = DrillProgress()

    def lines() -> list[StatusLine]:
        text = f"drill: {progress.phase}, {progress.rows:,} rows compared"
        return [StatusLine(text, (progress.phase, progress.rows))]

    with OwnedDirectory("drill", directory) as copy:
        if owner := unprivileged_user():
            os.chown(copy, *owner)
        moment = Lsn.parse(lsn) if lsn else None
        drill = Drill(settings, store, copy, programs, moment, cancelled.is_set, progress, own_settings)
        with status_line.shown(lines, "tailrace.drill"):
            record = drill.run()
    _print(record)
    if record.verdict != "equal":
        raise SystemExit(1)


def _print(record: DrillRecord) -> None:
    where = "" if record.lsn is None else f" {record.lsn}"
    if record.verdict == "failed":
        click.echo(f"drill{where} failed after {output.duration(record.seconds)}: {record.error}")
        return
    click.echo(
        f"restored{where} from backup {record.backup} in {output.duration(record.restore_seconds)}, "
        f"compared {count(record.tables, 'table')}, {record.rows:,} rows; "
        f"{output.duration(record.seconds)} in all"
    )
    for table, reason in record.not_compared:
        click.echo(f"not compared: {table}: {reason}")
    for each in record.differences:
        click.echo(f"{each.kind}: {each.table} {each.key}")
    if not record.is_listed:
        click.echo("and more")
    if record.verdict == "equal":
        click.echo("equal: the restored rows are those of snapshot and change log")
    else:
        click.echo("DIFFERENT: the restored server does not equal snapshot and change log")
        click.echo(
            f"`tailrace drill --to {record.lsn}` repeats this; `tailrace restore DIR --to {record.lsn}` shows the copy"
        )
