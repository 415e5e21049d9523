"""How long changes have waited for a sink that neither delivers nor fails. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable


class StallMeter:
    """Observes one sink's progress every few seconds. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._progress: Hashable = None
        self._since = clock()

    def observe(self, progress: Hashable, *, is_waiting: bool) -> float | None:
        """Return for how many seconds nothing has moved; None if nothing has to move.

        Args:
            progress: Anything that differs as soon as the sink has done something.
            is_waiting: Whether there is something to do.
        """
        now = self._clock()
        if not is_waiting or progress != self._progress:
            self._progress, self._since = progress, now
        return now - self._since if is_waiting else None
