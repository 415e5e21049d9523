"""`tailrace snapshot`: tables as they are now, copied beside the stream."""

from __future__ import annotations

import difflib
import logging
import sys

import click
from rich.progress import BarColumn, Progress, TextColumn

from tailrace.change import OWN
from tailrace.cli import Invocation, reporting
from tailrace.cli.signals import on_stop
from tailrace.errors import ConfigError, SlotLost, SnapshotError, TailraceError, WrongSource
from tailrace.log import origin
from tailrace.settings import Settings
from tailrace.settings.pattern import TablePattern
from tailrace.source import catalog, slot
from tailrace.source.catalog import PublishedTable
from tailrace.source.connection import connect
from tailrace.source.failure import classified
from tailrace.source.snapshot import SnapshotJob, missing
from tailrace.store import Store

_PLAIN_SECONDS = 5.0
# A table that is truncated or altered between snapshot and copy is copied again; one that always is, is not.
_ATTEMPTS = 3


@click.command("snapshot", short_help="Copy tables as they are now, beside the stream.")
@click.argument("tables", nargs=-1)
@click.option("--missing", "only_missing", is_flag=True, help="Only tables that have no snapshot yet.")
@click.pass_obj
def command(invocation: Invocation, tables: tuple[str, ...], only_missing: bool) -> None:
    """Copy TABLES (schema.table, patterns such as 'public.*' too; all published tables when none is named).

    Capture may run or not: it is not disturbed. Each table's snapshot is visible once it is whole; together with the
    changes from its LSN on it is the table at any later position.
    """
    settings = invocation.settings()
    reporting.log_to_stderr()
    store = Store.open(settings.store.url, settings.store.options)
    with connect(settings.source) as connection, classified():
        _check_log(settings, store, connection)
        published = catalog.published(connection, settings.source.publication)
        own = catalog.published(connection, settings.source.publication, own=True)
    chosen = _chosen(published, own, tables, settings.source.publication)
    if only_missing:
        chosen = missing(store, chosen)
    if not chosen:
        click.echo("every table has a snapshot: nothing to copy")
        return
    for _ in range(_ATTEMPTS):
        job = SnapshotJob(settings, chosen)
        _copy(job)
        chosen = [table for table in chosen if f"{table.schema}.{table.name}" in job.failures]
        if not all(isinstance(failure, SnapshotError) for failure in job.failures.values()):
            break  # only what happened to a table meanwhile may go better the next time
        if not chosen:
            return
    job.wait()  # raises why


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
        f"copied {done.tables_done} {'table' if done.tables_done == 1 else 'tables'}, {done.rows:,} rows, at {job.lsn} "
        f"in {reporting.duration(done.seconds)}, {done.rows_per_second:,.0f} rows/s"
    )


def _check_log(settings: Settings, store: Store, connection: catalog.Connection) -> None:
    """A snapshot is worth something only with the changes after it: they must be in the log, or come into it."""
    hint = "run `tailrace capture` first: it starts the log, and takes the first snapshots by itself"
    of = origin.load(store)
    if of is None:
        raise SnapshotError(f"{store.url} has no log: changes after the snapshot would be nowhere", hint)
    row = connection.execute(
        "SELECT system_identifier::text, pg_catalog.current_database() FROM pg_catalog.pg_control_system()"
    ).fetchone()
    if row != (of["system_id"], of["database"]):
        raise WrongSource(
            f"the log in {store.url} is of database {of['database']} of system {of['system_id']}",
            "mend [source] url or [store] url",
        )
    found = slot.find(connection, settings.source.slot)
    if found is None:
        raise SlotLost(f"slot {settings.source.slot} is gone: changes after the snapshot would not be captured", hint)
    if found.wal_status == "lost":
        raise SlotLost(
            f"slot {found.name} has lost WAL: the log has a gap that a snapshot alone does not close",
            "run `tailrace capture`: it says how to go on",
        )


def _chosen(
    published: list[PublishedTable], own: list[PublishedTable], wanted: tuple[str, ...], publication: str
) -> list[PublishedTable]:
    if not published and not own:
        raise ConfigError(f"publication {publication} has no tables", "`tailrace check` shows what there is")
    chosen: dict[int, PublishedTable] = {}
    for text in wanted or ("*.*",):
        pattern = TablePattern.parse(text)
        found = [table for table in published if pattern.matches(table.schema, table.name)]
        if not found:
            if refused := [f"{t.schema}.{t.name}" for t in own if pattern.matches(t.schema, t.name)]:
                raise ConfigError(
                    f"{', '.join(refused)}: Tailrace's own, and not captured, so a snapshot would never be true again",
                    f"a table is Tailrace's own when its comment begins with {OWN!r}: see COMMENT ON TABLE",
                )
            names = [f"{table.schema}.{table.name}" for table in published]
            near = difflib.get_close_matches(text, names, n=3, cutoff=0.5) or names[:5]
            raise ConfigError(f"publication {publication} has no table {text}", f"there is {', '.join(near)}")
        chosen.update((table.oid, table) for table in found)
    return list(chosen.values())


def _watch(job: SnapshotJob) -> None:
    if not sys.stderr.isatty():
        while not job.wait(_PLAIN_SECONDS):
            logging.getLogger("tailrace.snapshot").info(describe(job))
        return
    columns = (BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.description}"))
    with Progress(*columns, console=reporting.console(), transient=True) as bar:
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
    text += f", {progress.rows_per_second:,.0f} rows/s, {reporting.size(progress.bytes)}"
    if (left := progress.seconds_left) is not None:
        text += f", {reporting.duration(left)} left"
    return text
