"""The history of a timeline: the timelines that it descends from, and where each was left."""

from __future__ import annotations

import re
from dataclasses import dataclass

from psycopg.pq.abc import PGconn

from tailrace.capture.postgres.source_connection import run_command, text_value
from tailrace.change import Lsn


@dataclass(frozen=True, slots=True)
class TimelineHistory:
    timeline: int
    switches: tuple[tuple[int, Lsn], ...] = ()
    """Each earlier timeline with the LSN at which the next one branched off, the oldest first."""

    @classmethod
    def parse(cls, timeline: int, text: str) -> TimelineHistory:
        """Parse the content of a `.history` file."""
        lines = (re.match(r"\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", line) for line in text.splitlines())
        return cls(timeline, tuple((int(line[1]), Lsn.parse(line[2])) for line in lines if line))

    def switch_point(self, left: int) -> Lsn | None:
        """The LSN at which this history left timeline `left`; None if it never was on it."""
        return next((lsn for timeline, lsn in self.switches if timeline == left), None)

    def timeline_at(self, lsn: Lsn) -> int:
        """The timeline on which this history has the byte at `lsn`."""
        return next((timeline for timeline, switched in self.switches if lsn < switched), self.timeline)


def read_history(connection: PGconn, timeline: int) -> TimelineHistory:
    """Read a timeline's history from the server. The first timeline has none."""
    return TimelineHistory.parse(timeline, read_history_text(connection, timeline))


def read_history_text(connection: PGconn, timeline: int) -> str:
    return "" if timeline == 1 else text_value(run_command(connection, f"TIMELINE_HISTORY {timeline}"), 1)
