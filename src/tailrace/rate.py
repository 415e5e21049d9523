"""How fast a count grows."""

from __future__ import annotations

import time


class Rate:
    """Per second, over the last few seconds; in the beginning since then, when the count was 0."""

    def __init__(self, seconds: float = 3.0) -> None:
        self._seconds = seconds
        self._seen = [(time.monotonic(), 0)]

    def of(self, count: int) -> float:
        now = time.monotonic()
        if self._seen and count < self._seen[-1][1]:
            self._seen.clear()  # whoever counts began anew
        self._seen.append((now, count))
        while len(self._seen) > 2 and self._seen[1][0] < now - self._seconds:
            self._seen.pop(0)
        (began, first) = self._seen[0]
        return (count - first) / (now - began) if now > began else 0.0
