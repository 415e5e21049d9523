"""Takes a snapshot of every published table that has none, while capture streams.

Tables join a publication while capture runs: by ALTER PUBLICATION, or by CREATE TABLE if the publication is for all
tables or for a schema. The stream shows this only with the first row, so the publication is polled. This module also
publishes the list of tables to readers of the log, and answers their requests for snapshots.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Collection
from dataclasses import replace
from datetime import datetime
from typing import Any

import psycopg

from tailrace.capture.postgres import catalog
from tailrace.capture.postgres.catalog import PublishedTable
from tailrace.capture.postgres.slot import CreatedSlot
from tailrace.capture.postgres.snapshot_job import SnapshotJob, SnapshotProgress
from tailrace.capture.postgres.source_connection import connect
from tailrace.change import Lsn
from tailrace.errors import SnapshotError, TailraceError
from tailrace.log import published_table
from tailrace.log.snapshot import SnapshotReader
from tailrace.log.snapshot_request import SnapshotRequest, pending_requests
from tailrace.quantity import count
from tailrace.retry import Backoff
from tailrace.settings import Settings
from tailrace.store import Store

_log = logging.getLogger("tailrace.snapshot")

# One catalogue query on an open connection is negligible for the source, and a sink receives a new table about as soon
# as the person who created it looks for it there.
_POLL_SECONDS = 10.0
# Costs one listing of the store. A copy takes much longer than this delay.
_REQUEST_POLL_SECONDS = 2.0
# Consecutive attempts without a finished table: minutes, including the delays between them.
_ATTEMPTS = 10
# Each attempt to copy a table that cannot be copied costs a slot and a failed COPY; a missing privilege is usually
# granted within the hour.
_POSTPONE_SECONDS = 600.0


class TablesToCopy:
    """The published tables that have to be copied, updated with each poll of the publication. No I/O."""

    def __init__(self) -> None:
        self._published: frozenset[int] = frozenset()
        self._copied: set[int] = set()
        self._unpublished_at: dict[int, Lsn] = {}
        self._postponed_until: dict[int, float] = {}

    def update(self, published: Collection[int], lsn: Lsn) -> set[int]:
        """Return the oids of published tables that are not known to have a copy.

        `published` are the oids of all published tables, and `lsn` is the source's position when they were read. The
        log lacks changes of a table that was not published for a while, so its older snapshots do not count.
        """
        for oid in self._published.difference(published):
            self._unpublished_at[oid] = lsn
            self._copied.discard(oid)
            self._postponed_until.pop(oid, None)
        self._published = frozenset(published)
        return set(self._published - self._copied)

    def oldest_valid_lsn(self, oid: int, since: Lsn) -> Lsn:
        """The LSN from which snapshots of the table are valid, at least `since`."""
        return max(since, self._unpublished_at.get(oid, Lsn(0)))

    def mark_copied(self, oids: Collection[int]) -> None:
        self._copied.update(oids)
        for oid in oids:
            self._postponed_until.pop(oid, None)

    def due_tables(self, oids: Collection[int], now: float) -> set[int]:
        """The tables that are not postponed beyond `now`."""
        return {oid for oid in oids if self._postponed_until.get(oid, now) <= now}

    def postpone(self, oids: Collection[int], until: float) -> None:
        self._postponed_until.update((oid, until) for oid in oids)

    @property
    def has_postponed(self) -> bool:
        """Whether some table could not be copied."""
        return bool(self._postponed_until)

    def reset(self) -> None:
        """Forget which tables the store has, and which cannot be copied."""
        self._copied.clear()
        self._postponed_until.clear()


class Bootstrap:
    """Copies published tables in a thread. A finished table is never copied again.

    Call `begin` before each start of the stream, and `stop` at the end. For a slot that was just created, it uses the
    slot's own snapshot.
    """

    def __init__(self, settings: Settings, store: Store, poll_seconds: float = _POLL_SECONDS) -> None:
        self._settings = settings
        self._store = store
        self._poll_seconds = poll_seconds
        self._since = Lsn(0)
        self._tables = TablesToCopy()
        self._connection: psycopg.Connection[Any] | None = None
        self._job: SnapshotJob | None = None
        self._copying: dict[str, int] = {}
        self._published: frozenset[int] | None = None
        """The tables that are published to readers of the log."""
        self._job_requests: set[tuple[str, datetime]] = set()
        """The requests that the current job answers."""
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._poll_now = threading.Event()
        self._settled = threading.Event()
        self.error: TailraceError | None = None
        """Why some table has no snapshot, if one failed."""

    @property
    def progress(self) -> SnapshotProgress | None:
        """None until the first copy starts."""
        return self._job.progress if self._job is not None else None

    @property
    def is_running(self) -> bool:
        """Whether tables are being copied, or are about to be."""
        return self._is_alive and not self._settled.is_set()

    @property
    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self, created: CreatedSlot | None, since: Lsn) -> None:
        """Start copying in the background. Returns once the workers hold the slot's exported snapshot.

        `created` is the slot if it was just created. Snapshots from before `since` do not count, because the log does
        not reach back to them.
        """
        if self._is_alive and created is None and since == self._since:
            self._poll_now.set()  # the source is reachable again
            return
        self.stop()  # its work belongs to a slot that no longer exists
        self._stopping.clear()
        self._settled.clear()
        self.error = None
        self._since = since
        self._tables.reset()
        self._published = None
        self._job_requests.clear()
        job = None
        if created is not None:
            with contextlib.ExitStack() as on_failure:
                on_failure.callback(self._disconnect)
                job = self._start_job(created)
                on_failure.pop_all()
        self._thread = threading.Thread(target=self._run, args=(job,), name="bootstrap", daemon=True)
        self._thread.start()

    def look_now(self) -> None:
        """Look for new tables at once."""
        self._poll_now.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether, in time, every published table has its snapshot or `error` says why not."""
        if self._is_alive:
            self._settled.wait(timeout_s)
        return not self.is_running

    def stop(self) -> None:
        self._stopping.set()
        self._poll_now.set()
        if self._job is not None:
            self._job.cancel()
        if self._thread is not None:
            self._thread.join()

    def _start_job(self, created: CreatedSlot | None) -> SnapshotJob | None:
        """Start a job for the tables to copy; None if there are none."""
        if self._connection is None:
            self._connection = connect(self._settings.source)
        oids, lsn = catalog.published_oids(self._connection, self._settings.source.publication)
        self._publish_tables(oids)
        candidates = self._tables.update(oids, lsn)
        since = {oid: self._tables.oldest_valid_lsn(oid, self._since) for oid in candidates}
        finished = {lsn: SnapshotReader(self._store).oids(lsn) for lsn in set(since.values())}
        with_snapshot = {oid for oid in candidates if oid in finished[since[oid]]}
        self._tables.mark_copied(with_snapshot)
        requests = self._answer_requests()
        self._job_requests = {(request.key, request.requested_at) for request in requests}
        due = self._tables.due_tables(candidates - with_snapshot, time.monotonic()) | {
            request.oid for request in requests
        }
        if not due:
            return None
        tables = [table for table in self._published_tables() if table.oid in due]
        self._copying = {f"{t.schema}.{t.name}": t.oid for t in tables}
        if not tables:
            return None
        self._settled.clear()
        _log.info("copying %s", count(len(tables), "table"))
        job = SnapshotJob(self._settings, tables, created)
        self._job = job
        if self._stopping.is_set():
            job.cancel()
        job.start()
        return job

    def _published_tables(self) -> list[PublishedTable]:
        assert self._connection is not None
        return catalog.published_tables(self._connection, self._settings.source.publication)

    def _publish_tables(self, oids: Collection[int]) -> None:
        """Publish the list of captured tables to readers of the log."""
        if self._published == frozenset(oids):
            return
        assert self._connection is not None
        columns = {table.oid: table.columns for table in self._published_tables()}
        published_table.save(self._store, catalog.describe(self._connection, columns, columns).values())
        self._published = frozenset(oids)

    def _answer_requests(self, job: SnapshotJob | None = None) -> list[SnapshotRequest]:
        """Answer the requests that existing snapshots, or those that `job` finished, satisfy. Return the others."""
        pending = []
        for request in pending_requests(self._store):
            if (lsn := self._answer(request, job)) is not None:
                replace(request, lsn=lsn).save(self._store)
            elif request.oid not in (self._published or ()):
                named = self._settings.source.publication
                replace(
                    request, error=f"it is no longer in publication {named}", hint="add it to the publication"
                ).save(self._store)
            else:
                if not request.is_seen:
                    replace(request, is_seen=True).save(self._store)
                pending.append(request)
        return pending

    def _answer(self, request: SnapshotRequest, job: SnapshotJob | None) -> Lsn | None:
        for snapshot in job.finished if job is not None else ():
            if snapshot.relation.oid == request.oid and (
                not request.is_fresh or (request.key, request.requested_at) in self._job_requests
            ):
                return snapshot.lsn
        newest = None if request.is_fresh else SnapshotReader(self._store).newest(oid=request.oid)
        return (
            newest.lsn
            if newest is not None and newest.lsn >= self._tables.oldest_valid_lsn(request.oid, self._since)
            else None
        )

    def _wait_for_job(self, job: SnapshotJob) -> None:
        done = False
        while not done:
            try:
                done = job.wait(min(_REQUEST_POLL_SECONDS, self._poll_seconds))
            finally:
                # The job reports an unreachable store, and the requests stay in it.
                with contextlib.suppress(TailraceError):
                    self._answer_requests(job)

    def _wait_for_work(self, delay: float) -> None:
        """Wait until the next poll is due, or a new request arrives."""
        until = time.monotonic() + delay
        step = min(_REQUEST_POLL_SECONDS, self._poll_seconds)
        while (left := until - time.monotonic()) > 0 and not self._poll_now.wait(min(left, step)):
            with contextlib.suppress(TailraceError):  # the next poll meets it too
                if not all(request.is_seen for request in pending_requests(self._store)):
                    return

    def _run(self, job: SnapshotJob | None) -> None:
        backoff = Backoff(first=1.0)
        try:
            while not self._stopping.is_set():
                delay = self._poll_seconds
                self._poll_now.clear()
                try:
                    job = job or self._start_job(None)
                    if job is not None:
                        self._wait_for_job(job)
                        delay = 0.0  # another table may have been added meanwhile
                    backoff = Backoff(first=1.0)
                    if not self._tables.has_postponed:
                        self.error = None
                    if job is None:
                        self._settled.set()
                except TailraceError as error:
                    if self._stopping.is_set():
                        return
                    self._disconnect()
                    if job is not None and job.finished:
                        backoff = Backoff(first=1.0)
                    delay = self._retry_delay(error, job, backoff)
                job = None
                if not self._stopping.is_set():
                    self._wait_for_work(delay)
        finally:
            self._disconnect()
            self._settled.set()

    def _retry_delay(self, error: TailraceError, job: SnapshotJob | None, backoff: Backoff) -> float:
        """Return the seconds to wait. Temporary failures are retried soon; others are reported and retried rarely."""
        if job is None and self._settled.is_set():
            return self._poll_seconds  # capture meets the same failure, and reports it
        if job is not None and job.error is None:
            permanent = {name: failure for name, failure in job.failures.items() if not _is_temporary(failure)}
            for name, failure in permanent.items():
                self._give_up({oid for table, oid in self._copying.items() if table == name}, failure)
            if permanent.keys() == job.failures.keys():
                return backoff.next()
        if not _is_temporary(error) or backoff.failures >= _ATTEMPTS:
            done = {snapshot.relation.oid for snapshot in job.finished} if job is not None else set()
            self._give_up(set(self._copying.values()) - done, error)
            if job is None:
                self._settled.set()
            return self._poll_seconds
        delay = backoff.next()
        _log.warning("%s; retrying unfinished tables in %.1f s", error, delay)
        return delay

    def _give_up(self, oids: Collection[int], error: TailraceError) -> None:
        self.error = error
        self._tables.postpone(oids, time.monotonic() + _POSTPONE_SECONDS)
        with contextlib.suppress(TailraceError):  # then the requests are tried again
            for request in pending_requests(self._store):
                if request.oid in oids:
                    replace(request, error=str(error), hint=error.hint).save(self._store)
        _log.error(
            "%s. Retrying in %.0f minutes; after fixing it, `tailrace snapshot --missing` retries at once",
            error.with_hint,
            _POSTPONE_SECONDS / 60,
        )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _is_temporary(error: TailraceError) -> bool:
    return error.retry or isinstance(error, SnapshotError)
