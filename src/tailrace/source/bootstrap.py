"""Snapshots that capture takes by itself: of every published table that has none, beside the stream."""

from __future__ import annotations

import logging
import threading

from tailrace.change import Lsn
from tailrace.errors import SnapshotError, TailraceError
from tailrace.retry import Backoff
from tailrace.settings import Settings
from tailrace.source import catalog
from tailrace.source.connection import connect
from tailrace.source.slot import CreatedSlot
from tailrace.source.snapshot import Progress, SnapshotJob, missing
from tailrace.store import Store

_log = logging.getLogger("tailrace.snapshot")

# In a row, without a single table finished: minutes, with the waits between them.
_ATTEMPTS = 10


class Bootstrap:
    """`begin` each time before the stream starts; `stop` at the end. Tables once finished are never copied again.

    Where the slot has just been made, its own snapshot is used.
    """

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._since = Lsn(0)
        self._job: SnapshotJob | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self.error: TailraceError | None = None
        """Why it gave up, if it did."""

    @property
    def progress(self) -> Progress | None:
        """None while nothing is copied."""
        return self._job.progress if self._job is not None else None

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self, created: CreatedSlot | None, since: Lsn) -> None:
        """Returns once the slot's exported snapshot is in the workers' hands; copying goes on by itself.

        Snapshots from before `since` do not count: the log does not reach back to them.
        """
        if self.is_running:
            if created is None:
                return
            self.stop()  # that was of a slot that is gone
            self._stopping.clear()
        self.error = None
        self._since = since
        job = None
        if created is not None:
            job = self._started(created)
            if job is None:
                return
        self._thread = threading.Thread(target=self._run, args=(job,), name="bootstrap", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it ended in time, with every table or with an error."""
        if self._thread is not None:
            self._thread.join(timeout_s)
        return not self.is_running

    def stop(self) -> None:
        self._stopping.set()
        if self._job is not None:
            self._job.cancel()
        self.wait()

    def _started(self, created: CreatedSlot | None) -> SnapshotJob | None:
        """None when there is nothing to copy."""
        with connect(self._settings.source) as connection:
            tables = catalog.published(connection, self._settings.source.publication)
        wanted = missing(self._store, tables, self._since)
        if not wanted:
            return None
        _log.info("copying %d tables", len(wanted))
        job = SnapshotJob(self._settings, wanted, created)
        self._job = job
        if self._stopping.is_set():
            job.cancel()
        job.start()
        return job

    def _run(self, job: SnapshotJob | None) -> None:
        backoff = Backoff(first=1.0)
        while not self._stopping.is_set():
            try:
                job = job or self._started(None)
                if job is not None:
                    job.wait()
                return
            except TailraceError as error:
                if self._stopping.is_set():
                    return
                if job is not None and job.finished:
                    backoff = Backoff(first=1.0)
                may_pass = error.retry or isinstance(error, SnapshotError)
                if not may_pass or backoff.failures >= _ATTEMPTS:
                    self.error = error
                    _log.error("%s; mend it, then run `tailrace snapshot --missing`. %s", error, error.hint)
                    return
                delay = backoff.next()
                _log.warning("%s; tables that are not finished are copied again in %.1f s", error, delay)
                job = None
                self._stopping.wait(delay)
