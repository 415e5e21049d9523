"""How rows get from `stage` to `commit`: few in the receipt, many in a staging table of the destination."""

from __future__ import annotations

import hashlib
from typing import Final, Protocol

from tailrace.delivery.contract import Step
from tailrace.sinks.database.staged_rows import RowBatch, StagedRows

INLINE_BYTES = 1024 * 1024
"""Text that one part may return in its receipt, so that it passes through Spark's driver without harm."""
_ONLY_PART_FACTOR: Final = 16
"""A step's only part may return so many times as much: it stays in the process, and staging would write it twice."""


class RowWriter(Protocol):
    """Writes rows for one table in the destination's format."""

    def encode(self, batch: RowBatch) -> StagedRows:
        """Return the rows as text, for a receipt."""

    def stage(self, batch: RowBatch) -> StagedRows:
        """Write the rows to a new staging table."""


class StagingArea:
    """Where one attempt at one part puts its rows."""

    def __init__(self, step: Step) -> None:
        self._remaining_bytes = INLINE_BYTES * (_ONLY_PART_FACTOR if step.parts == 1 and not step.loads else 1)

    def put(self, batch: RowBatch, writer: RowWriter) -> StagedRows:
        """Stage rows. They are written to the destination only if they are many."""
        if sum(array.nbytes for array in batch.arrays) <= self._remaining_bytes:
            rows = writer.encode(batch)
            size = len(rows.lines or b"")
            if size <= self._remaining_bytes:
                self._remaining_bytes -= size
                return rows
        return writer.stage(batch)


def prefix(sink: str) -> str:
    """The prefix of the names of a sink's staging tables."""
    return f"staged_{hashlib.sha256(sink.encode()).hexdigest()[:12]}_"
