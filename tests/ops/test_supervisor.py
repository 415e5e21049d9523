"""The supervisor, with real processes that report status, die, hang, and fail permanently."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from tests.ops.test_http import SINK

from tailrace.delivery import status
from tailrace.embedded.process import wait_until
from tailrace.ops import prometheus, supervisor
from tailrace.ops.status import CaptureStatus
from tailrace.ops.supervisor import ComponentFailure, Supervisor, classify_exit

_CHILD = """
import json, os, pathlib, signal, sys, threading, time
from tailrace.errors import SinkRefused, SparkError, StoreError, TailraceError
from tailrace.ops.supervisor_socket import report_to_supervisor
directory, name = pathlib.Path(sys.argv[1]), sys.argv[2]
print(f"{name} is running")
sys.stdout.flush()
with (directory / f"{name}.starts").open("a") as starts:
    starts.write(f"{os.getpid()}\\n")
stopping = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: None if (directory / f"{name}.ignores_sigterm").exists() else stopping.set())
handle = lambda message: (directory / f"{name}.received").write_text(repr(message))
status = (directory / f"{name}.json").read_text()
try:
    with report_to_supervisor(os.environ, lambda: json.loads(status), stopping.set, handle):
        while not stopping.wait(0.01):
            if (order := directory / f"{name}.fail").exists():
                kind = order.read_text()
                order.unlink()
                raise globals()[kind](f"{name}: a {kind}", "fix it")
            if (directory / f"{name}.crash").exists():
                (directory / f"{name}.crash").unlink()
                raise ZeroDivisionError
        with (directory / "ends").open("a") as ends:
            ends.write(f"{name}\\n")
except TailraceError:
    sys.exit(1)
"""


class Pair:
    """A supervisor with two child processes that files in a directory control."""

    def __init__(self, directory: Path, *, has_verification: bool = False) -> None:
        self.directory = directory
        self.lines: list[str] = []
        script = directory / "child.py"
        script.write_text(_CHILD)
        (directory / "capture.json").write_text(
            json.dumps({"capture": CaptureStatus("streaming", operations={"INSERT": 7}).to_json()})
        )
        (directory / "deliver.json").write_text(f'{{"sinks": [{SINK.to_json()}]}}')
        (directory / "verify.json").write_text("{}")
        command = [sys.executable, str(script), str(directory)]
        self.supervisor = Supervisor(
            [*command, "capture"],
            [*command, "deliver"],
            {SINK.name: SINK.type},
            lambda name, line: self.lines.append(f"{name}: {line}"),
            verify=[*command, "verify"] if has_verification else None,
        )

    def starts(self, name: str) -> list[int]:
        file = self.directory / f"{name}.starts"
        return [int(pid) for pid in file.read_text().split()] if file.exists() else []

    def state(self, name: str) -> str:
        overview = self.supervisor.overview()
        assert overview.capture is not None
        return overview.capture.state if name == "capture" else overview.sinks[0].state

    def await_state(self, name: str, state: str) -> None:
        assert wait_until(lambda: self.state(name) == state, 30), f"{name} is {self.state(name)}: {self.lines}"


@contextmanager
def running(directory: Path) -> Iterator[Pair]:
    pair = Pair(directory)
    pair.supervisor.start()
    try:
        pair.await_state("capture", "streaming")
        pair.await_state("deliver", "running")
        yield pair
    finally:
        pair.supervisor.kill()
        pair.supervisor.stop()


def test_a_process_that_dies_is_restarted_and_the_other_continues(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        overview = pair.supervisor.overview()
        assert overview.faults == []
        assert overview.capture is not None
        assert overview.capture.changes == 7
        assert overview.capture.pid == pair.starts("capture")[0]
        assert list(overview.sinks) == [SINK]
        assert "capture: capture is running" in pair.lines

        os.kill(pair.starts("capture")[0], signal.SIGKILL)
        pair.await_state("capture", "restarting")
        assert "SIGKILL" in pair.supervisor.overview().faults[0]
        pair.await_state("capture", "streaming")
        assert pair.supervisor.overview().faults == []
        (tmp_path / "deliver.crash").touch()
        pair.await_state("deliver", "retrying")
        assert "exit code 1" in str(pair.supervisor.overview().sinks[0].last_error)
        pair.await_state("deliver", "running")
        (tmp_path / "deliver.fail").write_text("SparkError")  # it had started, so a restart may help
        pair.await_state("deliver", "retrying")
        pair.await_state("deliver", "running")
        assert len(pair.starts("capture")) == 2
        assert len(pair.starts("deliver")) == 3

        assert pair.supervisor.send_to_sinks({"pause": "lake"})
        assert wait_until(lambda: (tmp_path / "deliver.received").exists(), 30)
        assert "pause" in (tmp_path / "deliver.received").read_text()

        pair.supervisor.stop()
        assert (tmp_path / "ends").read_text().split() == ["deliver", "capture"], "sinks first"
        assert (pair.state("capture"), pair.state("deliver")) == ("stopped", "stopped")
        assert not pair.supervisor.send_to_sinks({"pause": "lake"})


def test_a_process_that_hangs_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last report says that all is well, and so it would stay."""
    monkeypatch.setattr(supervisor, "SILENT_S", 2.0)
    with running(tmp_path) as pair:
        hanging = psutil.Process(pair.starts("capture")[0])
        hanging.suspend()
        assert wait_until(lambda: bool(pair.supervisor.overview().faults), 30)
        (fault,) = pair.supervisor.overview().faults
        assert re.fullmatch(r"capture has reported nothing for \d+ s: its process hangs", fault)
        capture = pair.supervisor.overview().capture
        assert capture is not None
        assert (capture.state, capture.lag_bytes) == ("streaming", None), "nobody knows how far it is behind"
        assert "tailrace_capture_connected 0" in prometheus.render(pair.supervisor.overview())
        hanging.resume()
        assert wait_until(lambda: pair.supervisor.overview().faults == [], 30)


def test_delivery_that_hangs_while_it_starts_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair(tmp_path)
    (tmp_path / "deliver.json").write_text('{"sinks": []}')
    pair.supervisor.start()
    try:
        assert wait_until(lambda: bool(pair.starts("deliver")), 30)
        assert pair.supervisor.overview().sinks[0].state == "starting"
        psutil.Process(pair.starts("deliver")[0]).suspend()
        monkeypatch.setattr(status, "SILENT_S", 1.5)
        assert wait_until(lambda: "deliver hangs" in str(pair.supervisor.overview().faults), 30)
    finally:
        pair.supervisor.kill()
        pair.supervisor.stop()


def test_a_process_that_fails_permanently_stays_down(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        (tmp_path / "deliver.fail").write_text("SinkRefused")
        pair.await_state("deliver", "failed")
        assert [s.last_error_hint for s in pair.supervisor.overview().sinks] == ["fix it"]
        assert pair.state("capture") == "streaming"
        assert not pair.supervisor.is_finished
        assert not pair.supervisor.has_lost_capture
        (tmp_path / "capture.fail").write_text("SinkRefused")
        assert wait_until(lambda: pair.supervisor.is_finished, 30)
        assert pair.supervisor.has_lost_capture
        assert len(pair.starts("deliver")) == len(pair.starts("capture")) == 1
        assert pair.supervisor.overview().faults == [
            "capture is failed: capture: a SinkRefused: fix it",
            f"sink {SINK.name} is failed: deliver: a SinkRefused: fix it",
        ]


def test_a_sink_that_failed_permanently_in_a_process_that_continues(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    failed = replace(SINK, state="failed", last_error="it was rejected", last_error_hint="fix it")
    (tmp_path / "deliver.json").write_text(f'{{"sinks": [{failed.to_json()}]}}')
    pair.supervisor.start()
    try:
        pair.await_state("deliver", "failed")
        assert [(failure.message, failure.hint) for failure in pair.supervisor.failures] == [
            ("it was rejected", "fix it")
        ]
        assert not pair.supervisor.is_finished
    finally:
        pair.supervisor.kill()
        pair.supervisor.stop()


def test_a_verification_that_failed_is_a_warning_and_stops_nothing_else(tmp_path: Path) -> None:
    pair = Pair(tmp_path, has_verification=True)
    pair.supervisor.start()
    try:
        pair.await_state("deliver", "running")
        assert wait_until(lambda: bool(pair.starts("verify")), 30)
        assert pair.supervisor.overview().warnings == []
        (tmp_path / "verify.fail").write_text("SinkRefused")
        assert wait_until(lambda: bool(pair.supervisor.overview().warnings), 30), pair.lines
        overview = pair.supervisor.overview()
        assert overview.warnings == ["no sink is compared with the source: verify: a SinkRefused. Fix it"]
        assert overview.faults == []
        assert not pair.supervisor.is_finished
    finally:
        pair.supervisor.kill()
        pair.supervisor.stop()


def test_a_process_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        (tmp_path / "deliver.ignores_sigterm").touch()
        deliver, capture = pair.supervisor.children
        deliver.stop(0.3)
        assert deliver.state == "stopped"
        assert not psutil.pid_exists(pair.starts("deliver")[0])
        assert pair.state("capture") == "streaming"
        capture.stop(30)
        assert (tmp_path / "ends").read_text().split() == ["capture"]


def test_a_signal_to_all_processes_is_no_failure(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        (tmp_path / "deliver.ignores_sigterm").touch()
        for child in pair.supervisor.children:
            child.expect_end()
        os.kill(pair.starts("capture")[0], signal.SIGTERM)
        assert wait_until(lambda: pair.supervisor.children[-1].state == "stopped", 30)
        assert len(pair.starts("capture")) == 1
        (tmp_path / "deliver.ignores_sigterm").unlink()


def test_child_processes_stop_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    """No orphaned capture holds the slot. The processes stop as on SIGTERM."""
    code = (
        "import sys, time, pathlib; from tests.ops.test_supervisor import Pair;"
        "Pair(pathlib.Path(sys.argv[1])).supervisor.start(); time.sleep(600)"
    )
    root = Path(__file__).parents[2]
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=root)
    try:
        starts = [tmp_path / "capture.starts", tmp_path / "deliver.starts"]
        assert wait_until(lambda: all(s.exists() and s.read_text().endswith("\n") for s in starts), 60)
    finally:
        parent.kill()
        parent.wait()
    assert wait_until(lambda: (tmp_path / "ends").exists() and len((tmp_path / "ends").read_text().split()) == 2, 30)


def test_classify_exit() -> None:
    spark = {"kind": "SparkError", "message": "no Java", "hint": "install it", "retry": False}
    assert classify_exit("deliver", 1, spark, was_up=False).is_final
    assert not classify_exit("deliver", 1, spark, was_up=True).is_final
    store = {"kind": "StoreError", "message": "unreachable", "hint": "", "retry": True}
    assert not classify_exit("capture", 1, store, was_up=False).is_final
    lost = {"kind": "SlotLost", "message": "dropped", "hint": "", "retry": False}
    assert classify_exit("capture", 1, lost, was_up=True).is_final
    assert classify_exit("capture", 2, None, was_up=False).is_final, "its settings are wrong"
    assert classify_exit("capture", -9, None, was_up=True) == ComponentFailure(
        "capture was killed by SIGKILL", "see its log lines"
    )
