"""A circuit breaker: after failures in a row, a receiver is left alone for a while, then asked with one request.

    closed      requests are sent, several at the same time
    open        nothing is sent until the time is over
    half open   one request is sent: if it succeeds, the circuit is closed, else it is open again, for longer

Without I/O; times are seconds since 1970, so that they outlive the process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace.retry import delay

_FAILURES: Final = 5
"""So many failures in a row, whichever requests they are of, open the circuit."""
MOST_WAIT_S: Final = 3600.0
"""The longest wait that a receiver can ask for. Then it is asked again."""
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 60.0


@dataclass
class Circuit:
    failures: int = 0
    """In a row."""
    not_before: float = 0.0
    """Nothing is sent before this time."""

    @property
    def is_half_open(self) -> bool:
        """Whether only one request may be in flight. To be asked when the time is over."""
        return self.failures >= _FAILURES

    def wait_s(self, now: float) -> float:
        """Return how long nothing may be sent."""
        left = self.not_before - now
        # A longer time was never set: the clock was.
        return left if 0 < left <= MOST_WAIT_S else 0.0

    def record_success(self) -> None:
        self.failures, self.not_before = 0, 0.0

    def record_failure(self, now: float, asked_s: float = 0.0) -> None:
        """Count a failure.

        Args:
            now: Seconds since 1970.
            asked_s: How long the receiver asks to wait.
        """
        self.failures += 1
        wait_s = asked_s
        if self.is_half_open:
            wait_s = max(wait_s, delay(self.failures - _FAILURES, _FIRST_S, _LONGEST_S))
        self.not_before = max(self.not_before, now + min(wait_s, MOST_WAIT_S))
