"""The `postgres` sink: data and cursor change in one transaction, so every change takes effect exactly once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tailrace.delivery.contract import Receipt, State, Step
from tailrace.delivery.sink_settings import SinkContext
from tailrace.finding import Finding
from tailrace.sinks.database.postgresql.destination import Connection, Destination
from tailrace.sinks.database.postgresql.destination_check import destination_findings
from tailrace.sinks.database.postgresql.destination_error import classify_errors
from tailrace.sinks.database.postgresql.destination_type import DestinationTypes
from tailrace.sinks.database.postgresql.ledger import Ledger
from tailrace.sinks.database.postgresql.staging import CopyWriter, TemporaryTables, remove_leftovers
from tailrace.sinks.database.replica import Replica
from tailrace.sinks.database.replica_sink import (
    MODES,
    ReplicaSink,
    ReplicaTransaction,
    uses_staging_tables,
    writes_of,
)
from tailrace.sinks.database.staged_rows import RowBatch
from tailrace.sinks.database.staging import RowWriter, prefix
from tailrace.sinks.database.table_write import TableWrite
from tailrace.sinks.database.target_schema import target_schemas
from tailrace.sinks.postgres.definitions import PostgresDefinitions
from tailrace.sinks.postgres.history_statement import PostgresHistory
from tailrace.sinks.postgres.mirror_statement import PostgresMirror, StatementRunner
from tailrace.sinks.postgres.row_reader import PostgresRowReader


@dataclass(frozen=True)
class PostgresOptions(Destination):
    mode: str = field(default="mirror", metadata={"choices": MODES})
    """`mirror`: the tables as they are. `history`: every version of every row, with the time it was valid."""


class PostgresSink(ReplicaSink):
    Options: ClassVar[type] = PostgresOptions

    def __init__(self, name: str, options: PostgresOptions, context: SinkContext | None = None) -> None:
        self.name = name
        self._context = context
        self.is_history = options.mode == "history"
        self._options = options.validate()
        self._session: _ReplicaSession | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For executors: without connections, with the password."""
        return self.__dict__ | {"_options": self._options.to_picklable(), "_session": None, "_context": None}

    def open(self) -> State:
        self.close()
        options = self._options
        with classify_errors():
            connection = options.connect()
            try:
                ledger = Ledger(connection, options.schema, self.name)
                ledger.create(options.mode)
                ledger.lock()
                remove_leftovers(connection, options.schema, prefix(self.name))
                types = DestinationTypes(connection)
                definitions = PostgresDefinitions(connection, ledger, types, self.name, self.is_history)
                replica = Replica(definitions, ledger.tables(), self.is_history)
                self._session = _ReplicaSession(connection, ledger, types, replica, TemporaryTables(connection))
                return ledger.state()
            except BaseException:
                connection.close()
                raise

    def check(self) -> Iterator[Finding]:
        targets = target_schemas(self._context) if self._context is not None else ()
        with classify_errors(), self._options.connect() as connection:
            yield from destination_findings(connection, self._options.schema, targets)

    @contextmanager
    def writers(self) -> Iterator[Callable[[TableWrite[RowBatch]], RowWriter]]:
        with self._options.staging() as connection:
            yield lambda change: CopyWriter(prefix(self.name), self._options.schema, connection.get, change.name)

    def commit(self, step: Step, receipts: Sequence[Receipt]) -> None:
        session = self._require_open()
        staged = [change for receipt in receipts for change in receipt]
        replica = session.replica.copy()
        with classify_errors(), session.temporary.transaction():
            session.ledger.lock_cursor(step.before)
            transaction = self._transaction(session, replica)
            for load in step.loads:
                own = writes_of(load, staged)
                transaction.begin_load(load, own)
                transaction.load(load, own)
            for change in staged:
                if not change.is_load:
                    transaction.prepare(change)
                    transaction.write(change)
            session.ledger.advance(step.before, step.after)
        session.replica = replica
        if uses_staging_tables(staged):
            with classify_errors():
                remove_leftovers(session.connection, self._options.schema, prefix(self.name))

    @contextmanager
    def read_rows(self) -> Iterator[PostgresRowReader]:
        with classify_errors():
            connection = self._options.connect()
        try:
            with classify_errors():
                reader = PostgresRowReader(connection, self._options.schema, self.name, is_history=self.is_history)
            yield reader
        finally:
            connection.close()

    def rewind(self, state: State) -> None:
        session = self._require_open()
        with classify_errors(), session.connection.transaction():
            session.ledger.advance(session.ledger.state(), state)

    def close(self) -> None:
        if self._session is not None:
            self._session.connection.close()
            self._session = None

    def _transaction(self, session: _ReplicaSession, replica: Replica) -> ReplicaTransaction:
        runner = StatementRunner(session.connection, session.types, session.temporary, self.name, self._options.schema)
        if self.is_history:
            return ReplicaTransaction(replica, history=PostgresHistory(runner))
        return ReplicaTransaction(replica, mirror=PostgresMirror(runner))

    def _require_open(self) -> _ReplicaSession:
        assert self._session is not None, "call open() first"
        return self._session


@dataclass
class _ReplicaSession:
    connection: Connection
    ledger: Ledger
    types: DestinationTypes
    replica: Replica
    temporary: TemporaryTables
