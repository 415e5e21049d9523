"""The rate at which a count grows."""

from __future__ import annotations

import time


class Rate:
    """A count's growth per second over the last few seconds; at first, since the rate was created with a count of 0."""

    def __init__(self, seconds: float = 3.0) -> None:
        self._seconds = seconds
        self._seen = [(time.monotonic(), 0)]

    def of(self, count: int) -> float:
        now = time.monotonic()
        if self._seen and count < self._seen[-1][1]:
            self._seen.clear()  # the counter was reset
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] < now - self._seconds:
            self._seen.pop(0)
        (began, first) = self._seen[0]
        return (count - first) / (now - began) if now > began else 0.0
