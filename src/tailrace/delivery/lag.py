"""Lag: how far a sink is behind the log. Computed here and nowhere else.

Lag in bytes is the WAL between the sink's cursor and the end of the log, if the source's LSNs count bytes. Lag in
seconds is the age of the oldest change that is not delivered; it is as exact as a segment, which a busy source fills in
50 ms. Both are 0 when everything is delivered, and None as long as nobody knows.

The log and a cursor are enough: `LagMeter` measures in any process that reaches the store. So the lag of a sink that
hangs, or does not run, is known too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tailrace.change import Lsn
from tailrace.errors import GapError
from tailrace.log import planner
from tailrace.log.planner import BatchLimits, Offset
from tailrace.log.reader import LogReader
from tailrace.store import Store

_LSN_ZERO: Final = Lsn(0)


@dataclass(frozen=True)
class Lag:
    bytes: int | None
    seconds: float | None


UNKNOWN: Final = Lag(None, None)


@dataclass(frozen=True)
class Backlog:
    """What a log held beyond a cursor when it was measured."""

    log_end: Lsn = _LSN_ZERO
    """0 when the log has not been read yet."""
    oldest_us: int | None = None
    """When the oldest undelivered change was committed, in microseconds since 1970; None when there is none."""
    has_gap: bool = False
    """The log no longer has the oldest undelivered change: its age is not known."""
    counts_bytes: bool = True
    """The source's LSNs count bytes of WAL. SlateDB's count batches, so that a difference has no size."""
    log_begin: Lsn = _LSN_ZERO
    """Where the log begins, for a sink at 0: it has the log before it, and not all that the server ever wrote."""

    def lag(self, cursor: Lsn | None, now_s: float) -> Lag:
        """Compute a sink's lag.

        Args:
            cursor: The sink's cursor; None when it is not known.
            now_s: The current time, in seconds since 1970.
        """
        if cursor is None or self.log_end == 0:
            return UNKNOWN
        if cursor >= self.log_end:
            return Lag(0, 0.0)
        if self.has_gap:
            return Lag(self._bytes(cursor), None)
        if self.oldest_us is None:
            return Lag(0, 0.0)
        return Lag(self._bytes(cursor), max(now_s - self.oldest_us / 1e6, 0.0))

    def _bytes(self, cursor: Lsn) -> int | None:
        return max(self.log_end - max(cursor, self.log_begin), 0) if self.counts_bytes else None


class LagMeter:
    """Follows a log to its end, and measures sinks against it. Not thread-safe."""

    def __init__(self, store: Store) -> None:
        self._reader = LogReader(store)
        self._end: Offset | None = None
        self._has_wal_lsns: bool | None = None
        self._offsets: dict[str, Offset] = {}
        """By sink: its cursor as an offset of the log. To find one anew takes a listing of the log."""

    def follow(self) -> Lsn:
        """Find the end of the log, and return it. The log is listed once; after that, each new segment is requested by
        its id."""
        if self._end is None or self._end.lsn == 0:
            self._end = planner.latest_offset(self._reader)
        else:
            self._end = planner.next_batch(self._reader, self._end, planner.UNLIMITED, across_gaps=True).end
        return self._end.lsn

    def backlog(self, sink: str, cursor: Lsn | None) -> Backlog:
        """Return what the log holds beyond a sink's cursor, as of the last `follow`."""
        assert self._end is not None, "call follow() first"
        if cursor is None or self._end.lsn == 0 or cursor >= self._end.lsn:
            return Backlog(self._end.lsn)
        try:
            offset = self._offset(sink, cursor)
            batch = planner.next_batch(self._reader, offset, BatchLimits(1, 1), across_gaps=True)
        except GapError:
            return Backlog(self._end.lsn, has_gap=True, counts_bytes=self._counts_bytes())
        header = self._reader.header(batch.slices[0].segment) if batch.slices else None
        begin = (self.begin() or _LSN_ZERO) if cursor == 0 else _LSN_ZERO
        oldest_us = header.first_committed_at_us if header else None
        return Backlog(self._end.lsn, oldest_us, counts_bytes=self._counts_bytes(), log_begin=begin)

    def begin(self) -> Lsn | None:
        """Return where the log begins; None if it is empty."""
        first = self._reader.first()
        header = first.metadata() if first is not None else None
        if header is None:
            return None
        return header.end_lsn if header.first is None else header.first.commit_lsn

    def _counts_bytes(self) -> bool:
        if self._has_wal_lsns is None:
            last = self._reader.last()
            header = last.metadata() if last is not None else None
            if header is None:
                return False
            self._has_wal_lsns = header.source.has_wal_lsns
        return self._has_wal_lsns

    def _offset(self, sink: str, cursor: Lsn) -> Offset:
        known = self._offsets.get(sink)
        if known is None or known.lsn != cursor:
            known = self._advanced(known, cursor) or planner.start_offset(self._reader, cursor, across_gaps=True)
            self._offsets[sink] = known
        return known

    def _advanced(self, known: Offset | None, cursor: Lsn) -> Offset | None:
        """Return the offset that steps of the sink lead to; None if the sink was moved in another way."""
        if known is None or known.lsn > cursor:
            return None
        try:
            found = planner.advance_to(self._reader, known, cursor)
        except GapError:
            return None
        return found if found.lsn == cursor else None
