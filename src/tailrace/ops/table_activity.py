"""When each table last changed, from the end of the log. Each refresh reads a bounded part of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import numpy as np

from tailrace.change import Lsn, Position
from tailrace.log.entry import decode_changes
from tailrace.log.reader import LogReader
from tailrace.log.segment import SegmentContent

MIB: Final = 1024 * 1024
# What one refresh reads: about a second's work.
_MAX_BYTES: Final = 32 * MIB
_MAX_SEGMENTS: Final = 500


@dataclass(frozen=True)
class LastChange:
    position: Position
    committed_at: datetime


class TableActivity:
    """Remembers what it has read: a refresh reads only new segments. Not thread-safe."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._end = 0
        """The newest segment that was read."""
        self.last_changes: dict[int, LastChange] = {}
        """By the table's oid."""
        self.searched_to: datetime | None = None
        """A table that is not in `last_changes` has not changed since then. None: nothing was read yet."""

    def refresh(self) -> None:
        """Read the segments since the last refresh, from the newest back."""
        ids = [segment.id for segment in self._reader.list(self._end + 1)]
        if not ids:
            return
        found: dict[int, LastChange] = {}
        oldest: datetime | None = None
        closed = self._end
        bytes_read = 0
        is_joined = True
        is_complete = False  # what the newest segment leaves open is not committed yet
        for count, id in enumerate(reversed(ids)):
            header = self._reader.header(id)
            assert header is not None, "it was listed"
            if count >= _MAX_SEGMENTS or (bytes_read and bytes_read + header.payload_bytes > _MAX_BYTES):
                is_joined = False
                break
            visible = header.rows if is_complete else header.committed_rows
            if visible and (content := self._reader.content(id)) is not None:
                bytes_read += header.payload_bytes
                found = _last_changes(content, visible) | found
            if header.first_committed_at_us is not None:
                oldest = datetime.fromtimestamp(header.first_committed_at_us / 1e6, UTC)
            if header.ends_at_commit:
                closed = max(closed, id)
            is_complete = not header.voids_tail and (header.committed_rows > 0 or is_complete)
        # If it did not get back to what is known already, tables may have changed in between.
        self.last_changes = self.last_changes | found if is_joined else found
        if self.searched_to is None or not is_joined:
            self.searched_to = oldest
        self._end = closed


def _last_changes(content: SegmentContent, visible: int) -> dict[int, LastChange]:
    """The last change of each table among the visible rows, by oid."""
    rows = content.rows.slice(0, visible)
    found: dict[int, LastChange] = {}
    for row in np.flatnonzero(rows.kind == ord("T")).tolist():
        for change in decode_changes(content, row, row + 1):
            assert change.relation is not None, "a TRUNCATE has tables"
            found[change.relation.oid] = LastChange(change.position, change.committed_at)
    at = np.flatnonzero(np.isin(rows.kind, np.frombuffer(b"IUD", np.uint8)))[::-1]
    oids, newest = np.unique(rows.relation_id[at], return_index=True)
    for oid, row in zip(oids.tolist(), at[newest].tolist(), strict=True):
        position = Position(Lsn(rows.commit_lsn[row]), int(rows.ordinal[row]))
        if oid not in found or found[oid].position < position:
            found[oid] = LastChange(position, datetime.fromtimestamp(int(rows.commit_ts[row]) / 1e6, UTC))
    return found
