"""Keeps capture and the sinks running, each a process of its own.

Why processes. Capture has to answer the source within seconds whatever else happens; beside an engine that decodes
batches it would wait for the interpreter's lock, and share its memory with Spark's driver. Once the Java process under
Spark is gone, the Python process above it cannot start another that works; a new process can. So each is the very
command that an operator would run alone, in one more process, and its figures come over a socket (`channel`).

What died is started again, after a pause that grows. What ended with an error that no waiting mends stays down, and is
told; the other goes on. At the end sinks finish their step, then capture seals and acknowledges what is committed.
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
from datetime import UTC, datetime
from typing import Any, Final, Literal

from tailrace.change import Lsn
from tailrace.ops import channel
from tailrace.ops.status import CaptureStatus, Overview
from tailrace.retry import Backoff
from tailrace.sinks.status import SinkStatus

_log = logging.getLogger("tailrace.run")

CAPTURE: Final = "capture"
DELIVER: Final = "deliver"

# Longer than the engine waits for a step (30 s), and for its Java to end.
_SINKS_GRACE_SECONDS = 45.0
# Longer than capture waits for the store (15 s).
_CAPTURE_GRACE_SECONDS = 25.0
# Whoever lived this long did not die of what killed the one before.
_SETTLED_SECONDS = 60.0
# Lines that a child wrote just before it ended are worth a moment.
_LAST_LINES_SECONDS = 2.0

Relay = Callable[[str, str], None]
"""Takes a child's name and a line that it wrote."""


@dataclass(frozen=True, slots=True)
class Failure:
    message: str
    hint: str = ""
    is_final: bool = False


def judged(name: str, code: int, error: Mapping[str, Any] | None, was_up: bool) -> Failure:
    """What the end of a process means. `error` is what it told of it, `code` as subprocess has it. Pure."""
    if error is None:
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return Failure(f"{name} {how}", "its lines in the log say why")
    # A Spark that cannot be started will not be the next time; one that ran and broke off may well be.
    may_pass = error["retry"] or (error["kind"] == "SparkError" and was_up)
    return Failure(error["message"], error["hint"], not may_pass)


class Child:
    """One command, in its own session so that Ctrl-C in a terminal is the supervisor's to handle; and its restarts."""

    def __init__(self, name: str, command: Sequence[str], environ: Mapping[str, str], relay: Relay) -> None:
        self.name = name
        self.told: dict[str, Any] = {}
        """Its figures, as last told by the process that runs now."""
        self.state: Literal["starting", "running", "restarting", "failed", "stopped"] = "starting"
        self.failure: Failure | None = None
        self.restarts = 0
        self._command = command
        self._environ = environ
        self._relay = relay
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._error: dict[str, Any] | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        self._thread.start()

    def tell(self, what: dict[str, Any]) -> bool:
        """Whether there was a process to tell it."""
        with self._lock:
            if self._line is None or self.state != "running":
                return False
            try:
                self._line.sendall(json.dumps(what).encode() + b"\n")
            except OSError:
                return False
            return True

    def stop(self, grace_s: float) -> None:
        """SIGTERM, and SIGKILL after a while: nothing durable is ever half done."""
        self._stopping.set()
        self._signal(signal.SIGTERM)
        self._thread.join(grace_s)
        if self._thread.is_alive():
            _log.warning("%s does not end: killed. What it had not finished is done again by the next run", self.name)
            self.kill()
            self._thread.join()

    def kill(self) -> None:
        self._stopping.set()
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:  # not while one is being started: it would be missed
            if self._process is not None and self._process.poll() is None:
                self._process.send_signal(number)

    def _run(self) -> None:
        backoff = Backoff(first=1.0)
        while True:
            began_at = time.monotonic()
            process = self._spawn()
            if process is None:
                break
            code = self._follow(process)
            if self._stopping.is_set():
                break
            if time.monotonic() - began_at > _SETTLED_SECONDS:
                backoff = Backoff(first=1.0)
            self.failure = judged(self.name, code, self._error, was_up=any(self.told.values()))
            if self.failure.is_final:
                self.state = "failed"
                _log.error("%s stays down: %s. %s", self.name, self.failure.message, self.failure.hint)
                return
            self.state = "restarting"
            self.restarts += 1
            delay = backoff.next()
            _log.warning("%s; started again in %.1f s", self.failure.message, delay)
            self._stopping.wait(delay)
        self.state = "stopped"

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        """None when it is not wanted any more."""
        with self._lock:
            if self._stopping.is_set():
                return None
            ours, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(
                    self._command,
                    env={**self._environ, channel.VARIABLE: str(theirs.fileno())},
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            self._line = ours
            self.told, self._error = {}, None
            return self._process

    def _follow(self, process: subprocess.Popen[bytes]) -> int:
        """Its exit code, once it has ended."""
        assert self._line is not None
        relaying = threading.Thread(target=self._relay_lines, args=(process,), name=f"{self.name}'s lines", daemon=True)
        relaying.start()
        for what in channel.objects(self._line):
            if "error" in what:
                self._error = what["error"]
            else:
                self.told = what
                self.state, self.failure = "running", None
        code = process.wait()
        with self._lock:
            self._line.close()
            self._line = None
        relaying.join(_LAST_LINES_SECONDS)
        return code

    def _relay_lines(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines, contextlib.suppress(OSError, ValueError):
            for line in lines:
                self._relay(self.name, line.decode(errors="replace").rstrip("\n"))


class Supervisor:
    """`start`, then whatever until `is_over` or somebody wants it to end, then `stop`."""

    def __init__(
        self,
        capture: Sequence[str],
        deliver: Sequence[str] | None,
        sinks: Mapping[str, str],
        relay: Relay,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        """`capture` and `deliver` are commands, `sinks` name → type of those that `deliver` runs."""
        self._sinks = sinks
        self._capture = Child(CAPTURE, capture, environ, relay)
        self._deliver = Child(DELIVER, deliver, environ, relay) if deliver is not None else None
        self._known: dict[str, SinkStatus] = {}

    @property
    def children(self) -> list[Child]:
        return [self._capture] if self._deliver is None else [self._deliver, self._capture]

    @property
    def is_over(self) -> bool:
        """Nothing runs, and nothing will be started again."""
        return all(child.state in ("failed", "stopped") for child in self.children)

    @property
    def failures(self) -> list[Failure]:
        """Why something is down for good: sinks, then whole processes."""
        sinks = [
            Failure(sink.last_error or f"sink {sink.name} failed", sink.last_error_hint or "", is_final=True)
            for sink in self._sink_statuses()
            if sink.state == "failed"
        ]
        return sinks + [c.failure for c in self.children if c.state == "failed" and c.failure is not None]

    def start(self) -> None:
        for child in reversed(self.children):
            child.start()

    def stop(self, grace_s: float | None = None) -> None:
        """`grace_s`: within about this time, however little is finished then."""
        deadline = time.monotonic() + (grace_s if grace_s is not None else float("inf"))
        if self._deliver is not None:
            self._deliver.stop(min(_SINKS_GRACE_SECONDS, deadline - time.monotonic()))
        self._capture.stop(min(_CAPTURE_GRACE_SECONDS, max(1.0, deadline - time.monotonic())))

    def kill(self) -> None:
        for child in self.children:
            child.kill()

    def tell_sinks(self, what: dict[str, Any]) -> bool:
        """Whether there was an engine to tell."""
        return self._deliver is not None and self._deliver.tell(what)

    def condition(self) -> Overview:
        """What the children told last."""
        return Overview(capture=self._capture_status(), sinks=self._sink_statuses())

    def _capture_status(self) -> CaptureStatus:
        child = self._capture
        raw = child.told.get(CAPTURE)
        told = CaptureStatus("starting") if raw is None else CaptureStatus.from_json(raw)
        told = replace(told, restarts=child.restarts, pid=child.pid)
        if child.state in ("restarting", "failed", "stopped"):
            told = replace(told, state=child.state)
        if child.failure is not None:
            told = replace(told, last_error=child.failure.message, last_error_hint=child.failure.hint or None)
        return told

    def _sink_statuses(self) -> list[SinkStatus]:
        child = self._deliver
        if child is None:
            return []
        for raw in child.told.get("sinks", ()):
            known = SinkStatus.from_json(json.dumps(raw))
            self._known[known.name] = known
        statuses = [self._known.get(name) or _unknown(name, type_) for name, type_ in self._sinks.items()]
        match child.state:
            case "starting" | "running" if not child.told.get("sinks"):
                return [replace(s, state="starting") for s in statuses]
            case "restarting" | "failed" as state:
                assert child.failure is not None
                wrong: dict[str, Any] = {
                    "state": "failed" if state == "failed" else "retrying",
                    "last_error": child.failure.message,
                    "last_error_hint": child.failure.hint or None,
                }
                return [replace(s, **wrong) for s in statuses]
            case "stopped":
                return [s if s.state == "failed" else replace(s, state="stopped") for s in statuses]
        return statuses


def _unknown(name: str, type_: str) -> SinkStatus:
    nothing: dict[str, Any] = dict.fromkeys(("changes", "steps", "failures", "recoveries", "set_aside"), 0)
    return SinkStatus(
        name=name,
        type=type_,
        state="starting",
        cursor=None,
        log_end=Lsn(0),
        lag_bytes=None,
        lag_seconds=None,
        changes_per_second=0.0,
        last_step_seconds=0.0,
        last_error=None,
        last_error_hint=None,
        updated_at=datetime.now(UTC),
        **nothing,
    )
