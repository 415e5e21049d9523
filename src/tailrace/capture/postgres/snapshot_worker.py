"""A worker process of a snapshot: decodes the rows of COPY and stores them as chunks.

It is a separate process, because decoding needs processor time and capture must stay light: only workers load the
decoder's compiler.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection as Pipe
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.pq import ExecStatus

from tailrace.capture.postgres.snapshot_plan import TablePart
from tailrace.capture.postgres.snapshot_transaction import locked, use_snapshot
from tailrace.capture.postgres.source_connection import connect
from tailrace.capture.postgres.source_error import classify, source_errors
from tailrace.errors import DecodeError, SnapshotError, SourceRefused, StoreError, TailraceError
from tailrace.log.snapshot import ChunkWriter, SnapshotChunk
from tailrace.retry import Backoff
from tailrace.settings import Secret, SourceSettings
from tailrace.store import Store

_log = logging.getLogger("tailrace.snapshot")

# Text to decode at a time: enough to vectorise, small enough to bound the offset columns beside the text.
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """A worker's settings. They are sent through a pipe, never by arguments or environment variables."""

    source: SourceSettings
    password: str | None = field(repr=False)
    store_url: str
    store_options: dict[str, str] = field(repr=False)
    snapshot: str
    chunk_rows: int
    chunk_bytes: int
    store_attempts: int
    number: int
    workers: int

    @classmethod
    def of(cls, source: SourceSettings, **rest: Any) -> WorkerSettings:
        password = source.password.reveal() if source.password is not None else None
        return cls(replace(source, password=None), password, **rest)


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """The worker's transaction uses the snapshot."""


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Copy a part into chunks under a prefix."""

    part: TablePart
    prefix: str


@dataclass(frozen=True, slots=True)
class CopyProgress:
    """What was copied since the last report."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PartFinished:
    task: CopyTask
    chunks: tuple[SnapshotChunk, ...]


@dataclass(frozen=True, slots=True)
class CopyFailure:
    """`task` is None if the worker itself cannot continue, and ends."""

    task: CopyTask | None
    error: TailraceError


Report = WorkerReady | CopyProgress | PartFinished | CopyFailure


def main(pipe: Pipe, settings: WorkerSettings) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole process group; the parent decides
    try:
        _work(pipe, settings)
    except (EOFError, BrokenPipeError):
        pass  # the parent ended, and nothing else reads the results
    except TailraceError as error:
        pipe.send(CopyFailure(None, error))
    except Exception as error:
        _log.exception("a snapshot worker failed")
        hint = "this is a bug in Tailrace: please report it, with the lines above"
        pipe.send(CopyFailure(None, SnapshotError(f"a snapshot worker failed: {type(error).__name__}", hint)))


def _work(pipe: Pipe, settings: WorkerSettings) -> None:
    password = Secret(settings.password) if settings.password is not None else None
    store = Store.open(settings.store_url, settings.store_options)
    with connect(replace(settings.source, password=password)) as connection:
        use_snapshot(connection, settings.snapshot)
        pipe.send(WorkerReady())
        copier = _Copier(pipe, settings, store, connection)
        while (task := pipe.recv()) is not None:
            try:
                pipe.send(PartFinished(task, copier.copy(task)))
            except (SourceRefused, SnapshotError, DecodeError) as error:
                pipe.send(CopyFailure(task, _with_table(task.part, error)))
            except TailraceError as error:
                raise _with_table(task.part, error) from error


def _with_table(part: TablePart, error: TailraceError) -> TailraceError:
    name = part.relation.qualified_name
    return error if name in str(error) else type(error)(f"{name}: {error}", error.hint)


class _Copier:
    def __init__(self, pipe: Pipe, settings: WorkerSettings, store: Store, connection: psycopg.Connection[Any]) -> None:
        from tailrace.pgoutput.decoder import decode_copy  # loads the compiler: not in the parent, and only once ready

        self._decode = decode_copy
        self._pipe = pipe
        self._settings = settings
        self._store = store
        self._connection = connection
        self._chunks_of: dict[str, int] = {}

    def copy(self, task: CopyTask) -> tuple[SnapshotChunk, ...]:
        with source_errors(), locked(self._connection, task.part):
            return tuple(self._chunks(task))

    def _chunks(self, task: CopyTask) -> Iterator[SnapshotChunk]:
        relation, settings = task.part.relation, self._settings
        pgconn = self._connection.pgconn
        copy = sql.SQL("COPY ({}) TO STDOUT").format(task.part.select)
        result = pgconn.exec_(copy.as_bytes(self._connection))
        if result.status != ExecStatus.COPY_OUT:
            raise classify(result)
        get = pgconn.get_copy_data
        block = min(_BLOCK_BYTES, settings.chunk_bytes)
        writer, chunk_bytes = ChunkWriter(relation), 0
        while True:
            text, rows, room = bytearray(), 0, settings.chunk_rows - writer.rows
            while rows < room and len(text) < block:
                length, line = get(0)
                if length < 0:
                    break
                text += line
                rows += 1
            if rows:
                decoded = self._decode(relation, pa.py_buffer(text))
                writer.write(decoded.batch, decoded.special)
                chunk_bytes += len(text)
                self._pipe.send(CopyProgress(rows, len(text)))
            is_last = length < 0
            if writer.rows and (is_last or writer.rows >= settings.chunk_rows or chunk_bytes >= settings.chunk_bytes):
                yield self._store_chunk(task.prefix, writer)
                writer, chunk_bytes = ChunkWriter(relation), 0
            if is_last:
                break
        while (ended := pgconn.get_result()) is not None:
            if ended.status != ExecStatus.COMMAND_OK:
                raise classify(ended)

    def _store_chunk(self, prefix: str, writer: ChunkWriter) -> SnapshotChunk:
        # Each worker counts in steps of the number of workers, so that no two choose the same number.
        number = self._chunks_of.get(prefix, self._settings.number)
        self._chunks_of[prefix] = number + self._settings.workers
        chunk, data = writer.finish(f"chunk-{number:05d}.parquet")
        create(self._store, f"{prefix}/{chunk.name}", data, self._settings.store_attempts)
        return chunk


def create(store: Store, key: str, data: bytes, attempts: int) -> None:
    """Create an object, with up to `attempts` attempts if the store is unavailable."""
    backoff = Backoff()
    while True:
        try:
            if not store.create(key, data):
                raise SnapshotError(f"{key} already exists with other content", "another process writes to this store")
            return
        except StoreError as error:
            if backoff.failures + 1 >= attempts:
                raise
            delay = backoff.next()
            _log.warning("%s; retrying in %.1f s", error, delay)
            time.sleep(delay)
