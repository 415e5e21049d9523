"""Delays between attempts stay bounded, however often an attempt fails."""

from __future__ import annotations

from tailrace.retry import Backoff


def test_a_destination_may_be_down_for_days() -> None:
    backoff = Backoff()
    delays = [backoff.next() for _ in range(20_000)]
    assert all(0.1 <= seconds <= 30 for seconds in delays)
    assert all(seconds >= 15 for seconds in delays[10:])
