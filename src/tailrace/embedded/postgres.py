"""A real PostgreSQL from a wheel, on a free port of 127.0.0.1, for demo, tests and benchmarks."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from tailrace.embedded.installation import check_can_enter, installation, unprivileged_user
from tailrace.embedded.process import EmbeddedServer, Process, free_port, wait_until
from tailrace.errors import ConfigError, SourceError

_MODES = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class Postgres(EmbeddedServer):
    """One server. `start` creates the database cluster if there is none; `close` stops it and removes a temporary one.

    Leaving the context closes the server. So does the end of the process, even by SIGKILL.
    """

    def __init__(
        self,
        version: int = 18,
        directory: Path | None = None,
        *,
        fsync: bool = True,
        auth: Literal["trust", "scram-sha-256", "md5"] = "trust",
        password: str | None = None,
        encoding: str = "UTF8",
        **settings: str | int | bool,
    ) -> None:
        if auth != "trust" and not password:
            raise ConfigError(f"auth={auth!r} needs a password")
        self.version = version
        self.port = free_port()
        self._install = installation(version)
        self._is_temporary = directory is None
        self.directory = (
            Path(tempfile.mkdtemp(prefix=f"tailrace-postgres{version}-")) if directory is None else directory
        )
        self._auth = auth
        self._password = password
        self._encoding = encoding
        self._process: Process | None = None
        self._settings: dict[str, str | int | bool] = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "wal_level": "logical",
            "fsync": fsync,
            "lc_messages": "C",
            "timezone": "UTC",
            **settings,
        }

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.directory / "server.log"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str, user: str = "postgres") -> str:
        """The database's URL without a password; if the server requires one, pass it separately."""
        return f"postgresql://{quote(user, safe='')}@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def bin(self, name: str) -> Path:
        """The path of a program that comes with the server: `pg_recvlogical`, `pgbench`, …"""
        return self._install / "bin" / name

    def start(self, timeout_s: float = 60) -> Self:
        is_new = not (self.data / "PG_VERSION").exists()
        if is_new:
            self._initdb()
        for _ in range(5):
            self._write_conf()
            log_size = self.log.stat().st_size if self.log.exists() else 0
            command = [str(self.bin("postgres")), "-D", str(self.data)]
            self._process = process = Process(command, self.log, signal.SIGQUIT, unprivileged_user())
            wait_until(lambda p=process: not p.is_running or self._is_ready(p), timeout_s)  # type: ignore[misc]
            if process.is_running and self._is_ready(process):
                atexit.register(self.close)
                return self
            self.stop("immediate")
            words = self.log.read_bytes()[log_size:].decode(errors="replace")
            if not (is_new and "Address already in use" in words):
                break
            self.port = free_port()
        raise SourceError(f"the embedded PostgreSQL {self.version} did not start", words.strip()[-2000:])

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast", timeout_s: float = 60) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.is_running:
            process.send(_MODES[mode])
        if not process.wait(timeout_s):
            process.kill_tree()

    def restart(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        self.stop(mode)
        self.start()

    def kill9(self) -> None:
        """Send SIGKILL to the postmaster and its children; the next `start` goes through crash recovery."""
        process, self._process = self._process, None
        if process is not None:
            process.kill_tree()

    def close(self) -> None:
        atexit.unregister(self.close)
        self.stop("fast" if not self._is_temporary else "immediate")
        if self._is_temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def connect(self, database: str = "postgres", **options: Any) -> psycopg.Connection[Any]:
        """Connect as the superuser, in autocommit mode unless `options` say otherwise."""
        options = {"autocommit": True, "password": self._password} | options
        return psycopg.connect(self.url_of(database), **options)

    def conf(self, **settings: str | int | bool) -> None:
        """Set parameters. Those that need no restart are in effect on return."""
        self._settings |= settings
        self._write_conf()
        if self._process is None:
            return
        before = self._conf_loaded_at()
        self._process.send(signal.SIGHUP)
        if not wait_until(lambda: self._conf_loaded_at() != before, 30):
            raise SourceError("the embedded PostgreSQL did not reload its configuration", f"see {self.log}")

    def create_database(self, name: str, encoding: str | None = None) -> str:
        """Create a database and return its URL."""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING {} LOCALE 'C'").format(
            sql.Identifier(name), sql.Literal(encoding or self._encoding)
        )
        with self.connect() as connection:
            connection.execute(statement)
        return self.url_of(name)

    def _initdb(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        owner = unprivileged_user()
        user, group = owner or (None, None)
        if owner:
            check_can_enter(self.directory)
            os.chown(self.directory, *owner)
        command = [
            str(self.bin("initdb")),
            "-D",
            str(self.data),
            "-U",
            "postgres",
            "--no-sync",
            "--no-instructions",
        ]
        command += [
            "--locale=C",
            f"--encoding={self._encoding}",
            "--auth-local=trust",
            f"--auth-host={self._auth}",
        ]
        password_file = self.directory / "password"
        if self._password:
            password_file.touch(mode=0o600)
            password_file.write_text(self._password)
            if owner:
                os.chown(password_file, *owner)
            command.append(f"--pwfile={password_file}")
        try:
            completed = subprocess.run(
                command,
                cwd="/",
                user=user,
                group=group,
                extra_groups=[] if owner else None,
                capture_output=True,
                start_new_session=True,  # this process handles Ctrl-C in the terminal
            )
        finally:
            password_file.unlink(missing_ok=True)
        if completed.returncode:
            raise SourceError(
                "initdb of the embedded PostgreSQL failed", completed.stderr.decode(errors="replace").strip()
            )
        with (self.data / "postgresql.conf").open("a") as conf:
            conf.write("\ninclude 'tailrace.conf'\n")

    def _write_conf(self) -> None:
        def text(value: str | int | bool) -> str:
            word = ("on" if value else "off") if isinstance(value, bool) else str(value)
            return "'" + word.replace("'", "''") + "'"

        lines = [f"{name} = {text(value)}\n" for name, value in {**self._settings, "port": self.port}.items()]
        conf = self.data / "tailrace.conf"
        draft = conf.with_suffix(".draft")
        draft.write_text("".join(lines))
        draft.chmod(0o644)
        draft.replace(conf)

    def _is_ready(self, process: Process) -> bool:
        """Check the last line of postmaster.pid, as pg_ctl does."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(process.pid) and lines[7].strip() == "ready"

    def _conf_loaded_at(self) -> object:
        with self.connect() as connection:
            return connection.execute("SELECT pg_catalog.pg_conf_load_time()").fetchone()
