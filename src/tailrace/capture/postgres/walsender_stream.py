"""A stream from a walsender, logical or physical: messages in, standby status out. It does not interpret messages."""

from __future__ import annotations

import select
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from tailrace.capture.postgres.source_connection import classify
from tailrace.change import Lsn
from tailrace.errors import SourceError

_KEEPALIVE = ord("k")
EPOCH_SHIFT_S = 946_684_800
"""PostgreSQL counts time from 2000, Unix from 1970."""
# Enough to make vectorised work cheap per row, small enough for the processor's cache.
_BATCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ReceivedMessages:
    """What arrived from the server."""

    frames: Sequence[memoryview]
    """Messages with data, each with its header."""
    wal_end: Lsn | None
    """The server has sent everything below, as the last keepalive says; None if data followed it."""
    sent_at_us: int | None
    """The server's clock in that keepalive, in microseconds since 2000."""
    wants_reply: bool
    """Whether the server requested a reply."""
    keepalives: int


class WalSenderStream:
    """One stream on one connection, begun with a START_REPLICATION command."""

    def __init__(self, connection: PGconn, command: sql.Composable) -> None:
        self._connection = connection
        self.received_at = time.monotonic()
        result = connection.exec_(command.as_bytes())
        if result.status != ExecStatus.COPY_BOTH:
            raise classify(result)
        connection.nonblocking = 1
        self._poll = select.poll()
        self._poll.register(connection.socket, select.POLLIN)

    def wait(self, wake: int, seconds: float, *, reading: bool = True) -> bool:
        """Wait until the server sends something, `wake` is readable, or time is up. Return whether `wake` is readable.

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
        return bool(events.get(wake))

    def receive_messages(self) -> ReceivedMessages:
        """Return what has arrived, up to a batch, without waiting."""
        get = self._connection.get_copy_data
        frames: list[memoryview] = []
        size = 0
        wal_end, sent_at_us, wants_reply, keepalives = None, None, False, 0
        try:
            while size < _BATCH_BYTES:
                length, frame = get(1)
                if length <= 0:
                    if length < 0:
                        self.on_end(self._connection.get_result())
                    break
                if frame[0] == _KEEPALIVE:
                    end, sent_at_us, reply = struct.unpack_from(">QQB", frame, 1)
                    wal_end, wants_reply = Lsn(end), wants_reply or bool(reply)
                    keepalives += 1
                else:
                    wal_end = None
                    frames.append(frame)
                    size += length
        except psycopg.Error as error:
            raise classify(error) from error
        if frames or wal_end is not None:
            self.received_at = time.monotonic()
        return ReceivedMessages(frames, wal_end, sent_at_us, wants_reply, keepalives)

    def on_end(self, result: PGresult | None) -> None:
        """Handle the end of the stream, with the result that ended it. Raises, because a server should not end it."""
        if result is not None and result.status == ExecStatus.FATAL_ERROR:
            raise classify(result)
        raise SourceError("the server ended the replication stream", "reconnecting automatically")

    def send_status(self, written: Lsn, flushed: Lsn, applied: Lsn, *, wants_reply: bool = False) -> None:
        now = int((time.time() - EPOCH_SHIFT_S) * 1_000_000)
        status = struct.pack(">cQQQQB", b"r", written, flushed, applied, now, wants_reply)
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
