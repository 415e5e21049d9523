"""The `mysql` sink: rows and cursor change in one transaction, so every change takes effect exactly once.

MySQL commits when a table is defined. So a step that changes definitions has several transactions: each records how
far the step got with a table (`ledger`), and what is defined next (`definition_change`). A repeated step continues from
there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pymysql

from tailrace.change import Position
from tailrace.delivery.contract import Receipt, State, Step
from tailrace.finding import Finding
from tailrace.sinks.database.replica import Replica
from tailrace.sinks.database.replica_sink import ReplicaSink, ReplicaTransaction, uses_staging_tables
from tailrace.sinks.database.staged_rows import RowBatch
from tailrace.sinks.database.staging import RowWriter, prefix
from tailrace.sinks.database.table_write import TableWrite
from tailrace.sinks.mysql.check import ServerCheck
from tailrace.sinks.mysql.definition_change import DefinitionChanges
from tailrace.sinks.mysql.definitions import MysqlDefinitions
from tailrace.sinks.mysql.history_statement import MysqlHistory
from tailrace.sinks.mysql.ledger import MysqlLedger
from tailrace.sinks.mysql.mirror_statement import MysqlMirror, MysqlRunner
from tailrace.sinks.mysql.mysql_error import classify_errors
from tailrace.sinks.mysql.options import MysqlOptions
from tailrace.sinks.mysql.row_reader import MysqlRowReader
from tailrace.sinks.mysql.session import MysqlSession, staging_session
from tailrace.sinks.mysql.staging import LoadWriter, RowFormat, TemporaryTables, remove_leftovers
from tailrace.sinks.mysql.table_definition import DefinitionFormat
from tailrace.sinks.mysql.table_name import TableNames
from tailrace.sinks.mysql.table_work import table_works


class MysqlSink(ReplicaSink):
    Options: ClassVar[type] = MysqlOptions

    def __init__(self, name: str, options: MysqlOptions, context: object = None) -> None:  # noqa: ARG002
        self.name = name
        self.is_history = options.mode == "history"
        self._options = options.validate()
        self._names = TableNames(options.url_database, is_per_schema=options.database == "per_schema")
        self._format: DefinitionFormat | None = None
        self._session: _ReplicaSession | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For executors: without connections, with the password."""
        return self.__dict__ | {"_options": self._options.to_picklable(), "_session": None}

    def open(self) -> State:
        self.close()
        with classify_errors():
            opened = self._connect()
            remove_leftovers(opened.session, self._names, prefix(self.name))
            state = opened.ledger.state()
            opened.session.commit()
            return state

    @contextmanager
    def writers(self) -> Iterator[Callable[[TableWrite[RowBatch]], RowWriter]]:
        assert self._format is not None, "call open() first"
        format = self._format
        with staging_session(self._options) as session:
            yield lambda change: LoadWriter(
                prefix(self.name), self._names, RowFormat(format.columns(change.relation)), session.get, change.name
            )

    def commit(self, step: Step, receipts: Sequence[Receipt]) -> None:
        staged = [change for receipt in receipts for change in receipt]
        session = self._live_session()
        with classify_errors(), session.transaction():
            session.ledger.lock_cursor(step.before)
            replica = session.replica or Replica(session.definitions, session.ledger.tables(), self.is_history)
            transaction = self._transaction(session, replica)
            first, last = table_works(step.loads, staged, session.progress())
            for work in first:
                work.prepare(transaction)
                work.write(transaction)
                # The next definition commits what was written.
                session.ledger.set_progress(work.oid, work.position)
            for work in last:
                work.prepare(transaction)
            for work in last:
                work.write(transaction)
            session.ledger.advance(step.before, step.after)
        session.replica = replica
        if uses_staging_tables(staged):
            with classify_errors():
                remove_leftovers(session.session, self._names, prefix(self.name))

    def maintain(self) -> None:
        """Keep the session, and with it the lock."""
        with classify_errors():
            self._require_open().session.ping()

    def check(self) -> Iterator[Finding]:
        with classify_errors():
            session = MysqlSession(self._options)
            try:
                yield from ServerCheck(session, self._options).findings()
            finally:
                session.close()

    @contextmanager
    def read_rows(self) -> Iterator[MysqlRowReader]:
        with classify_errors():
            session = MysqlSession(self._options)
        try:
            with classify_errors():
                definition = DefinitionFormat(session.flavour, self._options.policy(), self.is_history)
                reader = MysqlRowReader(session, self._names, definition, self.name)
            yield reader
        finally:
            session.close()

    def rewind(self, state: State) -> None:
        session = self._live_session()
        with classify_errors(), session.transaction():
            session.ledger.advance(session.ledger.state(), state)

    def close(self) -> None:
        if self._session is not None:
            self._session.session.close()
            self._session = None

    def _connect(self) -> _ReplicaSession:
        """Connect, create what the sink needs, and complete what was interrupted."""
        session = MysqlSession(self._options)
        try:
            self._format = DefinitionFormat(session.flavour, self._options.policy(), self.is_history)
            ledger = MysqlLedger(session, self._names, self.name)
            ledger.create(self._options.mode)
            ledger.lock()
            changes = DefinitionChanges(session, self._names, ledger, self.name)
            changes.complete()
            definitions = MysqlDefinitions(session, self._names, ledger, changes, self.name, self._format)
            temporary = TemporaryTables(session, self._options.url_database)
            self._session = _ReplicaSession(session, ledger, changes, definitions, temporary)
            return self._session
        except BaseException:
            session.close()
            raise

    def _live_session(self) -> _ReplicaSession:
        """The session, or a new one if the server has ended it while rows were staged for long."""
        session = self._require_open()
        with classify_errors():
            try:
                session.session.ping()
            except pymysql.Error:
                self.close()
                return self._connect()
        return session

    def _transaction(self, session: _ReplicaSession, replica: Replica) -> ReplicaTransaction:
        assert self._format is not None
        runner = MysqlRunner(session.session, self._names, self._format, session.temporary, self.name)
        if self.is_history:
            return ReplicaTransaction(replica, history=MysqlHistory(runner))
        return ReplicaTransaction(replica, mirror=MysqlMirror(runner))

    def _require_open(self) -> _ReplicaSession:
        assert self._session is not None, "call open() first"
        return self._session


@dataclass
class _ReplicaSession:
    session: MysqlSession
    ledger: MysqlLedger
    changes: DefinitionChanges
    definitions: MysqlDefinitions
    temporary: TemporaryTables
    replica: Replica | None = None
    """The tables as of the last commit. A transaction that fails may have changed definitions: the ledger knows."""
    is_interrupted: bool = True
    """Whether a step may have been interrupted."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end, or roll back."""
        try:
            if self.is_interrupted:
                self.changes.complete()
            yield
            self.temporary.drop()
            self.session.commit()
        except BaseException:
            self.is_interrupted, self.replica = True, None
            self._undo()
            raise

    def progress(self) -> dict[int, Position]:
        """By oid, the last change that was applied before a step was interrupted."""
        found = self.ledger.progress() if self.is_interrupted else {}
        self.is_interrupted = bool(found)
        return found

    def _undo(self) -> None:
        """Roll back, if the connection is not what failed."""
        try:
            self.session.rollback()
            self.temporary.drop()
        except pymysql.Error:
            self.session.close()
