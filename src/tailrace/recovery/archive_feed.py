"""Reads the archive forward as it grows: the WAL of one timeline from an LSN on, to its end or to a promotion.

What is not there yet is told from what is missing. The archive writes its objects in order, so an object that is
absent although a later one exists, or although `position.json` is past it, was lost. That raises CorruptError, and is
never taken for the end of the WAL.
"""

from __future__ import annotations

import time
from typing import Final

from tailrace.capture.postgres.timeline import TimelineHistory
from tailrace.change import Lsn
from tailrace.errors import CorruptError, WrongSource
from tailrace.recovery import compressed_object
from tailrace.recovery.wal_archive import ArchivePosition, System
from tailrace.recovery.wal_segment import ArchiveKey, WalSegment, history_key
from tailrace.store import Store

# How often, while nothing arrives, a promotion and missing objects are looked for. Each time takes a few requests.
_LOOK_AROUND_SECONDS: Final = 1.0
_RESTORE_COPY: Final = "restore the object from a copy of the store, or make the standby again from a newer backup"


class ArchiveFeed:
    """WAL of one timeline from `start` on."""

    def __init__(self, store: Store, system: System, timeline: int, start: Lsn) -> None:
        self._store = store
        self._segment = WalSegment.at(timeline, start, system.segment_bytes)
        self._content = bytearray()
        self._looked_at = float("-inf")
        self.timeline = timeline
        self.position = start
        """All WAL before it was read."""
        self.end: Lsn | None = None
        """Where a newer timeline branched off, once it is known."""
        self.next_timeline: int | None = None

    @property
    def has_ended(self) -> bool:
        """Whether all of the timeline was read, and the WAL continues on `next_timeline`."""
        return self.end is not None and self.position >= self.end

    def read(self) -> bytes:
        """The WAL that follows; nothing if there is none yet. Raises CorruptError if some is missing or damaged."""
        found = self._read()
        if not found and not self.has_ended and time.monotonic() - self._looked_at >= _LOOK_AROUND_SECONDS:
            self._looked_at = time.monotonic()
            self._look_for_promotion()
            if self._is_past_position():
                found = self._read()  # what was written before that must be there by now
                if not found and not self.has_ended:
                    raise CorruptError(
                        f"{self._store.url}: the archive has later WAL, but segment {self._segment} lacks the bytes "
                        f"from {self.position} on",
                        _RESTORE_COPY,
                    )
        return found

    def _read(self) -> bytes:
        if self.position >= self._segment.end:
            self._segment = self._segment.next
            self._content = bytearray()
        start = self.position - self._segment.start
        if len(self._content) <= start:
            self._extend()
        stop = len(self._content)
        if self.end is not None:
            stop = min(stop, self.end - self._segment.start)
        if stop <= start:
            return b""
        self.position = Lsn(self._segment.start + stop)
        return bytes(memoryview(self._content)[start:stop])

    def _extend(self) -> None:
        """Read what the store has of the segment beyond what is known.

        The whole segment is created before its parts are removed. So whatever disappears between two requests, the
        last one finds it.
        """
        if not self._content and self._take_whole():
            return
        before = len(self._content)
        missing = self._take_parts()
        if (missing or len(self._content) == before) and not self._take_whole() and missing:
            raise CorruptError(f"{self._store.url}: {missing} does not follow the part before it", _RESTORE_COPY)

    def _take_whole(self) -> bool:
        content = compressed_object.read(self._store, self._segment.key)
        if content is None:
            return False
        if len(content) != self._segment.bytes:
            raise CorruptError(f"{self._store.url}: {self._segment.key} holds {len(content)} bytes", _RESTORE_COPY)
        if not content.startswith(self._content):
            raise CorruptError(f"{self._store.url}: {self._segment.key} differs from its parts", _RESTORE_COPY)
        self._content = bytearray(content)
        return True

    def _take_parts(self) -> str | None:
        """Append the parts that follow. Return the key of one that cannot be read or leaves a gap, if there is one."""
        keys = [
            ArchiveKey.parse(info.key, self._segment.bytes) for info in self._store.list(self._segment.parts_prefix)
        ]
        for start, end in sorted(key.part for key in keys if key is not None and key.part is not None):
            if end <= len(self._content):
                continue
            where = self._segment.part_key(start, end)
            data = compressed_object.read(self._store, where) if start <= len(self._content) else None
            if data is None:
                return where
            overlap = len(self._content) - start
            if len(data) != end - start or self._content[start:] != data[:overlap]:
                raise CorruptError(f"{self._store.url}: {where} differs from the part before it", _RESTORE_COPY)
            self._content += data[overlap:]
        return None

    def _look_for_promotion(self) -> None:
        position = ArchivePosition.load(self._store)
        candidates = {self.timeline + 1} | ({position.timeline} if position else set())
        for timeline in sorted(candidates, reverse=True):
            text = self._store.get(history_key(timeline)) if timeline > self.timeline else None
            if text is not None:
                self.follow(TimelineHistory.parse(timeline, text.decode(errors="replace")))
                return

    def follow(self, history: TimelineHistory) -> None:
        """Note that the timeline was left, as a newer timeline's history says."""
        switched = history.switch_point(self.timeline)
        if switched is None:
            raise WrongSource(
                f"timeline {history.timeline} does not descend from timeline {self.timeline}",
                "make the standby again, from a backup of the newer timeline",
            )
        if self.position > switched:
            raise WrongSource(
                f"timeline {history.timeline} branched off timeline {self.timeline} at {switched}, but this standby "
                f"has WAL up to {self.position}",
                "the new primary lost transactions that this standby has. Promote it to keep them, or make it again",
            )
        self.end, self.next_timeline = switched, history.timeline_at(switched)

    def _is_past_position(self) -> bool:
        """Whether the archive is known to have WAL beyond `position` on this timeline."""
        recorded = ArchivePosition.load(self._store)
        if recorded is not None and recorded.timeline == self.timeline and recorded.lsn > self.position:
            return True
        if recorded is not None and recorded.timeline > self.timeline and self.end is not None:
            return recorded.lsn >= self.end  # the archive finishes a timeline before it begins the next one
        following = WalSegment.at(self.timeline, self.position, self._segment.bytes).next
        if self.end is not None and following.start >= self.end:
            return False
        has_parts = next(self._store.list(following.parts_prefix), None) is not None
        return has_parts or self._store.head(following.key) is not None
