"""Where a file stands: a name that follows from the step alone, so that a repetition overwrites itself.

    <schema>.<table>/date=2024-02-29/<start of the step>-<part>-<number><suffix>      changes
    <schema>.<table>/date=2024-02-29/<snapshot>-rows-<part>-<number><suffix>          rows of a snapshot
    <schema>.<table>/date=2024-02-29/<snapshot>-changes-<part>-<number><suffix>       what happened since it was taken
    _messages/date=2024-02-29/…                                                       logical messages

The start is an LSN in 16 hexadecimal digits, and so begins a snapshot's id: names sort as the log does.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from tailrace.log.snapshot import encoded_names
from tailrace.sinks.base import Part
from tailrace.text import DAY_US

MESSAGES = "_messages"
"""No table's directory: those have a dot."""


def directory(target: tuple[str, str]) -> str:
    return encoded_names(*target)


def day_of(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds // DAY_US * 86_400, UTC).date().isoformat()


@dataclass(frozen=True)
class Stem:
    """What the names of one part's files begin with."""

    text: str

    @classmethod
    def of(cls, part: Part, replays: int) -> Stem:
        """After a rewind steps begin and end elsewhere: their files stand beside the earlier ones."""
        again = f"-r{replays}" if replays else ""
        if part.load is not None:
            return cls(f"{part.load.snapshot}-rows{again}-{part.number:05d}")
        if part.step.loads:
            return cls(f"{part.step.loads[0].snapshot}-changes{again}-{part.number:05d}")
        return cls(f"{part.step.start.lsn:016X}{again}-{part.number:05d}")

    def key(self, directory: str, day: str, number: int, suffix: str) -> str:
        return f"{directory}/date={day}/{self.text}-{number:04d}{suffix}"


def snapshot_of(key: str) -> str | None:
    """The snapshot whose load wrote a file."""
    for kind in ("-rows-", "-changes-"):
        head, found, _ = key.rpartition("/")[2].partition(kind)
        if found:
            return head
    return None
