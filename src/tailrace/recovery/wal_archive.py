"""The archive as a reader sees it: which WAL it holds, and the bytes of each segment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

from tailrace import stored_json
from tailrace.capture.postgres.timeline import TimelineHistory
from tailrace.change import Lsn
from tailrace.errors import ConfigError, CorruptError, WrongSource
from tailrace.log import checked_json
from tailrace.recovery import compressed_object
from tailrace.recovery.wal_segment import (
    POSITION,
    PREFIX,
    SYSTEM,
    ArchiveKey,
    WalSegment,
    history_key,
)
from tailrace.store import Store

_RESTORE_COPY = "restore it from a copy of the store"
_VERSIONS: Final = {0xD110: 15, 0xD113: 16, 0xD116: 17, 0xD118: 18}
"""The server's version by the number with which each page of its WAL begins."""


@dataclass(frozen=True, slots=True)
class System:
    """`system.json`: the cluster whose WAL the archive holds."""

    system_id: str
    segment_bytes: int

    @classmethod
    def load(cls, store: Store) -> System | None:
        """The record; None before the first run of the archive."""
        data = store.get(SYSTEM)
        if data is None:
            return None
        what = "was not written by the archive"
        raw = checked_json.parse(data, f"{store.url}: {SYSTEM}", 1, not_one=what, hint=_RESTORE_COPY)
        try:
            return cls(str(raw["system_id"]), int(raw["segment_bytes"]))
        except stored_json.ERRORS as error:
            raise CorruptError(f"{store.url}: {SYSTEM} {what}", _RESTORE_COPY) from error

    def save(self, store: Store) -> None:
        """Create the record. Raises WrongSource if the store holds the WAL of another cluster."""
        if not store.create(SYSTEM, checked_json.dump({"version": 1} | asdict(self)).encode()):
            recorded = System.load(store)
            assert recorded is not None
            recorded.check(self)

    def check(self, current: System) -> None:
        if self.system_id != current.system_id:
            raise WrongSource(
                f"the archive holds the WAL of system {self.system_id}, this server is system {current.system_id}",
                "point [source] at the server that this archive belongs to, or [store] at another location",
            )
        if self.segment_bytes != current.segment_bytes:
            raise WrongSource(
                f"the archive has segments of {self.segment_bytes} bytes, this server of {current.segment_bytes}",
                "the cluster's segment size was changed: archive it in another location",
            )


@dataclass(frozen=True, slots=True)
class ArchivePosition:
    """`position.json`: how far the archive was when it last looked."""

    timeline: int
    lsn: Lsn
    at: datetime
    """The server's clock: all transactions that it had flushed by then end below `lsn`."""

    @classmethod
    def load(cls, store: Store) -> ArchivePosition | None:
        data = store.get(POSITION)
        if data is None:
            return None
        what, hint = "was not written by the archive", "remove it: the archive writes it again"
        raw = checked_json.parse(data, f"{store.url}: {POSITION}", 1, not_one=what, hint=hint)
        try:
            return cls(int(raw["timeline"]), Lsn.parse(raw["lsn"]), datetime.fromisoformat(raw["at"]))
        except stored_json.ERRORS as error:
            raise CorruptError(f"{store.url}: {POSITION} {what}", hint) from error

    def save(self, store: Store) -> None:
        raw = {"version": 1, "timeline": self.timeline, "lsn": str(self.lsn), "at": self.at.isoformat()}
        store.replace(POSITION, checked_json.dump(raw).encode())


@dataclass(frozen=True, slots=True)
class WalRange:
    """WAL of one timeline without a gap."""

    timeline: int
    start: Lsn
    end: Lsn


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """The objects that hold one segment, or its beginning."""

    segment: WalSegment
    is_complete: bool = False
    parts: Sequence[tuple[int, int]] = ()
    """Without the parts of a complete segment, which are left over."""

    @property
    def end(self) -> Lsn:
        """Where the WAL that is stored without a gap ends."""
        if self.is_complete:
            return self.segment.end
        end = 0
        for start, stop in sorted(self.parts):
            if start <= end:
                end = max(end, stop)
        return Lsn(self.segment.start + end)


@dataclass(frozen=True)
class WalArchive:
    """What the store held when it was listed."""

    store: Store
    system: System
    segments: Sequence[StoredSegment]
    """By timeline and number."""
    histories: dict[int, TimelineHistory] = field(default_factory=dict)
    leftovers: Sequence[str] = ()
    """Keys of parts whose segment is complete."""

    @classmethod
    def load(cls, store: Store) -> WalArchive | None:
        """List the archive; None if the store has none."""
        system = System.load(store)
        if system is None:
            return None
        complete: set[WalSegment] = set()
        parts: dict[WalSegment, list[tuple[int, int]]] = defaultdict(list)
        histories: dict[int, TimelineHistory] = {}
        for info in store.list(PREFIX):
            if (key := ArchiveKey.parse(info.key, system.segment_bytes)) is not None:
                if key.part is None:
                    complete.add(key.segment)
                else:
                    parts[key.segment].append(key.part)
        timelines = {segment.timeline for segment in (*complete, *parts)} - {1}
        for timeline in timelines:
            if (data := store.get(history_key(timeline))) is not None:
                histories[timeline] = TimelineHistory.parse(timeline, data.decode(errors="replace"))
        leftovers = [s.part_key(*part) for s, found in parts.items() if s in complete for part in found]
        segments = [
            StoredSegment(s, s in complete, () if s in complete else tuple(sorted(parts[s])))
            for s in sorted(complete | set(parts))
        ]
        return cls(store, system, segments, histories, leftovers)

    @classmethod
    def require(cls, store: Store) -> WalArchive:
        archive = cls.load(store)
        if archive is None or not archive.segments:
            raise ConfigError(f"{store.url} has no archive of WAL", "run `tailrace archive` first, and keep it running")
        return archive

    @property
    def last(self) -> StoredSegment | None:
        """The newest segment of the newest timeline."""
        return self.segments[-1] if self.segments else None

    def history(self, timeline: int) -> TimelineHistory:
        """Raises CorruptError if the archive has WAL of the timeline, but not where it comes from."""
        if timeline not in self.histories and timeline > 1 and self.end_of(timeline) is not None:
            raise CorruptError(
                f"{self.store.url}: {history_key(timeline)} is missing",
                "start `tailrace archive`, which writes it again, or restore it from a copy of the store",
            )
        return self.histories.get(timeline, TimelineHistory(timeline))

    def end_of(self, timeline: int) -> Lsn | None:
        """The end of the newest WAL of a timeline, whatever is missing before it; None if there is none."""
        return max((stored.end for stored in self.segments if stored.segment.timeline == timeline), default=None)

    def ranges(self) -> Iterator[WalRange]:
        """All WAL, by timeline and LSN; a range ends where something is missing."""
        current: WalRange | None = None
        for stored in self.segments:
            segment = stored.segment
            if current and (segment.timeline, segment.start) == (current.timeline, current.end):
                current = WalRange(segment.timeline, current.start, stored.end)
                continue
            if current:
                yield current
            current = WalRange(segment.timeline, segment.start, stored.end)
        if current:
            yield current

    def end_after(self, start: Lsn, history: TimelineHistory) -> Lsn | None:
        """The end of the WAL that follows `start` without a gap along a history; None if `start` itself is missing.

        A segment in which the timeline changes is taken from the newer timeline, which has a copy of its beginning.
        """
        end: Lsn | None = None
        ranges = list(self.ranges())
        position = start
        while True:
            timeline = history.timeline_at(position)
            found = next((r for r in ranges if r.timeline == timeline and r.start <= position < r.end), None)
            if found is None:
                return end
            switched = history.switch_point(timeline)
            end = found.end if switched is None else min(found.end, switched)
            if switched is None or found.end < switched:
                return end
            position = switched

    def read(self, segment: WalSegment) -> bytes | None:
        """The bytes of a segment, padded with zeros if it is incomplete; None if the archive has none of them.

        Raises CorruptError if an object is damaged or a part is missing.
        """
        for _ in range(2):  # the segment may be completed, and its parts removed, between the two reads
            content = compressed_object.read(self.store, segment.key)
            if content is not None:
                if len(content) != segment.bytes:
                    raise CorruptError(f"{self.store.url}: {segment.key} holds {len(content)} bytes", _RESTORE_COPY)
                return content
            if parts := read_parts(self.store, segment):
                return parts.ljust(segment.bytes, b"\0")
        return None

    def read_to(self, segment: WalSegment, path: Path) -> bool:
        """Write a segment to a file, as `read` returns it. Return whether the archive has any of it.

        A large segment is written piece by piece. If CorruptError is raised, the file is not to be used.
        """
        with path.open("wb") as file:
            size = compressed_object.read_to(self.store, segment.key, file.write)
        if size is None:
            content = self.read(segment)
            if content is not None:
                path.write_bytes(content)
            return content is not None
        if size != segment.bytes:
            raise CorruptError(f"{self.store.url}: {segment.key} holds {size} bytes", _RESTORE_COPY)
        return True

    def server_version(self) -> int:
        """The version of the server that wrote the WAL."""
        content = self.read(self.segments[-1].segment)
        number = int.from_bytes(content[:2], "little") if content is not None else 0
        if number not in _VERSIONS:
            raise CorruptError(
                f"{self.store.url}: {self.segments[-1].segment} does not begin as WAL of PostgreSQL 15 to 18 does",
                "a newer Tailrace may know the server's version",
            )
        return _VERSIONS[number]

    def read_history(self, timeline: int) -> bytes | None:
        return self.store.get(history_key(timeline))


@dataclass(frozen=True, slots=True)
class ArchiveEnd:
    """Where the archive ends now."""

    timeline: int
    lsn: Lsn
    parts: int
    """Objects that hold the open segment."""

    @classmethod
    def find(cls, store: Store) -> ArchiveEnd | None:
        """Look for the end, from `position.json` on, without a listing of the whole archive; None if there is none."""
        system, position = System.load(store), ArchivePosition.load(store)
        if system is None:
            return None
        if position is None:
            archive = WalArchive.load(store)
            last = archive.last if archive else None
            return None if last is None else cls(last.segment.timeline, last.end, len(last.parts))
        segment = WalSegment.at(position.timeline, position.lsn, system.segment_bytes)
        while store.head(segment.key) is not None:
            segment = segment.next
        keys = [ArchiveKey.parse(info.key, segment.bytes) for info in store.list(segment.parts_prefix)]
        parts = [key.part for key in keys if key is not None and key.part is not None]
        return cls(segment.timeline, max(StoredSegment(segment, parts=parts).end, position.lsn), len(parts))


def read_parts(store: Store, segment: WalSegment) -> bytes:
    """The beginning of a segment from its parts. Parts may overlap, with equal bytes, but leave no gap.

    Returns nothing if there are no parts, or if they are being removed because the segment is complete.
    """
    content = bytearray()
    keys = [ArchiveKey.parse(info.key, segment.bytes) for info in store.list(segment.parts_prefix)]
    for start, end in sorted(key.part for key in keys if key is not None and key.part is not None):
        where = segment.part_key(start, end)
        data = compressed_object.read(store, where)
        if data is None:
            return b""
        if len(data) != end - start or start > len(content):
            raise CorruptError(f"{store.url}: {where} does not follow the part before it", _RESTORE_COPY)
        overlap = len(content) - start
        if content[start:end] != data[:overlap]:
            raise CorruptError(f"{store.url}: {where} differs from the part before it", _RESTORE_COPY)
        content += data[overlap:]
    return bytes(content)
