"""The logical stream: START_REPLICATION with pgoutput. It does not interpret frames."""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql
from psycopg.pq import DiagnosticField
from psycopg.pq.abc import PGconn, PGresult

from tailrace.capture.postgres.source_error import PUBLICATION_MISSED
from tailrace.capture.postgres.walsender_stream import WalSenderStream
from tailrace.change import Lsn
from tailrace.errors import SourceRefused
from tailrace.pgoutput.framing import Frames


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """What arrived from the server."""

    frames: Frames | None
    wal_end: Lsn | None
    """The server has sent everything below, as the last keepalive says; None if frames followed it."""
    wants_reply: bool
    """Whether the server requested a reply."""
    keepalives: int


class ReplicationStream(WalSenderStream):
    """One logical replication stream on one connection."""

    def __init__(self, connection: PGconn, slot: str, publication: str, start: Lsn) -> None:
        self._publication = publication
        self._missing_publication: SourceRefused | None = None
        command = sql.SQL(
            "START_REPLICATION SLOT {} LOGICAL {} (proto_version '1', publication_names {}, messages 'true')"
        ).format(
            sql.Identifier(slot),
            sql.SQL(str(start)),
            # A list of identifiers in a literal, so both kinds of quoting apply.
            sql.Literal(sql.Identifier(publication).as_string()),
        )
        super().__init__(connection, command)
        connection.notice_handler = self._handle_notice

    def receive(self) -> StreamBatch:
        """Return what has arrived, up to a batch, without waiting."""
        received = self.receive_messages()
        if self._missing_publication is not None:
            raise self._missing_publication
        frames = Frames.of(received.frames) if received.frames else None
        return StreamBatch(frames, received.wal_end, received.wants_reply, received.keepalives)

    def _handle_notice(self, notice: PGresult) -> None:
        """Detect a missing publication: PostgreSQL 18 only warns about it and sends no changes; older servers fail."""
        message = notice.error_field(DiagnosticField.MESSAGE_PRIMARY) or b""
        if notice.error_field(DiagnosticField.SQLSTATE) == b"55000" and self._publication.encode() in message:
            self._missing_publication = SourceRefused(message.decode(errors="replace"), PUBLICATION_MISSED)
