"""What keeps processes running: with real ones that tell figures, die, hang, and fail for good."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil
from tests.ops.test_http import SINK

from tailrace.embedded.process import wait_until
from tailrace.ops import supervisor as supervising
from tailrace.ops.status import CaptureStatus
from tailrace.ops.supervisor import Supervisor, judged

_CHILD = """
import json, os, pathlib, signal, sys, threading, time
from tailrace.errors import SinkRefused, SparkError, StoreError, TailraceError
from tailrace.ops.channel import told_to_supervisor
directory, name = pathlib.Path(sys.argv[1]), sys.argv[2]
print(f"{name} says it runs")
sys.stdout.flush()
with (directory / f"{name}.starts").open("a") as starts:
    starts.write(f"{os.getpid()}\\n")
over = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: None if (directory / f"{name}.deaf").exists() else over.set())
heed = lambda what: (directory / f"{name}.heard").write_text(repr(what))
figures = (directory / f"{name}.json").read_text()
try:
    with told_to_supervisor(os.environ, lambda: json.loads(figures), over.set, heed):
        while not over.wait(0.01):
            if (order := directory / f"{name}.fail").exists():
                kind = order.read_text()
                order.unlink()
                raise globals()[kind](f"{name}: a {kind}", "mend it")
            if (directory / f"{name}.crash").exists():
                (directory / f"{name}.crash").unlink()
                raise ZeroDivisionError
        with (directory / "ends").open("a") as ends:
            ends.write(f"{name}\\n")
except TailraceError:
    sys.exit(1)
"""


class Pair:
    """Two children that do as files in a directory tell them."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lines: list[str] = []
        script = directory / "child.py"
        script.write_text(_CHILD)
        (directory / "capture.json").write_text(
            json.dumps({"capture": CaptureStatus("streaming", operations={"INSERT": 7}).to_json()})
        )
        (directory / "deliver.json").write_text(f'{{"sinks": [{SINK.to_json()}]}}')
        command = [sys.executable, str(script), str(directory)]
        self.supervisor = Supervisor(
            [*command, "capture"],
            [*command, "deliver"],
            {SINK.name: SINK.type},
            lambda name, line: self.lines.append(f"{name}: {line}"),
        )

    def starts(self, name: str) -> list[int]:
        file = self.directory / f"{name}.starts"
        return [int(pid) for pid in file.read_text().split()] if file.exists() else []

    def state(self, name: str) -> str:
        told = self.supervisor.condition()
        assert told.capture is not None
        return told.capture.state if name == "capture" else told.sinks[0].state

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


def test_what_dies_is_started_again_and_the_other_goes_on(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        told = pair.supervisor.condition()
        assert told.faults == []
        assert told.capture is not None
        assert told.capture.changes == 7
        assert told.capture.pid == pair.starts("capture")[0]
        assert list(told.sinks) == [SINK]
        assert "capture: capture says it runs" in pair.lines

        os.kill(pair.starts("capture")[0], signal.SIGKILL)
        pair.await_state("capture", "restarting")
        assert "SIGKILL" in pair.supervisor.condition().faults[0]
        pair.await_state("capture", "streaming")
        assert pair.supervisor.condition().faults == []
        (tmp_path / "deliver.crash").touch()
        pair.await_state("deliver", "retrying")
        assert "exit code 1" in str(pair.supervisor.condition().sinks[0].last_error)
        pair.await_state("deliver", "running")
        (tmp_path / "deliver.fail").write_text("SparkError")  # it ran: the next one may run too
        pair.await_state("deliver", "retrying")
        pair.await_state("deliver", "running")
        assert len(pair.starts("capture")) == 2
        assert len(pair.starts("deliver")) == 3

        assert pair.supervisor.tell_sinks({"pause": "lake"})
        assert wait_until(lambda: (tmp_path / "deliver.heard").exists(), 30)
        assert "pause" in (tmp_path / "deliver.heard").read_text()

        pair.supervisor.stop()
        assert (tmp_path / "ends").read_text().split() == ["deliver", "capture"], "sinks first"
        assert (pair.state("capture"), pair.state("deliver")) == ("stopped", "stopped")
        assert not pair.supervisor.tell_sinks({"pause": "lake"})


def test_what_fails_for_good_stays_down(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        (tmp_path / "deliver.fail").write_text("SinkRefused")
        pair.await_state("deliver", "failed")
        assert [s.last_error_hint for s in pair.supervisor.condition().sinks] == ["mend it"]
        assert pair.state("capture") == "streaming"
        assert not pair.supervisor.is_over
        (tmp_path / "capture.fail").write_text("SinkRefused")
        assert wait_until(lambda: pair.supervisor.is_over, 30)
        assert len(pair.starts("deliver")) == len(pair.starts("capture")) == 1
        assert pair.supervisor.condition().faults == [
            "capture is failed: capture: a SinkRefused: mend it",
            f"sink {SINK.name} is failed: deliver: a SinkRefused: mend it",
        ]


def test_a_sink_that_failed_for_good_in_a_process_that_goes_on(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    failed = replace(SINK, state="failed", last_error="it is refused", last_error_hint="mend it")
    (tmp_path / "deliver.json").write_text(f'{{"sinks": [{failed.to_json()}]}}')
    pair.supervisor.start()
    try:
        pair.await_state("deliver", "failed")
        assert [(failure.message, failure.hint) for failure in pair.supervisor.failures] == [
            ("it is refused", "mend it")
        ]
        assert not pair.supervisor.is_over
    finally:
        pair.supervisor.kill()
        pair.supervisor.stop()


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    with running(tmp_path) as pair:
        (tmp_path / "deliver.deaf").touch()
        deliver, capture = pair.supervisor.children
        deliver.stop(0.3)
        assert deliver.state == "stopped"
        assert not psutil.pid_exists(pair.starts("deliver")[0])
        assert pair.state("capture") == "streaming"
        capture.stop(30)
        assert (tmp_path / "ends").read_text().split() == ["capture"]


def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    """No capture stays behind that would keep the next from the slot; and it ends as at a SIGTERM."""
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


def test_what_an_end_means() -> None:
    spark = {"kind": "SparkError", "message": "no Java", "hint": "install it", "retry": False}
    assert judged("deliver", 1, spark, was_up=False).is_final
    assert not judged("deliver", 1, spark, was_up=True).is_final
    store = {"kind": "StoreError", "message": "away", "hint": "", "retry": True}
    assert not judged("capture", 1, store, was_up=False).is_final
    lost = {"kind": "SlotLost", "message": "gone", "hint": "", "retry": False}
    assert judged("capture", 1, lost, was_up=True).is_final
    assert judged("capture", -9, None, was_up=True) == supervising.Failure(
        "capture was killed by SIGKILL", "its lines in the log say why"
    )
