"""The source's tables at one LSN: a transaction that sees exactly the transactions that commit below it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from tailrace import types
from tailrace.capture.postgres import slot, snapshot_plan
from tailrace.capture.postgres.log_check import check_log
from tailrace.capture.postgres.snapshot_plan import TablePart, TablePlan
from tailrace.capture.postgres.snapshot_transaction import locked, use_snapshot
from tailrace.capture.postgres.source_connection import connect, connect_replication
from tailrace.capture.postgres.source_error import source_errors
from tailrace.change import Lsn, Relation
from tailrace.errors import ConfigError
from tailrace.settings import Settings, SourceSettings
from tailrace.sinks.database.postgresql.table_query import TableQuery
from tailrace.state.fold import key_columns
from tailrace.store import Store
from tailrace.verify.cancellation import cancelled

_WHOLE_HEAP = 1 << 62
_PART_BYTES = 128 << 20


@dataclass(frozen=True)
class SourceSnapshot:
    lsn: Lsn
    """The tables hold all transactions that commit below this LSN, and none at or above it."""
    tables: Mapping[int, TablePlan]
    """The published tables, by oid."""
    settings: SourceSettings
    _connection: psycopg.Connection[Any]

    def relation(self, oid: int) -> Relation:
        return self.tables[oid].relation

    @contextmanager
    def query(self, oid: int) -> Iterator[TableQuery]:
        """Read a table, which nobody alters meanwhile. Raises SnapshotError if somebody did since the snapshot."""
        plan = self.tables[oid]
        with ExitStack() as stack:
            for part in plan.parts:
                with source_errors():
                    stack.enter_context(locked(self._connection, part))
            selects = [part.select for part in plan.parts] or [_nothing(plan.relation)]
            rows = sql.SQL("({})").format(sql.SQL(" UNION ALL ").join(selects))
            yield TableQuery(self._connection, rows, plan.relation, source_errors)

    def cancel(self) -> None:
        """Cancel what the server is executing; another thread may call it."""
        with suppress(psycopg.Error):  # the connection is lost, so there is nothing to cancel
            self._connection.cancel_safe()

    def export(self) -> str:
        """The snapshot's name, for other connections. It is valid as long as this snapshot."""
        with source_errors():
            row = self._connection.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        return str(row[0])

    def parts(self, oid: int, most: int) -> tuple[TablePart, ...]:
        """A table's rows in parts of some hundred thousand or more, to be read one by one: about `most` parts."""
        total = sum(part.heap.pages * part.heap.page_bytes for part in self.tables[oid].parts)
        tables = snapshot_plan.select_tables(self._connection, self.settings.publication, [oid])
        (plan,) = snapshot_plan.plan(self._connection, tables, max(_PART_BYTES, total // most))
        return plan.parts

    def key_types(self, oid: int) -> list[str]:
        relation = self.relation(oid)
        return [types.sql_name(c.type, c.modifier) for c in (relation.columns[i] for i in key_columns(relation))]


@contextmanager
def source_snapshot(settings: Settings, store: Store, is_cancelled: Callable[[], bool]) -> Iterator[SourceSnapshot]:
    """Take a snapshot of the source, as long as the context lasts."""
    source = settings.source
    with connect(source) as connection:
        with source_errors():
            check_log(settings, store, connection)
        replication = connect_replication(source)
        try:
            created = slot.create(replication, f"tailrace_verify_{secrets.token_hex(4)}", is_cancelled, temporary=True)
            if created is None:
                raise cancelled()
            use_snapshot(connection, created.snapshot)
        finally:
            replication.finish()
        with source_errors():
            _check_publication(connection, source.publication)
        tables = snapshot_plan.select_tables(connection, source.publication)
        plans = snapshot_plan.plan(connection, tables, _WHOLE_HEAP)
        yield SourceSnapshot(created.lsn, {plan.relation.oid: plan for plan in plans}, source, connection)


def published_relations(source: SourceSettings) -> list[Relation]:
    """The published tables as they are now, smallest first."""
    with connect(source) as connection:
        tables = snapshot_plan.select_tables(connection, source.publication)
        return [plan.relation for plan in snapshot_plan.plan(connection, tables, _WHOLE_HEAP)]


def _check_publication(connection: psycopg.Connection[Any], publication: str) -> None:
    query = "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate FROM pg_publication WHERE pubname = %s"
    if connection.execute(query, [publication]).fetchone() == (False,):
        raise ConfigError(
            f"publication {publication} does not publish all operations, so destinations differ from the source",
            "ALTER PUBLICATION … SET (publish = 'insert, update, delete, truncate')",
        )


def _nothing(relation: Relation) -> sql.Composed:
    """The rows of a partitioned table without partitions."""
    columns = [
        sql.SQL("NULL::{} AS {}").format(sql.SQL(types.sql_name(c.type, c.modifier)), sql.Identifier(c.name))
        for c in relation.columns
    ]
    return sql.SQL("SELECT {} WHERE false").format(sql.SQL(", ").join(columns))
