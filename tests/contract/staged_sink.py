"""Sinks that keep tables, which here stage even the smallest parts at the destination, in any process."""

from __future__ import annotations

from unittest.mock import patch

from tailrace.delivery.contract import Part, Receipt
from tailrace.sinks.database import staging
from tailrace.sinks.mysql import MysqlSink
from tailrace.sinks.postgres import PostgresSink


class StagedSink(PostgresSink):
    def stage(self, part: Part) -> Receipt:
        with patch.object(staging, "INLINE_BYTES", -1):
            return super().stage(part)


class StagedMysqlSink(MysqlSink):
    def stage(self, part: Part) -> Receipt:
        with patch.object(staging, "INLINE_BYTES", -1):
            return super().stage(part)
