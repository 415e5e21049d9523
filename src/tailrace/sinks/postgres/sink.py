"""The `postgres` sink: data and cursor change in one transaction, so every change takes effect exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from tailrace.delivery.coalesce import coalesce
from tailrace.delivery.contract import BaseSink, Load, Parallel, Part, Receipt, State, Step
from tailrace.log.decoding import TableChanges
from tailrace.sinks.database.destination import Connection, Destination
from tailrace.sinks.database.destination_error import classify_errors
from tailrace.sinks.database.destination_type import DestinationTypes
from tailrace.sinks.database.ledger import Ledger
from tailrace.sinks.database.staged_rows import RowBatch, StagedRows
from tailrace.sinks.database.staging import StagingArea, TemporaryTables, prefix, remove_leftovers
from tailrace.sinks.postgres import history_table, mirror_table, row_version, table_write
from tailrace.sinks.postgres.mirror_table import StatementRunner
from tailrace.sinks.postgres.replica import Replica
from tailrace.sinks.postgres.table_write import TableWrite


@dataclass(frozen=True)
class PostgresOptions(Destination):
    mode: str = field(default="mirror", metadata={"choices": ("mirror", "history")})
    """`mirror`: the tables as they are. `history`: every version of every row, with the time it was valid."""


class PostgresSink(BaseSink):
    Options: ClassVar[type] = PostgresOptions
    parallel: ClassVar[Parallel] = Parallel.RANGES
    whole_transactions: ClassVar[bool] = False
    keeps_tables: ClassVar[bool] = True
    start: ClassVar[str] = "snapshot"

    def __init__(self, name: str, options: PostgresOptions, context: object = None) -> None:  # noqa: ARG002
        self.name = name
        self._options = options.validate()
        self._session: _ReplicaSession | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For executors: without connections, with the password."""
        return {"name": self.name, "_options": self._options.to_picklable(), "_session": None}

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
                replica = Replica(connection, ledger, types, self.name, ledger.tables(), options.mode == "history")
                self._session = _ReplicaSession(connection, ledger, types, replica, TemporaryTables(connection))
                return ledger.state()
            except BaseException:
                connection.close()
                raise

    def stage(self, part: Part) -> Receipt:
        area = StagingArea(prefix(self.name), self._options.schema, part.step)
        found: list[TableWrite[StagedRows]] = []
        with self._options.staging() as connection:
            for run in coalesce(part.chunks):
                change = self._table_write(run, is_load=part.load is not None)
                name = ".".join(change.target)
                found.append(change.with_staged_rows(lambda rows, name=name: area.put(rows, name, connection.get)))  # type: ignore[misc]
        return tuple(found)

    def commit(self, step: Step, receipts: Sequence[Receipt]) -> None:
        session = self._require_open()
        staged = [change for receipt in receipts for change in receipt]
        replica = session.replica.copy()
        with classify_errors(), session.temporary.transaction():
            session.ledger.lock_cursor(step.before)
            runner = StatementRunner(
                session.connection, session.types, session.temporary, self.name, self._options.schema
            )
            for load in step.loads:
                own = [change for change in staged if change.is_load and _is_of(change, load)]
                self._load(runner, replica, load, own)
            for change in staged:
                if not change.is_load:
                    self._apply(runner, replica, change)
            session.ledger.advance(step.before, step.after)
        session.replica = replica
        if any(rows.is_staged for change in staged for rows in change.rows()):
            with classify_errors():
                remove_leftovers(session.connection, self._options.schema, prefix(self.name))

    def rewind(self, state: State) -> None:
        session = self._require_open()
        with classify_errors(), session.connection.transaction():
            session.ledger.advance(session.ledger.state(), state)

    def close(self) -> None:
        if self._session is not None:
            self._session.connection.close()
            self._session = None

    @property
    def _is_history(self) -> bool:
        return self._options.mode == "history"

    def _table_write(self, run: TableChanges, *, is_load: bool) -> TableWrite[RowBatch]:
        if run.is_truncate:
            when = row_version.time_and_position(run.at, 0)
            return TableWrite(run.relation, run.target, run.span, is_truncate=True, time_and_position=when)
        if self._is_history:
            return row_version.of_snapshot(run) if is_load else row_version.of_changes(run)
        return table_write.of_snapshot(run) if is_load else table_write.of_changes(run)

    def _apply(self, runner: StatementRunner, replica: Replica, change: TableWrite[StagedRows]) -> None:
        table = replica.prepare(change.relation, change.target, change.nulls)
        (history_table if self._is_history else mirror_table).apply(runner, table, change)

    def _load(
        self,
        runner: StatementRunner,
        replica: Replica,
        load: Load,
        staged: Sequence[TableWrite[StagedRows]],
    ) -> None:
        table = replica.begin_load(load)
        if self._is_history:
            history_table.restore(runner, table, load.lsn)
            times = (change.time_and_position for change in staged if change.time_and_position)
            history_table.end_all(runner, table, next(times, ("now", f"{load.lsn}:0")))
        for change in staged:
            self._apply(runner, replica, change)
        replica.end_load(load, sum(rows.count for change in staged for rows in change.rows()))

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


def _is_of(change: TableWrite[StagedRows], load: Load) -> bool:
    return change.relation.oid == load.relation.oid
