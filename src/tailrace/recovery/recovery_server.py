"""Runs PostgreSQL on a restored data directory: in recovery up to a target, or as a standby.

Unless it is told otherwise, the server listens only on a socket in a private directory, where any role may log in: the
copy must be usable for an inspection whatever its pg_hba.conf says, and nobody else can reach it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import psycopg
from psycopg.conninfo import make_conninfo

from tailrace.change import Lsn
from tailrace.errors import ConfigError, SourceError
from tailrace.recovery.data_directory import DataDirectory

_PORT = 5432
_STOP_SECONDS = 120.0
_LIMITS = {"max_prepared_xacts": "max_prepared_transactions", "max_locks_per_xact": "max_locks_per_transaction"}
"""The settings whose names in pg_controldata are others."""
_STATE = """
    SELECT pg_catalog.pg_is_in_recovery(),
           CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_get_wal_replay_pause_state() END,
           pg_catalog.pg_last_wal_replay_lsn()::text, pg_catalog.pg_last_xact_replay_timestamp()
"""


@dataclass(frozen=True, slots=True)
class RecoveryState:
    is_in_recovery: bool
    is_paused: bool
    lsn: Lsn
    """The end of the last record that was replayed."""
    last_commit_at: datetime | None
    """The time of the last transaction that was replayed."""


class RecoveryServer:
    """One server. Leaving the context stops it."""

    def __init__(
        self,
        directory: DataDirectory,
        bin_directory: Path,
        role: str,
        settings: Mapping[str, str | None],
        log: Path,
        operator_settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`settings` are the server's, over the ones that every restored server has; None leaves one to its files.

        `operator_settings` are over those of the files only.
        """
        self._directory = directory
        self._program = bin_directory / "postgres"
        self._role = role
        self._settings = settings
        self._operator_settings = operator_settings
        self._port = int(settings.get("port") or _PORT)
        self.log = log
        self.socket_directory = Path(tempfile.mkdtemp(prefix="tailrace-"))
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._directory.own(self.socket_directory)
        access = self.socket_directory / "pg_hba.conf"
        access.write_text("local all all trust\n")
        self._directory.own(access)
        fixed = {
            "data_directory": str(self._directory.path),
            "hba_file": str(access),
            "listen_addresses": "",
            "unix_socket_directories": str(self.socket_directory),
            "port": str(self._port),
            "ssl": "off",
            "logging_collector": "off",
            "log_destination": "stderr",
            "lc_messages": "C",
            "log_min_messages": "warning",
            "external_pid_file": "",
            "hot_standby": "on",
            "primary_conninfo": "",
            "archive_mode": "off",
            "synchronous_standby_names": "",
        }
        given = {**self._operator_settings, **self._limits(), **fixed, **self._settings}
        arguments = [f"--{name}={value}" for name, value in given.items() if value is not None]
        uid, gid = self._directory.owner
        is_root = os.geteuid() == 0
        try:
            with self.log.open("ab") as output:
                self._process = subprocess.Popen(
                    [str(self._program), "-D", str(self._directory.path), *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd="/",
                    start_new_session=True,
                    user=uid if is_root else None,
                    group=gid if is_root else None,
                    extra_groups=[] if is_root else None,
                )
        except OSError as error:
            shutil.rmtree(self.socket_directory, ignore_errors=True)
            raise ConfigError(
                f"{self._program} cannot be run by the owner of {self._directory.path}: {error.strerror}",
                "give programs with --bin that this user may run: a directory above them may be closed to it",
            ) from error
        return self

    def _limits(self) -> dict[str, str]:
        """The source's limits where the files have lower ones: the source may keep its postgresql.conf elsewhere.

        With lower limits, PostgreSQL does not recover.
        """
        found = re.findall(r"^(max_\w+) setting: +(\d+)$", self._run("pg_controldata", "-D"), re.MULTILINE)
        limits = {_LIMITS.get(name, name): int(value) for name, value in found}
        given = [f"--{name}={value}" for name, value in self._operator_settings.items()]
        configured = {name: int(self._run("postgres", "-C", name, *given, "-D")) for name in limits}
        return {name: str(limit) for name, limit in limits.items() if configured[name] < limit}

    def _run(self, program: str, *options: str) -> str:
        """What a program prints about the data directory."""
        command = [str(self._program.with_name(program)), *options, str(self._directory.path)]
        done = subprocess.run(command, capture_output=True, text=True, env={"LC_ALL": "C"}, cwd="/")
        if done.returncode:
            raise SourceError(f"{program} failed: {done.stderr.strip()}", f"its command: {' '.join(command)}")
        return done.stdout

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.socket_directory, ignore_errors=True)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def conninfo(self, database: str) -> str:
        """How to connect as a superuser. The role of the backup may neither promote the copy nor read its tables."""
        query = "SELECT rolname FROM pg_catalog.pg_roles WHERE rolsuper AND rolcanlogin ORDER BY oid LIMIT 1"
        with self.connect("template1") as connection:
            row = connection.execute(query).fetchone()
        user = self._role if row is None else row[0]
        return make_conninfo("", host=str(self.socket_directory), port=self._port, user=user, dbname=database)

    def connect(self, database: str = "postgres") -> psycopg.Connection[Any]:
        return psycopg.connect(
            host=str(self.socket_directory), port=self._port, user=self._role, dbname=database, autocommit=True
        )

    def state(self) -> RecoveryState | None:
        """How far recovery is; None while the server does not accept connections. Raises if it has ended."""
        if not self.is_running:
            raise SourceError("the restored server ended", f"its log says: {self.log_tail()}")
        try:
            with self.connect("template1") as connection:
                row = connection.execute(_STATE).fetchone()
        except psycopg.OperationalError as error:
            if "does not exist" in str(error) and "role" in str(error):
                raise SourceError(
                    f"the role {self._role} does not exist at that moment", "choose a later one"
                ) from None
            return None
        assert row is not None
        return RecoveryState(row[0], row[1] == "paused", Lsn.parse(row[2] or "0/0"), row[3])

    @property
    def has_reached_target(self) -> bool:
        """Whether recovery stopped at its target. It also pauses for other reasons, such as settings too low."""
        return "recovery stopping " in self.log.read_text(errors="replace")

    def reload(self) -> None:
        """Have the server read its files again."""
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def wait(self, seconds: float) -> bool:
        """Wait for the server's end. Return whether it ended."""
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> None:
        """Shut down, with a checkpoint."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait()

    def log_tail(self) -> str:
        """The last errors of the server's log, or its last lines."""
        lines = self.log.read_text(errors="replace").splitlines()
        errors = [line for line in lines if " FATAL: " in line or " PANIC: " in line or line.startswith("FATAL")]
        return "; ".join((errors or lines)[-3:])
