"""The archive: writes the server's WAL to the store until it is stopped.

One loop owns the connection and never waits for the store; the writer's threads own the objects. The server learns of
a flush only when the object is durable. So with `synchronous`, an acknowledged commit survives the loss of the server
and its disk. Nothing is ever applied here, and the status says so.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Final

import psycopg
from psycopg.pq.abc import PGconn

from tailrace.capture.postgres import slot, timeline
from tailrace.capture.postgres.slot_stream import StatusTimer, start_when_free
from tailrace.capture.postgres.source_connection import classify, connect_replication, run_command, text_value
from tailrace.capture.postgres.walsender_stream import EPOCH_SHIFT_S
from tailrace.capture.reconnection import WakePipe, run_until_stopped
from tailrace.change import Lsn
from tailrace.errors import GapError, SlotLost, TailraceError, WrongSource
from tailrace.recovery.physical_slot import ensure_slot
from tailrace.recovery.wal_archive import ArchivePosition, System, WalArchive
from tailrace.recovery.wal_segment import WalSegment, history_key
from tailrace.recovery.wal_stream import WalStream
from tailrace.recovery.wal_writer import ArchiveProgress, WalWriter
from tailrace.settings import Settings
from tailrace.store import Store

_log = logging.getLogger("tailrace.archive")

_NEVER_APPLIED: Final = Lsn(0)
# How often `position.json` is written: a restore to a time in the last seconds may have to wait for the next one.
_POSITION_SECONDS = 10.0


class Archive:
    """Archives one server's WAL into one store.

    `until` ends it once that LSN is durable. `accept_gap` continues after WAL that the server no longer has.
    `accept_fork` follows a server that was promoted without the end of the archived WAL.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        until: Lsn | None = None,
        accept_gap: bool = False,
        accept_fork: bool = False,
    ) -> None:
        self.progress = ArchiveProgress()
        self.received_lsn = Lsn(0)
        self.durable_lsn = Lsn(0)
        self.timeline = 0
        self.is_streaming = False
        self.reconnections = 0
        self.last_error: TailraceError | None = None
        """Why nothing is archived, while it waits to reconnect."""
        self._settings = settings
        self._store = store
        self._until = until
        self._accept_gap = accept_gap
        self._accept_fork = accept_fork
        self._status_interval_s = settings.capture.status_interval_s
        self._wal_sender_timeout_s: float | None = None
        self._caught_up: tuple[Lsn, int] | None = None
        self._saved_at = 0.0
        self._stopping = threading.Event()
        self._pipe = WakePipe()

    def stop(self) -> None:
        """Write what was received, acknowledge, end. From any thread."""
        self._stopping.set()
        self._pipe.wake()

    def run(self) -> None:
        """Run until stopped, or until `until` is durable. Raises errors that a retry cannot resolve."""
        run_until_stopped(self._connect_and_stream, self._stopping, self._record_failure)

    def _record_failure(self, error: TailraceError) -> None:
        self.is_streaming = False
        self.last_error = error
        if error.retry and not self._stopping.is_set():
            self.reconnections += 1

    def _connect_and_stream(self) -> None:
        # The slot's name, so that synchronous_standby_names can name the archive and nothing else by it.
        connection = connect_replication(self._settings.source, self._settings.archive.slot)
        try:
            self._wal_sender_timeout_s = slot.wal_sender_timeout_s(connection)
            self._status_interval_s = min(
                self._settings.capture.status_interval_s, (self._wal_sender_timeout_s or 60.0) / 3
            )
            segment: WalSegment | None = self._prepare(connection)
            while segment is not None:
                segment = self._stream_timeline(connection, segment)
        except SlotLost as error:
            if "already been removed" not in str(error):
                raise
            raise GapError(
                f"the server no longer has WAL that the archive lacks: {error}",
                "run `tailrace archive --accept-gap`, and take a new backup: no older one can be restored past the gap",
            ) from error
        except psycopg.Error as error:
            raise classify(error) from error
        finally:
            self.is_streaming = False
            connection.finish()

    def _prepare(self, connection: PGconn) -> WalSegment:
        """Return the segment to continue with. Raises if WAL would be missing or would be another server's."""
        identity = run_command(connection, "IDENTIFY_SYSTEM")
        current = int(text_value(identity, 1))
        flushed = Lsn.parse(text_value(identity, 2))
        bytes_ = "SELECT setting::bigint FROM pg_catalog.pg_settings WHERE name = 'wal_segment_size'"
        system = System(text_value(identity, 0), int(text_value(run_command(connection, bytes_), 0)))
        system.save(self._store)
        archive = WalArchive.load(self._store)
        assert archive is not None
        for key in archive.leftovers:
            self._store.delete(key)
        self._save_histories(connection, current)
        reserved = ensure_slot(
            connection,
            self._settings.archive.slot,
            "run `tailrace archive --accept-gap`, and take a new backup: no older one can be restored past the gap",
        )
        last = archive.last
        if last is None or self._accept_gap:
            self._accept_gap = False
            # A slot that was created before a promotion may retain WAL of an earlier timeline.
            first = timeline.read_history(connection, current).timeline_at(reserved)
            return WalSegment.at(first, reserved, system.segment_bytes)
        return self._next_segment(connection, archive, current, flushed)

    def _next_segment(self, connection: PGconn, archive: WalArchive, current: int, flushed: Lsn) -> WalSegment:
        last = archive.last
        assert last is not None
        recorded, end = last.segment.timeline, last.end
        following = last.segment.next if last.is_complete else last.segment
        if current == recorded and flushed < end:
            raise WrongSource(
                f"the archive holds WAL up to {end}, but the server ends at {flushed}",
                "the server was restored to an earlier moment without a new timeline: archive it in another location",
            )
        if current < recorded:
            raise WrongSource(
                f"the archive is on timeline {recorded}, but this server is on timeline {current}",
                "point [source] at the server that was promoted last",
            )
        if current == recorded:
            return following
        history = timeline.read_history(connection, current)
        switched = history.switch_point(recorded)
        if switched is not None and end <= switched:
            _log.info("the server was promoted to timeline %d at %s; the archive follows", current, switched)
            if following.start < switched:
                return following
            return WalSegment.at(history.timeline_at(switched), switched, following.bytes)
        if switched is None or not self._accept_fork:
            raise WrongSource(
                f"timeline {current} branched off timeline {recorded} at {switched or 'an unknown LSN'}, but the "
                f"archive already holds timeline {recorded} up to {end}",
                "the new primary lost transactions that the archive has. `tailrace restore DIR --latest --timeline "
                f"{recorded}` shows them; `tailrace archive --accept-fork` keeps them and follows the new primary",
            )
        self._accept_fork = False
        return WalSegment.at(history.timeline_at(switched), switched, following.bytes)

    def _save_histories(self, connection: PGconn, current: int) -> None:
        """Store the histories of the server's timelines. Raises WrongSource if another server's are there."""
        for number in range(2, current + 1):
            try:
                text = timeline.read_history_text(connection, number)
            except TailraceError:
                if number == current:
                    raise
                continue  # the server need not have the files of its ancestors; its own names them all
            if not self._store.create(history_key(number), text.encode()):
                raise WrongSource(
                    f"the archive's history of timeline {number} differs from the server's",
                    "two servers were promoted to the same timeline: archive them in different locations",
                )

    def _stream_timeline(self, connection: PGconn, first: WalSegment) -> WalSegment | None:
        """Archive one timeline. Return where to continue on the next one; None if stopped."""

        def start() -> WalStream:
            return WalStream(connection, self._settings.archive.slot, first.timeline, first.start)

        stream = start_when_free(start, self._wal_sender_timeout_s, self._stopping, "archive")
        archive = self._settings.archive
        part_after_s = 0.0 if archive.synchronous else archive.part_after_s
        writer = WalWriter(self._store, first, part_after_s, self.progress, self._pipe.wake)
        self.timeline, self.is_streaming, self.last_error = first.timeline, True, None
        self.received_lsn, self.durable_lsn = first.start, writer.durable_lsn
        self._caught_up = None
        _log.info("archiving timeline %d from %s", first.timeline, first.start)
        try:
            self._loop(stream, writer)
            writer.write_rest()
            self._save_position(writer, now=True)
            writer.close()
            if writer.error is not None:
                raise writer.error
            self.durable_lsn = writer.durable_lsn
            if stream.has_ended:
                stream.finish()
            else:
                stream.send_status(writer.durable_lsn, writer.durable_lsn, _NEVER_APPLIED)
                stream.close()
        finally:
            writer.abort()
        return self._segment_after_end(connection, first) if stream.has_ended else None

    def _segment_after_end(self, connection: PGconn, first: WalSegment) -> WalSegment:
        """The segment on the timeline that the server follows now, in which it left this one."""
        current = int(text_value(run_command(connection, "IDENTIFY_SYSTEM"), 1))
        self._save_histories(connection, current)
        history = timeline.read_history(connection, current)
        switched = history.switch_point(first.timeline)
        if switched is None:
            raise WrongSource(
                f"timeline {current} does not descend from timeline {first.timeline}", "archive it in another location"
            )
        _log.info("the server left timeline %d at %s", first.timeline, switched)
        return WalSegment.at(history.timeline_at(switched), switched, first.bytes)

    def _loop(self, stream: WalStream, writer: WalWriter) -> None:
        timer = StatusTimer(self._status_interval_s)
        while not self._stopping.is_set():
            received = None
            if not writer.is_full:
                received = stream.receive()
                for lsn, data in received.wal:
                    writer.offer(lsn, data)
                self.received_lsn = writer.received_lsn
            due_s = writer.write_due_part()
            if writer.error is not None:
                raise writer.error
            durable = writer.durable_lsn
            reply_requested = received is not None and received.wants_reply
            is_due, wants_reply = timer.is_due(is_news=durable != self.durable_lsn or reply_requested)
            if is_due:
                # As written counts only what is durable, so that commits with remote_write are safe here, too.
                stream.send_status(durable, durable, _NEVER_APPLIED, wants_reply=wants_reply)
                self.durable_lsn = durable
            if received is not None and received.caught_up is not None:
                self._caught_up = received.caught_up
            self._save_position(writer)
            if stream.has_ended or (self._until is not None and durable >= self._until):
                return
            if received is None:
                stream.received_at = time.monotonic()  # this side stopped reading, so silence is expected
            else:
                timer.check_alive(stream.received_at)
            if received is None or not received.wal:
                writer.prepare_part()
                left_s = timer.left_s if due_s is None else min(due_s, timer.left_s)
                if stream.wait(self._pipe.fd, left_s, reading=received is not None):
                    self._pipe.drain()

    def _save_position(self, writer: WalWriter, *, now: bool = False) -> None:
        """Record, now and then, the server's time up to which the archive has everything."""
        if self._caught_up is None or writer.durable_lsn < self._caught_up[0]:
            return
        if now or time.monotonic() - self._saved_at >= _POSITION_SECONDS:
            lsn, sent_at_us = self._caught_up
            at = datetime.fromtimestamp(EPOCH_SHIFT_S, UTC) + timedelta(microseconds=sent_at_us)
            writer.save(ArchivePosition(self.timeline, lsn, at))
            self._caught_up, self._saved_at = None, time.monotonic()
