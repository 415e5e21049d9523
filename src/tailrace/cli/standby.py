"""`tailrace standby`: runs a standby that is fed from the store or by the server."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from pathlib import Path

import click

from tailrace.cli import Invocation, output, status_line
from tailrace.cli.progress_display import ProgressDisplay
from tailrace.cli.restored_server import SET_OPTION, find_programs, parse_settings, place_tablespaces
from tailrace.cli.status_line import StatusLine
from tailrace.cli.stop_signal import on_stop
from tailrace.errors import ConfigError
from tailrace.recovery import standby
from tailrace.recovery.backup import BackupProgress
from tailrace.recovery.data_directory import DataDirectory
from tailrace.recovery.recovery_server import RecoveryState
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.recovery.restore_plan import plan_restore
from tailrace.recovery.standby import Standby, StandbyRecord, Upstream
from tailrace.store import Store

_POLL_SECONDS = 0.5


@click.command("standby", short_help="Run a standby that is fed from the store or by the server.")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--from-store", is_flag=True, help="Feed it from the store. This is the default.")
@click.option("--stream", is_flag=True, help="Stream from the source, once the store has brought it so far.")
@click.option("--slot", default="tailrace_standby", show_default=True, help="The slot on the source, with --stream.")
@click.option("--listen", metavar="HOST:PORT", help="Accept connections there, by the rules of its pg_hba.conf.")
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
@click.pass_obj
def command(
    invocation: Invocation,
    directory: Path,
    from_store: bool,
    stream: bool,
    slot: str,
    listen: str | None,
    bin_directory: Path | None,
    tablespaces: tuple[str, ...],
    server_settings: tuple[str, ...],
) -> None:
    """Run a hot standby in DIRECTORY until Ctrl-C. If the directory is empty, lay out the newest backup there first.

    The standby follows the archive in the store, over promotions too, and needs no connection to the source. With
    --stream it follows the source itself. SIGTERM and Ctrl-C stop it cleanly; whatever stops it, the same command
    continues. `SELECT pg_promote()` makes it a server of its own.
    """
    if from_store and stream:
        raise ConfigError("--from-store and --stream exclude each other")
    settings = invocation.settings(*(("source", "store") if stream else ("store",)))
    invocation.start_logging()
    store = Store.open(settings.store.url, settings.store.options)
    address, own_settings = _address(listen), parse_settings(server_settings)
    programs = find_programs(store, bin_directory)
    copy = DataDirectory(directory.absolute())
    record = standby.find_standby(copy.path) or _lay_out(store, copy, programs, tablespaces)
    stopping = threading.Event()
    on_stop(stopping.set)
    with contextlib.ExitStack() as stack:
        stack.enter_context(standby.running_alone(copy))
        upstream = Upstream.prepare(settings.source, slot, store) if stream else None
        running = stack.enter_context(Standby(store, copy, record, programs, upstream, address, own_settings))
        _follow(running, stopping, copy.path)
    click.echo("stopped; the same command continues")


def _lay_out(store: Store, copy: DataDirectory, programs: Path, tablespaces: tuple[str, ...]) -> StandbyRecord:
    plan = plan_restore(store, RecoveryTarget("latest"), programs)
    copy.tablespaces = place_tablespaces(copy.path, plan, tablespaces)
    click.echo(f"laying out {plan.backup.kind} backup {plan.backup.id}")
    written = BackupProgress(estimated_bytes=sum(record.size for record in plan.chain))
    began = time.monotonic()
    with ProgressDisplay(written.state, "tailrace.standby"):
        record = standby.lay_out(store, plan, copy, written.add)
    click.echo(
        f"laid out {written.files:,} files, {output.size(written.bytes)}, {output.duration(time.monotonic() - began)}"
    )
    return record


def _follow(running: Standby, stopping: threading.Event, path: Path) -> None:
    """Watch the standby until it is stopped, and say when it can be used."""
    state: RecoveryState | None = None

    def lines() -> list[StatusLine]:
        feed = "the source" if running.is_streaming else "the store"
        if state is None:
            return [StatusLine("standby: starting", None)]
        text = f"standby: replayed up to {state.lsn}, last commit {output.ago(state.last_commit_at)}, fed by {feed}"
        return [StatusLine(text, (state.lsn, feed))]

    with status_line.shown(lines, "tailrace.standby"):
        while not stopping.wait(_POLL_SECONDS):
            found = running.poll()
            if state is None and found is not None:
                click.echo(f"the standby accepts reads: psql {shlex.quote(running.server.conninfo('postgres'))}")
            if found is not None and not found.is_in_recovery:
                click.echo(f"promoted: it is a server of its own. Ctrl-C stops it; pg_ctl -D {path} start starts it")
                while not stopping.wait(_POLL_SECONDS) and not running.server.wait(0):
                    pass
                return
            state = found or state


def _address(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(f"--listen {text}: not an address", "write HOST:PORT, such as 127.0.0.1:5433")
    return host.strip("[]"), int(port)
