"""A cached value that is expensive to compute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class BackgroundCache(Generic[T]):
    """Computes a value at most once per interval, in a background thread.

    A caller waits a limited time for the new value, then gets the previous one. The computation continues.
    """

    def __init__(
        self,
        compute: Callable[[], T],
        interval_s: float,
        timeout_s: float = 2.0,
        max_age_s: float = float("inf"),
    ) -> None:
        """`compute` runs at most once every `interval_s` seconds; `get` waits for it for at most `timeout_s`. A value
        that is older than `max_age_s` counts for nothing: the computation hangs."""
        self._compute = compute
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._started_at = float("-inf")
        self._max_age_s = max_age_s
        self._value: T | None = None
        self._computed_at = float("-inf")

    def get(self) -> T | None:
        """Return the newest value; None before the first one, and when it is too old."""
        with self._lock:
            thread = self._thread
            if (thread is None or not thread.is_alive()) and time.monotonic() - self._started_at > self._interval_s:
                thread = self._thread = threading.Thread(target=self._refresh, name="cache refresh", daemon=True)
                self._started_at = time.monotonic()
                thread.start()
        if thread is not None:
            thread.join(self._timeout_s)
        return self._value if time.monotonic() - self._computed_at <= self._max_age_s else None

    def _refresh(self) -> None:
        self._value = self._compute()
        self._computed_at = time.monotonic()
