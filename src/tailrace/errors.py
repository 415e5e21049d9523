"""All errors that Tailrace raises, and what to do about each.

    TailraceError
    ├── ConfigError        settings or arguments are wrong
    ├── SourceError        the source is unreachable, or the connection broke        (retry helps)
    ├── SourceRefused      the source rejected a request: authentication, privileges, wal_level
    ├── SlotLost           the slot was dropped, or its WAL was removed
    ├── GapError           the slot is ahead of the log: the changes between them were never captured
    ├── WrongSource        another system, timeline or database than the log was captured from
    ├── StoreError         the object store is unreachable, or the connection broke  (retry helps)
    ├── StoreRefused       the object store rejected a request: permissions, no such bucket, disk full
    ├── FencedError        another capture writes this log
    ├── CorruptError       bytes in the store differ from what was written
    ├── DecodeError        a message or value does not follow PostgreSQL's format, or a WAL file SlateDB's
    ├── SnapshotError      a snapshot could not be taken
    ├── SparkError         Spark or its Java cannot be started, or failed
    ├── SinkError          a destination is unreachable, or the connection broke     (retry helps)
    ├── SinkRefused        a destination rejected a request: authentication, privileges, no such database
    ├── SinkPaused         a destination wants no more changes: the sink pauses until an operator resumes it
    ├── SinkDiverged       a destination does not hold what was delivered: somebody else wrote to it
    ├── PoisonError        the destination can never accept this change
    └── RevertError        a change cannot be reverted

A class exists only where a caller acts differently. `retry` says whether retrying can help without anybody stepping
in; `hint` says what the operator should do. Messages name table, position and operation, never row values.
"""

from __future__ import annotations


class TailraceError(Exception):
    """The root of all errors. `str()` gives the message, `hint` the remedy."""

    retry = False

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message

    @property
    def with_hint(self) -> str:
        """The message and the remedy on one line, for logs."""
        return sentences(self.message, self.hint)


def sentences(message: str, hint: str) -> str:
    """Join a message and its hint."""
    return f"{message.removesuffix('.')}. {hint[0].upper()}{hint[1:]}" if hint else message


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


class SinkPaused(TailraceError):
    pass


class SinkDiverged(TailraceError):
    pass


class PoisonError(TailraceError):
    """`positions` names the changes as strings: `0/1A2B3C4:17`."""

    def __init__(self, message: str, hint: str = "", positions: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint)
        self.args = (message, hint, positions)
        self.positions = positions


class RevertError(TailraceError):
    pass
