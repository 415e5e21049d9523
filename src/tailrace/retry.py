"""Delays between attempts: exponential, bounded, with jitter."""

from __future__ import annotations

import random
from typing import Final

_MOST_DOUBLINGS: Final = 64
"""Beyond any sensible delay. A float overflows at 1,024 doublings: eight hours of retries every 30 seconds."""


def delay(failures: int, first: float, longest: float) -> float:
    """Return the seconds to wait after a failure. They double from `first` to `longest`.

    Each delay is shortened at random by up to half, so that many clients do not reconnect at once.

    Args:
        failures: The number of failures before this one.
        first: The first delay.
        longest: The longest delay.
    """
    doublings = min(failures, _MOST_DOUBLINGS)
    return min(first * 2.0**doublings, longest) * random.uniform(0.5, 1.0)  # noqa: S311


class Backoff:
    """Delays that double from 0.2 s to 30 s."""

    def __init__(self, first: float = 0.2, longest: float = 30.0) -> None:
        self._first = first
        self._longest = longest
        self.failures = 0

    def next(self) -> float:
        """Count a failure and return the seconds to wait before the next attempt."""
        self.failures += 1
        return delay(self.failures - 1, self._first, self._longest)
