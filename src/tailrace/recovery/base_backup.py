"""BASE_BACKUP over the replication protocol: the start, the archives with the manifest, the end."""

from __future__ import annotations

import select
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from psycopg import sql
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGconn, PGresult

from tailrace.capture.postgres.source_connection import classify
from tailrace.capture.postgres.source_error import source_errors
from tailrace.change import Lsn
from tailrace.errors import SourceError
from tailrace.recovery.backup_record import Tablespace

_WAIT_MS = 500
_UPLOAD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class BackupStart:
    lsn: Lsn
    timeline: int
    tablespaces: tuple[Tablespace, ...]
    estimated_bytes: int


@dataclass(frozen=True, slots=True)
class ArchiveBegin:
    """A tar archive follows: of a tablespace, or of the data directory."""

    tablespace: int | None


class ManifestBegin:
    """The manifest follows."""


@dataclass(frozen=True, slots=True)
class BackupEnd:
    lsn: Lsn


BackupEvent = ArchiveBegin | ManifestBegin | memoryview | BackupEnd


class BaseBackup:
    """One backup on one replication connection."""

    def __init__(self, connection: PGconn, label: str, *, incremental: bool, is_cancelled: Callable[[], bool]) -> None:
        self._connection = connection
        self._is_cancelled = is_cancelled
        options = sql.SQL(
            "LABEL {}, PROGRESS true, CHECKPOINT 'fast', WAIT false, MANIFEST 'yes', MANIFEST_CHECKSUMS 'SHA256'"
        ).format(sql.Literal(label))
        kind = sql.SQL(", INCREMENTAL") if incremental else sql.SQL("")
        connection.nonblocking = 1
        connection.send_query(sql.SQL("BASE_BACKUP ({}{})").format(options, kind).as_bytes())
        while connection.flush():
            self._wait()
        self.start = self._read_start()

    def events(self) -> Iterator[BackupEvent]:
        """The archives and the manifest, each announced and then in pieces, and at last the end."""
        result = self._result()
        if result.status != ExecStatus.COPY_OUT:
            raise classify(result)
        while True:
            length, message = self._connection.get_copy_data(1)
            if length < 0:
                break
            if length == 0:
                self._wait()
                continue
            kind = message[0]
            if kind == ord("d"):
                yield message[1:]
            elif kind == ord("n"):
                name = bytes(message[1:]).split(b"\0")[0].decode()
                yield ArchiveBegin(None if name == "base.tar" else int(name.removesuffix(".tar")))
            elif kind == ord("m"):
                yield ManifestBegin()
        result = self._result()
        if result.status != ExecStatus.TUPLES_OK:
            raise classify(result)
        yield BackupEnd(Lsn.parse(_text(result, 0, 0)))
        while (rest := self._next_result()) is not None:
            if rest.status == ExecStatus.FATAL_ERROR:
                raise classify(rest)  # a file was damaged on the source, for example

    def _read_start(self) -> BackupStart:
        first, spaces = self._result(), None
        if first.status == ExecStatus.TUPLES_OK:
            spaces = self._result()
        if spaces is None or spaces.status != ExecStatus.TUPLES_OK:
            raise classify(first if spaces is None else spaces)
        tablespaces, size = [], 0
        for row in range(spaces.ntuples):
            size += int(_text(spaces, row, 2) or 0) * 1024
            if oid := _text(spaces, row, 0):
                tablespaces.append(Tablespace(int(oid), _text(spaces, row, 1)))
        return BackupStart(Lsn.parse(_text(first, 0, 0)), int(_text(first, 0, 1)), tuple(tablespaces), size)

    def _result(self) -> PGresult:
        result = self._next_result()
        if result is None:
            raise SourceError("the server ended the backup", "take the backup again")
        return result

    def _next_result(self) -> PGresult | None:
        while self._connection.is_busy():
            self._wait()
        return self._connection.get_result()

    def _wait(self) -> None:
        if self._is_cancelled():
            raise SourceError("the backup was cancelled")
        poll = select.poll()
        poll.register(self._connection.socket, select.POLLIN)
        if poll.poll(_WAIT_MS):
            with source_errors():
                self._connection.consume_input()


def upload_manifest(connection: PGconn, manifest: bytes) -> None:
    """Send the manifest of the backup that an incremental one builds on."""
    result = connection.exec_(b"UPLOAD_MANIFEST")
    if result.status != ExecStatus.COPY_IN:
        raise classify(result)
    for start in range(0, len(manifest), _UPLOAD_BYTES):
        connection.put_copy_data(manifest[start : start + _UPLOAD_BYTES])
    connection.put_copy_end()
    while (end := connection.get_result()) is not None:
        if end.status == ExecStatus.FATAL_ERROR:
            raise classify(end)


def _text(result: PGresult, row: int, column: int) -> str:
    return (result.get_value(row, column) or b"").decode()
