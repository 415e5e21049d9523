"""Delays between attempts: exponential, bounded, with jitter."""

from __future__ import annotations

import random


class Backoff:
    """Delays that double from 0.2 s to 30 s.

    Each is shortened at random by up to half, so that many clients do not reconnect at once.
    """

    def __init__(self, first: float = 0.2, longest: float = 30.0) -> None:
        self._first = first
        self._longest = longest
        self.failures = 0

    def next(self) -> float:
        """Count a failure and return the seconds to wait before the next attempt."""
        delay = min(self._first * 2.0**self.failures, self._longest)
        self.failures += 1
        return delay * random.uniform(0.5, 1.0)  # noqa: S311
