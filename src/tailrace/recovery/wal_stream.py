"""The physical stream: START_REPLICATION on one timeline, and its end when the server is promoted."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from psycopg import sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from tailrace.capture.postgres.source_connection import classify
from tailrace.capture.postgres.walsender_stream import WalSenderStream
from tailrace.change import Lsn
from tailrace.errors import SourceError

_HEADER = struct.Struct(">cQQQ")


@dataclass(frozen=True, slots=True)
class WalBatch:
    """What arrived from the server."""

    wal: list[tuple[Lsn, memoryview]]
    """Pieces of WAL, each with its LSN, in order."""
    caught_up: tuple[Lsn, int] | None
    """An LSN and the server's clock in PostgreSQL's microseconds: nothing was flushed beyond that LSN by that time."""
    wants_reply: bool


class WalStream(WalSenderStream):
    """WAL of one timeline, from one LSN on."""

    def __init__(self, connection: PGconn, slot: str, timeline: int, start: Lsn) -> None:
        self.timeline = timeline
        self.has_ended = False
        """Whether the server has sent all of this timeline, because it follows another one now."""
        form = sql.SQL("START_REPLICATION SLOT {} PHYSICAL {} TIMELINE {}")
        command = form.format(sql.Identifier(slot), sql.SQL(str(start)), sql.SQL(str(timeline)))
        super().__init__(connection, command)

    def receive(self) -> WalBatch:
        """Return what has arrived, up to a batch, without waiting."""
        received = self.receive_messages()
        wal = list(_pieces(received.frames))
        caught_up = None
        if received.wal_end is not None and received.sent_at_us is not None:
            caught_up = received.wal_end, received.sent_at_us
        elif received.frames:
            _, start, server_end, sent_at_us = _HEADER.unpack_from(received.frames[-1])
            if start + len(wal[-1][1]) == server_end:
                caught_up = Lsn(server_end), sent_at_us
        return WalBatch(wal, caught_up, received.wants_reply)

    def on_end(self, result: PGresult | None) -> None:
        """Note that the server has sent all of this timeline. It sends its own end before it accepts ours."""
        if result is None or result.status != ExecStatus.COPY_IN:
            super().on_end(result)
        self.has_ended = True

    def finish(self) -> None:
        """End a stream that the server has ended, so that the connection accepts the next command."""
        self._connection.nonblocking = 0
        self._connection.put_copy_end()
        while (result := self._connection.get_result()) is not None:
            if result.status == ExecStatus.FATAL_ERROR:
                raise classify(result)


def _pieces(frames: Sequence[memoryview]) -> Iterator[tuple[Lsn, memoryview]]:
    for frame in frames:
        kind, start, _, _ = _HEADER.unpack_from(frame)
        if kind != b"w":
            raise SourceError(f"the server sent a message of kind {kind!r}", "reconnecting automatically")
        yield Lsn(start), frame[_HEADER.size :]
