"""The replication connection: START_REPLICATION, frames in, standby status out. It does not interpret frames."""

from __future__ import annotations

import select
import struct
import time
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from tailrace.capture.source_connection import classify
from tailrace.capture.source_error import PUBLICATION_MISSED
from tailrace.change import Lsn
from tailrace.errors import SourceError, SourceRefused
from tailrace.pgoutput.framing import Frames

_KEEPALIVE = ord("k")
_EPOCH_SHIFT_S = 946_684_800
# Enough to make vectorised work cheap per row, small enough for the processor's cache.
_BATCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """What arrived from the server."""

    frames: Frames | None
    wal_end: Lsn | None
    """The server has sent everything below, as the last keepalive says; None if frames followed it."""
    wants_reply: bool
    """Whether the server requested a reply."""
    keepalives: int


class ReplicationStream:
    """One replication stream on one connection."""

    def __init__(self, connection: PGconn, slot: str, publication: str, start: Lsn) -> None:
        self._connection = connection
        self._publication = publication
        self._missing_publication: SourceRefused | None = None
        self.received_at = time.monotonic()
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {}, messages 'true')"
        ).format(
            sql.Identifier(slot),
            sql.SQL(str(start)),
            # A list of identifiers in a literal, so both kinds of quoting apply.
            sql.Literal(sql.Identifier(publication).as_string()),
        )
        result = connection.exec_(command.as_bytes())
        if result.status != ExecStatus.COPY_BOTH:
            raise classify(result)
        connection.nonblocking = 1
        connection.notice_handler = self._handle_notice
        self._poll = select.poll()
        self._poll.register(connection.socket, select.POLLIN)

    def wait(self, wake: int, seconds: float, *, reading: bool = True) -> None:
        """Wait until the server sends something, `wake` is readable, or time is up.

        `reading=False` ignores the server, so that it waits.
        """
        self._poll.modify(self._connection.socket, select.POLLIN if reading else 0)
        self._poll.register(wake, select.POLLIN)
        events = dict(self._poll.poll(max(seconds, 0) * 1000))
        if events.get(self._connection.socket):
            try:
                self._connection.consume_input()
            except psycopg.Error as error:
                raise classify(error) from error

    def receive(self) -> StreamBatch:
        """Return what has arrived, up to a batch, without waiting."""
        get = self._connection.get_copy_data
        frames: list[memoryview] = []
        size = 0
        wal_end, wants_reply, keepalives = None, False, 0
        try:
            while size < _BATCH_BYTES:
                length, frame = get(1)
                if length <= 0:
                    if length < 0:
                        raise self._end_error()
                    break
                if frame[0] == _KEEPALIVE:
                    end, _, reply = struct.unpack_from(">QQB", frame, 1)
                    wal_end, wants_reply = Lsn(end), wants_reply or bool(reply)
                    keepalives += 1
                else:
                    wal_end = None
                    frames.append(frame)
                    size += length
        except psycopg.Error as error:
            raise classify(error) from error
        if self._missing_publication is not None:
            raise self._missing_publication
        if frames or wal_end is not None:
            self.received_at = time.monotonic()
        return StreamBatch(Frames.of(frames) if frames else None, wal_end, wants_reply, keepalives)

    def send_status(self, written: Lsn, durable: Lsn, *, wants_reply: bool = False) -> None:
        now = int((time.time() - _EPOCH_SHIFT_S) * 1_000_000)
        status = struct.pack(">cQQQQB", b"r", written, durable, durable, now, wants_reply)
        try:
            self._connection.put_copy_data(status)
            self._connection.flush()
        except psycopg.Error as error:
            raise classify(error) from error

    def close(self, seconds: float = 5.0) -> None:
        """End the stream, and discard what still arrives. The slot is free on return."""
        try:
            self._connection.put_copy_end()
            deadline = time.monotonic() + seconds
            while self._connection.flush() and time.monotonic() < deadline:
                self._poll.modify(self._connection.socket, select.POLLOUT)
                self._poll.poll(100)
            self._poll.modify(self._connection.socket, select.POLLIN)
            while time.monotonic() < deadline:
                length, _ = self._connection.get_copy_data(1)
                if length < 0:
                    break
                if length == 0:
                    self._poll.poll(100)
                    self._connection.consume_input()
        except psycopg.Error:
            pass  # the server closed the connection first, which ends the stream too
        finally:
            self._connection.finish()

    def _handle_notice(self, notice: PGresult) -> None:
        """Detect a missing publication: PostgreSQL 18 only warns about it and sends no changes; older servers fail."""
        message = notice.error_field(DiagnosticField.MESSAGE_PRIMARY) or b""
        if notice.error_field(DiagnosticField.SQLSTATE) == b"55000" and self._publication.encode() in message:
            self._missing_publication = SourceRefused(message.decode(errors="replace"), PUBLICATION_MISSED)

    def _end_error(self) -> Exception:
        result = self._connection.get_result()
        if result is not None and result.status == ExecStatus.FATAL_ERROR:
            return classify(result)
        return SourceError("the server ended the replication stream", "reconnecting automatically")
