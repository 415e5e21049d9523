"""How long changes take to a destination: from their commit at the source, and from the sealing of their segment."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from tailrace.errors import TailraceError
from tailrace.log import segment
from tailrace.log.reader import LogReader

if TYPE_CHECKING:
    from tailrace.delivery.step import PlannedStep

_SEAL_SAMPLE_S: Final = 1.0
"""When a segment was sealed is asked of the store, at most once in this time: a request for each step would cost more
than it tells."""


class LatencyMeter:
    """Of the oldest change in the last step. None if no step has delivered changes since the process started."""

    def __init__(self, reader: LogReader) -> None:
        self.commit_s: float | None = None
        """From the commit, by the source's clock."""
        self.seal_s: float | None = None
        """Since the store got the segment, by the store's clock, which in S3 counts seconds. None also if the segment
        was merged meanwhile: then nobody knows when it was sealed."""
        self._reader = reader
        self._asked_at = 0.0

    def measure(self, planned: PlannedStep) -> None:
        """A step has just become durable."""
        if planned.is_load or planned.step.replays or planned.step.repair:
            return  # these do not follow the log
        try:
            self._measure(planned)
        except TailraceError:
            self.commit_s = self.seal_s = None  # the step is durable, whatever the store says now

    def _measure(self, planned: PlannedStep) -> None:
        first = next((s.segment for task in planned.tasks for s in task.slices[:1]), None)
        header = self._reader.header(first) if first is not None else None
        if header is None or header.first_committed_at_us is None:
            return
        now = time.time()
        self.commit_s = max(now - header.first_committed_at_us / 1e6, 0.0)
        if time.monotonic() - self._asked_at >= _SEAL_SAMPLE_S:
            self._asked_at = time.monotonic()
            sealed = self._reader.store.head(segment.key(header.id))
            self.seal_s = None if sealed is None else max(now - sealed.modified_at.timestamp(), 0.0)
