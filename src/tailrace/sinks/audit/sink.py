"""The `audit` sink: rows of `changes` and the cursor change in one transaction, so every change is there once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final

import psycopg
from psycopg import sql

from tailrace import settings
from tailrace.change import Lsn
from tailrace.delivery.context import ContextRange
from tailrace.delivery.contract import BaseSink, Parallel, Part, State, Step
from tailrace.delivery.sink_settings import SinkContext
from tailrace.delivery.transforms import Shaping
from tailrace.errors import ConfigError, SinkError
from tailrace.finding import Finding
from tailrace.log import source_record
from tailrace.log.reader import LogReader
from tailrace.sinks.audit import sql_function, unsent_value
from tailrace.sinks.audit.change_row import FIELDS, RowFormat, SourceDatabase
from tailrace.sinks.audit.changes_table import ChangesTable
from tailrace.sinks.audit.naming_history import NamingHistory
from tailrace.sinks.audit.recovery import ValueRecovery
from tailrace.sinks.audit.staged_changes import ContextStitcher, StagedChanges, stage, with_contexts
from tailrace.sinks.audit.trail_record import TrailRecord
from tailrace.sinks.database.postgresql.destination import Connection, Destination
from tailrace.sinks.database.postgresql.destination_check import destination_findings
from tailrace.sinks.database.postgresql.destination_error import classify_errors, copy_error
from tailrace.sinks.database.postgresql.destination_type import DestinationTypes
from tailrace.sinks.database.postgresql.ledger import Ledger
from tailrace.sinks.database.postgresql.staging import CopyWriter, TemporaryTables, copy_in, remove_leftovers
from tailrace.sinks.database.staged_rows import RowBatch, StagedRows
from tailrace.sinks.database.staging import StagingArea, prefix
from tailrace.store import Store

_MAX_DELETED: Final = 20_000
"""Expired rows to delete at once: it takes about a second, and is more per minute than most tables receive."""
_COLUMNS: Final = sql.SQL(", ").join([sql.Identifier(f.name) for f in FIELDS])


@dataclass(frozen=True)
class AuditOptions(Destination):
    table: str = "public.changes"
    """By default the table of Bemi and Zemi, so that existing queries continue to work."""
    inserts: str | None = field(default=None, metadata={"choices": ("INSERT", "CREATE")})
    """The operation of an insert. Unset: CREATE if the table has such rows already, else INSERT."""
    partition: str = field(default="none", metadata={"choices": ("none", "month")})
    """`month`: monthly partitions, so that old rows are dropped at once. For a table that the sink creates."""
    keep_days: int | None = field(default=None, metadata={"at_least": 1})
    """Older rows are deleted; a partition is dropped once all of its rows are older. Unset: all are retained."""


@dataclass(frozen=True)
class AuditReceipt:
    changes: tuple[StagedChanges, ...]
    late: tuple[ContextRange, ...] = ()
    """Contexts of changes that were staged before these contexts were read."""


class AuditSink(BaseSink):
    Options: ClassVar[type] = AuditOptions
    parallel: ClassVar[Parallel] = Parallel.RANGES

    def __init__(self, name: str, options: AuditOptions, context: SinkContext) -> None:
        self.name = name
        self._options = options.validate()
        self._table_name = table_name(options.table)
        self._store = context.store
        self._common = context.common
        self._source = SourceDatabase("", "")
        self._inserts = options.inserts or "INSERT"
        self._session: _AuditSession | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_options": self._options.to_picklable(), "_session": None}

    def check(self) -> Iterator[Finding]:
        with classify_errors(), self._options.connect() as connection:
            yield from destination_findings(connection, self._options.schema, [self._table_name[0]])

    def open(self) -> State:
        self.close()
        options = self._options
        self._source = source_of(self._store)
        with classify_errors():
            connection = options.connect()
            try:
                ledger = Ledger(connection, options.schema, self.name)
                ledger.create("audit")
                ledger.lock()
                remove_leftovers(connection, options.schema, prefix(self.name))
                table = ChangesTable(connection, *self._table_name, is_partitioned=options.partition == "month")
                with connection.transaction():
                    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('tailrace', 0))")
                    table.create()
                    sql_function.create(table, options.schema)
                    naming = NamingHistory(connection, options.schema, self.name)
                    naming.create()
                    record = TrailRecord(connection, options.schema, self.name)
                    record.create()
                self._inserts = options.inserts or table.insert_operation()
                end = table.end(self._source.database)
                recovery = ValueRecovery(
                    table,
                    self._source.database,
                    LogReader(Store.open(self._store.url, self._store.options)),
                    Shaping(self._common, self._source.database),
                    naming,
                )
                self._session = _AuditSession(
                    connection,
                    ledger,
                    table,
                    DestinationTypes(connection),
                    TemporaryTables(connection),
                    naming,
                    record,
                    recovery,
                    end,
                )
                return ledger.state()
            except BaseException:
                connection.close()
                raise

    def stage(self, part: Part) -> AuditReceipt:
        format = RowFormat(self._source, self._inserts, datetime.now(UTC).isoformat())
        area = StagingArea(part.step)
        stitcher = ContextStitcher()
        staged = []
        with self._options.staging() as connection:
            writer = CopyWriter(prefix(self.name), self._options.schema, connection.get, self._options.table)

            def put(rows: RowBatch) -> StagedRows:
                return area.put(rows, writer)

            for changes, contexts in with_contexts(part.chunks, stitcher):
                found = stage(changes, contexts, format, put)
                staged += [found] if found is not None else []
        stitcher.finish()
        return AuditReceipt(tuple(staged), tuple(stitcher.late))

    def commit(self, step: Step, receipts: Sequence[AuditReceipt]) -> None:
        session = self._require_open()
        # If a step is delivered again, some of its rows exist already.
        is_again = session.end >= step.start.lsn
        try:
            with classify_errors(), session.temporary.transaction():
                session.ledger.lock_cursor(step.before)
                for receipt in receipts:
                    for changes in receipt.changes:
                        self._write(session, changes, is_again=is_again)
                    for late in receipt.late:
                        session.table.set_context(self._source.database, late)
                session.ledger.advance(step.before, step.after)
        except BaseException:
            session.naming.reload()
            raise
        if any(found.is_staged for receipt in receipts for changes in receipt.changes for found in changes.rows()):
            with classify_errors():
                remove_leftovers(session.connection, self._options.schema, prefix(self.name))

    def maintain(self) -> None:
        session = self._require_open()
        with classify_errors():
            session.recovery.run_if_due()
        if self._options.keep_days is not None:
            cutoff = datetime.now(UTC) - timedelta(days=self._options.keep_days)
            with classify_errors():
                session.record.set_retention(cutoff)
                session.table.drop_before(cutoff, _MAX_DELETED)

    def rewind(self, state: State) -> None:
        session = self._require_open()
        with classify_errors(), session.connection.transaction():
            session.ledger.advance(session.ledger.state(), state)
            if state.cursor is not None:
                session.record.begin(state.cursor)
        session.end = session.table.end(self._source.database)

    def record_gap(self, before: State, after: State, lost_from: Lsn) -> None:
        session = self._require_open()
        assert after.cursor is not None
        with classify_errors(), session.connection.transaction():
            session.ledger.lock_cursor(before)
            session.record.add_gap(lost_from, after.cursor)
            session.ledger.advance(before, after)

    def close(self) -> None:
        if self._session is not None:
            self._session.connection.close()
            self._session = None

    def _write(self, session: _AuditSession, changes: StagedChanges, *, is_again: bool) -> None:
        if session.table.is_partitioned:
            session.table.add_partitions(changes.months)
        for relation, commit_lsn in changes.relations:
            session.naming.update(relation, commit_lsn)
        if changes.complete is not None:
            self._insert(session, changes.complete, is_again=is_again)
        for oid, rows in changes.incomplete:
            source, naming = self._source_table(session, rows), session.naming.tables()[oid]
            written = unsent_value.insert(session.connection, session.table.identifier, source, naming)
            self._check(written, rows, is_again=is_again)

    def _insert(self, session: _AuditSession, rows: StagedRows, *, is_again: bool) -> None:
        if rows.lines is not None and not is_again:
            where = sql.SQL("{} ({})").format(session.table.identifier, _COLUMNS)
            try:
                copy_in(session.connection, where, [rows.lines])
            except psycopg.Error as error:
                raise copy_error(error, self._options.table, rows.fields, rows.positions) from None
            return
        written = session.connection.execute(
            sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT DO NOTHING").format(
                session.table.identifier, _COLUMNS, _COLUMNS, self._source_table(session, rows)
            )
        ).rowcount
        self._check(written, rows, is_again=is_again)

    def _check(self, written: int, found: StagedRows, *, is_again: bool) -> None:
        """Detect a staging table that a crash of the destination has emptied."""
        if written != found.count and not is_again:
            raise SinkError(
                f"sink {self.name}: {written} of {found.count} staged rows were written to {self._options.table}",
                "the destination may have crashed; retrying the step",
            )

    def _source_table(self, session: _AuditSession, found: StagedRows) -> sql.Identifier:
        if found.table is not None:
            return sql.Identifier(self._options.schema, found.table)
        return session.temporary.fill(session.types, found, self._options.table)

    def _require_open(self) -> _AuditSession:
        assert self._session is not None, "call open() first"
        return self._session


@dataclass
class _AuditSession:
    connection: Connection
    ledger: Ledger
    table: ChangesTable
    types: DestinationTypes
    temporary: TemporaryTables
    naming: NamingHistory
    record: TrailRecord
    recovery: ValueRecovery
    end: int
    """The last commit in the table when the sink was opened or rewound."""


def source_of(store: settings.StoreSettings) -> SourceDatabase:
    """The database whose log it is."""
    raw: Mapping[str, Any] = source_record.load(Store.open(store.url, store.options)) or {}
    return SourceDatabase(str(raw.get("system_id", "")), str(raw.get("database", "")))


def table_name(name: str) -> tuple[str, str]:
    """Schema and name of the table that the settings name."""
    found = re.fullmatch(r"(?:([A-Za-z_]\w{0,62})\.)?([A-Za-z_]\w{0,54})", name)
    if found is None:
        raise ConfigError(f"{name!r} is not a table name", "use letters, digits and _, such as public.changes")
    return found[1] or "public", found[2]
