"""Waiting between attempts: exponential, with jitter, bounded."""

from __future__ import annotations

import random


class Backoff:
    """0.2 s, doubling to 30 s; each shortened at random by up to half, so that many clients do not come back as one."""

    def __init__(self, first: float = 0.2, longest: float = 30.0) -> None:
        self._first = first
        self._longest = longest
        self.failures = 0

    def next(self) -> float:
        delay = min(self._first * 2.0**self.failures, self._longest)
        self.failures += 1
        return delay * random.uniform(0.5, 1.0)  # noqa: S311
