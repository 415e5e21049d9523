"""A real NATS server with JetStream from a wheel, on a free port of 127.0.0.1, for demo, tests and benchmarks."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any, ClassVar

from tailrace.embedded.process import ListeningServer, free_port, program


class NatsServer(ListeningServer):
    product: ClassVar[str] = "NATS"

    def __init__(self, **configuration: Any) -> None:
        """`configuration` adds to the server's configuration file: `authorization`, `tls`, `max_payload`."""
        self._program = program("nats-server", "NATS server")
        self._configuration = configuration
        super().__init__()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def _starts(self, timeout_s: float) -> bool:
        self.port = self.port or free_port()
        return self._run([str(self._program), "-c", str(self._write_configuration())], self._answers, timeout_s)

    def _write_configuration(self) -> Path:
        """Write the configuration file. The server accepts JSON."""
        file = self._directory / "server.conf"
        file.touch(mode=0o600)
        server = {
            "listen": f"127.0.0.1:{self.port}",
            "jetstream": {"store_dir": str(self._directory / "data")},
            **self._configuration,
        }
        file.write_text(json.dumps(server))
        return file

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                return connection.recv(4).startswith(b"INFO")
        except OSError:
            return False
