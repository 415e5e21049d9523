"""Keeps the definitions of published tables in the store, beside the log.

A thread with a connection of its own reads the catalogue: at the start, when the stream shows a table with a new shape,
when a table joins the publication, and now and then, because not every DDL statement reaches the stream. Capture never
waits for it. By the time of the read, the definition may already be newer than the change that caused it, or gone.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import psycopg

from tailrace.capture.postgres import catalog, schema_catalog
from tailrace.capture.postgres.definition_change import describe_change
from tailrace.capture.postgres.source_connection import connect
from tailrace.capture.postgres.source_error import source_errors
from tailrace.change import Lsn, Relation
from tailrace.errors import TailraceError
from tailrace.log import schema_record
from tailrace.log.schema_record import RecordedTable, SchemaRecord
from tailrace.retry import Backoff
from tailrace.settings import SourceSettings
from tailrace.store import Store

_log = logging.getLogger("tailrace.capture")

# As often as snapshots look for new tables: one cheap query.
_POLL_SECONDS = 10.0
# A CREATE INDEX, a CHECK or an ALTER TYPE reaches the stream with the table's next change, or never.
_READ_ALL_SECONDS = 60.0
# With thousands of tables a read takes seconds: it uses at most a hundredth of one backend's time.
_READ_ALL_SHARE = 0.01
# PostgreSQL's functions for definitions lock the table, and wait for DDL that is not committed yet. In a deadlock with
# such DDL it must be this session that gives up, not the application's: before the server looks for one, after 1 s.
_LOCK_TIMEOUT = "SET lock_timeout = '200ms'"
# On a stop, the reads that are due get this long.
_STOP_SECONDS = 15.0

_POSITION = """
SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
            ELSE pg_catalog.pg_current_wal_insert_lsn() END::text, d.oid::int8
FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
"""


class SchemaRecorder:
    """Records definitions between `start` and `stop`. `note` never blocks."""

    def __init__(self, source: SourceSettings, store: Store, poll_seconds: float = _POLL_SECONDS) -> None:
        self._source = source
        self._store = store
        self._poll_seconds = poll_seconds
        self._recorded: dict[int, RecordedTable] | None = None
        self._published: frozenset[int] = frozenset()
        self._noted: dict[int, tuple[str, Lsn]] = {}
        self._read_all_at = 0.0
        self._connection: psycopg.Connection[Any] | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: TailraceError | None = None
        """Why the newest definitions are not in the store, if a read or a write failed."""

    def start(self) -> None:
        """Start the thread; if it runs, read again soon, because the source was unreachable for a while."""
        if self._thread is not None and self._thread.is_alive():
            self._wake.set()
            return
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="schema-recorder", daemon=True)
        self._thread.start()

    def note(self, relation: Relation, lsn: Lsn) -> None:
        """The stream has a new description of a table, first used by the transaction that commits at `lsn`."""
        with self._lock:
            self._noted[relation.oid] = (relation.qualified_name, lsn)
        self._wake.set()

    def stop(self) -> None:
        """Record what is due, if that is possible soon, and stop."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)
            if self._thread.is_alive() and self._connection is not None:
                with contextlib.suppress(psycopg.Error):
                    self._connection.cancel_safe(timeout=1.0)

    def _run(self) -> None:
        backoff = Backoff(first=1.0)
        try:
            while True:
                is_last = self._stopping.is_set()
                delay = self._poll_seconds
                self._wake.clear()
                try:
                    self._record_due()
                    if backoff.failures:
                        _log.info("definitions of tables are recorded again")
                    self.error, backoff = None, Backoff(first=1.0)
                except Exception as error:
                    self.error = error if isinstance(error, TailraceError) else _as_bug(error)
                    self._disconnect()
                    delay = backoff.next()
                    if not is_last:
                        text = "definitions of tables are not recorded: %s; retrying in %.0f s"
                        _log.warning(text, self.error, delay)
                if is_last:
                    if self.error is not None:
                        _log.warning("the newest definitions of tables are not recorded: %s", self.error)
                    return
                if self.error is None:
                    self._wake.wait(delay)
                else:
                    self._stopping.wait(delay)
        finally:
            self._disconnect()

    def _record_due(self) -> None:
        with self._lock:
            noted = dict(self._noted)
        connection = self._open()
        if self._recorded is None:
            self._recorded = schema_record.newest_of_each(self._store)
        oids, _ = catalog.published_oids(connection, self._source.publication)
        reads_all = time.monotonic() >= self._read_all_at
        wanted = oids if reads_all else (oids - self._published) | (noted.keys() & oids)
        if wanted:
            began = time.monotonic()
            self._record(connection, wanted, noted)
            if reads_all:
                took = time.monotonic() - began
                self._read_all_at = time.monotonic() + max(_READ_ALL_SECONDS, took / _READ_ALL_SHARE)
        for oid in self._published - oids:
            if (table := self._recorded.get(oid)) is not None:
                _log.info("%s was dropped, or removed from the publication", table.qualified_name)
        self._published = frozenset(oids)
        with self._lock:
            for oid, note in noted.items():
                if self._noted.get(oid) == note:
                    del self._noted[oid]
        self._warn_of_gone(noted, oids)

    def _record(
        self, connection: psycopg.Connection[Any], oids: Collection[int], noted: Mapping[int, tuple[str, Lsn]]
    ) -> None:
        assert self._recorded is not None
        with source_errors():
            # Before the read, so that it includes all DDL that is older.
            row = connection.execute(_POSITION).fetchone()
            assert row is not None
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
                columns = {t.oid: t.columns for t in catalog.published_tables(connection, self._source.publication)}
                found = schema_catalog.read_tables(connection, oids, columns)
        new = [
            replace(table, changed_at=str(noted[oid][1]) if oid in noted else None)
            for oid, table in found.items()
            if self._recorded.get(oid) != table
        ]
        if new:
            schema_record.save(self._store, SchemaRecord(Lsn.parse(row[0]), datetime.now(UTC), row[1], tuple(new)))
            for table in new:
                if (earlier := self._recorded.get(table.oid)) is not None:
                    seen = f", seen by the change at {table.changed_at}" if table.changed_at else ""
                    _log.info("%s: %s%s", earlier.qualified_name, describe_change(earlier, table), seen)
            self._recorded.update((table.oid, table) for table in new)

    def _warn_of_gone(self, noted: Mapping[int, tuple[str, Lsn]], published: Collection[int]) -> None:
        assert self._recorded is not None
        for oid, (name, lsn) in noted.items():
            if oid not in published and oid not in self._recorded:
                _log.warning(
                    "%s was dropped or unpublished before its definition was read: a restore can only use what the "
                    "log has of it at %s",
                    name,
                    lsn,
                )

    def _open(self) -> psycopg.Connection[Any]:
        if self._connection is None:
            with source_errors():
                self._connection = connect(self._source)
                self._connection.execute(_LOCK_TIMEOUT)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _as_bug(error: Exception) -> TailraceError:
    _log.error("recording definitions failed", exc_info=error)
    return TailraceError(f"recording definitions failed: {error!r}", "this is a bug in Tailrace: please report it")
