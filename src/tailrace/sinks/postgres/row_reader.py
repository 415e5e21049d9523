"""Reads a replica's rows back, in one transaction with the sink's cursor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import psycopg
import pyarrow as pa
from psycopg import sql

from tailrace.delivery.contract import State
from tailrace.delivery.row_reader import DeliveredTable
from tailrace.errors import SinkError, SinkRefused
from tailrace.sinks.database.postgresql.destination import Connection
from tailrace.sinks.database.postgresql.destination_error import classify_errors
from tailrace.sinks.database.postgresql.destination_type import DestinationTypes
from tailrace.sinks.database.postgresql.ledger import Ledger
from tailrace.sinks.database.postgresql.table_query import TableQuery
from tailrace.state.fold import key_columns


class PostgresRowReader:
    """Fulfils `RowReader` and `HashesRows`."""

    is_snapshot = True

    def __init__(self, connection: Connection, schema: str, sink: str, *, is_history: bool) -> None:
        """Begin the transaction."""
        self.can_repair = not is_history
        self._connection = connection
        self._types = DestinationTypes(connection)
        self._is_history = is_history
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        ledger = Ledger(connection, schema, sink)
        try:
            self.state = ledger.state()
            self.tables: Mapping[int, DeliveredTable] = {
                oid: DeliveredTable(table.relation, table.target) for oid, table in ledger.tables().items()
            }
        except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName):
            self.state = State()
        if self.state.cursor is None:
            raise SinkRefused(f"sink {sink} has delivered nothing yet", "start it with `tailrace run` or `deliver`")

    def rows(self, oid: int) -> Iterator[pa.RecordBatch]:
        with self.query(oid) as query:
            for images in query.images(as_text=True):
                yield images.batch

    def comparable(self, oid: int, rows: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002
        return rows

    @contextmanager
    def query(self, oid: int) -> Iterator[TableQuery]:
        """Read a table under a lock, which ends with the context: the sink can alter or empty its tables afterwards."""
        table = self.tables[oid]
        where = sql.Identifier(*table.target)
        with classify_errors():
            self._connection.execute("SAVEPOINT reading")
        try:
            with classify_errors():
                self._connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(where))
                self._check_unchanged(table)
            rows: sql.Composable = where
            if self._is_history:
                rows = sql.SQL("(SELECT * FROM {} WHERE _valid_to IS NULL)").format(where)
            yield TableQuery(self._connection, rows, table.relation, classify_errors)
        finally:
            # If this fails, the connection is broken, which was raised already.
            with suppress(psycopg.Error):
                self._connection.execute("ROLLBACK TO reading")

    def cancel(self) -> None:
        with suppress(psycopg.Error):  # the connection is lost, so there is nothing to cancel
            self._connection.cancel_safe()

    def key_types(self, oid: int) -> Sequence[str]:
        relation = self.tables[oid].relation
        return [self._types.of(relation.columns[column]) for column in key_columns(relation)]

    def _check_unchanged(self, table: DeliveredTable) -> None:
        """A table that was emptied or rewritten since the transaction began looks empty in it."""
        row = self._connection.execute(
            "SELECT pg_relation_filenode(oid) = relfilenode FROM pg_class WHERE oid = to_regclass(%s)",
            [sql.Identifier(*table.target).as_string(self._connection)],
        ).fetchone()
        if row != (True,):
            raise SinkError(f"{table.name} was loaded again or altered while it was compared", "verify it again")
