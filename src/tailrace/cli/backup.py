"""`tailrace backup`: takes, lists, verifies and removes base backups."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Literal

import click

from tailrace.cli import Invocation, output
from tailrace.cli.progress_display import ProgressDisplay
from tailrace.cli.stop_signal import on_stop
from tailrace.errors import ConfigError, CorruptError, TailraceError
from tailrace.quantity import count
from tailrace.recovery import backup_reader, expiry
from tailrace.recovery.backup import BackupProgress, is_covered, take_backup
from tailrace.recovery.backup_record import BackupRecord, find_backup, list_backups
from tailrace.recovery.wal_archive import WalArchive
from tailrace.settings import Settings
from tailrace.settings.duration import parse_duration
from tailrace.store import Store

# The end of a backup switches to a new segment, so a running archive covers it after a moment.
_COVERED_SECONDS = 60.0


@click.group("backup", invoke_without_command=True, short_help="Take, list, verify and expire base backups.")
@click.option("--full", is_flag=True, help="Back up all files. This is the default.")
@click.option("--incremental", is_flag=True, help="Back up what changed since the newest backup (PostgreSQL 17+).")
@click.pass_context
def command(context: click.Context, full: bool, incremental: bool) -> None:
    """Take a base backup, straight from the server into the store. `tailrace archive` must be running.

    Exits with 0 once the backup can be restored: it is complete, and the archive holds the WAL that it needs.
    """
    if context.invoked_subcommand is not None:
        return
    if full and incremental:
        raise ConfigError("--full and --incremental exclude each other")
    settings, store = _open(context.obj, "source", "store")
    cancelled = threading.Event()
    on_stop(cancelled.set)
    progress = BackupProgress()
    kind: Literal["full", "incremental"] = "incremental" if incremental else "full"
    began = time.monotonic()
    with ProgressDisplay(progress.state, "tailrace.backup"):
        record = take_backup(settings, store, kind, progress, cancelled.is_set)
    seconds = time.monotonic() - began
    click.echo(
        f"{kind} backup {record.id}: {record.files:,} files, {output.size(record.size)} in "
        f"{output.size(record.stored_bytes)}, {output.duration(seconds)}"
    )
    _wait_until_covered(store, record, cancelled)


@command.command("ls")
@click.pass_obj
def list_command(invocation: Invocation) -> None:
    """List the backups, the oldest first."""
    _, store = _open(invocation, "store")
    archive = WalArchive.load(store)
    for record in list_backups(store):
        if archive is None or not is_covered(archive, record):
            state = f"needs WAL up to {record.end_lsn}"
        else:
            at = record.verified_at(store)
            state = "not verified" if at is None else f"verified {at:%Y-%m-%d %H:%M}"
        builds_on = f" on {record.parent}" if record.parent else ""
        click.echo(
            f"{record.id}  {record.kind}{builds_on}  {record.ended_at:%Y-%m-%d %H:%M:%S}  {record.start_lsn} to "
            f"{record.end_lsn}  {output.size(record.size)} in {output.size(record.stored_bytes)}  {state}"
        )


@command.command("verify")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.pass_obj
def verify_command(invocation: Invocation, ids: tuple[str, ...]) -> None:
    """Read backups from the store and compare each file with PostgreSQL's manifest. Default: all not verified yet.

    Exits with 1 if one of them is damaged.
    """
    _, store = _open(invocation, "store")
    records = list_backups(store)
    chosen = [find_backup(records, id) for id in ids] or [r for r in records if r.verified_at(store) is None]
    damaged = 0
    for record in chosen:
        read = BackupProgress(estimated_bytes=record.size)
        try:
            with ProgressDisplay(read.state, "tailrace.backup"):
                backup_reader.verify(store, record, read.add)
        except CorruptError as error:
            record.mark_damaged(store)
            damaged += 1
            click.echo(f"backup {record.id}: DAMAGED: {error}")
            continue
        record.mark_verified(store, datetime.now(UTC))
        click.echo(f"backup {record.id}: {read.files:,} files match the manifest")
    if damaged:
        raise CorruptError(
            f"{damaged} of {count(len(chosen), 'backup')} cannot be restored, nor can what builds on it",
            "take a full backup now; restore damaged objects from a copy of the store, if there is one",
        )


@command.command("expire")
@click.option("--keep", metavar="DURATION", help="Such as 14d. Default: `keep` in [archive].")
@click.option("--yes", is_flag=True, help="Remove without asking.")
@click.pass_obj
def expire_command(invocation: Invocation, keep: str | None, yes: bool) -> None:
    """Remove backups and WAL that no moment of the window needs. Shows them first, and removes them after a yes."""
    settings, store = _open(invocation, "store")
    window = parse_duration(keep) if keep else settings.archive.keep_for
    if window is None:
        raise ConfigError("how long to keep backups is not set", "give --keep 14d, or set `keep` in [archive]")
    plan = expiry.find_expired(store, WalArchive.require(store), window, datetime.now(UTC))
    if plan.is_empty:
        click.echo("nothing to remove")
        return
    for record in plan.backups:
        click.echo(f"backup {record.id}  {record.kind}  {record.ended_at:%Y-%m-%d %H:%M:%S}")
    for id in plan.interrupted:
        click.echo(f"backup {id}  interrupted")
    if plan.segments:
        segments = count(len(plan.segments), "segment")
        click.echo(f"{segments} of WAL, {plan.segments[0]} to {plan.segments[-1]}")
    if not yes and not click.confirm("remove these?"):
        click.echo("nothing was removed")
        return
    expiry.remove(store, plan)
    backups = count(len(plan.backups) + len(plan.interrupted), "backup")
    click.echo(f"removed {backups} and {count(len(plan.segments), 'segment')}")


def _open(invocation: Invocation, *requires: str) -> tuple[Settings, Store]:
    settings = invocation.settings(*requires)
    invocation.start_logging()
    return settings, Store.open(settings.store.url, settings.store.options)


def _wait_until_covered(store: Store, record: BackupRecord, cancelled: threading.Event) -> None:
    deadline = time.monotonic() + _COVERED_SECONDS
    while not is_covered(WalArchive.require(store), record):
        if time.monotonic() > deadline or cancelled.wait(0.5):
            raise TailraceError(
                f"backup {record.id} is in the store, but cannot be restored yet: the archive does not hold the WAL up "
                f"to {record.end_lsn}",
                "run `tailrace archive`; `tailrace backup ls` shows when the backup can be restored",
            )
