"""Takes snapshots: worker processes copy tables from one exported snapshot of the source.

The parent plans, assigns parts to workers, and writes a table's `meta.json` once all its parts are stored. It then
announces the snapshot in the store, where sinks look for new ones. Nothing is written to the source.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import multiprocessing
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait as wait_for
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

import psycopg
from psycopg.pq.abc import PGconn

from tailrace.capture.postgres import slot, snapshot_plan, snapshot_worker
from tailrace.capture.postgres.catalog import PublishedTable
from tailrace.capture.postgres.slot import CreatedSlot
from tailrace.capture.postgres.snapshot_plan import TablePlan
from tailrace.capture.postgres.snapshot_transaction import use_snapshot
from tailrace.capture.postgres.snapshot_worker import (
    CopyFailure,
    CopyProgress,
    CopyTask,
    PartFinished,
    WorkerReady,
    WorkerSettings,
)
from tailrace.capture.postgres.source_connection import connect, connect_replication
from tailrace.capture.postgres.source_error import source_errors
from tailrace.change import Lsn
from tailrace.errors import ConfigError, SnapshotError, StoreError, TailraceError
from tailrace.log import snapshot as format_
from tailrace.log.snapshot import SnapshotChunk, SnapshotReader, TableSnapshot
from tailrace.quantity import count
from tailrace.settings import Settings
from tailrace.store import Store

_log = logging.getLogger("tailrace.snapshot")

PROCESSES: SpawnContext | ForkServerContext = multiprocessing.get_context("spawn")
"""Spawned, because a process with threads, such as capture, must not fork, and workers must free all their memory."""

# Time to start an interpreter and a connection, with ample reserve.
_START_SECONDS = 120.0
_POLL_SECONDS = 0.2
# With the delays between them 12 seconds, plus as long again for the store's own attempts. A longer outage of the store
# ends the snapshot; finished tables are retained.
_STORE_ATTEMPTS = 7


def tables_without_snapshot(
    store: Store,
    tables: Iterable[PublishedTable],
    since: Lsn = Lsn(0),  # noqa: B008 (an immutable value)
) -> list[PublishedTable]:
    """The tables that have no finished snapshot at or after `since`."""
    finished = SnapshotReader(store).oids(since)
    return [table for table in tables if table.oid not in finished]


@dataclass
class SnapshotProgress:
    tables: int = 0
    tables_done: int = 0
    rows: int = 0
    bytes: int = 0
    """Bytes of text, as COPY sent it."""
    estimated_rows: int = 0
    """The planner's estimate, corrected as tables finish."""
    started_at: float = field(default_factory=time.monotonic)
    ended_at: float | None = None

    @property
    def seconds(self) -> float:
        return (self.ended_at or time.monotonic()) - self.started_at

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """The estimated remaining time; None before the first rows and after the end."""
        if not self.rows or self.ended_at is not None:
            return None
        return max(self.estimated_rows - self.rows, 0) / self.rows_per_second


@dataclass
class _TableProgress:
    plan: TablePlan
    id: str
    parts_left: int
    rows: int = 0
    chunks: list[SnapshotChunk] = field(default_factory=list)

    @property
    def prefix(self) -> str:
        return format_.prefix(self.plan.relation, self.id)


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Pipe
    task: CopyTask | None = None


class SnapshotJob:
    """One snapshot of published tables, each visible as soon as it is complete.

    `tables` are the tables to copy; None copies all. `exported` is a slot that the caller just created; its connection
    must stay idle until `start` returns. Without it, the job creates a temporary slot to learn the LSN, and drops it
    again.
    """

    def __init__(
        self,
        settings: Settings,
        tables: Collection[PublishedTable] | None = None,
        exported: CreatedSlot | None = None,
    ) -> None:
        if settings.store.url.startswith("memory:"):
            raise ConfigError(
                "a store in memory cannot be shared with snapshot worker processes", "use a file:// store"
            )
        self.progress = SnapshotProgress()
        self.finished: list[TableSnapshot] = []
        self.failures: dict[str, TailraceError] = {}
        """Errors of single tables that could not be copied, by table name."""
        self.error: TailraceError | None = None
        """The error that ended the whole job."""
        self._settings = settings
        self._oids = None if tables is None else {table.oid for table in tables}
        self._exported = exported
        self._store = Store.open(settings.store.url, settings.store.options)
        self._tables: dict[str, _TableProgress] = {}
        self._tasks: deque[CopyTask] = deque()
        self._workers: list[_Worker] = []
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start copying in the background. Returns once every worker's transaction holds the snapshot."""
        source = self._settings.source
        with contextlib.ExitStack() as on_failure:
            connection = connect(source)
            on_failure.callback(connection.close)
            on_failure.callback(self._end_workers)
            with source_errors():
                _remove_orphans(connection, self._store, source.slot)
            replication = connect_replication(source)
            try:
                self._source = slot.identify(replication, source)
                exported = self._exported or self._temporary_slot(replication)
                self.lsn = exported.lsn
                self._plan(connection, exported)
                self._start_workers(exported)
            finally:
                replication.finish()
            on_failure.pop_all()
        self._thread = threading.Thread(target=self._run, args=(connection,), name="snapshot", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all tables are done; return False on timeout. Every call raises the job's error, if any."""
        assert self._thread is not None, "not started"
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            return False
        if self.error is not None:
            raise self.error
        if len(self.failures) == 1:
            raise next(iter(self.failures.values()))
        if self.failures:
            reasons = "; ".join(map(str, self.failures.values()))
            hint = next(iter(self.failures.values())).hint
            raise SnapshotError(f"{len(self.failures)} tables could not be copied: {reasons}", hint)
        return True

    def cancel(self) -> None:
        """Stop. Complete tables are retained; all chunks of the others are removed."""
        self._cancelled.set()

    def _temporary_slot(self, connection: PGconn) -> CreatedSlot:
        name = f"tailrace_snapshot_{format_.new_id(Lsn(0))[-8:]}"
        created = slot.create(connection, name, self._cancelled.is_set, temporary=True)
        if created is None:
            raise _cancellation_error()
        return created

    def _plan(self, connection: psycopg.Connection[Any], exported: CreatedSlot) -> None:
        settings = self._settings
        use_snapshot(connection, exported.snapshot)
        tables = snapshot_plan.select_tables(connection, settings.source.publication, self._oids)
        plans = snapshot_plan.plan(connection, tables, settings.snapshot.chunk_bytes)
        connection.execute("COMMIT")
        for plan in plans:
            table = _TableProgress(plan, format_.new_id(exported.lsn), len(plan.parts))
            self._tables[table.prefix] = table
            self._tasks.extend(CopyTask(part, table.prefix) for part in plan.parts)
            self.progress.estimated_rows += plan.estimated_rows
        self.progress.tables = len(plans)

    def _start_workers(self, exported: CreatedSlot) -> None:
        settings = self._settings
        # A worker with less than a chunk to copy would take longer to start than to copy.
        heaps = {task.part.heap for task in self._tasks}
        useful = 1 + sum(heap.pages * heap.page_bytes for heap in heaps) // settings.snapshot.chunk_bytes
        count = min(settings.snapshot.workers, len(self._tasks), useful)
        for number in range(1, count + 1):
            ours, theirs = PROCESSES.Pipe()
            worker_settings = WorkerSettings.of(
                settings.source,
                store_url=settings.store.url,
                store_options=dict(settings.store.options),
                snapshot=exported.snapshot,
                chunk_rows=settings.snapshot.chunk_rows,
                chunk_bytes=settings.snapshot.chunk_bytes,
                store_attempts=_STORE_ATTEMPTS,
                number=number,
                workers=count,
            )
            process = PROCESSES.Process(
                target=snapshot_worker.main, args=(theirs, worker_settings), name=f"snapshot-{number}", daemon=True
            )
            process.start()
            theirs.close()
            self._workers.append(_Worker(process, ours))
        deadline = time.monotonic() + _START_SECONDS
        for worker in self._workers:
            while not worker.pipe.poll(_POLL_SECONDS):
                if self._cancelled.is_set():
                    raise _cancellation_error()
                if time.monotonic() > deadline:
                    raise SnapshotError(
                        "a snapshot worker did not start in time", "check whether the machine is overloaded"
                    )
            match self._receive(worker):
                case CopyFailure(error=error):
                    raise error
                case other:
                    assert isinstance(other, WorkerReady)

    def _run(self, connection: psycopg.Connection[Any]) -> None:
        try:
            with connection:
                for table in [t for t in self._tables.values() if not t.parts_left]:
                    self._finish(table)  # a partitioned table without partitions
                self._copy()
        except TailraceError as error:
            self.error = error
        except Exception as error:
            _log.exception("a snapshot failed")
            hint = "this is a bug in Tailrace: please report it, with the lines above"
            self.error = SnapshotError(f"a snapshot failed: {type(error).__name__}", hint)
        finally:
            self._end_workers()
            self._remove_unfinished()
            self.progress.ended_at = time.monotonic()

    def _copy(self) -> None:
        for worker in self._workers:
            self._assign_next(worker)
        while busy := {worker.pipe: worker for worker in self._workers if worker.task is not None}:
            if self._cancelled.is_set():
                raise _cancellation_error()
            for pipe in wait_for(list(busy), _POLL_SECONDS):
                self._handle_report(busy[pipe])  # type: ignore[index]

    def _handle_report(self, worker: _Worker) -> None:
        match self._receive(worker):
            case CopyProgress(rows=rows, bytes=size):
                self.progress.rows += rows
                self.progress.bytes += size
            case PartFinished(task=task, chunks=chunks):
                table = self._tables[task.prefix]
                table.chunks += chunks
                table.rows += sum(chunk.rows for chunk in chunks)
                table.parts_left -= 1
                self._assign_next(worker)
                if not table.parts_left:
                    self._finish(table)
            case CopyFailure(task=None, error=error):
                raise error
            case CopyFailure(task=task, error=error):
                assert task is not None
                _log.warning("%s", error)
                self.failures.setdefault(task.part.relation.qualified_name, error)
                self._tasks = deque(t for t in self._tasks if t.prefix != task.prefix)
                self._assign_next(worker)

    def _assign_next(self, worker: _Worker) -> None:
        worker.task = self._tasks.popleft() if self._tasks else None
        with contextlib.suppress(OSError):  # the worker died: reading from it will report that
            worker.pipe.send(worker.task)

    def _receive(self, worker: _Worker) -> snapshot_worker.Report:
        try:
            report: snapshot_worker.Report = worker.pipe.recv()
        except (EOFError, ConnectionResetError):
            worker.process.join(_START_SECONDS)
            code = worker.process.exitcode or 0
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            what = f" while it copied {worker.task.part.relation.qualified_name}" if worker.task else ""
            raise SnapshotError(
                f"a snapshot worker {how}{what}",
                "the next run copies the unfinished tables again; if memory ran out, lower [snapshot] chunk_bytes "
                "or workers",
            ) from None
        return report

    def _finish(self, table: _TableProgress) -> None:
        snapshot = TableSnapshot(
            id=table.id,
            relation=table.plan.relation,
            lsn=self.lsn,
            source=self._source,
            taken_at=datetime.now(UTC),
            rows=table.rows,
            manifest=tuple(sorted(table.chunks, key=lambda chunk: chunk.name)),
            store=self._store,
        )
        meta = snapshot.to_json().encode()
        snapshot_worker.create(self._store, f"{table.prefix}/{format_.META}", meta, _STORE_ATTEMPTS)
        del self._tables[table.prefix]
        self.finished.append(snapshot)
        self.progress.tables_done += 1
        self.progress.estimated_rows += table.rows - table.plan.estimated_rows
        _log.info("%s: %s at %s", snapshot.relation.qualified_name, count(snapshot.rows, "row"), snapshot.lsn)
        with contextlib.suppress(StoreError):  # then sinks find it a few seconds later
            format_.announce(self._store, snapshot)

    def _end_workers(self) -> None:
        for worker in self._workers:
            if worker.task is not None:
                worker.process.kill()  # it ignores SIGTERM, and what it has stored is removed
            worker.pipe.close()
        for worker in self._workers:
            worker.process.join(5)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.process.close()
        self._workers = []

    def _remove_unfinished(self) -> None:
        """Remove the chunks of unfinished tables. The next run removes those that cannot be removed now."""
        with contextlib.suppress(TailraceError):
            for prefix in self._tables:
                for info in self._store.list(prefix):
                    self._store.delete(info.key)


def _cancellation_error() -> SnapshotError:
    return SnapshotError("the snapshot was cancelled", "finished tables are retained; run it again for the others")


def _remove_orphans(connection: psycopg.Connection[Any], store: Store, slot_name: str) -> None:
    """Remove the chunks of interrupted snapshots, unless another job runs. Running jobs hold a shared lock."""
    digest = hashlib.sha256(f"tailrace snapshot {slot_name}".encode()).digest()
    key = int.from_bytes(digest[:8], "big", signed=True)
    is_alone = connection.execute("SELECT pg_catalog.pg_try_advisory_lock(%s)", [key]).fetchone() == (True,)
    if is_alone:
        for orphan in SnapshotReader(store).orphans():
            store.delete(orphan)
    connection.execute("SELECT pg_catalog.pg_advisory_lock_shared(%s)", [key])
    if is_alone:
        connection.execute("SELECT pg_catalog.pg_advisory_unlock(%s)", [key])
