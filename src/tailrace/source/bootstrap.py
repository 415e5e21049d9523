"""Snapshots that capture takes by itself: of every published table that has none, beside the stream.

Tables join a publication while capture runs: by ALTER PUBLICATION, or by CREATE TABLE where it is for all tables or
for a schema. Nothing in the stream says so before the first row does, so the publication is looked at again and again.
Those who read the log learn from here which tables there are, and may wish for a copy.
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

from tailrace.change import Lsn
from tailrace.errors import SnapshotError, TailraceError
from tailrace.log import publication
from tailrace.log.publication import Wish
from tailrace.log.snapshot import SnapshotReader
from tailrace.retry import Backoff
from tailrace.settings import Settings
from tailrace.source import catalog
from tailrace.source.catalog import PublishedTable
from tailrace.source.connection import connect
from tailrace.source.slot import CreatedSlot
from tailrace.source.snapshot import Progress, SnapshotJob
from tailrace.store import Store

_log = logging.getLogger("tailrace.snapshot")

# One query of the catalogue on a connection that stays open: nothing to the source, and a sink gets a new table about
# as soon as somebody who has just made it looks for it there.
_LOOK_SECONDS = 10.0
# One listing of the store: whoever wants a table copied has waited for longer things.
_WISHES_SECONDS = 2.0
# In a row, without a single table finished: minutes, with the waits between them.
_ATTEMPTS = 10
# A table that cannot be copied costs a slot and a failed COPY each time; a privilege is granted within the hour.
_AGAIN_SECONDS = 600.0


class Wanted:
    """Which published tables have to be copied, from one look at the publication to the next. Pure."""

    def __init__(self) -> None:
        self._seen: frozenset[int] = frozenset()
        self._copied: set[int] = set()
        self._left: dict[int, Lsn] = {}
        self._set_aside: dict[int, float] = {}

    def look(self, published: Collection[int], lsn: Lsn) -> set[int]:
        """Tables not known to have a copy, by oid; `lsn` is where the source stood when it was looked at.

        A table that was not published for a while has changes that the log lacks: its older snapshots do not count.
        """
        for oid in self._seen.difference(published):
            self._left[oid] = lsn
            self._copied.discard(oid)
            self._set_aside.pop(oid, None)
        self._seen = frozenset(published)
        return set(self._seen - self._copied)

    def since(self, oid: int, since: Lsn) -> Lsn:
        """From where on a snapshot of the table counts."""
        return max(since, self._left.get(oid, Lsn(0)))

    def copied(self, oids: Collection[int]) -> None:
        self._copied.update(oids)
        for oid in oids:
            self._set_aside.pop(oid, None)

    def due(self, oids: Collection[int], now: float) -> set[int]:
        """Those that are not set aside, or long enough ago."""
        return {oid for oid in oids if self._set_aside.get(oid, now) <= now}

    def set_aside(self, oids: Collection[int], until: float) -> None:
        self._set_aside.update((oid, until) for oid in oids)

    @property
    def lacks(self) -> bool:
        """Some table could not be copied."""
        return bool(self._set_aside)

    def again(self) -> None:
        """Nothing is known any more of what the store has, nor of what cannot be copied."""
        self._copied.clear()
        self._set_aside.clear()


class Bootstrap:
    """`begin` each time before the stream starts; `stop` at the end. Tables once finished are never copied again.

    Where the slot has just been made, its own snapshot is used.
    """

    def __init__(self, settings: Settings, store: Store, look_seconds: float = _LOOK_SECONDS) -> None:
        self._settings = settings
        self._store = store
        self._look_seconds = look_seconds
        self._since = Lsn(0)
        self._wanted = Wanted()
        self._connection: psycopg.Connection[Any] | None = None
        self._job: SnapshotJob | None = None
        self._copying: dict[str, int] = {}
        self._published: frozenset[int] | None = None
        """What the store says of it."""
        self._wished: set[tuple[str, datetime]] = set()
        """Those that the job under way fulfils."""
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._look_now = threading.Event()
        self._settled = threading.Event()
        self.error: TailraceError | None = None
        """Why some table has no snapshot, if it could not be taken."""

    @property
    def progress(self) -> Progress | None:
        """None while nothing was copied."""
        return self._job.progress if self._job is not None else None

    @property
    def is_running(self) -> bool:
        """Tables are being copied, or will be as soon as they can."""
        return self._is_alive and not self._settled.is_set()

    @property
    def _is_alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(self, created: CreatedSlot | None, since: Lsn) -> None:
        """Returns once the slot's exported snapshot is in the workers' hands; copying goes on by itself.

        Snapshots from before `since` do not count: the log does not reach back to them.
        """
        if self._is_alive and created is None and since == self._since:
            self._look_now.set()  # the source is there again
            return
        self.stop()  # what it does is of a slot that is gone
        self._stopping.clear()
        self._settled.clear()
        self.error = None
        self._since = since
        self._wanted.again()
        self._published = None
        self._wished.clear()
        job = None
        if created is not None:
            with contextlib.ExitStack() as on_failure:
                on_failure.callback(self._disconnect)
                job = self._started(created)
                on_failure.pop_all()
        self._thread = threading.Thread(target=self._run, args=(job,), name="bootstrap", daemon=True)
        self._thread.start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether every table that was published has its snapshot in time, or an error says why not."""
        if self._is_alive:
            self._settled.wait(timeout_s)
        return not self.is_running

    def stop(self) -> None:
        self._stopping.set()
        self._look_now.set()
        if self._job is not None:
            self._job.cancel()
        if self._thread is not None:
            self._thread.join()

    def _started(self, created: CreatedSlot | None) -> SnapshotJob | None:
        """None when there is nothing to copy."""
        if self._connection is None:
            self._connection = connect(self._settings.source)
        oids, lsn = catalog.published_oids(self._connection, self._settings.source.publication)
        self._tell(oids)
        candidates = self._wanted.look(oids, lsn)
        since = {oid: self._wanted.since(oid, self._since) for oid in candidates}
        finished = {lsn: SnapshotReader(self._store).oids(lsn) for lsn in set(since.values())}
        has = {oid for oid in candidates if oid in finished[since[oid]]}
        self._wanted.copied(has)
        wished = self._heed_wishes()
        self._wished = {(wish.key, wish.asked_at) for wish in wished}
        due = self._wanted.due(candidates - has, time.monotonic()) | {wish.oid for wish in wished}
        if not due:
            return None
        tables = [table for table in self._tables() if table.oid in due]
        self._copying = {f"{t.schema}.{t.name}": t.oid for t in tables}
        if not tables:
            return None
        self._settled.clear()
        _log.info("copying %d %s", len(tables), "table" if len(tables) == 1 else "tables")
        job = SnapshotJob(self._settings, tables, created)
        self._job = job
        if self._stopping.is_set():
            job.cancel()
        job.start()
        return job

    def _tables(self) -> list[PublishedTable]:
        assert self._connection is not None
        return catalog.published(self._connection, self._settings.source.publication)

    def _tell(self, oids: Collection[int]) -> None:
        """Those who read the log, of the tables that will be in it."""
        if self._published == frozenset(oids):
            return
        assert self._connection is not None
        columns = {table.oid: table.columns for table in self._tables()}
        publication.publish(self._store, catalog.describe(self._connection, columns, columns).values())
        self._published = frozenset(oids)

    def _heed_wishes(self, job: SnapshotJob | None = None) -> list[Wish]:
        """Answers those that can be answered, by what a job has finished too; gives the others."""
        left = []
        for wish in publication.wishes(self._store):
            if (lsn := self._fulfilled(wish, job)) is not None:
                replace(wish, lsn=lsn).save(self._store)
            elif wish.oid not in (self._published or ()):
                named = self._settings.source.publication
                replace(wish, error=f"it is not in publication {named} any more", hint="add it there").save(self._store)
            else:
                if not wish.is_seen:
                    replace(wish, is_seen=True).save(self._store)
                left.append(wish)
        return left

    def _fulfilled(self, wish: Wish, job: SnapshotJob | None) -> Lsn | None:
        for snapshot in job.finished if job is not None else ():
            if snapshot.relation.oid == wish.oid and (not wish.is_fresh or (wish.key, wish.asked_at) in self._wished):
                return snapshot.lsn
        newest = None if wish.is_fresh else SnapshotReader(self._store).newest(oid=wish.oid)
        return newest.lsn if newest is not None and newest.lsn >= self._wanted.since(wish.oid, self._since) else None

    def _await(self, job: SnapshotJob) -> None:
        done = False
        while not done:
            try:
                done = job.wait(min(_WISHES_SECONDS, self._look_seconds))
            finally:
                # A store that is away is the job's to tell of, and wishes stay there.
                with contextlib.suppress(TailraceError):
                    self._heed_wishes(job)

    def _rest(self, delay: float) -> None:
        """Until it is time to look, or somebody wishes for something."""
        until = time.monotonic() + delay
        step = min(_WISHES_SECONDS, self._look_seconds)
        while (left := until - time.monotonic()) > 0 and not self._look_now.wait(min(left, step)):
            with contextlib.suppress(TailraceError):  # the next look meets it
                if not all(wish.is_seen for wish in publication.wishes(self._store)):
                    return

    def _run(self, job: SnapshotJob | None) -> None:
        backoff = Backoff(first=1.0)
        try:
            while not self._stopping.is_set():
                delay = self._look_seconds
                self._look_now.clear()
                try:
                    job = job or self._started(None)
                    if job is not None:
                        self._await(job)
                        delay = 0.0  # another table may have come meanwhile
                    backoff = Backoff(first=1.0)
                    if not self._wanted.lacks:
                        self.error = None
                    if job is None:
                        self._settled.set()
                except TailraceError as error:
                    if self._stopping.is_set():
                        return
                    self._disconnect()
                    if job is not None and job.finished:
                        backoff = Backoff(first=1.0)
                    delay = self._failed(error, job, backoff)
                job = None
                if not self._stopping.is_set():
                    self._rest(delay)
        finally:
            self._disconnect()
            self._settled.set()

    def _failed(self, error: TailraceError, job: SnapshotJob | None, backoff: Backoff) -> float:
        """How long to wait now. What may pass is tried again soon; the rest is told, and tried now and then."""
        if job is None and self._settled.is_set():
            return self._look_seconds  # capture meets the same, and tells it
        if job is not None and job.error is None:
            hopeless = {name: failure for name, failure in job.failures.items() if not _may_pass(failure)}
            for name, failure in hopeless.items():
                self._give_up({oid for table, oid in self._copying.items() if table == name}, failure)
            if hopeless.keys() == job.failures.keys():
                return backoff.next()
        if not _may_pass(error) or backoff.failures >= _ATTEMPTS:
            done = {snapshot.relation.oid for snapshot in job.finished} if job is not None else set()
            self._give_up(set(self._copying.values()) - done, error)
            if job is None:
                self._settled.set()
            return self._look_seconds
        delay = backoff.next()
        _log.warning("%s; tables that are not finished are copied again in %.1f s", error, delay)
        return delay

    def _give_up(self, oids: Collection[int], error: TailraceError) -> None:
        self.error = error
        self._wanted.set_aside(oids, time.monotonic() + _AGAIN_SECONDS)
        with contextlib.suppress(TailraceError):  # then they are tried again
            for wish in publication.wishes(self._store):
                if wish.oid in oids:
                    replace(wish, error=str(error), hint=error.hint).save(self._store)
        _log.error(
            "%s; it is tried again in %.0f minutes: mend it, and run `tailrace snapshot --missing` to be quicker. %s",
            error,
            _AGAIN_SECONDS / 60,
            error.hint,
        )

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _may_pass(error: TailraceError) -> bool:
    return error.retry or isinstance(error, SnapshotError)
