"""A sink that neither delivers nor fails is noticed."""

from __future__ import annotations

from dataclasses import replace

from tests.ops.test_http import SINK

from tailrace.delivery.stall import StallMeter
from tailrace.ops.status import Overview


def test_only_time_without_progress_counts() -> None:
    observed = [
        (160.0, "step 1", True),
        (190.0, "step 1", True),
        (200.0, "step 2", True),
        (900.0, "step 2", False),
        (990.0, "step 2", True),
    ]
    times = iter([100.0, *(now for now, _, _ in observed)])
    meter = StallMeter(lambda: next(times))
    seen = [meter.observe(progress, is_waiting=is_waiting) for _, progress, is_waiting in observed]
    assert seen == [0.0, 30.0, 0.0, None, 90.0]


def test_a_stalled_sink_is_a_warning() -> None:
    """The process goes on, and the destination may only be slow: that is for somebody to decide."""
    stalled = replace(SINK, name="lake", stalled_seconds=121.0)
    overview = Overview(sinks=[stalled])
    assert overview.faults == []
    (warning,) = overview.warnings
    assert warning.startswith("sink lake has finished no step for 121 s")
    for other in (
        replace(stalled, stalled_seconds=119.0),
        replace(stalled, stalled_seconds=None),
        replace(stalled, state="paused"),
    ):
        assert Overview(sinks=[other]).warnings == []
