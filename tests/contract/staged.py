"""The PostgreSQL sink with every row staged at the destination, however few they are, in whatever process."""

from __future__ import annotations

from unittest.mock import patch

from tailrace.sinks.base import Part, Receipt
from tailrace.sinks.database import staging
from tailrace.sinks.postgres import PostgresSink


class StagedSink(PostgresSink):
    def stage(self, part: Part) -> Receipt:
        with patch.object(staging, "INLINE_BYTES", -1):
            return super().stage(part)
