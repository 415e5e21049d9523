"""The supervisor: keeps capture, delivery and the archive running, each in its own process.

Why processes: capture must answer the source within seconds, whatever else happens. In one process with the delivery
engine, it would wait for the interpreter's lock while batches are decoded, and share memory with Spark's driver. And
when Spark's Java process dies, the Python process that started it cannot start another that works; a new process can.
So each child process runs the same command that an operator would run alone, and reports its status over a socket
(`supervisor_socket`).

A process that dies is restarted after a delay that grows. A process that ends with a permanent error stays down and is
reported; what else runs then is up to the caller. On a stop, the sinks finish their step; then capture seals and
acknowledges what is committed.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

from tailrace.delivery.status import SILENT_S, SinkStatus
from tailrace.errors import sentences
from tailrace.ops import supervisor_socket
from tailrace.ops.status import ArchiveStatus, CaptureStatus, Overview
from tailrace.retry import Backoff

_log = logging.getLogger("tailrace.run")

CAPTURE: Final = "capture"
ARCHIVE: Final = "archive"
DELIVER: Final = "deliver"
VERIFY: Final = "verify"

# Longer than the engine waits for a step (30 s) and for its Java process to exit.
_SINKS_GRACE_SECONDS = 45.0
# Longer than capture waits for the store (15 s).
_CAPTURE_GRACE_SECONDS = 25.0
# It changes nothing, so it can be killed at any moment.
_VERIFY_GRACE_SECONDS = 1.0
# A process that ran this long did not die of the previous cause: the restart delay starts over.
_SETTLED_SECONDS = 60.0
# A signal to all processes may reach a child before the supervisor: then its end is no failure.
_SIGNAL_SECONDS = 0.5
# How long to wait for the last lines of a child process that has exited.
_LAST_LINES_SECONDS = 2.0

Relay = Callable[[str, str], None]
"""Receives the name of a child process and a line that it wrote."""


@dataclass(frozen=True, slots=True)
class ComponentFailure:
    """Why a sink or a child process failed."""

    message: str
    hint: str = ""
    is_final: bool = False
    """Whether a restart would not help."""


def classify_exit(name: str, code: int, error: Mapping[str, Any] | None, was_up: bool) -> ComponentFailure:
    """Return why a process ended, and whether a restart may help. Pure.

    `code` is its return code as `subprocess` reports it, `error` the error that it reported, and `was_up` whether it
    had reported a status before.
    """
    if error is None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        # With 2 it did not accept its settings or arguments, which a restart does not change.
        return ComponentFailure(f"{name} {how}", "see its log lines", is_final=code == 2)
    # If Spark could not be started, it will not start the next time either. If it ran and then failed, it may.
    is_transient = error["retry"] or (error["kind"] == "SparkError" and was_up)
    return ComponentFailure(error["message"], error["hint"], not is_transient)


class ChildProcess:
    """Runs and restarts one command, in its own session, so that only the supervisor receives a terminal's Ctrl-C."""

    def __init__(self, name: str, command: Sequence[str], environ: Mapping[str, str], relay: Relay) -> None:
        self.name = name
        self.report: dict[str, Any] = {}
        """The status last reported by the current process."""
        self.state: Literal["starting", "running", "restarting", "failed", "stopped"] = "starting"
        self.failure: ComponentFailure | None = None
        self.restarts = 0
        self._command = command
        self._environ = environ
        self._relay = relay
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._error: dict[str, Any] | None = None
        self._reported_at = time.monotonic()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def silent_seconds(self) -> float | None:
        """How long a running process has reported nothing, if that is too long: it hangs."""
        silent_s = time.monotonic() - self._reported_at
        return silent_s if self.state in ("starting", "running") and silent_s > SILENT_S else None

    @property
    def reported_at(self) -> datetime:
        """When the process last reported, or was started."""
        return datetime.now(UTC) - timedelta(seconds=time.monotonic() - self._reported_at)

    def start(self) -> None:
        self._thread.start()

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message to the process. Return False if no process received it."""
        with self._lock:
            if self._socket is None or self.state != "running":
                return False
            try:
                self._socket.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                return False
            return True

    def expect_end(self) -> None:
        """From now on, the process may end, and is not restarted."""
        self._stopping.set()

    def stop(self, grace_s: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace_s` seconds. A kill is safe: durable writes are atomic."""
        self._stopping.set()
        self._signal(signal.SIGTERM)
        self._thread.join(grace_s)
        if self._thread.is_alive():
            _log.warning(
                "%s did not stop in time and was killed; the next run repeats what it had not finished", self.name
            )
            self.kill()
            self._thread.join()

    def kill(self) -> None:
        self._stopping.set()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:  # a process that is just being started would miss the signal
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)

    def _run(self) -> None:
        backoff = Backoff(first=1.0)
        while True:
            started_at = time.monotonic()
            process = self._spawn()
            if process is None:
                break
            code = self._await_exit(process)
            if self._stopping.wait(_SIGNAL_SECONDS):
                break
            if time.monotonic() - started_at > _SETTLED_SECONDS:
                backoff = Backoff(first=1.0)
            self.failure = classify_exit(self.name, code, self._error, was_up=any(self.report.values()))
            if self.failure.is_final:
                self.state = "failed"
                _log.error("%s failed permanently: %s", self.name, sentences(self.failure.message, self.failure.hint))
                return
            self.state = "restarting"
            self.restarts += 1
            delay = backoff.next()
            _log.warning("%s", sentences(f"{self.failure.message}; restarting in {delay:.1f} s", self.failure.hint))
            self._stopping.wait(delay)
        self.state = "stopped"

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        """Start the process. Return None if the supervisor is stopping."""
        with self._lock:
            if self._stopping.is_set():
                return None
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    self._command,
                    env={**self._environ, supervisor_socket.FD_VARIABLE: str(theirs.fileno())},
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._socket = ours
            self.report, self._error, self._reported_at = {}, None, time.monotonic()
            return self._process

    def _await_exit(self, process: subprocess.Popen[bytes]) -> int:
        """Read the reports of the process until it exits, and return its exit code."""
        assert self._socket is not None
        relay = threading.Thread(target=self._relay_lines, args=(process,), name=f"{self.name} output", daemon=True)
        relay.start()
        for message in supervisor_socket.read_messages(self._socket):
            if "error" in message:
                self._error = message["error"]
            else:
                self.report, self._reported_at = message, time.monotonic()
                self.state, self.failure = "running", None
        code = process.wait()
        with self._lock:
            self._socket.close()
            self._socket = None
        relay.join(_LAST_LINES_SECONDS)
        return code

    def _relay_lines(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines, contextlib.suppress(OSError, ValueError):
            for line in lines:
                self._relay(self.name, line.decode(errors="replace").rstrip("\n"))


class Supervisor:
    """Runs capture and delivery. Call `start`, wait for `is_finished` or a request to stop, then call `stop`."""

    def __init__(
        self,
        capture: Sequence[str],
        deliver: Sequence[str] | None,
        sinks: Mapping[str, str],
        relay: Relay,
        environ: Mapping[str, str] = os.environ,
        archive: Sequence[str] | None = None,
        verify: Sequence[str] | None = None,
    ) -> None:
        """`capture`, `deliver`, `archive` and `verify` are command lines; `sinks` maps names to types, for those of
        `deliver`."""
        self._sinks = sinks
        self._archive = ChildProcess(ARCHIVE, archive, environ, relay) if archive is not None else None
        self._capture = ChildProcess(CAPTURE, capture, environ, relay)
        self._deliver = ChildProcess(DELIVER, deliver, environ, relay) if deliver is not None else None
        self._verify = ChildProcess(VERIFY, verify, environ, relay) if verify is not None else None
        self._last_statuses: dict[str, SinkStatus] = {}

    @property
    def children(self) -> list[ChildProcess]:
        found = (self._verify, self._deliver, self._archive, self._capture)
        return [child for child in found if child is not None]

    @property
    def is_finished(self) -> bool:
        """Whether nothing runs and nothing will be restarted."""
        return all(child.state in ("failed", "stopped") for child in self.children if child is not self._verify)

    @property
    def has_lost_capture(self) -> bool:
        """Whether capture has failed permanently: from now on, the source keeps its WAL for it."""
        return self._capture.state == "failed"

    @property
    def failures(self) -> list[ComponentFailure]:
        """Permanent failures: first those of sinks, then those of whole processes."""
        sinks = [
            ComponentFailure(sink.last_error or f"sink {sink.name} failed", sink.last_error_hint or "", is_final=True)
            for sink in self._sink_statuses()
            if sink.state == "failed"
        ]
        return sinks + [c.failure for c in self.children if c.state == "failed" and c.failure is not None]

    def start(self) -> None:
        for child in reversed(self.children):
            child.start()

    def stop(self, grace_s: float | None = None) -> None:
        """Stop delivery, then the archive and capture. With `grace_s`, kill what takes longer than about that."""
        for child in self.children:
            child.expect_end()
        deadline = time.monotonic() + (grace_s if grace_s is not None else float("inf"))
        if self._verify is not None:
            self._verify.stop(_VERIFY_GRACE_SECONDS)
        if self._deliver is not None:
            self._deliver.stop(min(_SINKS_GRACE_SECONDS, deadline - time.monotonic()))
        for child in filter(None, (self._archive, self._capture)):
            child.stop(min(_CAPTURE_GRACE_SECONDS, max(1.0, deadline - time.monotonic())))

    def kill(self) -> None:
        for child in self.children:
            child.kill()

    def send_to_sinks(self, message: dict[str, Any]) -> bool:
        """Send a message to the delivery process. Return False if no process received it."""
        return self._deliver is not None and self._deliver.send(message)

    def overview(self) -> Overview:
        """Return the status that the child processes last reported."""
        return Overview(
            capture=self._capture_status(),
            archive=self._archive_status(),
            sinks=self._sink_statuses(),
            verification_failure=self._verification_failure(),
        )

    def _capture_status(self) -> CaptureStatus:
        raw = self._capture.report.get(CAPTURE)
        status = CaptureStatus("starting") if raw is None else CaptureStatus.from_json(raw)
        return replace(status, **_child_state(self._capture))

    def _archive_status(self) -> ArchiveStatus | None:
        if self._archive is None:
            return None
        raw = self._archive.report.get(ARCHIVE)
        status = ArchiveStatus("starting") if raw is None else ArchiveStatus.from_json(raw)
        return replace(status, **_child_state(self._archive))

    def _verification_failure(self) -> str | None:
        if self._verify is None or self._verify.failure is None or self._verify.state == "stopped":
            return None
        return sentences(self._verify.failure.message, self._verify.failure.hint)

    def _sink_statuses(self) -> list[SinkStatus]:
        child = self._deliver
        if child is None:
            return []
        for raw in child.report.get("sinks", ()):
            status = SinkStatus.from_json(json.dumps(raw))
            self._last_statuses[status.name] = status
        statuses = [
            self._last_statuses.get(name) or SinkStatus.initial(name, type_, "starting")
            for name, type_ in self._sinks.items()
        ]
        match child.state:
            case "starting" | "running" if not child.report.get("sinks"):
                return [replace(s, state="starting", updated_at=child.reported_at) for s in statuses]
            case "restarting" | "failed" as state:
                assert child.failure is not None
                failure: dict[str, Any] = {
                    "state": "failed" if state == "failed" else "retrying",
                    "last_error": child.failure.message,
                    "last_error_hint": child.failure.hint or None,
                }
                return [replace(s, **failure) for s in statuses]
            case "stopped":
                return [s if s.state == "failed" else replace(s, state="stopped") for s in statuses]
        return statuses


def _child_state(child: ChildProcess) -> dict[str, Any]:
    """What the supervisor knows about a process beyond its report."""
    known: dict[str, Any] = {"restarts": child.restarts, "pid": child.pid, "silent_seconds": child.silent_seconds}
    if child.state in ("restarting", "failed", "stopped"):
        known["state"] = child.state
    if child.failure is not None:
        known |= {"last_error": child.failure.message, "last_error_hint": child.failure.hint or None}
    return known
