"""Runs a standby of the source: laid out from a backup in the store, then fed from the store or by the source.

The process owns the standby's server. It also owns the walsender that feeds it from the store. Killed at any time, it
continues where it was when it is started again on the same directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from psycopg.conninfo import make_conninfo

from tailrace.capture.postgres.source_connection import connect_replication, run_command, text_value
from tailrace.change import Lsn
from tailrace.errors import ConfigError, SourceError, WrongSource
from tailrace.postgres.connection import parameters
from tailrace.recovery import restore
from tailrace.recovery.backup_record import BackupFile
from tailrace.recovery.data_directory import DataDirectory
from tailrace.recovery.physical_slot import ensure_slot
from tailrace.recovery.recovery_server import RecoveryServer, RecoveryState
from tailrace.recovery.recovery_target import no_target
from tailrace.recovery.restore_plan import RestorePlan
from tailrace.recovery.store_walsender import PORT, StoreWalsender
from tailrace.recovery.wal_archive import System
from tailrace.settings import SourceSettings
from tailrace.store import Store

_log = logging.getLogger("tailrace.standby")

_RECORD: Final = "tailrace_standby.json"
_LOCK: Final = "tailrace_standby.lock"
_POLL_SECONDS: Final = 0.2
_STOP_SECONDS: Final = 120.0
# A lost connection is tried again soon. PostgreSQL's default of 5 s would be most of the lag after an interruption.
_RETRY: Final = "500ms"


@dataclass(frozen=True, slots=True)
class StandbyRecord:
    """`tailrace_standby.json` in the data directory, written when it is complete."""

    role: str
    server_version: int

    @classmethod
    def load(cls, directory: Path) -> Self | None:
        """The record; None if there is none."""
        try:
            raw = json.loads((directory / _RECORD).read_text())
            return cls(str(raw["role"]), int(raw["server_version"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{directory / _RECORD} is damaged", "remove the directory, and run again") from error

    def save(self, directory: DataDirectory) -> None:
        path = directory.path / _RECORD
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self)))
        directory.own(draft)
        draft.rename(path)


def lay_out(
    store: Store, plan: RestorePlan, directory: DataDirectory, on_file: Callable[[BackupFile], None]
) -> StandbyRecord:
    """Write a backup as a standby's data directory. Only a complete one has a record."""
    restore.write_directory(store, plan, directory, on_file, "standby.signal")
    record = StandbyRecord(plan.backup.role, plan.backup.server_version)
    record.save(directory)
    return record


def find_standby(directory: Path) -> StandbyRecord | None:
    """The record of a standby in the directory; None if the directory is empty or does not exist."""
    record = StandbyRecord.load(directory)
    if record is None:
        if directory.exists() and any(directory.iterdir()):
            raise ConfigError(
                f"{directory} is neither empty nor a complete standby",
                "choose another directory, or remove this one if laying it out was interrupted",
            )
        return None
    if not (directory / "standby.signal").exists():
        raise ConfigError(f"{directory} was promoted: it is a server of its own", f"pg_ctl -D {directory} start")
    return record


@contextlib.contextmanager
def running_alone(directory: DataDirectory) -> Iterator[None]:
    """Hold the directory's lock, and stop a server that a killed process left behind."""
    path = directory.path / _LOCK
    with path.open("w") as lock:
        directory.own(path)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"another `tailrace standby` runs on {directory.path}", "stop it first, or choose another directory"
            ) from None
        _stop_abandoned(directory.path)
        yield


def _stop_abandoned(directory: Path) -> None:
    try:
        pid = int((directory / "postmaster.pid").read_text().split()[0])
    except (FileNotFoundError, ValueError, IndexError):
        return
    if not _serves(pid, directory):
        return
    _log.info("stopping the server that an earlier run left behind, process %d", pid)
    os.kill(pid, signal.SIGINT)
    deadline = time.monotonic() + _STOP_SECONDS
    while _serves(pid, directory):
        if time.monotonic() > deadline:
            raise SourceError(f"the server in {directory}, process {pid}, does not stop", "stop it, then run again")
        time.sleep(_POLL_SECONDS)


def _serves(pid: int, directory: Path) -> bool:
    """Whether the process is the server of the directory, which is then its working directory."""
    try:
        return os.path.samefile(f"/proc/{pid}/cwd", directory)
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class Upstream:
    """The source that a standby streams from, and the slot that retains WAL for it."""

    source: SourceSettings
    slot: str
    reserved: Lsn
    """The slot retains WAL from here on. What comes before is in the store."""

    @classmethod
    def prepare(cls, source: SourceSettings, slot: str, store: Store) -> Self:
        """Create the slot if it does not exist. Raises WrongSource if the archive is not this server's."""
        connection = connect_replication(source)
        try:
            system = System.load(store)
            found = text_value(run_command(connection, "IDENTIFY_SYSTEM"), 0)
            if system is None or system.system_id != found:
                raise WrongSource(
                    f"the archive holds the WAL of system {system and system.system_id}, this server is system {found}",
                    "point [source] and [store] at the same server",
                )
            return cls(
                source, slot, ensure_slot(connection, slot, "run this again: the standby catches up from the store")
            )
        finally:
            connection.finish()

    @property
    def settings(self) -> dict[str, str]:
        given = parameters(self.source, {}) | {"application_name": self.slot}
        wanted = {name: value for name, value in given.items() if name not in ("dbname", "client_encoding") and value}
        return {"primary_conninfo": make_conninfo("", **wanted), "primary_slot_name": self.slot}


class Standby:
    """A standby's server with its feed. Runs while its context lasts.

    Args:
        store: The store with the archive.
        directory: The data directory, laid out.
        record: What `lay_out` or `find_standby` returned.
        bin_directory: Where PostgreSQL's programs are.
        upstream: The source to stream from once the store has brought the standby so far; None stays with the store.
        listen: A host and a port where the standby accepts connections, by the rules of its own pg_hba.conf.
        operator_settings: Settings over those of its files.
    """

    def __init__(
        self,
        store: Store,
        directory: DataDirectory,
        record: StandbyRecord,
        bin_directory: Path,
        upstream: Upstream | None = None,
        listen: tuple[str, int] | None = None,
        operator_settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._directory = directory
        self._upstream = upstream
        self._stack = contextlib.ExitStack()
        self._sockets = Path(tempfile.mkdtemp(prefix="tailrace-"))
        self.walsender = StoreWalsender(store, record.server_version, self._sockets, directory.own)
        self._role = record.role
        settings: dict[str, str | None] = {
            **no_target(),
            "recovery_target_timeline": "latest",
            "restore_command": "",
            "primary_conninfo": None,  # it changes while the server runs, so it is in a file
            "wal_receiver_create_temp_slot": "off",
            "wal_retrieve_retry_interval": _RETRY,
        }
        if listen is not None:
            settings |= self._listen_settings(*listen)
        log = directory.path / "tailrace_standby.log"
        self.server = RecoveryServer(directory, bin_directory, record.role, settings, log, operator_settings)
        self.is_streaming = False
        """Whether the source feeds the standby, and no longer the store."""

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, self._sockets, ignore_errors=True)
            self._directory.own(self._sockets)
            stack.enter_context(self.walsender)
            self._write_settings(
                {
                    "primary_conninfo": make_conninfo(
                        "", host=str(self._sockets), port=PORT, user=self._role, application_name="tailrace_standby"
                    ),
                    "primary_slot_name": "",
                }
            )
            stack.enter_context(self.server)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def poll(self) -> RecoveryState | None:
        """The standby's state; None while it does not accept connections. Raises if it cannot go on.

        Call it every second or so: it also switches from the store to the source.
        """
        if self.walsender.error is not None and not self.is_streaming:
            raise self.walsender.error
        state = self.server.state()
        if state is None or not state.is_in_recovery:
            return state
        fork = self.walsender.fork
        if fork is not None and not self.is_streaming and state.lsn > fork:
            raise WrongSource(
                f"the standby has replayed WAL up to {state.lsn}, but the archive's newest timeline branched off at "
                f"{fork}",
                "the new primary lost transactions that this standby has. Promote it to keep them, or make it again",
            )
        if self._upstream is not None and not self.is_streaming and state.lsn >= self._upstream.reserved:
            self._write_settings(self._upstream.settings)
            self.server.reload()
            self.is_streaming = True
            _log.info("streaming from the source, with slot %s", self._upstream.slot)
        return state

    def _write_settings(self, settings: dict[str, str]) -> None:
        """Set these in postgresql.auto.conf, as ALTER SYSTEM would."""
        path = self._directory.path / "postgresql.auto.conf"
        lines = [line for line in path.read_text().splitlines() if not re.match(rf"\s*({'|'.join(settings)})\b", line)]
        lines += [f"{name} = '{value.replace(chr(39), chr(39) * 2)}'" for name, value in settings.items()]
        draft = path.with_suffix(".draft")
        draft.touch(mode=0o600)
        draft.write_text("\n".join(lines) + "\n")
        self._directory.own(draft)
        draft.rename(path)

    def _listen_settings(self, host: str, port: int) -> dict[str, str | None]:
        own = self._directory.path / "pg_hba.conf"
        if not own.exists():
            raise ConfigError(
                f"{own} does not exist, so nobody may connect",
                "the source keeps it elsewhere: write one there with the rules for this standby",
            )
        rules = self._directory.path / "tailrace_hba.conf"
        # The socket is in a private directory, so whoever reaches it may log in.
        rules.write_text(f"local all all trust\n{own.read_text()}")
        self._directory.own(rules)
        return {"hba_file": str(rules), "listen_addresses": host, "port": str(port), "ssl": None}
