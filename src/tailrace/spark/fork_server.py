"""The fork server: one Python process that has imported what Spark's Python processes need, and forks them.

Before the first batch of a query, Spark starts Python five times, each time after the one before is done: to look up
data sources, to construct one, to run its offsets, to plan its reads, and as the daemon of the workers. Each would
import pyspark for 0.3 s. The server imports it once, while Java starts. `launcher/bin/python`, which Spark runs as its
Python, asks the server for a fork (`launcher/fork_client.py`), and the fork takes over the client's arguments,
environment and standard streams. The client stays, because Spark holds on to it, and has the fork's exit status.

The server ends when its standard input does, which the driver holds (`fork_server_process.py`). If there is no server,
the launcher runs Python itself.
"""

from __future__ import annotations

import array
import gc
import importlib
import marshal
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

# pyspark.daemon is not among them: what it imports depends on its arguments.
_MODULES: Final = (
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "tailrace.delivery.task",
    "tailrace.spark.datasource",
    "tailrace.spark.statement.runner",
)
# A client sends its request right after it has connected.
_RECEIVE_S: Final = 10.0


class ForkServer:
    """Serves clients one after the other: what they want is done in a millisecond."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, socket.socket] = {}
        """By the pid of the fork that each waits for."""
        self._died, self._wakeup = os.pipe()

    def run(self) -> None:
        os.set_blocking(self._wakeup, False)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for source in (0, self._died, self._listener):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    self._end()
                    return
                if key.fileobj == self._died:
                    os.read(self._died, 4096)
                    self._reap()
                elif key.fileobj is self._listener:
                    self._fork()
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    self._kill_fork_of(key.fileobj)

    def _fork(self) -> None:
        client, _ = self._listener.accept()
        client.settimeout(_RECEIVE_S)
        try:
            arguments, environment, directory, streams = _receive(client)
        except (OSError, EOFError, ValueError):
            client.close()  # it died; or it is not one of ours
            return
        if (pid := os.fork()) == 0:
            self._leave()
            client.close()
            _become(arguments, environment, directory, streams)
        for stream in streams:
            os.close(stream)
        self._clients[pid] = client
        self._selector.register(client, selectors.EVENT_READ)

    def _leave(self) -> None:
        """In a fork: it is not the server."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for one in (self._listener, *self._clients.values()):
            one.close()
        os.close(self._died)
        os.close(self._wakeup)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if (client := self._clients.pop(pid, None)) is not None:
                self._selector.unregister(client)
                with client, suppress(OSError):  # the client may be dead as well
                    client.sendall(struct.pack("i", os.waitstatus_to_exitcode(status)))

    def _kill_fork_of(self, client: socket.socket) -> None:
        """The client has died: Spark killed it, and means the fork."""
        self._selector.unregister(client)
        pid = next(pid for pid, other in self._clients.items() if other is client)
        self._clients.pop(pid).close()
        os.kill(pid, signal.SIGTERM)

    def _end(self) -> None:
        for pid in self._clients:
            os.kill(pid, signal.SIGTERM)


def _receive(client: socket.socket) -> tuple[list[str], dict[str, str], str, list[int]]:
    """A client's arguments, environment, directory and standard streams."""
    streams = array.array("i")
    message, control, _, _ = client.recvmsg(65536, socket.CMSG_SPACE(3 * streams.itemsize))
    for _, kind, data in control:
        if kind == socket.SCM_RIGHTS:
            streams.frombytes(data)
    (length,) = struct.unpack_from("!I", message)
    while len(message) < 4 + length:
        if not (more := client.recv(65536)):
            raise EOFError
        message += more
    arguments, environment, directory = marshal.loads(message[4:])  # noqa: S302 (only this user reaches the socket)
    return arguments, environment, directory, list(streams)


def _become(arguments: Sequence[str], environment: dict[str, str], directory: str, streams: Sequence[int]) -> NoReturn:
    """Run `python -m MODULE …` in this fork, as the client would have."""
    status = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(directory)
        given = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
        sys.path[1:1] = [path for path in given if path not in sys.path]
        flag, module, *rest = arguments
        assert flag == "-m", "the launcher asks for nothing else"
        sys.argv = [module, *rest]
        with suppress(OSError):  # other systems than Linux do not have it
            Path("/proc/self/comm").write_text(sys.argv[-1].rpartition(".")[2])  # what `top` shows
        sys.modules.pop(module, None)  # runpy warns of modules that are imported already
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):  # closed, perhaps by what has run
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status & 0xFF)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver
    for module in (*_MODULES, *sys.argv[2:]):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    ForkServer(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
