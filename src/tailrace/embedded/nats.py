"""A real NATS server with JetStream from a wheel, on a free port of 127.0.0.1, for demo, tests and benchmarks."""

from __future__ import annotations

import atexit
import json
import shutil
import signal
import socket
import tempfile
from pathlib import Path
from typing import Any, Self

from tailrace.embedded.process import EmbeddedServer, Process, free_port, program, wait_until
from tailrace.errors import TailraceError


class NatsServer(EmbeddedServer):
    """One server. Its data is removed when it is closed, or when this process ends."""

    def __init__(self, **configuration: Any) -> None:
        """`configuration` adds to the server's configuration file: `authorization`, `tls`, `max_payload`."""
        self._program = program("nats-server", "NATS server")
        self._directory = Path(tempfile.mkdtemp(prefix="tailrace-nats-"))
        self._configuration = configuration
        self._process: Process | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self, timeout_s: float = 30) -> Self:
        """Start the server. After `kill9` it starts again on the same port with the same data."""
        log = self._directory / "server.log"
        for _ in range(5):
            self.port = self.port or free_port()
            self._process = process = Process(
                [str(self._program), "-c", str(self._write_configuration())], log, signal.SIGKILL
            )
            atexit.register(self.close)
            wait_until(lambda p=process: not p.is_running or self._answers(), timeout_s)  # type: ignore[misc]
            if process.is_running:
                return self
            process.wait(timeout_s)
            self.port = 0
            if b"address already in use" not in log.read_bytes():
                break
        words = log.read_text(errors="replace")[-2000:]
        self.close()
        raise TailraceError("the embedded NATS server did not start", words)

    def kill9(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send(signal.SIGKILL)
            process.wait(30)

    def close(self) -> None:
        atexit.unregister(self.close)
        self.kill9()
        shutil.rmtree(self._directory, ignore_errors=True)

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
