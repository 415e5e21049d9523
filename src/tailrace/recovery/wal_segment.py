"""The names of WAL segments and of the archive's objects. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from tailrace.change import Lsn

PREFIX: Final = "wal"
SYSTEM: Final = f"{PREFIX}/system.json"
POSITION: Final = f"{PREFIX}/position.json"

_NAME = re.compile(r"([0-9A-F]{8})([0-9A-F]{8})([0-9A-F]{8})")
_KEY = re.compile(rf"{PREFIX}/([0-9A-F]{{8}})/([0-9A-F]{{24}})(?:\.zst|\.d/([0-9A-F]{{8}})-([0-9A-F]{{8}})\.zst)")


@dataclass(frozen=True, order=True, slots=True)
class WalSegment:
    """One segment of one timeline. `bytes` is its size, which the server's cluster was created with."""

    timeline: int
    number: int
    bytes: int

    @classmethod
    def at(cls, timeline: int, lsn: Lsn, bytes: int) -> WalSegment:
        """The segment that holds the byte at `lsn`."""
        return cls(timeline, lsn // bytes, bytes)

    @classmethod
    def parse(cls, name: str, bytes: int) -> WalSegment | None:
        """Parse a segment's file name; None if it is not one."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        timeline, high, low = (int(text, 16) for text in match.groups())
        return cls(timeline, high * (0x1_0000_0000 // bytes) + low, bytes)

    @property
    def start(self) -> Lsn:
        return Lsn(self.number * self.bytes)

    @property
    def end(self) -> Lsn:
        return Lsn((self.number + 1) * self.bytes)

    @property
    def next(self) -> WalSegment:
        return WalSegment(self.timeline, self.number + 1, self.bytes)

    @property
    def name(self) -> str:
        """The file's name in pg_wal."""
        high, low = divmod(self.number, 0x1_0000_0000 // self.bytes)
        return f"{self.timeline:08X}{high:08X}{low:08X}"

    @property
    def key(self) -> str:
        """The object that holds the whole segment."""
        return f"{timeline_prefix(self.timeline)}/{self.name}.zst"

    @property
    def parts_prefix(self) -> str:
        return f"{timeline_prefix(self.timeline)}/{self.name}.d"

    def part_key(self, start: int, end: int) -> str:
        """The object that holds the bytes from offset `start` to offset `end` while the segment is incomplete."""
        return f"{self.parts_prefix}/{start:08X}-{end:08X}.zst"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, order=True, slots=True)
class ArchiveKey:
    """What the key of an archive's object says."""

    segment: WalSegment
    part: tuple[int, int] | None
    """The first offset and the end; None for a whole segment."""

    @classmethod
    def parse(cls, key: str, bytes: int) -> ArchiveKey | None:
        match = _KEY.fullmatch(key)
        segment = WalSegment.parse(match[2], bytes) if match else None
        if match is None or segment is None or int(match[1], 16) != segment.timeline:
            return None
        return cls(segment, (int(match[3], 16), int(match[4], 16)) if match[3] else None)


def timeline_prefix(timeline: int) -> str:
    return f"{PREFIX}/{timeline:08X}"


def history_key(timeline: int) -> str:
    return f"{PREFIX}/{timeline:08X}.history"
