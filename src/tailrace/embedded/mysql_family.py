"""A server of MySQL's family on a free port of 127.0.0.1: what MySQL and MariaDB have in common."""

from __future__ import annotations

import os
import secrets
import subprocess
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tailrace.embedded.process import ListeningServer, free_port
from tailrace.errors import TailraceError

_READY: Final = b"ready for connections"


class MysqlFamilyServer(ListeningServer):
    """One server with one database."""

    user: Final = "tailrace"
    database: Final = "tailrace"

    def __init__(
        self, options: Mapping[str, object] | None = None, *, certificate: Path | None = None, installation: Path
    ) -> None:
        self._installation = installation
        self._options = options or {}
        self._certificate = certificate
        self.password = secrets.token_hex(12)
        super().__init__()

    @abstractmethod
    def _program(self) -> Sequence[str]:
        """The command that starts the server, without options."""

    @abstractmethod
    def _default_options(self) -> Mapping[str, object]:
        """Options of this product, in addition to those of the family."""

    @abstractmethod
    def _initialization(self) -> tuple[Sequence[str], bytes]:
        """Arguments that make the server create its system tables and end, and what it reads from its input."""

    @property
    def url(self) -> str:
        return f"mysql://{self.user}:{self.password}@127.0.0.1:{self.port}/{self.database}"

    @property
    def _data(self) -> Path:
        return self._directory / "data"

    def _initialize(self, timeout_s: float) -> None:
        draft = self._directory / "draft"
        draft.mkdir(exist_ok=True)
        arguments, script = self._initialization()
        command = [*self._command(draft), *arguments]
        done = subprocess.run(command, input=script, capture_output=True, timeout=timeout_s, cwd="/")
        if done.returncode:
            words = (done.stdout + done.stderr).decode(errors="replace")
            raise TailraceError(f"the embedded {self.product} could not create its system tables", words[-2000:])
        draft.rename(self._data)

    def _starts(self, timeout_s: float) -> bool:
        if not self._data.exists():
            self._initialize(timeout_s)
        self.port = self.port or free_port()
        begin = self._log_bytes()
        command = [
            *self._command(self._data),
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--init-file={self._write_statements()}",
        ]
        return self._run(command, lambda: _READY in self.log.read_bytes()[begin:], timeout_s)

    def _command(self, data: Path) -> list[str]:
        options: dict[str, object] = {
            "datadir": data,
            "socket": self._directory / "server.sock",
            "pid_file": self._directory / "server.pid",
            "tmpdir": self._directory,
            "skip_name_resolve": 1,
            "local_infile": 1,
            **self._default_options(),
        }
        if os.geteuid() == 0:
            options["user"] = "root"  # the server refuses root unless it is named
        if self._certificate is not None:
            options |= {"ssl_cert": self._certificate, "ssl_key": self._certificate}
        options |= self._options
        return [*self._program(), "--no-defaults", *(f"--{k.replace('_', '-')}={v}" for k, v in options.items())]

    def _write_statements(self) -> Path:
        file = self._directory / "init.sql"
        file.touch(mode=0o600)
        account = f"'{self.user}'@'127.0.0.1'"
        file.write_text(
            f"CREATE DATABASE IF NOT EXISTS {self.database};\n"
            f"CREATE USER IF NOT EXISTS {account} IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {account} WITH GRANT OPTION;\n"
        )
        return file
