"""The fork server (`fork_server.py`) as a child process of the driver."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

from tailrace.owned_directory import OwnedDirectory

ADDRESS: Final = "TAILRACE_FORK_SERVER"
"""The environment variable with the address of the server's Unix socket."""


class ForkServerProcess:
    """The server as a child of this process. Runs from construction to `close`, or until this process ends."""

    def __init__(self, imports: Sequence[str] = ()) -> None:
        """`imports`: more modules to import, such as the sinks'."""
        self._directory = OwnedDirectory("fork")
        self.address = str(self._directory.path / "socket")
        # Spark sets the seed for its workers: partitioning by key relies on equal hashes.
        seed = {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
        with socket.socket(socket.AF_UNIX) as listener:  # clients may connect before the server has imported everything
            listener.bind(self.address)
            listener.listen(64)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tailrace.spark.fork_server", str(listener.fileno()), *imports],
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
                start_new_session=True,  # as Java
                env=os.environ | seed,
            )

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._directory.remove()
