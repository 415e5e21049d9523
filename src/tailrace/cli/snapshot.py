"""`tailrace snapshot`: takes snapshots of tables while capture runs."""

from __future__ import annotations

import difflib
import logging
import sys
import threading
import time

import click
from rich.progress import BarColumn, Progress, TextColumn

from tailrace.capture.postgres import catalog
from tailrace.capture.postgres.catalog import PublishedTable
from tailrace.capture.postgres.log_check import check_log
from tailrace.capture.postgres.snapshot_job import SnapshotJob, tables_without_snapshot
from tailrace.capture.postgres.source_connection import connect
from tailrace.capture.postgres.source_error import source_errors
from tailrace.change import OWN
from tailrace.cli import Invocation, output
from tailrace.cli.stop_signal import on_stop
from tailrace.errors import ConfigError, SnapshotError, TailraceError
from tailrace.log import source_record
from tailrace.log.snapshot import SnapshotReader
from tailrace.quantity import count
from tailrace.settings import Settings
from tailrace.settings.pattern import TablePattern
from tailrace.store import Store

_PLAIN_SECONDS = 5.0
# A table that is truncated or altered while it is copied is copied again, up to this many times in all.
_ATTEMPTS = 3
_NO_LOG = "run `tailrace capture` first: it starts the log and takes the first snapshots itself"
_NOTHING = "every table has a snapshot: nothing to copy"


@click.command("snapshot", short_help="Take snapshots of tables while capture runs.")
@click.argument("tables", nargs=-1)
@click.option("--missing", "only_missing", is_flag=True, help="Copy only tables that have no snapshot yet.")
@click.pass_obj
def command(invocation: Invocation, tables: tuple[str, ...], only_missing: bool) -> None:
    """Take snapshots of TABLES: names (schema.table) or patterns such as 'public.*'. Default: all published tables.

    Capture may keep running. A snapshot becomes visible when it is complete. Together with the changes from its LSN on,
    it gives the table's rows at any later position.
    """
    settings = invocation.settings()
    invocation.start_logging()
    store = Store.open(settings.store.url, settings.store.options)
    if settings.slatedb is not None:
        _copy_slatedb(settings, store, tables, only_missing)
        return
    with connect(settings.source) as connection, source_errors():
        check_log(settings, store, connection)
        published = catalog.published_tables(connection, settings.source.publication)
        own = catalog.published_tables(connection, settings.source.publication, own=True)
    chosen = _select_tables(published, own, tables, settings.source.publication)
    if only_missing:
        chosen = tables_without_snapshot(store, chosen)
    if not chosen:
        click.echo(_NOTHING)
        return
    for _ in range(_ATTEMPTS):
        job = SnapshotJob(settings, chosen)
        _copy(job)
        chosen = [table for table in chosen if f"{table.schema}.{table.name}" in job.failures]
        if not all(isinstance(failure, SnapshotError) for failure in job.failures.values()):
            break  # only tables that changed during the copy are worth another attempt
        if not chosen:
            return
    job.wait()  # raises the error


def _copy_slatedb(settings: Settings, store: Store, patterns: tuple[str, ...], only_missing: bool) -> None:
    from tailrace.capture.slatedb.bootstrap import ScanProgress, take_snapshot
    from tailrace.capture.slatedb.relation import relation_of
    from tailrace.capture.slatedb.session import open_database

    assert settings.slatedb is not None
    relation = relation_of(settings.slatedb)
    if source_record.load(store) is None:
        raise SnapshotError(f"{store.url} has no log: the changes after the snapshot would be missing", _NO_LOG)
    if patterns and not any(TablePattern.parse(p).matches(relation.schema, relation.name) for p in patterns):
        raise ConfigError(f"the source has no table {', '.join(patterns)}", f"it has {relation.qualified_name}")
    if only_missing and relation.oid in SnapshotReader(store).oids(source_record.begins_at(store)):
        click.echo(_NOTHING)
        return
    stopping, progress = threading.Event(), ScanProgress()
    on_stop(stopping.set)
    database = open_database(settings.slatedb)
    snapshot = take_snapshot(settings, store, database, database.create_checkpoint(), progress, stopping)
    seconds = time.monotonic() - progress.started_at
    click.echo(f"copied 1 table, {snapshot.rows:,} rows, at {snapshot.lsn} in {output.duration(seconds)}")


def _copy(job: SnapshotJob) -> None:
    on_stop(job.cancel)
    job.start()
    try:
        _watch(job)
    except TailraceError:
        if job.error is not None:
            raise
    done = job.progress
    click.echo(
        f"copied {count(done.tables_done, 'table')}, {count(done.rows, 'row')}, at {job.lsn} "
        f"in {output.duration(done.seconds)}, {done.rows_per_second:,.0f} rows/s"
    )


def _select_tables(
    published: list[PublishedTable], own: list[PublishedTable], patterns: tuple[str, ...], publication: str
) -> list[PublishedTable]:
    if not published and not own:
        raise ConfigError(
            f"publication {publication} has no tables", "`tailrace check` shows the publication and its tables"
        )
    chosen: dict[int, PublishedTable] = {}
    for text in patterns or ("*.*",):
        pattern = TablePattern.parse(text)
        matching = [table for table in published if pattern.matches(table.schema, table.name)]
        if not matching:
            if excluded := [f"{t.schema}.{t.name}" for t in own if pattern.matches(t.schema, t.name)]:
                raise ConfigError(
                    f"{', '.join(excluded)}: Tailrace's own tables are not captured, so a snapshot would go stale",
                    f"a comment that begins with {OWN!r} marks a table as Tailrace's own; COMMENT ON TABLE changes it",
                )
            names = [f"{table.schema}.{table.name}" for table in published]
            near = difflib.get_close_matches(text, names, n=3, cutoff=0.5) or names[:5]
            raise ConfigError(f"publication {publication} has no table {text}", f"did you mean {', '.join(near)}?")
        chosen.update((table.oid, table) for table in matching)
    return list(chosen.values())


def _watch(job: SnapshotJob) -> None:
    if not sys.stderr.isatty():
        while not job.wait(_PLAIN_SECONDS):
            logging.getLogger("tailrace.snapshot").info(describe(job))
        return
    columns = (BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.description}"))
    with Progress(*columns, console=output.console(), transient=True) as bar:
        task = bar.add_task(describe(job), total=None)
        while not job.wait(0.2):
            progress = job.progress
            total = max(progress.estimated_rows, progress.rows, 1)
            bar.update(task, description=describe(job), completed=progress.rows, total=total)


def describe(job: SnapshotJob) -> str:
    progress = job.progress
    text = (
        f"{progress.tables_done}/{progress.tables} tables, {progress.rows:,} of about {progress.estimated_rows:,} rows"
    )
    text += f", {progress.rows_per_second:,.0f} rows/s, {output.size(progress.bytes)}"
    if (left := progress.seconds_left) is not None:
        text += f", {output.duration(left)} left"
    return text
