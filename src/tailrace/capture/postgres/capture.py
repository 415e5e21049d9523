"""Capture: writes the replication stream to the log until it is stopped.

One loop owns the connection and never waits for the store; the sealer's thread owns the log. The slot is acknowledged
only up to what is durable. Capture recovers from temporary failures: the stream restarts after the log's last commit,
and changes that the server sends twice are dropped by position.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol

import psycopg
from psycopg.pq.abc import PGconn

from tailrace.capture.postgres import catalog, slot
from tailrace.capture.postgres.reconnection import StatusTimer, WakePipe, run_until_stopped, start_when_free
from tailrace.capture.postgres.replication import ReplicationStream
from tailrace.capture.postgres.schema_recorder import SchemaRecorder
from tailrace.capture.postgres.sealer import CaptureProgress, Sealer
from tailrace.capture.postgres.source_connection import classify, connect, connect_replication
from tailrace.change import Lsn, Relation
from tailrace.errors import GapError, SlotLost, SourceError, TailraceError
from tailrace.log import seen_table, source_record
from tailrace.log.writer import LogWriter
from tailrace.pgoutput import message
from tailrace.settings import Settings
from tailrace.store import Store

_log = logging.getLogger("tailrace.capture")


class Snapshots(Protocol):
    """What capture requires of the component that takes snapshots."""

    def begin(self, created: slot.CreatedSlot | None, since: Lsn) -> None:
        """Called before the stream starts; returns once the exported snapshot is no longer needed.

        `created` is the slot if it was just created. Snapshots from before `since` do not count, because the log does
        not reach back to them.
        """


class Capture:
    """Captures one source into one log.

    `until` ends the capture once that LSN is durable; "current" means the source's position at the start. `accept_gap`
    continues a log after a gap. `snapshots` takes snapshots while capture streams.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        until: Lsn | str | None = None,
        accept_gap: bool = False,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.started_at = datetime.now(UTC)
        self.progress = CaptureProgress()
        self.reconnections = 0
        self.received_lsn = Lsn(0)
        self.durable_lsn = Lsn(0)
        self.is_streaming = False
        self.last_error: TailraceError | None = None
        """Why capture does not stream, while it waits to reconnect."""
        self.sealer: Sealer | None = None
        self._settings = settings
        self._store = store
        self._until = until if isinstance(until, Lsn) else None
        self._until_current = until == "current"
        self._accept_gap = accept_gap
        self._snapshots = snapshots
        self.schema_recorder = SchemaRecorder(settings.source, store)
        self._status_interval = settings.capture.status_interval_s
        self._stopping = threading.Event()
        self._pipe = WakePipe()

    def stop(self) -> None:
        """Seal, acknowledge, end. From any thread, but not inside a signal handler: see `cli.stop_signal`."""
        self._stopping.set()
        self._pipe.wake()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def run(self) -> None:
        """Run until stopped, or until `until` is durable. Raises errors that a retry cannot resolve."""
        try:
            run_until_stopped(self._connect_and_stream, self._stopping, self._record_failure)
        finally:
            self.schema_recorder.stop()

    def _record_failure(self, error: TailraceError) -> None:
        self.is_streaming = False
        self.last_error = error
        if error.retry and not self._stopping.is_set():
            self.reconnections += 1

    def _connect_and_stream(self) -> None:
        source = self._settings.source
        replication = connect_replication(source)
        try:
            with connect(source) as connection:
                try:
                    writer, created = self._prepare(replication, connection)
                    if self._snapshots is not None:
                        self._snapshots.begin(created, source_record.begins_at(self._store))
                    self.schema_recorder.start()
                    stream = self._start(replication, writer)
                    self._stream(stream, writer, _Describer(connection))
                except psycopg.Error as error:
                    raise classify(error) from error
        finally:
            replication.finish()

    def _prepare(
        self, replication: PGconn, connection: psycopg.Connection[tuple[object, ...]]
    ) -> tuple[LogWriter, slot.CreatedSlot | None]:
        """Return a writer at the log's end, and the slot if it was created. Raises if changes would be lost."""
        source = self._settings.source
        identity = slot.identify(replication, source)
        writer = LogWriter.open(self._store, identity)
        if writer.last_source is not None:
            slot.check_identity(replication, identity, writer.last_source, writer.end_lsn)
        if slot.ensure_publication(connection, source):
            seen_table.save(self._store, ())  # every table that is not in it yet is new
        if self._until_current:
            self._until = Lsn.parse(str(connection.execute("SELECT pg_catalog.pg_current_wal_lsn()").fetchone()[0]))  # type: ignore[index]
            self._until_current = False
        found = slot.find(connection, source.slot)
        created = None
        if found is None:
            if not writer.is_empty and not self._accept_gap:
                raise SlotLost(
                    f"slot {source.slot} does not exist, and the log ends at {writer.end_lsn}",
                    "later changes are missing from the log. To continue with a gap and new snapshots: "
                    "tailrace capture --accept-gap",
                )
            created = slot.create(replication, source.slot, self._stopping.is_set)
            if created is None:
                raise SourceError("stopped while the slot was being created", "run capture again")
            _log.info("created slot %s at %s", source.slot, created.lsn)
            self._begin(writer, created.lsn)
        else:
            slot.check(found, identity)
            if writer.is_empty or (self._accept_gap and found.lsn > writer.end_lsn):
                self._begin(writer, found.lsn)
            elif found.lsn > writer.end_lsn:
                raise GapError(
                    f"slot {source.slot} is at {found.lsn}, but the log ends at {writer.end_lsn}: "
                    "another consumer acknowledged the changes in between",
                    "if another log has them, use that log. To continue with a gap and new snapshots: "
                    "tailrace capture --accept-gap",
                )
        self._accept_gap = False
        return writer, created

    def _begin(self, writer: LogWriter, lsn: Lsn) -> None:
        """Start the log here, or continue it after a gap: first the record of its origin, then the log itself."""
        source_record.save(self._store, writer.source, lsn)
        writer.begin_at(lsn)

    def _start(self, replication: PGconn, writer: LogWriter) -> ReplicationStream:
        """Start replication, waiting if the server has not yet noticed that the previous connection ended."""
        source = self._settings.source
        timeout = slot.wal_sender_timeout_s(replication)
        self._status_interval = min(self._settings.capture.status_interval_s, (timeout or 60.0) / 3)

        def start() -> ReplicationStream:
            return ReplicationStream(replication, source.slot, source.publication, writer.end_lsn)

        return start_when_free(start, timeout, self._stopping, "capture")

    def _stream(
        self, stream: ReplicationStream, writer: LogWriter, describe: Callable[[bytes], Relation | None]
    ) -> None:
        sealer = self.sealer = Sealer(
            writer, describe, self._settings.capture, self.progress, self._pipe.wake, self.schema_recorder.note
        )
        self.durable_lsn = self.received_lsn = writer.end_lsn
        self.is_streaming = True
        self.last_error = None
        _log.info("streaming from %s", writer.end_lsn)
        try:
            self._loop(stream, sealer)
            sealer.close()
            stream.send_status(max(self.received_lsn, sealer.durable_lsn), sealer.durable_lsn, sealer.durable_lsn)
            stream.close()
        finally:
            sealer.abort()
            self.durable_lsn = sealer.durable_lsn
            self.is_streaming = False
        if sealer.error:
            raise sealer.error

    def _loop(self, stream: ReplicationStream, sealer: Sealer) -> None:
        timer = StatusTimer(self._status_interval)
        while not self._stopping.is_set():
            received = None
            if not sealer.is_full:
                received = stream.receive()
                self.progress.keepalives += received.keepalives
                if received.frames:
                    sealer.offer(received.frames)
                if received.wal_end is not None:
                    self.received_lsn = received.wal_end
                    self._idle(sealer, received.wants_reply)
            if sealer.error:
                raise sealer.error

            durable = sealer.durable_lsn
            reply_requested = received is not None and received.wants_reply
            is_due, wants_reply = timer.is_due(is_news=durable != self.durable_lsn or reply_requested)
            if is_due:
                stream.send_status(max(self.received_lsn, durable), durable, durable, wants_reply=wants_reply)
                self.durable_lsn = durable
            if self._until is not None and durable >= self._until:
                return
            if received is None:
                stream.received_at = time.monotonic()  # this side stopped reading, so silence is expected
            else:
                timer.check_alive(stream.received_at)
            if received is None or not received.frames:
                stream.wait(self._pipe.fd, timer.left_s, reading=received is not None)
                self._pipe.drain()

    def _idle(self, sealer: Sealer, wants_reply: bool) -> None:
        is_reached = self._until is not None and self.received_lsn >= self._until
        sealer.idle(self.received_lsn, urgent=wants_reply or is_reached)


class _Describer:
    """Converts RELATION and TYPE messages to relations, with details from the catalogue."""

    def __init__(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
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
