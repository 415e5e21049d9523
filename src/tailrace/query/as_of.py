"""The position in the lake's history that `tailrace.as_of` selects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from tailrace.change import Lsn
from tailrace.errors import ConfigError
from tailrace.lake.point import SnapshotSummary
from tailrace.log.timestamp import parse_timestamp
from tailrace.query.query_error import QueryError


@dataclass(frozen=True)
class AsOf:
    """An LSN or a time: transactions committed at or before it are visible."""

    lsn: Lsn | None = None
    time: datetime | None = None

    @classmethod
    def parse(cls, text: str) -> AsOf:
        try:
            if "/" in text and ":" not in text:
                return cls(lsn=Lsn.parse(text.strip()))
            time = parse_timestamp(text.strip())
        except (ValueError, ConfigError):
            raise QueryError(
                "22023",
                f'invalid value for parameter "tailrace.as_of": "{text}"',
                "Give a time such as 2026-11-15 12:00 (UTC unless it names a zone) or an LSN such as 0/1A2B3C4.",
            ) from None
        return cls(time=time)

    def covers(self, cursor: Lsn, committed_at: datetime | None) -> bool:
        """Whether everything below that cursor is visible."""
        if self.lsn is not None:
            return cursor <= self.lsn + 1
        assert self.time is not None
        return committed_at is not None and committed_at <= self.time

    def __str__(self) -> str:
        return str(self.lsn) if self.lsn is not None else f"{self.time:%Y-%m-%d %H:%M:%S%z}"


def find_cursor(summaries: Sequence[SnapshotSummary], as_of: AsOf, newest: Lsn) -> tuple[Lsn, datetime | None]:
    """The last cursor published at or before `as_of`, and its commit time.

    Raises QueryError if the lake's history begins later.
    """
    ends = [s for s in summaries if s.cursor <= newest and as_of.covers(s.cursor, s.committed_at)]
    if not ends:
        known = sorted((s.cursor, s.committed_at) for s in summaries if s.committed_at is not None)
        hint = f"The history begins at {known[0][0]}, {known[0][1]:%Y-%m-%d %H:%M:%S%z}." if known else ""
        raise QueryError("22023", f"the lake has no history at or before {as_of}", hint)
    last = max(ends, key=lambda s: s.cursor)
    return last.cursor, last.committed_at
