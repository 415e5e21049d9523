"""Keys of files. They depend only on the step, so that a repeated step overwrites its own files.

    <schema>.<table>/date=2024-02-29/<start of the step>-<part>-<number><suffix>      changes
    <schema>.<table>/date=2024-02-29/<snapshot>-rows-<part>-<number><suffix>          rows of a snapshot
    <schema>.<table>/date=2024-02-29/<snapshot>-changes-<part>-<number><suffix>       changes since the snapshot
    _messages/date=2024-02-29/…                                                       logical messages

The start is an LSN in 16 hexadecimal digits, as at the beginning of a snapshot's id: names sort in log order.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tailrace.delivery.contract import Part
from tailrace.log.snapshot import encoded_names
from tailrace.text import DAY_US

MESSAGES = "_messages"
"""Not a table's directory: those contain a dot."""


def directory(target: tuple[str, str]) -> str:
    return encoded_names(*target)


def day_of(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds // DAY_US * 86_400, UTC).date().isoformat()


@dataclass(frozen=True)
class FileNamePrefix:
    """The beginning of the file names of one part."""

    text: str

    @classmethod
    def of(cls, part: Part, replays: int) -> FileNamePrefix:
        """After a rewind steps have other boundaries, so their files get other names than the earlier ones."""
        replay = f"-r{replays}" if replays else ""
        if part.load is not None:
            return cls(f"{part.load.snapshot}-rows{replay}-{part.number:05d}")
        if part.step.loads:
            return cls(f"{part.step.loads[0].snapshot}-changes{replay}-{part.number:05d}")
        return cls(f"{part.step.start.lsn:016X}{replay}-{part.number:05d}")

    def key(self, directory: str, day: str, number: int, suffix: str) -> str:
        return f"{directory}/date={day}/{self.text}-{number:04d}{suffix}"


def snapshot_of(key: str) -> str | None:
    """Return the snapshot whose load wrote a file; None for other files."""
    for kind in ("-rows-", "-changes-"):
        head, found, _ = key.rpartition("/")[2].partition(kind)
        if found:
            return head
    return None
