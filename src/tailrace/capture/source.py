"""What capture requires of a source of changes. Each kind of source has a folder that fulfils these protocols.

A session is one connection to the source. It says who the source is, checks that the log can continue where it ends,
and streams from there. A stream hands over portions of whatever the source sends. The sealer's thread has the session's
converter turn them into rows of the log, and acknowledges what is durable.

Positions are `(commit LSN, ordinal)`. A source without LSNs uses any number that rises with each transaction and stays
the same when the source sends the transaction again. If such a number does not say where the stream continues, a batch
of rows also carries a resume token, which the log stores and only the source reads.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.change import Lsn
from tailrace.log_rows import RowBatch

if TYPE_CHECKING:
    from tailrace.capture.postgres.uncaptured import UncapturedTable
    from tailrace.errors import TailraceError
    from tailrace.finding import Finding
    from tailrace.log.segment import SourceIdentity
    from tailrace.log.writer import LogWriter
    from tailrace.settings import Settings
    from tailrace.store import Store


class Portion(Protocol):
    """A part of the stream, as the source sent it."""

    @property
    def size(self) -> int:
        """Its size in bytes."""


class Converter(Protocol):
    """Converts portions of a stream to rows of the log. Only one thread uses it."""

    def join(self, portions: Sequence[Any]) -> Any:
        """Consecutive portions as one."""

    def count(self, portion: Any) -> int:
        """The number of messages or entries in a portion, for metrics."""

    def convert(self, portion: Any) -> RowBatch:
        """The rows of a portion. Transactions that the log holds already are left out."""


@dataclass(frozen=True, slots=True)
class Received:
    """What a stream received."""

    portions: Sequence[Portion]
    sent_lsn: Lsn | None = None
    """The source has sent everything below; None if that is not known."""
    is_urgent: bool = False
    """The source waits for an acknowledgement."""
    keepalives: int = 0


class SourceStream(Protocol):
    """The changes from the log's end on."""

    def receive(self) -> Received:
        """Return what has arrived, without waiting. Raises if the stream broke or has a gap."""

    def acknowledge(self, received_lsn: Lsn, durable_lsn: Lsn, *, is_urgent: bool) -> bool:
        """Tell the source what is durable, if that is due. Return whether it was told."""

    def wait(self, wake_fd: int, *, is_reading: bool) -> None:
        """Wait until something may have arrived, something is due, or `wake_fd` is readable.

        `is_reading` says whether capture has room for more.
        """

    def close(self, durable_lsn: Lsn, received_lsn: Lsn) -> None:
        """Acknowledge for the last time, and end the stream."""


class SourceSession(Protocol):
    """One connection to the source."""

    def identify(self) -> SourceIdentity:
        """Who the source is."""

    def current_lsn(self) -> Lsn:
        """The position that everything committed so far precedes."""

    def begin(self, writer: LogWriter, *, accept_gap: bool) -> None:
        """Check that the log continues where it ends; start it if it is empty, and the snapshots that it needs.

        Raises WrongSource if this is another source, and GapError if changes were lost. With `accept_gap`, the log
        continues after the gap with new snapshots.
        """

    def converter(self, writer: LogWriter) -> Converter:
        """A converter that begins at the log's end."""

    def stream(self, writer: LogWriter) -> SourceStream:
        """Start the stream at the log's end."""


class SnapshotProgressView(Protocol):
    """How far snapshots are."""

    tables: int
    tables_done: int
    rows: int

    @property
    def estimated_rows(self) -> int | None:
        """How many rows there will be; None if nobody knows."""

    @property
    def seconds_left(self) -> float | None:
        """How long it will take; None if nobody knows."""


class Snapshots(Protocol):
    """Takes snapshots while capture streams: of each table that has none, and those that sinks request.

    A snapshot has an exact boundary: it holds all transactions below its LSN, and none from there on.
    """

    error: TailraceError | None
    """Why some table has no snapshot, if one failed."""

    @property
    def progress(self) -> SnapshotProgressView | None:
        """None until the first snapshot starts."""

    @property
    def is_running(self) -> bool:
        """Whether tables are being copied, or are about to be."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether, in time, every table has its snapshot or `error` says why not."""

    def look_now(self) -> None:
        """Look for tables without a snapshot at once."""

    def stop(self) -> None:
        """Stop. Finished snapshots are retained."""


class Source(Protocol):
    """A source that capture can connect to."""

    @property
    def error(self) -> TailraceError | None:
        """What is wrong although the stream goes on; None if nothing is."""

    def connect(self, stopping: threading.Event) -> AbstractContextManager[SourceSession]:
        """Open a session. Raises an error whose `retry` says whether another attempt may help.

        `stopping` is set once capture was asked to stop.
        """

    def close(self) -> None:
        """End what runs beside the sessions."""


@dataclass(frozen=True)
class SourceStatus:
    """What the source retains for capture, as the source reports it."""

    slot: str
    """The slot, or the name of a source without slots."""
    is_active: bool = False
    """Whether a client is streaming from the slot now."""
    wal_status: str | None = None
    confirmed_lsn: Lsn | None = None
    wal_held_bytes: int | None = None
    """WAL that the source retains because of the slot. This is the one value to watch on the source."""
    error: str | None = None
    """Why other fields are unknown: the source cannot be asked, or has no slot that capture could use."""
    is_reachable: bool = True
    """Whether the source could be asked."""
    kind: str = "postgresql"
    oldest_wal_age_s: float | None = None
    """The age of the oldest WAL file that a source without slots still has. Capture must never lag as much."""
    unread_age_s: float | None = None
    """The age of the oldest WAL file that capture has not read; 0 if it has read all."""
    uncaptured: tuple[UncapturedTable, ...] | None = None
    """Tables that `source.tables` matches and that are not captured; None if that is not known."""
    tables_captured: int | None = None
    """The tables in the publication; None if that is not known."""
    silent_seconds: float | None = None
    """How long the client that streams from the slot has sent no status, if that is too long: its process hangs."""

    @property
    def has_no_reader(self) -> bool:
        """Whether it is known that nobody streams from the slot: capture does not run."""
        return self.kind == "postgresql" and self.error is None and not self.is_active

    @property
    def is_losing_wal(self) -> bool:
        """Whether the source is about to remove WAL that capture has not read."""
        return self.wal_status == "unreserved"

    def to_json(self) -> dict[str, Any]:
        raw = asdict(self) | {"confirmed_lsn": None if self.confirmed_lsn is None else str(self.confirmed_lsn)}
        tables = None if self.uncaptured is None else [table.to_json() for table in self.uncaptured]
        return raw | {"uncaptured": tables}


def open_snapshots(settings: Settings, store: Store) -> Snapshots:
    """What takes snapshots of the source that the settings name."""
    if settings.slatedb is not None:
        from tailrace.capture.slatedb.bootstrap import SlateDbBootstrap

        return SlateDbBootstrap(settings, store)
    from tailrace.capture.postgres.bootstrap import Bootstrap

    return Bootstrap(settings, store)


def open_source(settings: Settings, store: Store, snapshots: Any | None) -> Source:
    """The source that the settings name. `snapshots` is what `open_snapshots` returned; None to take none."""
    if settings.slatedb is not None:
        from tailrace.capture.slatedb.session import SlateDbSource

        return SlateDbSource(settings, store, snapshots)
    from tailrace.capture.postgres.session import PostgresSource

    return PostgresSource(settings, store, snapshots)


def inspect_source(settings: Settings) -> list[Finding]:
    """All findings about the source, the most severe first. Raises only if the source cannot be queried at all."""
    if settings.slatedb is not None:
        from tailrace.capture.slatedb.check import inspect_slatedb

        return inspect_slatedb(settings)
    from tailrace.capture.postgres.check import inspect

    return inspect(settings.source)


def source_status(settings: Settings, store: Store) -> SourceStatus:
    """What the source retains. If it cannot be reached, a status with the error."""
    if settings.slatedb is not None:
        from tailrace.capture.slatedb.check import slatedb_status

        return slatedb_status(settings, store)
    from tailrace.capture.postgres.session import slot_status

    return slot_status(settings, store)
