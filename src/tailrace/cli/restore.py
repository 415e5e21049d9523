"""`tailrace restore`: makes a copy of the server, or of some tables, as they were at a moment."""

from __future__ import annotations

import logging
import shlex
import threading
import time
from pathlib import Path
from typing import Literal

import click

from tailrace.cli import Invocation, output
from tailrace.cli.progress_display import ProgressDisplay
from tailrace.cli.restore_moment import MomentOptions
from tailrace.cli.restore_table import TableOptions, restore_tables
from tailrace.cli.restored_server import SET_OPTION, find_programs, parse_settings, place_tablespaces
from tailrace.cli.stop_signal import on_stop
from tailrace.errors import ConfigError
from tailrace.log.reader import LogReader
from tailrace.recovery import restore
from tailrace.recovery.backup import BackupProgress
from tailrace.recovery.data_directory import DataDirectory
from tailrace.recovery.recovery_server import RecoveryState
from tailrace.recovery.restore_plan import RestorePlan, plan_restore
from tailrace.store import Store

_log = logging.getLogger("tailrace.restore")

_POLL_SECONDS = 0.2


@click.command("restore", short_help="Restore the server or some tables to any moment.")
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option(
    "--table",
    "tables",
    multiple=True,
    metavar="SCHEMA.TABLE",
    help="Restore this table from the log instead of the server. May be repeated.",
)
@click.option(
    "--where", metavar="SQL", help="Only rows of the tables for which this is true: the destination evaluates it."
)
@click.option("--into", metavar="URL", help="The database that gets the tables.")
@click.option(
    "--sql", "script", metavar="FILE", help="Write the tables as a script for psql instead; - is the standard output."
)
@click.option(
    "--as", "renamed", metavar="NAME", help="The table's name at the destination; 'schema.*' keeps names of tables."
)
@click.option(
    "--to",
    "to",
    metavar="TIME|LSN|NAME|latest|immediate",
    help="A time (UTC unless it has a zone), an LSN, a restore point, the end, or the end of the newest backup.",
)
@click.option(
    "--before",
    "event",
    metavar="EVENT",
    help="Just before the last 'drop of TABLE', 'truncate of TABLE' or 'delete of TABLE'.",
)
@click.option("--before-xid", type=int, metavar="XID", help="Stop just before this transaction's commit.")
@click.option("--latest", is_flag=True, help="Everything that the archive has, or the log. The same as --to latest.")
@click.option("--promote", is_flag=True, help="Make the copy a server of its own, and stop it cleanly.")
@click.option("--backup", metavar="ID", help="Start from this backup. Default: the newest one from before the moment.")
@click.option("--timeline", type=int, help="The timeline that holds the moment. Default: the newest one.")
@click.option(
    "--bin", "bin_directory", type=click.Path(path_type=Path), help="Where PostgreSQL's programs are. Default: PATH."
)
@click.option(
    "--tablespace",
    "tablespaces",
    multiple=True,
    metavar="OID=DIR",
    help="Where a tablespace goes. Default: DIRECTORY-tablespaces/OID; never where it was.",
)
@SET_OPTION
@click.option("--master", metavar="URL", help="Read the tables with Spark, on this master. Default: only large ones.")
@click.pass_obj
def command(
    invocation: Invocation,
    directory: Path | None,
    tables: tuple[str, ...],
    where: str | None,
    into: str | None,
    script: str | None,
    renamed: str | None,
    to: str | None,
    event: str | None,
    before_xid: int | None,
    latest: bool,
    promote: bool,
    backup: str | None,
    timeline: int | None,
    bin_directory: Path | None,
    tablespaces: tuple[str, ...],
    server_settings: tuple[str, ...],
    master: str | None,
) -> None:
    """Restore the server into DIRECTORY, which must be empty, as it was at a moment; or some of its tables.

    Chooses the backup, lays it out, starts PostgreSQL on it and replays WAL up to the moment. Then recovery pauses, and
    the command says what is included and how to look at it. The server runs until Ctrl-C; promote it before, or use
    --promote, to keep the copy as a server. The source is never touched.

    With --table, restores tables from their snapshots and the log, without an archive or a backup. They are created
    with their keys, indexes, checks and sequences, in one transaction; a restore that fails leaves nothing.

    \b
    Examples:
      tailrace restore /tmp/copy --to 2026-11-18T12:00:00Z
      tailrace restore /tmp/copy --before 'drop of public.orders'
      tailrace restore --table public.orders --before 'truncate of public.orders' --into postgresql://db/shop
      tailrace restore --table public.orders --where 'tenant_id = 42' --to latest --sql orders.sql
    """
    moment = MomentOptions(to, event, before_xid, latest)
    settings = invocation.settings("store")
    invocation.start_logging()
    store = Store.open(settings.store.url, settings.store.options)
    if tables:
        if directory is not None or promote or any((backup, timeline, tablespaces, server_settings)):
            raise ConfigError("--table restores tables, not a directory", "leave out DIRECTORY and its options")
        wanted = TableOptions(tables, where, into, script, renamed, master)
        restore_tables(settings, store, moment, wanted, bin_directory)
        return
    if directory is None or where or into or script or renamed or master:
        raise ConfigError("what to restore is not given", "give DIRECTORY, or --table with --into URL or --sql FILE")
    own_settings = parse_settings(server_settings)
    programs = find_programs(store, bin_directory)
    target = moment.target(LogReader(store), lambda: programs)
    plan = plan_restore(store, target, programs, timeline, backup)
    copy = DataDirectory(directory.absolute(), place_tablespaces(directory.absolute(), plan, tablespaces))
    click.echo(f"restoring to {target} from {plan.backup.kind} backup {plan.backup.id}")
    _lay_out(store, plan, copy)
    cancelled = threading.Event()
    on_stop(cancelled.set)
    action: Literal["pause", "promote"] = "promote" if promote else "pause"
    with restore.recovering(plan, copy, programs, action, operator_settings=own_settings) as recovery:
        began = time.monotonic()
        reached = recovery.wait(cancelled.is_set, _Reporter(plan))
        click.echo(f"replayed WAL up to {reached.lsn} in {output.duration(time.monotonic() - began)}")
        _print_moment(reached, plan)
        if promote:
            click.echo(f"promoted; start the server with: pg_ctl -D {copy.path} start")
            return
        click.echo(f"recovery is paused. Look at the copy: psql {shlex.quote(recovery.server.conninfo('postgres'))}")
        if event is not None:
            click.echo(
                "the transaction that is left out holds its locks meanwhile: to read that table, promote the copy"
            )
        click.echo("to keep it as a server: SELECT pg_wal_replay_resume(); Ctrl-C stops it")
        is_promoted = False
        while not cancelled.wait(_POLL_SECONDS) and not recovery.server.wait(0):
            state = None if is_promoted else recovery.server.state()
            if state is not None and not state.is_in_recovery:
                is_promoted = True
                click.echo(
                    f"promoted: it is a server of its own. Ctrl-C stops it; pg_ctl -D {copy.path} start starts it"
                )


def _lay_out(store: Store, plan: RestorePlan, copy: DataDirectory) -> None:
    written = BackupProgress(estimated_bytes=sum(record.size for record in plan.chain))

    began = time.monotonic()
    with ProgressDisplay(written.state, "tailrace.restore"):
        restore.write_directory(store, plan, copy, written.add)
    click.echo(
        f"laid out {written.files:,} files, {output.size(written.bytes)}, {output.duration(time.monotonic() - began)}"
    )


class _Reporter:
    """Logs how far replay is, every few seconds."""

    def __init__(self, plan: RestorePlan) -> None:
        self._plan = plan
        self._at = time.monotonic()

    def __call__(self, state: RecoveryState) -> None:
        if time.monotonic() - self._at > 5:
            self._at = time.monotonic()
            _log.info("replayed up to %s; the archive ends at %s", state.lsn, self._plan.end)


def _print_moment(moment: restore.RestoredMoment, plan: RestorePlan) -> None:
    last = "none since the backup" if moment.last_commit_at is None else f"committed {moment.last_commit_at}"
    click.echo(f"last transaction that is included: {last}")
    following = moment.next_commit
    if following is None and plan.ends_at_gap:
        click.echo(f"which transaction follows is not known: WAL is missing from {plan.end} on")
    elif following is None:
        click.echo("the archive has no later transaction")
    else:
        click.echo(
            f"first transaction that is left out: {following.transaction}, commit at {following.lsn}, "
            f"{following.committed_at}"
        )
