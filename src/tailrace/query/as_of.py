"""The position in the lake's history that `tailrace.as_of` selects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from tailrace.change import Lsn
from tailrace.errors import ConfigError
from tailrace.lake.metadata import IcebergSnapshot
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


def find_cursor(lines: Sequence[Sequence[IcebergSnapshot]], as_of: AsOf, newest: Lsn) -> tuple[Lsn, datetime | None]:
    """The last cursor published at or before `as_of` at which all tables are known, and its commit time.

    `lines` has the snapshots of each table, oldest first. Raises QueryError if the lake's history begins later.
    """
    summaries = [snapshot.summary for line in lines for snapshot in line if snapshot.summary is not None]
    ends = [s for s in summaries if s.cursor <= newest and as_of.covers(s.cursor, s.committed_at)]
    # Between such snapshots the table was at states that it no longer has.
    unknown = [gap for line in lines for gap in _gaps(line)]
    ends = [s for s in ends if not any(start <= s.cursor < end for start, end in unknown)]
    if not ends:
        known = sorted((s.cursor, s.committed_at) for s in summaries if s.committed_at is not None)
        hint = f"The history begins at {known[0][0]}, {known[0][1]:%Y-%m-%d %H:%M:%S%z}." if known else ""
        raise QueryError("22023", f"the lake has no history at or before {as_of}", hint)
    last = max(ends, key=lambda s: s.cursor)
    return last.cursor, last.committed_at


def _gaps(line: Sequence[IcebergSnapshot]) -> Iterator[tuple[Lsn, Lsn]]:
    """The cursors after a table's snapshot, and before its next one, between which others have expired."""
    for before, after in pairwise(line):
        if after.parent != before.id and before.summary is not None and after.summary is not None:
            yield Lsn(before.summary.cursor + 1), after.summary.cursor
