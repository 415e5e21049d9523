"""How far a load is: rows of rows and the time left, never a number that nobody knows."""

from __future__ import annotations

from tailrace.delivery.load_progress import LoadMeter, LoadProgress


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_load_of_two_tables() -> None:
    clock = Clock()
    meter = LoadMeter(clock)
    assert meter.progress is None, "nothing is loaded"
    meter.report("early", 5)
    meter.begin(1000, 4000)
    assert meter.progress == LoadProgress(0, 4000, None), "without a row there is no rate"

    clock.now += 10
    meter.report(("a", 0), 400)
    meter.report(("a", 1), 100)
    assert meter.progress == LoadProgress(500, 4000, 70.0)
    meter.report(("a", 0), 0)
    assert meter.progress == LoadProgress(100, 4000, 390.0), "Spark repeats a task"
    meter.commit()
    assert meter.progress == LoadProgress(1000, 4000, 30.0), "all rows of a durable step count"

    meter.begin(3000, 3000)
    assert meter.progress == LoadProgress(1000, 4000, 30.0)
    meter.report(("b", 0), 2000)
    meter.begin(3000, 3000)
    assert meter.progress == LoadProgress(1000, 4000, 30.0), "the step failed, and begins again"
    meter.report(("b", 0), 3000)
    assert meter.progress == LoadProgress(4000, 4000, None), "how long the commit takes is not known"
    meter.commit()
    assert meter.progress is None, "a sink that stops now loads nothing"
    meter.begin(10, 10)
    assert meter.progress == LoadProgress(0, 10, None), "a later load counts from 0"


def test_tables_without_rows() -> None:
    meter = LoadMeter()
    meter.begin(0, 0)
    assert meter.progress == LoadProgress(0, 0, None)
