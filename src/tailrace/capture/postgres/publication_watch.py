"""Watches for tables that `source.tables` matches and that are not captured, and adds new ones to the publication.

A table is new if capture has not seen it before. One that was there and not in the publication, or was removed from it,
is left out on purpose: it stays out, and is only listed. A new table whose owner is another role cannot be added. That
is a warning until somebody adds it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection
from typing import Any, Final

import psycopg
from psycopg import sql

from tailrace.background import BackgroundThread
from tailrace.capture.postgres import catalog
from tailrace.capture.postgres.source_connection import connect
from tailrace.capture.postgres.source_error import source_errors
from tailrace.capture.postgres.uncaptured import (
    UncapturedTable,
    UnpublishedTable,
    has_publication,
    uncaptured_tables,
    unpublished_tables,
)
from tailrace.errors import TailraceError
from tailrace.log import seen_table
from tailrace.settings import Settings
from tailrace.store import Store

_log = logging.getLogger("tailrace.capture")

# One catalogue query on an open connection. Changes that a new table gets before it joins are only in its snapshot, and
# an audit trail has no snapshots, so this is short.
_POLL_SECONDS: Final = 2.0
# Adding a table waits for transactions that write to it. Others must not queue behind it for long.
_LOCK_TIMEOUT: Final = "2s"


class PublicationWatch(BackgroundThread):
    """Watches in a thread as long as the context lasts."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        on_join: Callable[[], None] = lambda: None,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        """`on_join` is called when tables were added to the publication."""
        super().__init__("publication watch")
        self._source = settings.source
        self._store = store
        self._on_join = on_join
        self._poll_seconds = poll_seconds
        self._connection: psycopg.Connection[Any] | None = None
        self._seen: frozenset[int] | None = None
        self._has_loaded = False
        self._reported: dict[int, str] = {}
        self.uncaptured: tuple[UncapturedTable, ...] | None = None
        """The tables that are not captured; None until they are known."""
        self.tables_captured: int | None = None
        """The number of tables in the publication; None until it is known."""

    def _run(self) -> None:
        try:
            self._look()
            while not self._stopping.wait(self._poll_seconds):
                self._look()
            if self.uncaptured is None and self._connection is not None:
                self._look()  # capture was short, and created the publication in the meantime
        finally:
            self._disconnect()

    def _look(self) -> None:
        try:
            self._update()
        except TailraceError as error:
            # Capture meets the same failure, and reports it. What is not captured is not known meanwhile.
            _log.debug("which tables are not captured is unknown: %s", error)
            self.uncaptured = self.tables_captured = None
            self._disconnect()

    def _update(self) -> None:
        if self._connection is None:
            self._connection = connect(self._source)
        if not has_publication(self._connection, self._source.publication):
            return  # capture creates it, or says why it cannot
        if not self._has_loaded:
            self._seen, self._has_loaded = seen_table.load(self._store), True
        published, _ = catalog.published_oids(self._connection, self._source.publication)
        tables = unpublished_tables(self._connection, self._source)
        seen = self._seen
        if seen is None:
            # What is not published when capture looks for the first time was left out by whoever made the publication.
            seen = frozenset(published) | {table.oid for table in tables}
        failures: dict[int, str] = {}
        joined = set()
        for table in [table for table in tables if table.may_join and table.oid not in seen]:
            try:
                self._join(table)
                joined.add(table.oid)
            except TailraceError as error:
                failures[table.oid] = str(error)
        self._remember(seen | published | joined)
        self.tables_captured = len(published | joined)
        if joined:
            self._on_join()
        self._report([table for table in tables if table.oid not in joined], seen, failures)

    def _join(self, table: UnpublishedTable) -> None:
        assert self._connection is not None
        names = sql.Identifier(self._source.publication), table.identifier
        with source_errors(), self._connection.transaction():
            self._connection.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_LOCK_TIMEOUT)))
            self._connection.execute(sql.SQL("ALTER PUBLICATION {} ADD TABLE {}").format(*names))
        _log.info("%s.%s is new: added to publication %s", table.schema, table.name, self._source.publication)

    def _remember(self, seen: frozenset[int]) -> None:
        if seen != self._seen:
            seen_table.save(self._store, seen)
            self._seen = seen

    def _report(
        self, tables: Collection[UnpublishedTable], left_out: Collection[int], failures: dict[int, str]
    ) -> None:
        """Publish what is not captured, and log what is new about it."""
        assert self._connection is not None
        found = tuple(uncaptured_tables(self._connection, self._source, tables, left_out))
        for table in found:
            if (failure := failures.get(table.oid)) is not None and self._reported.get(table.oid) != failure:
                self._reported[table.oid] = failure
                _log.warning("%s: adding it to the publication failed: %s; retrying", table, failure)
            elif failure is None and self._reported.get(table.oid) != table.reason:
                self._reported[table.oid] = table.reason
                _log.log(logging.INFO if table.is_left_out else logging.WARNING, "%s. %s", table, table.fix)
        for oid in self._reported.keys() - {table.oid for table in found}:
            del self._reported[oid]
        self.uncaptured = found

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.close()
            self._connection = None
