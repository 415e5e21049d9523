"""The sink `audit`: rows of `changes` and the cursor in one transaction, so every change is there exactly once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Literal

import psycopg
from psycopg import sql

from tailrace import settings
from tailrace.change import Lsn
from tailrace.errors import ConfigError, SinkError
from tailrace.log import origin
from tailrace.log.reader import LogReader
from tailrace.sinks import Context
from tailrace.sinks.audit import filling, functions
from tailrace.sinks.audit.context import Range
from tailrace.sinks.audit.pieces import Piece, Stitching, piece, stitched
from tailrace.sinks.audit.recovery import Recovery
from tailrace.sinks.audit.register import Register
from tailrace.sinks.audit.rows import FIELDS, Manner, Source
from tailrace.sinks.audit.shapes import Shapes
from tailrace.sinks.audit.table import ChangesTable
from tailrace.sinks.base import Parallel, Part, State, Step
from tailrace.sinks.database.declared import Types
from tailrace.sinks.database.destination import Connection, Destination
from tailrace.sinks.database.failure import classified, refused_rows
from tailrace.sinks.database.ledger import Ledger
from tailrace.sinks.database.rows import Rows, Table
from tailrace.sinks.database.staging import Scratch, Stage, copy_in, prefix, remove_leftovers
from tailrace.sinks.shaping import Shaping
from tailrace.store import Store

_DELETED_AT_ONCE: Final = 20_000
"""Rows older than are kept: a second's work, and more a minute than most tables get."""
_COLUMNS: Final = sql.SQL(", ").join([sql.Identifier(f.name) for f in FIELDS])


@dataclass(frozen=True)
class AuditOptions(Destination):
    table: str = "public.changes"
    """Bemi's and Zemi's own, so that their queries go on to work."""
    inserts: str | None = field(default=None, metadata={"choices": ("INSERT", "CREATE")})
    """How an insert is called in `operation`. Unset: CREATE where the table has such rows already, else INSERT."""
    partition: str = field(default="none", metadata={"choices": ("none", "month")})
    """`month`: a partition for each, so that old ones are dropped at once. For a table that the sink makes."""
    keep_days: int | None = field(default=None, metadata={"at_least": 1})
    """Rows that committed longer ago are removed, partitions as soon as all of theirs did. Unset: none is."""


@dataclass(frozen=True)
class Receipt:
    pieces: tuple[Piece, ...]
    late: tuple[Range, ...] = ()
    """Contexts of changes that were written before these were read."""


class AuditSink:
    Options: ClassVar[type] = AuditOptions
    values: ClassVar[Literal["text", "typed"]] = "text"
    parallel: ClassVar[Parallel] = Parallel.RANGES
    whole_transactions: ClassVar[bool] = True
    keeps_tables: ClassVar[bool] = False
    start: ClassVar[str] = "earliest"
    interval_ms: ClassVar[int] = 0
    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, options: AuditOptions, context: Context) -> None:
        self.name = name
        self._options = options.checked()
        self._place = place(options.table)
        self._store = context.store
        self._common = context.common
        self._source = Source("", "")
        self._inserts = options.inserts or "INSERT"
        self._session: _Session | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_options": self._options.carried(), "_session": None}

    def open(self) -> State:
        self.close()
        options = self._options
        self._source = source_of(self._store)
        with classified():
            connection = options.connect()
            try:
                ledger = Ledger(connection, options.schema, self.name)
                ledger.create("audit")
                ledger.lock()
                remove_leftovers(connection, options.schema, prefix(self.name))
                table = ChangesTable(connection, *self._place, is_partitioned=options.partition == "month")
                with connection.transaction():
                    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('tailrace', 0))")
                    table.create()
                    functions.create(table, options.schema)
                    shapes = Shapes(connection, options.schema, self.name)
                    shapes.create()
                    register = Register(connection, options.schema, self.name)
                    register.create()
                self._inserts = options.inserts or table.spelling()
                end = table.end(self._source.database)
                recovery = Recovery(
                    table,
                    self._source.database,
                    LogReader(Store.open(self._store.url, self._store.options)),
                    Shaping(self._common, self._source.database),
                    shapes,
                )
                self._session = _Session(
                    connection, ledger, table, Types(connection), Scratch(connection), shapes, register, recovery, end
                )
                return ledger.state()
            except BaseException:
                connection.close()
                raise

    def pending(self) -> Step | None:
        return None

    def begin(self, step: Step) -> None:
        pass

    def stage(self, part: Part) -> Receipt:
        manner = Manner(self._source, self._inserts, datetime.now(UTC).isoformat())
        stage = Stage(prefix(self.name), self._options.schema, part.step)
        stitching = Stitching()
        pieces = []
        with self._options.staging() as connection:

            def put(table: Table) -> Rows:
                return stage.put(table, self._options.table, connection.get)

            for some, contexts in stitched(part.chunks, stitching):
                found = piece(some, contexts, manner, put)
                pieces += [found] if found is not None else []
        stitching.finish()
        return Receipt(tuple(pieces), tuple(stitching.late))

    def commit(self, step: Step, receipts: Sequence[Receipt]) -> None:
        session = self._opened()
        # Of a step that is told again, some rows are there.
        is_again = session.end >= step.start.lsn
        try:
            with classified(), session.scratch.transaction():
                session.ledger.begin(step.before)
                for receipt in receipts:
                    for some in receipt.pieces:
                        self._write(session, some, is_again=is_again)
                    for late in receipt.late:
                        session.table.set_context(self._source.database, late)
                session.ledger.move(step.before, step.after)
        except BaseException:
            session.shapes.forget()
            raise
        if any(found.is_staged for receipt in receipts for some in receipt.pieces for found in some.rows()):
            with classified():
                remove_leftovers(session.connection, self._options.schema, prefix(self.name))

    def tend(self) -> None:
        session = self._opened()
        with classified():
            session.recovery.turn()
        if self._options.keep_days is not None:
            cutoff = datetime.now(UTC) - timedelta(days=self._options.keep_days)
            with classified():
                session.register.keep_since(cutoff)
                session.table.drop_before(cutoff, _DELETED_AT_ONCE)

    def rewind(self, state: State) -> None:
        session = self._opened()
        with classified(), session.connection.transaction():
            session.ledger.move(session.ledger.state(), state)
            if state.cursor is not None:
                session.register.begin(state.cursor)
        session.end = session.table.end(self._source.database)

    def note_gap(self, before: State, after: State, lost_from: Lsn) -> None:
        session = self._opened()
        assert after.cursor is not None
        with classified(), session.connection.transaction():
            session.ledger.begin(before)
            session.register.lose(lost_from, after.cursor)
            session.ledger.move(before, after)

    def close(self) -> None:
        if self._session is not None:
            self._session.connection.close()
            self._session = None

    def _write(self, session: _Session, some: Piece, *, is_again: bool) -> None:
        if session.table.is_partitioned:
            session.table.add_partitions(some.months)
        for relation, commit_lsn in some.relations:
            session.shapes.meet(relation, commit_lsn)
        if some.plain is not None:
            self._insert(session, some.plain, is_again=is_again)
        for oid, lacking in some.lacking:
            brought, shape = self._brought(session, lacking), session.shapes.known()[oid]
            written = filling.insert(session.connection, session.table.identifier, brought, shape)
            self._check(written, lacking, is_again=is_again)

    def _insert(self, session: _Session, plain: Rows, *, is_again: bool) -> None:
        if plain.lines is not None and not is_again:
            where = sql.SQL("{} ({})").format(session.table.identifier, _COLUMNS)
            try:
                copy_in(session.connection, where, [plain.lines])
            except psycopg.Error as error:
                raise refused_rows(error, self._options.table, plain.fields, plain.positions) from None
            return
        written = session.connection.execute(
            sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} ON CONFLICT DO NOTHING").format(
                session.table.identifier, _COLUMNS, _COLUMNS, self._brought(session, plain)
            )
        ).rowcount
        self._check(written, plain, is_again=is_again)

    def _check(self, written: int, found: Rows, *, is_again: bool) -> None:
        """A staging table is empty after a crash of the destination."""
        if written != found.count and not is_again:
            raise SinkError(
                f"sink {self.name}: of {found.count} rows that were staged {written} came into {self._options.table}",
                "did the destination crash? the step is done again",
            )

    def _brought(self, session: _Session, found: Rows) -> sql.Identifier:
        if found.table is not None:
            return sql.Identifier(self._options.schema, found.table)
        return session.scratch.fill(session.types, found, self._options.table)

    def _opened(self) -> _Session:
        assert self._session is not None, "open() comes first"
        return self._session


@dataclass
class _Session:
    connection: Connection
    ledger: Ledger
    table: ChangesTable
    types: Types
    scratch: Scratch
    shapes: Shapes
    register: Register
    recovery: Recovery
    end: int
    """The last commit that is in the table when the sink is opened or rewound."""


def source_of(store: settings.Store) -> Source:
    """Whose log it is."""
    raw: Mapping[str, Any] = origin.load(Store.open(store.url, store.options)) or {}
    return Source(str(raw.get("system_id", "")), str(raw.get("database", "")))


def place(name: str) -> tuple[str, str]:
    found = re.fullmatch(r"(?:([A-Za-z_]\w{0,62})\.)?([A-Za-z_]\w{0,54})", name)
    if found is None:
        raise ConfigError(f"table {name!r} is no name for a table", "such as public.changes: letters, digits and _")
    return found[1] or "public", found[2]
