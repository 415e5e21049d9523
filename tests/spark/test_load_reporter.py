"""Tasks tell the driver how many rows of a load they have read."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace.delivery.load_progress import LoadMeter, LoadProgress
from tailrace.delivery.pipeline import Pipeline
from tailrace.delivery.task import StageTask
from tailrace.spark import step_source
from tailrace.spark.step_server import StepServer
from tailrace.spark.step_source import LoadReporter


@pytest.fixture
def meter() -> LoadMeter:
    meter = LoadMeter(clock=lambda: 7.0)
    meter.begin(300, 1000)
    return meter


@pytest.fixture
def server(meter: LoadMeter) -> Iterator[StepServer]:
    pipeline = cast("Pipeline", SimpleNamespace(report_load=meter.report))
    server = StepServer(lambda: {"lake": pipeline})
    yield server
    server.close()


def task(number: int, rows: int) -> StageTask:
    load = SimpleNamespace(chunk=SimpleNamespace(rows=rows), load=SimpleNamespace(snapshot="a"))
    return cast("StageTask", SimpleNamespace(number=number, rows=load))


def test_rows_of_a_load_are_reported(server: StepServer, meter: LoadMeter, monkeypatch: pytest.MonkeyPatch) -> None:
    with LoadReporter(server.address, "lake") as reporter:
        reporter.report(task(0, 100), 10)
        assert meter.progress == LoadProgress(0, 1000, None), "not more often than every second"
        monkeypatch.setattr(step_source, "_REPORT_S", 0.0)
        reporter.report(task(0, 100), 20)
        reporter.report(task(1, 200), 30)
        assert meter.progress is not None
        assert meter.progress.rows == 50
        monkeypatch.setattr(step_source, "_REPORT_S", 1e9)
        reporter.report(task(1, 200), 200)
        assert meter.progress.rows == 220, "the end of a task is always reported"


def test_a_task_on_another_machine_goes_on(meter: LoadMeter) -> None:
    with LoadReporter("/nowhere/socket", "lake") as reporter:
        for _ in range(2):
            reporter.report(task(0, 100), 100)
    assert meter.progress == LoadProgress(0, 1000, None), "nobody knows; the rows count with their step"


def test_changes_of_the_log_are_not_rows_of_a_load(server: StepServer, meter: LoadMeter) -> None:
    without_rows: Any = SimpleNamespace(number=0, rows=None)
    with LoadReporter(server.address, "lake") as reporter:
        reporter.report(without_rows, 100)
    assert meter.progress == LoadProgress(0, 1000, None)
