"""Reads a replica's rows back, in one transaction with the sink's cursor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from tailrace.delivery.row_reader import DeliveredTable
from tailrace.errors import SinkError, SinkRefused
from tailrace.sinks.mysql.ledger import MysqlLedger
from tailrace.sinks.mysql.mysql_error import classify_errors
from tailrace.sinks.mysql.session import MysqlSession
from tailrace.sinks.mysql.stored_row import stored_batches
from tailrace.sinks.mysql.table_definition import DefinitionFormat
from tailrace.sinks.mysql.table_name import TableNames


class MysqlRowReader:
    """Fulfils `RowReader`."""

    is_snapshot = True

    def __init__(self, session: MysqlSession, names: TableNames, definition: DefinitionFormat, sink: str) -> None:
        """Begin the transaction."""
        self.can_repair = not definition.is_history
        self._session = session
        self._names = names
        self._format = definition
        session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        session.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
        ledger = MysqlLedger(session, names, sink)
        if not ledger.exists():
            raise SinkRefused(f"sink {sink} has delivered nothing yet", "start it with `tailrace run` or `deliver`")
        self.state = ledger.state()
        self.tables: Mapping[int, DeliveredTable] = {
            oid: DeliveredTable(table.relation, table.target) for oid, table in ledger.tables().items()
        }
        if ledger.is_defining():
            raise SinkError(f"sink {sink} is in a step that changes the definition of a table", "verify again")

    def rows(self, oid: int) -> Iterator[pa.RecordBatch]:
        table = self.tables[oid]
        condition = "_valid_to IS NULL" if self._format.is_history else "TRUE"
        with classify_errors():
            # Going back to a savepoint releases the lock on the table's definition.
            self._session.execute("SAVEPOINT reading")
            yield from stored_batches(
                self._session, self._names.of(table.target), self._format.columns(table.relation), condition
            )
            self._session.execute("ROLLBACK TO SAVEPOINT reading")

    def comparable(self, oid: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = self._format.columns(self.tables[oid].relation)
        texts = [column.comparable(array) for column, array in zip(columns, rows.columns, strict=True)]
        return pa.RecordBatch.from_arrays(texts, names=rows.schema.names)
