"""What a verification found: of each table and of the sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tailrace.change import Lsn
from tailrace.delivery.row_reader import DeliveredTable
from tailrace.verify.difference import Difference


@dataclass
class TableReport:
    table: str
    """At the source."""
    oid: int
    position: Lsn
    """The rows were compared as of this LSN: all transactions that commit below it."""
    rows: int = 0
    """Rows at the destination."""
    ranges: int = 0
    ranges_differing: int = 0
    ranges_unread: int = 0
    """Ranges that differ and were not looked into, because there were enough differences."""
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was not compared."""
    error: str = ""
    """Why the table could not be compared."""
    hint: str = ""
    seconds: float = 0.0
    stored: DeliveredTable | None = None
    """The table at the destination."""
    can_repair: bool = False
    """Whether the sink can correct single rows."""

    @property
    def is_complete(self) -> bool:
        """Whether everything was compared."""
        return not self.error and not self.notes

    def to_json(self, limit: int) -> dict[str, Any]:
        return {
            "table": self.table,
            "position": str(self.position),
            "rows": self.rows,
            "ranges": self.ranges,
            "ranges_differing": self.ranges_differing,
            "ranges_unread": self.ranges_unread,
            "differences": len(self.differences),
            "rows_differing": [difference.to_json() for difference in self.differences[:limit]],
            "not_compared": [*self.notes, *([self.error] if self.error else [])],
            "seconds": round(self.seconds, 3),
        }


@dataclass
class SinkReport:
    sink: str
    source_lsn: Lsn
    cursor: Lsn
    verified_at: datetime
    tables: list[TableReport]
    seconds: float = 0.0

    @property
    def differences(self) -> int:
        return sum(len(table.differences) for table in self.tables)

    @property
    def is_complete(self) -> bool:
        return all(table.is_complete for table in self.tables)

    @property
    def exit_code(self) -> int:
        """0 equal, 1 differences, 2 not everything could be compared."""
        return 1 if self.differences else 0 if self.is_complete else 2

    def to_json(self, limit: int) -> dict[str, Any]:
        return {
            "sink": self.sink,
            "source_lsn": str(self.source_lsn),
            "cursor": str(self.cursor),
            "verified_at": self.verified_at.isoformat(),
            "rows": sum(table.rows for table in self.tables),
            "differences": self.differences,
            "is_complete": self.is_complete,
            "seconds": round(self.seconds, 3),
            "tables": [table.to_json(limit) for table in self.tables],
        }


def merged(first: SinkReport, again: Sequence[TableReport]) -> list[TableReport]:
    """A report's tables, with those that were compared again in the place of the earlier ones."""
    by_oid = {table.oid: table for table in again}
    return [by_oid.get(table.oid, table) for table in first.tables]
