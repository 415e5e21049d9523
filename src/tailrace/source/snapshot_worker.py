"""A worker process of a snapshot: COPY → typed columns → chunks in the store.

A process of its own, because decoding is work for a processor and capture must stay light: the decoder's compiler is
loaded here and nowhere else.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection as Pipe
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.pq import ExecStatus, TransactionStatus

from tailrace.change import Type
from tailrace.errors import DecodeError, SnapshotError, SourceRefused, StoreError, TailraceError
from tailrace.log.snapshot import Chunk, ChunkWriter
from tailrace.retry import Backoff
from tailrace.settings import Secret, Source
from tailrace.source.connection import connect
from tailrace.source.failure import classified, classify
from tailrace.source.snapshot_plan import Part
from tailrace.store import Store

_log = logging.getLogger("tailrace.snapshot")

# Decoded at a time: enough to be vectorised, little enough that columns of offsets beside the text stay small.
_BLOCK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Errand:
    """What a worker is told when it is started. It goes through a pipe, never through arguments or environment."""

    source: Source
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
    def of(cls, source: Source, **rest: Any) -> Errand:
        password = source.password.reveal() if source.password is not None else None
        return cls(replace(source, password=None), password, **rest)


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker's transaction holds the snapshot."""


@dataclass(frozen=True, slots=True)
class Order:
    """Copy this part into chunks under this prefix."""

    part: Part
    prefix: str


@dataclass(frozen=True, slots=True)
class Copied:
    """So much more than last time."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Finished:
    order: Order
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """`order` is None when the worker itself cannot go on, and ends."""

    order: Order | None
    error: TailraceError


Report = Ready | Copied | Finished | Failed


def main(pipe: Pipe, errand: Errand) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    try:
        _work(pipe, errand)
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone, and nobody else wants what we have
    except TailraceError as error:
        pipe.send(Failed(None, error))
    except Exception as error:
        _log.exception("a snapshot worker failed")
        hint = "this is a bug in Tailrace: please report it, with the lines above"
        pipe.send(Failed(None, SnapshotError(f"a snapshot worker failed: {type(error).__name__}", hint)))


def _work(pipe: Pipe, errand: Errand) -> None:
    password = Secret(errand.password) if errand.password is not None else None
    store = Store.open(errand.store_url, errand.store_options)
    with connect(replace(errand.source, password=password)) as connection:
        hold(connection, errand.snapshot)
        pipe.send(Ready())
        copier = _Copier(pipe, errand, store, connection)
        while (order := pipe.recv()) is not None:
            try:
                pipe.send(Finished(order, copier.copy(order)))
            except (SourceRefused, SnapshotError, DecodeError) as error:
                pipe.send(Failed(order, _about(order.part, error)))
            except TailraceError as error:
                raise _about(order.part, error) from error


def hold(connection: psycopg.Connection[Any], snapshot: str) -> None:
    """Begin a transaction that sees what the snapshot saw, and nothing else, until it ends."""
    with classified():
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))


def _about(part: Part, error: TailraceError) -> TailraceError:
    name = part.relation.qualified_name
    return error if name in str(error) else type(error)(f"{name}: {error}", error.hint)


class _Copier:
    def __init__(self, pipe: Pipe, errand: Errand, store: Store, connection: psycopg.Connection[Any]) -> None:
        from tailrace.pgoutput.columns import decode_copy  # loads the compiler: not in the parent, and not before Ready

        self._decode = decode_copy
        self._pipe = pipe
        self._errand = errand
        self._store = store
        self._connection = connection
        self._chunks_of: dict[str, int] = {}

    def copy(self, order: Order) -> tuple[Chunk, ...]:
        with classified(), self._locked(order.part):
            return tuple(self._chunks(order))

    @contextmanager
    def _locked(self, part: Part) -> Iterator[None]:
        """The table's shape holds still for one part, and is let go after it: rolling back to a savepoint frees locks.

        Otherwise an ALTER TABLE, and everybody behind it, would wait until the last table of all is copied.
        """
        self._connection.execute("SAVEPOINT part")
        try:
            heap = sql.Identifier(part.heap.schema, part.heap.name)
            self._connection.execute(sql.SQL("LOCK TABLE ONLY {} IN ACCESS SHARE MODE").format(heap))
            self._check_shape(part)
            yield
        except BaseException:
            with suppress(psycopg.Error):
                self._abandon_copy()
                self._let_go()
            raise
        self._let_go()

    def _let_go(self) -> None:
        self._connection.execute("ROLLBACK TO part")
        self._connection.execute("RELEASE part")

    def _abandon_copy(self) -> None:
        """The connection takes no other command before the one under way has ended."""
        pgconn = self._connection.pgconn
        if pgconn.transaction_status == TransactionStatus.ACTIVE:
            pgconn.get_cancel().cancel()
            with suppress(psycopg.Error):
                while pgconn.get_copy_data(0)[0] > 0:
                    pass
            while pgconn.get_result() is not None:
                pass

    def _check_shape(self, part: Part) -> None:
        """Rows are seen as of the snapshot, but the catalogue as of now: what changed in between would be misread.

        A table rewritten since looks empty, and the stream would not say so.
        """
        name = sql.Identifier(part.heap.schema, part.heap.name)
        # The row of pg_class is the snapshot's, the functions look at the catalogue as it is.
        row = self._connection.execute(
            "SELECT pg_catalog.to_regclass(%s) = c.oid AND pg_catalog.pg_relation_filenode(c.oid) = c.relfilenode"
            " FROM pg_catalog.pg_class c WHERE c.oid = %s",
            [name.as_string(self._connection), part.heap.oid],
        ).fetchone()
        is_root = part.heap.oid == part.relation.oid
        result = self._connection.execute(part.select + sql.SQL(" LIMIT 0")).pgresult
        assert result is not None
        now = [(result.ftype(i), result.ftablecol(i) if is_root else None) for i in range(result.nfields)]
        # A result's description shows a domain as its base type.
        then = [(_base(c.type).oid, c.number if is_root else None) for c in part.relation.columns]
        if row != (True,) or now != then:
            raise SnapshotError(
                f"{part.relation.qualified_name} was rewritten, truncated or altered while its snapshot was taken",
                "take the snapshot of this table again",
            )

    def _chunks(self, order: Order) -> Iterator[Chunk]:
        relation, errand = order.part.relation, self._errand
        pgconn = self._connection.pgconn
        copy = sql.SQL("COPY ({}) TO STDOUT").format(order.part.select)
        result = pgconn.exec_(copy.as_bytes(self._connection))
        if result.status != ExecStatus.COPY_OUT:
            raise classify(result)
        get = pgconn.get_copy_data
        block = min(_BLOCK_BYTES, errand.chunk_bytes)
        writer, chunk_bytes = ChunkWriter(relation), 0
        while True:
            text, rows, room = bytearray(), 0, errand.chunk_rows - writer.rows
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
                self._pipe.send(Copied(rows, len(text)))
            is_last = length < 0
            if writer.rows and (is_last or writer.rows >= errand.chunk_rows or chunk_bytes >= errand.chunk_bytes):
                yield self._store_chunk(order.prefix, writer)
                writer, chunk_bytes = ChunkWriter(relation), 0
            if is_last:
                break
        while (ended := pgconn.get_result()) is not None:
            if ended.status != ExecStatus.COMMAND_OK:
                raise classify(ended)

    def _store_chunk(self, prefix: str, writer: ChunkWriter) -> Chunk:
        # Numbers in steps of as many as there are workers: no two choose the same.
        number = self._chunks_of.get(prefix, self._errand.number)
        self._chunks_of[prefix] = number + self._errand.workers
        chunk, data = writer.finish(f"chunk-{number:05d}.parquet")
        create(self._store, f"{prefix}/{chunk.name}", data, self._errand.store_attempts)
        return chunk


def _base(type_: Type) -> Type:
    return _base(type_.base) if type_.base is not None else type_


def create(store: Store, key: str, data: bytes, attempts: int) -> None:
    """Create an object, with patience for a store that comes back."""
    backoff = Backoff()
    while True:
        try:
            if not store.create(key, data):
                raise SnapshotError(f"{key} is there already, with other content", "somebody else writes this store")
            return
        except StoreError as error:
            if backoff.failures + 1 >= attempts:
                raise
            delay = backoff.next()
            _log.warning("%s; trying again in %.1f s", error, delay)
            time.sleep(delay)
