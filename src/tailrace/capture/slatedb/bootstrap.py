"""Takes snapshots of the database while capture streams: a checkpoint, and a scan of it.

The boundary is exact: sorted tables hold everything up to the manifest's `last_l0_seq`, and the scan leaves out the
WAL. Compaction and garbage collection do not touch what a checkpoint refers to.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.capture.slatedb.database import DatabaseCheckpoint, ScannedRows, SlateDatabase
from tailrace.capture.slatedb.expiry import expiry_texts
from tailrace.capture.slatedb.relation import relation_of
from tailrace.capture.slatedb.session import identity, open_database
from tailrace.capture.slatedb.value_decoder import ValueDecoder
from tailrace.change import Lsn
from tailrace.errors import SnapshotError, TailraceError
from tailrace.log import published_table
from tailrace.log import snapshot as format_
from tailrace.log.snapshot import ChunkWriter, SnapshotChunk, SnapshotReader, TableSnapshot
from tailrace.log.snapshot_request import pending_requests
from tailrace.quantity import count
from tailrace.retry import Backoff
from tailrace.settings import Settings
from tailrace.slatedb.log_message import log_rows
from tailrace.slatedb.row_entry import SCHEMA
from tailrace.store import Store

_log = logging.getLogger("tailrace.snapshot")

_POLL_S: Final = 2.0
"""How often sinks' requests are read: one listing of the store."""
_ATTEMPTS: Final = 10
_ORPHAN_AGE: Final = timedelta(hours=1)
"""Chunks of an unfinished snapshot that are older belong to a process that died."""


@dataclass
class ScanProgress:
    tables: int = 1
    tables_done: int = 0
    rows: int = 0
    started_at: float = field(default_factory=time.monotonic)
    estimated_rows: int | None = None
    """Unknown: a scan does not say how much is left."""
    seconds_left: float | None = None


def take_snapshot(
    settings: Settings,
    store: Store,
    database: SlateDatabase,
    checkpoint: DatabaseCheckpoint,
    progress: ScanProgress,
    stopping: threading.Event,
) -> TableSnapshot:
    """Scan a checkpoint into a snapshot, then delete the checkpoint."""
    assert settings.slatedb is not None
    relation = relation_of(settings.slatedb)
    lsn = Lsn(checkpoint.manifest.last_l0_seq + 1)
    id = format_.new_id(lsn)
    prefix = format_.prefix(relation, id)
    chunks: list[SnapshotChunk] = []
    try:
        for number, (chunk, data) in enumerate(_chunks(settings, database, checkpoint, progress, stopping), 1):
            name = f"chunk-{number:05d}.parquet"
            store.create(f"{prefix}/{name}", data)
            chunks.append(replace(chunk, name=name))
    finally:
        with contextlib.suppress(TailraceError):  # it expires
            database.delete_checkpoint(checkpoint.id)
    snapshot = TableSnapshot(
        id=id,
        relation=relation,
        lsn=lsn,
        source=identity(settings.slatedb),
        taken_at=datetime.now(UTC),
        rows=progress.rows,
        manifest=tuple(chunks),
        store=store,
    )
    store.create(f"{prefix}/{format_.META}", snapshot.to_json().encode())
    with contextlib.suppress(TailraceError):  # then sinks find it a few seconds later
        format_.announce(store, snapshot)
    progress.tables_done = 1
    _log.info("%s: %s at %s", relation.qualified_name, count(snapshot.rows, "row"), snapshot.lsn)
    return snapshot


def _chunks(
    settings: Settings,
    database: SlateDatabase,
    checkpoint: DatabaseCheckpoint,
    progress: ScanProgress,
    stopping: threading.Event,
) -> Iterator[tuple[SnapshotChunk, bytes]]:
    from tailrace.pgoutput.decoder import decode  # loads the compiler

    assert settings.slatedb is not None
    relation = relation_of(settings.slatedb)
    decoder = ValueDecoder(settings.slatedb.value)
    writer, size = ChunkWriter(relation), 0
    for found in database.scan(checkpoint):
        if stopping.is_set():
            raise SnapshotError("the snapshot was cancelled", "run it again")
        entries = _entries(found)
        keys = entries["key"]
        texts = [
            expiry_texts(entries["expire_ts"]),
            *decoder.texts(entries["value"], keys, lambda row: f"snapshot row {progress.rows + row}"),
        ]
        if len(relation.columns) > 2 + len(texts):
            texts.append(pa.nulls(len(entries), pa.string()))  # the operand
        none = np.zeros(len(entries), np.int64)
        # Through the same messages as the stream, so that both agree on every value.
        rows = log_rows(entries, texts, relation.oid, none, ends=False)
        images = decode(relation, rows.payload).new
        writer.write(images.batch, images.special)
        progress.rows += len(entries)
        size += rows.payload.nbytes
        if size >= settings.snapshot.chunk_bytes:
            yield writer.finish("")
            writer, size = ChunkWriter(relation), 0
    if writer.rows:
        yield writer.finish("")


def _entries(found: ScannedRows) -> pa.RecordBatch:
    """Rows of a scan as puts of one batch."""
    count = len(found.keys)
    kinds = pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int8)), pa.array(["put", "delete", "merge"]))
    return pa.RecordBatch.from_arrays(
        [
            kinds,
            pa.array(found.keys, pa.large_binary()),
            pa.array(found.values, pa.large_binary()),
            pa.array(np.ones(count, np.uint64)),
            pa.nulls(count, pa.int64()),
            pa.array(found.expire_ts, pa.int64()),
        ],
        schema=SCHEMA,
    )


class SlateDbBootstrap:
    """Takes the snapshots in a thread. Fulfils `Snapshots` and `CheckpointSnapshots`."""

    def __init__(self, settings: Settings, store: Store) -> None:
        assert settings.slatedb is not None
        self._settings = settings
        self._source = settings.slatedb
        self._store = store
        self._since = Lsn(0)
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: TailraceError | None = None
        self.progress: ScanProgress | None = None

    @property
    def is_running(self) -> bool:
        return self._is_alive and not self._settled.is_set()

    @property
    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self, checkpoint: DatabaseCheckpoint | None, since: Lsn) -> None:
        if self._is_alive and checkpoint is None and since == self._since:
            return
        self.stop()
        self._stopping.clear()
        self._settled.clear()
        self.error = None
        self._since = since
        published_table.save(self._store, [relation_of(self._source)])
        self._thread = threading.Thread(target=self._run, args=(checkpoint,), name="bootstrap", daemon=True)
        self._thread.start()

    def look_now(self) -> None:
        """No table joins: a database is one table."""

    def wait(self, timeout_s: float | None = None) -> bool:
        if self._is_alive:
            self._settled.wait(timeout_s)
        return not self.is_running

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self, checkpoint: DatabaseCheckpoint | None) -> None:
        backoff = Backoff(first=1.0)
        try:
            with contextlib.suppress(TailraceError):  # they only take space
                self._remove_orphans()
            while not self._stopping.is_set():
                delay = _POLL_S
                try:
                    if self._is_needed():
                        self._settled.clear()
                        self._take(checkpoint)
                    backoff, self.error = Backoff(first=1.0), None
                    self._settled.set()
                except TailraceError as error:
                    if self._stopping.is_set():
                        return
                    delay = self._fail(error, backoff)
                checkpoint = None
                self._stopping.wait(delay)
        except Exception as error:  # a bug: it must reach the operator
            _log.exception("a snapshot failed")
            self.error = SnapshotError(f"a snapshot failed: {error!r}", "this is a bug in Tailrace: please report it")
        finally:
            self._settled.set()

    def _is_needed(self) -> bool:
        """Whether the table has no snapshot, or a sink requests one. Answers the requests that one satisfies."""
        oid = relation_of(self._source).oid
        newest = SnapshotReader(self._store).newest(oid=oid)
        is_valid = newest is not None and newest.lsn >= self._since
        pending = []
        for request in pending_requests(self._store):
            if newest is not None and is_valid and (not request.is_fresh or newest.taken_at > request.requested_at):
                replace(request, lsn=newest.lsn).save(self._store)
            else:
                if not request.is_seen:
                    replace(request, is_seen=True).save(self._store)
                pending.append(request)
        return not is_valid or bool(pending)

    def _take(self, checkpoint: DatabaseCheckpoint | None) -> None:
        self.progress = ScanProgress()
        database = open_database(self._source)
        taken = checkpoint or database.create_checkpoint()
        _log.info("copying the database as of %s", Lsn(taken.manifest.last_l0_seq + 1))
        take_snapshot(self._settings, self._store, database, taken, self.progress, self._stopping)
        self._is_needed()  # answers the requests

    def _fail(self, error: TailraceError, backoff: Backoff) -> float:
        if error.retry and backoff.failures < _ATTEMPTS:
            delay = backoff.next()
            _log.warning("%s; retrying in %.1f s", error, delay)
            return delay
        self.error = error
        self._settled.set()
        with contextlib.suppress(TailraceError):  # then the requests are tried again
            for request in pending_requests(self._store):
                replace(request, error=str(error), hint=error.hint).save(self._store)
        _log.error("no snapshot: %s (%s)", error, error.hint)
        return 600.0

    def _remove_orphans(self) -> None:
        ages = {info.key: info.modified_at for info in self._store.list(format_.PREFIX)}
        for key in SnapshotReader(self._store).orphans():
            if key in ages and datetime.now(UTC) - ages[key] > _ORPHAN_AGE:
                self._store.delete(key)
