"""A server of MySQL's family on a free port of 127.0.0.1: what MySQL and MariaDB have in common."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

from tailrace.embedded.process import EmbeddedServer, Process, free_port, wait_until
from tailrace.errors import TailraceError

_READY: Final = b"ready for connections"
_IN_USE: Final = b"Address already in use"


class MysqlFamilyServer(EmbeddedServer):
    """One server with one database. Its data is removed when it is closed, or when this process ends."""

    product: ClassVar[str]
    user: Final = "tailrace"
    database: Final = "tailrace"

    def __init__(
        self, options: Mapping[str, object] | None = None, *, certificate: Path | None = None, installation: Path
    ) -> None:
        self._installation = installation
        self._options = options or {}
        self._certificate = certificate
        self._directory = Path(tempfile.mkdtemp(prefix=f"tailrace-{self.product.lower()}-"))
        self._process: Process | None = None
        self.password = secrets.token_hex(12)
        self.port = 0

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
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def log(self) -> Path:
        return self._directory / "server.log"

    def start(self, timeout_s: float = 60) -> Self:
        """Start the server. After `kill9` or `stop` it starts again on the same port with the same data."""
        atexit.register(self.close)
        try:
            if not self._data.exists():
                self._initialize(timeout_s)
            is_new = not self.port
            for _ in range(5):
                self.port = self.port or free_port()
                begin = self.log.stat().st_size if self.log.exists() else 0
                if self._starts(begin, timeout_s):
                    return self
                if not is_new or _IN_USE not in self.log.read_bytes()[begin:]:
                    break
                self.port = 0
            raise TailraceError(
                f"the embedded {self.product} did not start", self.log.read_text(errors="replace")[-2000:]
            )
        except BaseException:
            self.close()
            raise

    def kill9(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send(signal.SIGKILL)
            process.wait(30)

    def stop(self, timeout_s: float = 60) -> None:
        """Shut the server down in order."""
        process, self._process = self._process, None
        if process is not None:
            process.send(signal.SIGTERM)
            if not process.wait(timeout_s):
                self._process = process
                self.kill9()

    def close(self) -> None:
        atexit.unregister(self.close)
        self.kill9()
        shutil.rmtree(self._directory, ignore_errors=True)

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

    def _starts(self, begin: int, timeout_s: float) -> bool:
        command = [
            *self._command(self._data),
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--init-file={self._write_statements()}",
        ]
        self._process = process = Process(command, self.log, signal.SIGKILL)

        def is_ready() -> bool:
            return _READY in self.log.read_bytes()[begin:]

        wait_until(lambda: not process.is_running or is_ready(), timeout_s)
        if process.is_running and is_ready():
            return True
        self.kill9()
        return False

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
