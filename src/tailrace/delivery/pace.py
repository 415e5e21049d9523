"""Pace: when a sink's next step may start.

A step starts at once when the sink was idle. Under a steady trickle of changes, steps are spaced out so that several
sinks share a small machine: after a step that took `d` seconds, a sink waits `d * (SPACING * n - 1)` seconds, where `n`
is the number of sinks that are delivering now. All sinks together are then in a step at most 1/SPACING of the time,
however loaded the machine is, because a loaded machine makes steps longer. A large step means that the sink is behind:
the next one starts at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

SPACING: Final = 1.6
"""One sink alone is in a step at most 62 % of the time. At 50 transactions a second it takes 0.20 cores and five sinks
0.65, with p50 41 and 56 ms (`python -m bench trickle`)."""

MOST_PAUSE_S: Final = 0.5
"""No pause is longer, so that one slow step is not followed by a slow second one."""

_ACTIVE_S: Final = 1.0
"""A sink counts as delivering for this long after a step."""


class Pace:
    def __init__(self, interval_s: float, active: Callable[[], int]) -> None:
        """`interval_s`: the least time between the starts of two steps. `active` returns how many sinks are delivering,
        this one included."""
        self._interval_s = interval_s
        self._active = active
        self._started_at = self._finished_at = float("-inf")
        self._next_at = float("-inf")

    def start(self) -> None:
        self._started_at = time.monotonic()

    def finish(self, *, was_large: bool) -> float:
        """Returns how long the step took, in seconds."""
        now = self._finished_at = time.monotonic()
        duration = now - self._started_at
        if was_large:
            self._next_at = now
            return duration
        pause = min(duration * max(SPACING * max(self._active(), 1) - 1, 0), MOST_PAUSE_S)
        self._next_at = max(self._started_at + self._interval_s, now + pause)
        return duration

    def wait_s(self) -> float:
        """How long the next step has to wait; 0 when it may start."""
        return max(self._next_at - time.monotonic(), 0.0)

    @property
    def is_active(self) -> bool:
        return time.monotonic() - self._finished_at < _ACTIVE_S
