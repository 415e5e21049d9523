"""Lag: how far a sink is behind the log. Computed here and nowhere else.

Lag in bytes is the WAL between the sink's cursor and the end of the log. Lag in seconds is the age of the oldest change
that is not delivered. Both are 0 when everything is delivered, and None as long as nobody knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.change import Lsn


@dataclass(frozen=True)
class Lag:
    bytes: int | None
    seconds: float | None


UNKNOWN = Lag(None, None)


def lag(cursor: Lsn | None, log_end: Lsn, oldest_undelivered_us: int | None, now_s: float) -> Lag:
    """Compute a sink's lag.

    Args:
        cursor: The sink's cursor; None when it is not known.
        log_end: The end of the log; 0 when the log has not been read yet.
        oldest_undelivered_us: When the oldest undelivered change was committed, in microseconds since 1970; None when
            everything is delivered.
        now_s: The current time, in seconds since 1970.
    """
    if cursor is None or log_end == 0:
        return UNKNOWN
    if oldest_undelivered_us is None:
        return Lag(0, 0.0)
    return Lag(max(log_end - cursor, 0), max(now_s - oldest_undelivered_us / 1e6, 0.0))
