"""A session with PostgreSQL: identity, publication and slot, then the replication stream.

The slot is acknowledged only up to what is durable.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final, Protocol

import psycopg
from psycopg.pq.abc import PGconn

from tailrace.capture.postgres import catalog, slot
from tailrace.capture.postgres.frame_converter import FrameConverter
from tailrace.capture.postgres.replication import ReplicationStream
from tailrace.capture.postgres.schema_recorder import SchemaRecorder
from tailrace.capture.postgres.slot_stream import StatusTimer, start_when_free
from tailrace.capture.postgres.source_connection import classify, connect, connect_replication
from tailrace.capture.postgres.source_error import source_errors
from tailrace.capture.postgres.uncaptured import UncapturedTable, has_publication, uncaptured_tables, unpublished_tables
from tailrace.capture.source import Received, SourceStatus
from tailrace.change import Lsn, Relation
from tailrace.errors import GapError, SlotLost, SourceError, TailraceError
from tailrace.log import seen_table, source_record
from tailrace.log.segment import SourceIdentity
from tailrace.log.writer import LogWriter
from tailrace.pgoutput import message
from tailrace.settings import Settings, SourceSettings
from tailrace.store import Store

_log = logging.getLogger("tailrace.capture")

# Capture sends its status to the source in each interval, whatever the store and the sinks do.
_SILENT_INTERVALS: Final = 3
_SILENT_S: Final = 30.0

Connection = psycopg.Connection[tuple[object, ...]]


class SlotSnapshots(Protocol):
    """What a session requires of the component that takes snapshots."""

    def begin(self, created: slot.CreatedSlot | None, since: Lsn) -> None:
        """Called before the stream starts; returns once the exported snapshot is no longer needed.

        `created` is the slot if it was just created. Snapshots from before `since` do not count, because the log does
        not reach back to them.
        """


class PostgresSource:
    """Fulfils `Source`."""

    def __init__(self, settings: Settings, store: Store, snapshots: SlotSnapshots | None) -> None:
        self._settings = settings
        self._store = store
        self._snapshots = snapshots
        self.schema_recorder = SchemaRecorder(settings.source, store)

    @property
    def error(self) -> TailraceError | None:
        return self.schema_recorder.error

    def close(self) -> None:
        self.schema_recorder.stop()

    @contextlib.contextmanager
    def connect(self, stopping: threading.Event) -> Iterator[PostgresSession]:
        source = self._settings.source
        replication = connect_replication(source)
        try:
            with connect(source) as connection:
                try:
                    yield PostgresSession(
                        self._settings,
                        self._store,
                        self._snapshots,
                        self.schema_recorder,
                        replication,
                        connection,
                        stopping,
                    )
                except psycopg.Error as error:
                    raise classify(error) from error
        finally:
            replication.finish()


class PostgresSession:
    """Fulfils `SourceSession`."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        snapshots: SlotSnapshots | None,
        schema_recorder: SchemaRecorder,
        replication: PGconn,
        connection: Connection,
        stopping: threading.Event,
    ) -> None:
        self._settings = settings
        self._store = store
        self._snapshots = snapshots
        self._schema_recorder = schema_recorder
        self._replication = replication
        self._connection = connection
        self._stopping = stopping
        self._slot: slot.Slot | None = None

    def identify(self) -> SourceIdentity:
        # Looked up before the log's end is: another capture may acknowledge what it adds to the log meanwhile.
        self._slot = slot.find(self._connection, self._settings.source.slot)
        return slot.identify(self._replication, self._settings.source)

    def current_lsn(self) -> Lsn:
        row = self._connection.execute("SELECT pg_catalog.pg_current_wal_lsn()").fetchone()
        assert row is not None
        return Lsn.parse(str(row[0]))

    def begin(self, writer: LogWriter, *, accept_gap: bool) -> None:
        source = self._settings.source
        if writer.last_source is not None:
            slot.check_identity(self._replication, writer.source, writer.last_source, writer.end_lsn)
        # Whoever sees the publication must know that it was not made by hand: every table that is not in it yet is new.
        with source_errors(), self._connection.transaction():
            if slot.ensure_publication(self._connection, source):
                seen_table.save(self._store, ())
        found = self._slot
        created = None
        if found is None:
            if not writer.is_empty and not accept_gap:
                raise SlotLost(
                    f"slot {source.slot} does not exist, and the log ends at {writer.end_lsn}",
                    "later changes are missing from the log. To continue with a gap and new snapshots: "
                    "tailrace capture --accept-gap",
                )
            created = slot.create(self._replication, source.slot, self._stopping.is_set)
            if created is None:
                raise SourceError("stopped while the slot was being created", "run capture again")
            _log.info("created slot %s at %s", source.slot, created.lsn)
            source_record.begin(self._store, writer, created.lsn)
        else:
            slot.check(found, writer.source.database)
            if writer.is_empty or (accept_gap and found.lsn > writer.end_lsn):
                source_record.begin(self._store, writer, found.lsn)
            elif found.lsn > writer.end_lsn:
                raise GapError(
                    f"slot {source.slot} is at {found.lsn}, but the log ends at {writer.end_lsn}: "
                    "another consumer acknowledged the changes in between",
                    "if another log has them, use that log. To continue with a gap and new snapshots: "
                    "tailrace capture --accept-gap",
                )
        if self._snapshots is not None:
            self._snapshots.begin(created, source_record.begins_at(self._store))
        self._schema_recorder.start()

    def converter(self, writer: LogWriter) -> FrameConverter:
        return FrameConverter(_Describer(self._connection), writer.end_lsn, self._schema_recorder.note)

    def stream(self, writer: LogWriter) -> PostgresStream:
        """Start replication, waiting if the server has not yet noticed that the previous connection ended."""
        source = self._settings.source
        timeout = slot.wal_sender_timeout_s(self._replication)

        def start() -> ReplicationStream:
            return ReplicationStream(self._replication, source.slot, source.publication, writer.end_lsn)

        stream = start_when_free(start, timeout, self._stopping, "capture")
        return PostgresStream(stream, min(self._settings.capture.status_interval_s, (timeout or 60.0) / 3))


class PostgresStream:
    """Fulfils `SourceStream`."""

    def __init__(self, stream: ReplicationStream, status_interval_s: float) -> None:
        self._stream = stream
        self._timer = StatusTimer(status_interval_s)

    def receive(self) -> Received:
        received = self._stream.receive()
        frames = () if received.frames is None else (received.frames,)
        return Received(frames, received.wal_end, received.wants_reply, received.keepalives)

    def acknowledge(self, received_lsn: Lsn, durable_lsn: Lsn, *, is_urgent: bool) -> bool:
        is_due, wants_reply = self._timer.is_due(is_news=is_urgent)
        if is_due:
            received = max(received_lsn, durable_lsn)
            self._stream.send_status(received, durable_lsn, durable_lsn, wants_reply=wants_reply)
        return is_due

    def wait(self, wake_fd: int, *, is_reading: bool) -> None:
        self._check_alive(is_reading)
        self._stream.wait(wake_fd, self._timer.left_s, reading=is_reading)

    def close(self, durable_lsn: Lsn, received_lsn: Lsn) -> None:
        self._stream.send_status(max(received_lsn, durable_lsn), durable_lsn, durable_lsn)
        self._stream.close()

    def _check_alive(self, is_reading: bool) -> None:
        if is_reading:
            self._timer.check_alive(self._stream.received_at)
        else:
            self._stream.received_at = time.monotonic()  # this side stopped reading, so silence is expected


class _Describer:
    """Converts RELATION and TYPE messages to relations, with details from the catalogue."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._types: dict[int, message.TypeMessage] = {}

    def __call__(self, payload: bytes) -> Relation | None:
        match message.parse(payload):
            case message.TypeMessage() as type_:
                self._types[type_.oid] = type_
                return None
            case message.RelationMessage() as relation:
                try:
                    return catalog.relation(self._connection, relation, self._types)
                except psycopg.Error as error:
                    raise classify(error) from error
            case other:
                raise AssertionError(f"not a description: {other!r}")


def slot_status(settings: Settings, store: Store) -> SourceStatus:
    """Read the slot's state, and which tables are not captured, from the source. If the source cannot be reached,
    return a status with the error."""
    name = settings.source.slot
    try:
        with connect(settings.source) as connection, source_errors():
            captured, uncaptured = _tables(connection, settings.source, store)
            status = SourceStatus(name, uncaptured=uncaptured, tables_captured=captured)
            found = slot.find(connection, name)
            if found is None:
                return replace(status, error=_missing_slot(name, store))
            try:
                slot.check(found, connection.info.dbname)
            except TailraceError as error:
                return replace(status, error=f"{error}: {error.hint}")
    except TailraceError as error:
        return SourceStatus(name, error=str(error), is_reachable=False)
    lsn = None if found.confirmed_flush_lsn is None else found.lsn
    return replace(
        status,
        is_active=found.active_pid is not None,
        silent_seconds=_silence(found, settings.capture.status_interval_s),
        wal_status=found.wal_status,
        confirmed_lsn=lsn,
        wal_held_bytes=found.wal_held_bytes,
    )


def _silence(found: slot.Slot, status_interval_s: float) -> float | None:
    """How long capture has sent no status to the source, if that is too long."""
    if found.replied_at is None:
        return None
    silent_s = time.time() - found.replied_at.timestamp()
    return silent_s if silent_s > max(_SILENT_S, _SILENT_INTERVALS * status_interval_s) else None


def _missing_slot(name: str, store: Store) -> str:
    try:
        is_lost = source_record.slot(store) == name
    except TailraceError:
        return f"slot {name} does not exist"  # the log's status says why the store cannot be read
    if is_lost:
        return (
            f"slot {name} does not exist any more: changes after the log's end are lost. `tailrace capture` says more"
        )
    return f"slot {name} does not exist yet: capture creates it"


def _tables(
    connection: psycopg.Connection[Any], source: SourceSettings, store: Store
) -> tuple[int | None, tuple[UncapturedTable, ...] | None]:
    """Return how many tables are captured, and those that are not; None for what is not known: there is no publication
    yet, or capture has not looked for tables that are left out."""
    if not has_publication(connection, source.publication):
        return None, None
    published, _ = catalog.published_oids(connection, source.publication)
    try:
        seen = seen_table.load(store)
    except TailraceError:
        seen = None  # the log's status has the error
    if seen is None:
        return len(published), None
    tables = unpublished_tables(connection, source)
    return len(published), tuple(uncaptured_tables(connection, source, tables, seen))
