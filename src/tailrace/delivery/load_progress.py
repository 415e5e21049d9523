"""How far the loads of a sink are: rows that its tasks have read, of the rows in the snapshots. No I/O."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class LoadProgress:
    rows: int
    total_rows: int
    seconds_left: float | None
    """Estimated from the rate so far; None if there is none yet, or only the commit is left, whose time is unknown."""


class LoadMeter:
    """Counts the rows of one sink's loads, from the first table to the last. Thread-safe: tasks report to it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._started_at: float | None = None
        self._committed = 0
        self._step_rows = 0
        self._total = 0
        self._parts: dict[Hashable, int] = {}

    def begin(self, step_rows: int, rows_left: int) -> None:
        """A step is planned that loads `step_rows` rows, of `rows_left` rows that are not loaded yet."""
        with self._lock:
            if self._started_at is None:
                self._started_at, self._committed = self._clock(), 0
            self._step_rows, self._total, self._parts = step_rows, self._committed + rows_left, {}

    def report(self, part: Hashable, rows: int) -> None:
        """A task has read so many rows of a part. A repeated task starts again at 0."""
        with self._lock:
            if self._started_at is not None:
                self._parts[part] = rows

    def commit(self) -> None:
        """The planned step is durable."""
        with self._lock:
            self._committed += self._step_rows
            self._step_rows, self._parts = 0, {}
            if self._committed >= self._total:
                self._started_at = None

    def end(self) -> None:
        """There is nothing left to load."""
        with self._lock:
            self._started_at = None

    @property
    def progress(self) -> LoadProgress | None:
        """None if nothing is being loaded."""
        with self._lock:
            if self._started_at is None:
                return None
            rows = self._committed + min(sum(self._parts.values()), self._step_rows)
            left = self._total - rows
            seconds_left = left * (self._clock() - self._started_at) / rows if rows and left else None
            return LoadProgress(rows, self._total, seconds_left)
