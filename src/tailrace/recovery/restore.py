"""Restores a server to a moment: lays out a backup, replays WAL up to the target, and says what is included."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal

from tailrace.change import Lsn
from tailrace.errors import ConfigError, SourceError
from tailrace.recovery.backup_record import BackupFile
from tailrace.recovery.data_directory import DataDirectory
from tailrace.recovery.recovery_server import RecoveryServer, RecoveryState
from tailrace.recovery.restore_plan import RestorePlan
from tailrace.recovery.wal_scan import WalRecord, WalScan
from tailrace.recovery.wal_spool import WalSpool
from tailrace.store import Store

_WORK: Final = "tailrace_restore"
"""In the data directory, so that a segment is moved and not copied. Removed at the end."""
_POLL_SECONDS = 0.05

_COPY_SETTINGS: Final = """
# Written by `tailrace restore`: a copy must neither archive WAL in its source's place nor wait for its standbys.
archive_mode = 'off'
synchronous_standby_names = ''
"""


@dataclass(frozen=True, slots=True)
class RestoredMoment:
    """What a restored server holds."""

    lsn: Lsn
    """All WAL before it was replayed."""
    last_commit_at: datetime | None
    next_commit: WalRecord | None
    """The first transaction that is not included; None if the archive has no later one."""


def write_directory(
    store: Store,
    plan: RestorePlan,
    directory: DataDirectory,
    on_file: Callable[[BackupFile], None] = lambda _: None,
    signal: Literal["recovery.signal", "standby.signal"] = "recovery.signal",
) -> None:
    """Lay out the backup, ready for recovery, or with `standby.signal` for a standby. A failure leaves nothing."""
    with _file_errors(directory):
        directory.prepare()
        try:
            directory.write(store, plan.chain, on_file)
        except BaseException:
            directory.clear()
            raise
    signal_file = directory.path / signal
    signal_file.touch(mode=0o600)
    directory.own(signal_file)
    for name, text in (("postgresql.conf", ""), ("postgresql.auto.conf", _COPY_SETTINGS), ("pg_ident.conf", "")):
        path = directory.path / name
        with path.open("a") as file:
            file.write(text)
        directory.own(path)


@contextlib.contextmanager
def _file_errors(directory: DataDirectory) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{error.filename or directory.path}: {error.strerror}",
            "choose a directory that can be written, on a disk with enough space",
        ) from error


@contextlib.contextmanager
def recovering(
    plan: RestorePlan,
    directory: DataDirectory,
    bin_directory: Path,
    action: Literal["pause", "promote"],
    settings: Mapping[str, str] = MappingProxyType({}),
    operator_settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Recovery]:
    """Run the server on the directory, and feed it WAL, until the context exits.

    `settings` are further ones. `operator_settings` are over those of the server's files only.
    """
    work = directory.path / _WORK
    work.mkdir(mode=0o700)
    directory.own(work)
    spool = WalSpool(plan.archive, plan.history, plan.backup.start_lsn, plan.end, work / "spool", directory.own)
    own = plan.stop.settings(plan.history.timeline, action) | {"restore_command": spool.restore_command}
    log = work / "server.log"
    server = RecoveryServer(directory, bin_directory, plan.backup.role, {**own, **settings}, log, operator_settings)
    with spool, server:
        yield Recovery(plan, server, spool, bin_directory)
    shutil.rmtree(work)


@dataclass(frozen=True)
class Recovery:
    """A server in recovery."""

    plan: RestorePlan
    server: RecoveryServer
    spool: WalSpool
    bin_directory: Path

    def wait(
        self,
        is_cancelled: Callable[[], bool] = lambda: False,
        on_state: Callable[[RecoveryState], None] = lambda _: None,
    ) -> RestoredMoment:
        """Wait until the target is reached, and return what is included."""
        before = self.plan.backup.start_lsn
        while True:
            try:
                state = self.server.state()
            except SourceError:
                if self.spool.error is not None:
                    raise self.spool.error from None
                raise
            if state is not None:
                on_state(state)
                if state.is_paused or not state.is_in_recovery:
                    self._check_target()
                    return self._moment(max(state.lsn, before), state)
            if is_cancelled():
                raise SourceError("the restore was cancelled")
            self.server.wait(_POLL_SECONDS)

    def _check_target(self) -> None:
        if not self.server.has_reached_target:
            raise SourceError("recovery ended before its target", f"its log says: {self.server.log_tail()}")

    def _moment(self, lsn: Lsn, state: RecoveryState) -> RestoredMoment:
        following = None
        if lsn < self.plan.end:
            scan = WalScan(self.plan.archive, self.plan.history, lsn, self.plan.end, self.bin_directory)
            following = scan.next_commit(lsn)
        return RestoredMoment(lsn, state.last_commit_at, following)
