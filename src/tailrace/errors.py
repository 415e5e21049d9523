"""Every error Tailrace raises, and what to do about each.

    TailraceError
    ├── ConfigError        settings or arguments are wrong
    ├── SourceError        the source cannot be reached, or broke off           (retry helps)
    ├── SourceRefused      the source answered, and says no: authentication, privileges, wal_level
    ├── SlotLost           the slot is gone, or its WAL is
    ├── GapError           the slot is ahead of the log: changes between them were never captured
    ├── WrongSource        another system, timeline or database than the log was made from
    ├── StoreError         the object store cannot be reached, or broke off     (retry helps)
    ├── StoreRefused       the object store says no: permissions, no such bucket, disk full
    ├── FencedError        another capture writes this log
    ├── CorruptError       bytes in the store are not what was written
    ├── DecodeError        a message or value that does not follow PostgreSQL's format
    ├── SnapshotError      a snapshot could not be made
    ├── SparkError         Spark or its Java cannot be started, or broke off
    ├── SinkError          a destination cannot be reached, or broke off        (retry helps)
    ├── SinkRefused        a destination answered, and says no: authentication, privileges, no such database
    ├── SinkDiverged       a destination does not hold what was delivered to it: somebody else wrote there
    ├── PoisonError        a change that its destination can never take
    └── RevertError        a change cannot be taken back

A class exists only where a caller acts differently. `retry` says whether trying again can help without anyone doing
anything; `hint` says what the operator should do. Messages name table, position and operation, never row values.
"""

from __future__ import annotations


class TailraceError(Exception):
    """Root of all errors; `str()` is the message, `hint` the remedy."""

    retry = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class ConfigError(TailraceError):
    pass


class SourceError(TailraceError):
    retry = True


class SourceRefused(TailraceError):
    pass


class SlotLost(TailraceError):
    pass


class GapError(TailraceError):
    pass


class WrongSource(TailraceError):
    pass


class StoreError(TailraceError):
    retry = True


class StoreRefused(TailraceError):
    pass


class FencedError(TailraceError):
    pass


class CorruptError(TailraceError):
    pass


class DecodeError(TailraceError):
    pass


class SnapshotError(TailraceError):
    pass


class SparkError(TailraceError):
    pass


class SinkError(TailraceError):
    retry = True


class SinkRefused(TailraceError):
    pass


class SinkDiverged(TailraceError):
    pass


class PoisonError(TailraceError):
    """`positions` names the changes, as texts: `0/1A2B3C4:17`."""

    def __init__(self, message: str, hint: str = "", positions: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint)
        self.args = (message, hint, positions)
        self.positions = positions


class RevertError(TailraceError):
    pass
