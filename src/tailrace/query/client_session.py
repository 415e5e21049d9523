"""One client's session: its settings, its transaction, and the execution of its statements. It does no network I/O.

A statement sees all tables at one version of the lake: the newest, or the one that `tailrace.as_of` selects. All
statements of a transaction block see the version of the first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from tailrace.change import Lsn, Type
from tailrace.postgres import protocol
from tailrace.postgres.protocol import ResultField
from tailrace.query import command, wire_type
from tailrace.query.as_of import AsOf
from tailrace.query.duckdb_engine import CatalogLease, DuckDBEngine
from tailrace.query.lake_view import LakeVersion, LakeView
from tailrace.query.lexer import Token, join_tokens
from tailrace.query.query_error import CANCELED, QueryError
from tailrace.query.reference import find_references
from tailrace.query.result import BATCH_ROWS, Completion, ResultSet, prefetch
from tailrace.query.session_catalog import SessionCatalog
from tailrace.query.session_settings import REPORTED, VERSION, SessionSettings
from tailrace.query.sql import pg_type
from tailrace.query.sql.translation import Translation, translate
from tailrace.query.sql.typed import Typed, null_of
from tailrace.query.system_catalog import lookup_macro, relation_size
from tailrace.query.table_view import sql_literal
from tailrace.query.wire_type import WireType

Parameter = Callable[[int], Typed]

_MAX_PARAMETERS: Final = 65_535
"""The protocol counts them in 16 bits."""
_METADATA_LIFETIME_S: Final = 10.0
"""A metadata file is retained for the next hundred batches: at least twenty seconds at the highest batch rate."""
_VERSION_TEXT: Final = f"PostgreSQL {VERSION} (Tailrace, DuckDB)"


@dataclass(frozen=True)
class PreparedStatement:
    statement: Sequence[Token]
    """Empty for an empty query."""
    types: tuple[int, ...]


class ClientSession:
    def __init__(
        self, engine: DuckDBEngine, lake: LakeView, user: str, database: str, max_seconds: float, process: int
    ) -> None:
        self.settings = SessionSettings(user, max_seconds)
        self.status = b"I"
        """As reported by ReadyForQuery: idle (I), in a transaction (T), in a failed transaction (E)."""
        self._engine = engine
        self._lake = lake
        self._user = user
        self._database = database
        self._process = process
        self._bare = engine.bare_cursor()
        self._version: LakeVersion | None = None
        self._version_read_at = 0.0
        self._block_stack: ExitStack = ExitStack()
        self._lock = threading.Lock()
        self._running: set[Any] = set()
        self._reason: str | None = None
        self._deadline: float | None = None
        self.cursors: dict[str, ResultSet] = {}
        self._holdable_cursors: set[str] = set()
        self.prepared_statements: dict[str, PreparedStatement] = {}

    def close(self) -> None:
        self.end_transaction()
        self._bare.close()

    # Statements

    def run(
        self, statement: Sequence[Token], parameter: Parameter | None = None, binary: bool = False
    ) -> ResultSet | Completion:
        found = command.parse(statement)
        if self.status == b"E" and not isinstance(found, command.TransactionControl):
            raise QueryError("25P02", "current transaction is aborted, commands ignored until end of transaction block")
        match found:
            case command.Select():
                return self.select(found.query, parameter, binary)
            case command.TransactionControl():
                return self._transaction(found)
            case command.Set():
                return self._set(found)
            case command.Show():
                return self._show(found)
            case command.Explain():
                return self._explain(found, parameter)
            case command.Declare():
                return self._declare(found, parameter)
            case command.Fetch():
                return self._fetch(found)
            case command.Deallocate():
                return self._deallocate(found)
            case command.Discard():
                return self._discard(found)
            case command.Copy():
                raise QueryError("0A000", "COPY is not supported in this context")
            case command.NoOp():
                return Completion(found.tag)
        raise AssertionError(found)

    def select(self, statement: Sequence[Token], parameter: Parameter | None = None, binary: bool = False) -> ResultSet:
        with ExitStack() as stack:
            plan = self._plan(statement, parameter or _no_parameter, stack, binary)
            cursor = self._cursor(plan, stack)
            reader = self._execute(cursor, plan.translation.sql).fetch_record_batch(BATCH_ROWS)
            batches = self._check_batches(prefetch(reader))
            # Callbacks run in reverse: a running fetch is interrupted, then awaited, then its connection is closed.
            stack.callback(batches.close)
            stack.callback(cursor.interrupt)
            return ResultSet(_fields(plan.translation), plan.translation.types, batches, stack.pop_all().close)

    def describe(
        self, statement: Sequence[Token], parameter_types: Sequence[int]
    ) -> tuple[list[int], list[ResultField] | None]:
        """The types of a statement's parameters, which have no values yet, and its result columns.

        The columns are None if it returns no rows."""
        types = list(parameter_types)
        found = command.parse(statement)
        if isinstance(found, command.Show):
            return types, self._show(found).fields  # type: ignore[return-value]
        if isinstance(found, command.Explain):
            return types, [ResultField("QUERY PLAN", wire_type.TEXT)]
        if not isinstance(found, command.Select):
            return types, None

        inferred: dict[int, Type] = {}

        def unknown(number: int) -> Typed:
            if number > _MAX_PARAMETERS:
                raise QueryError("42P02", f"there is no parameter ${number}")
            types.extend([0] * (number - len(types)))
            known = inferred.get(number, pg_type.by_oid(types[number - 1]))
            if known is not None and known != pg_type.UNKNOWN:
                return Typed(null_of(known), known)

            def infer(type_: Type) -> None:
                types[number - 1] = inferred.setdefault(number, type_).oid

            return Typed("NULL", pg_type.UNKNOWN, parameter=number, infer=infer)

        with ExitStack() as stack:
            translation = self._plan(statement, unknown, stack, binary=True).translation
        return types, _fields(translation)

    def _plan(self, statement: Sequence[Token], parameter: Parameter, stack: ExitStack, binary: bool) -> _Plan:
        """Translate a statement for DuckDB and create the views it needs, which last as long as the stack."""
        version = self.version()
        lease = stack.enter_context(self._engine.lease(version))
        catalog = SessionCatalog(
            lease, self._lake, self.settings, self._database, self._constants(lease), self._set_config, parameter
        )
        translation = translate(join_tokens(statement), catalog, binary)
        references = find_references(self._bare, translation.sql)
        is_system = catalog.is_system or any(f"{name}(" in translation.sql for name in lookup_macro.NAMES)
        if catalog.tables and references.unprunable:
            lease = stack.enter_context(self._engine.lease(version, references.unprunable))
        lease.prepare(catalog.tables)
        if not relation_size.NAMES.isdisjoint(references.functions):
            lease.prepare_sizes()
        return _Plan(lease, translation, is_system)

    def _cursor(self, plan: _Plan, stack: ExitStack) -> Any:
        """A cursor that can be interrupted, until the stack closes it."""
        cursor = plan.lease.cursor(self.settings.search_path, plan.is_system)
        stack.callback(self._release, cursor)
        with self._lock:
            self._running.add(cursor)
        self.check_canceled()
        return cursor

    def _execute(self, cursor: Any, sql: str) -> Any:
        try:
            return cursor.execute(sql)
        except Exception:
            self.check_canceled()
            raise

    def _check_batches(self, batches: Generator[pa.RecordBatch, None, None]) -> Generator[pa.RecordBatch]:
        try:
            with closing(batches):
                for batch in batches:
                    self.check_canceled()
                    yield batch
        except Exception:
            self.check_canceled()
            raise

    def _release(self, cursor: Any) -> None:
        with self._lock:
            self._running.discard(cursor)
        cursor.close()

    def _constants(self, lease: CatalogLease) -> dict[str, str]:
        """The functions and keywords whose value the session knows, as SQL."""
        database, user = sql_literal(self._database), sql_literal(self._user)
        schemas = {schema for schema, _ in lease.version.tables} | {"public"}
        path = [s for s in self.settings.search_path if s in schemas]
        return {
            "current_database": database,
            "current_catalog": database,
            "current_user": user,
            "session_user": user,
            "current_role": user,
            "user": user,
            "current_schema": sql_literal(path[0]) if path else "CAST(NULL AS VARCHAR)",
            "version": sql_literal(_VERSION_TEXT),
            "pg_backend_pid": str(self._process),
        }

    def _set_config(self, name: str, value: str, is_local: bool) -> None:
        self.settings.change(name, value, is_local and self.status == b"T")

    # Versions and transactions

    def version(self) -> LakeVersion:
        if self._version is not None:
            return self._refresh(self._version)
        found = self._lake.version(self.settings.as_of)
        if found is None:
            found = self._engine.empty_version(self._database)
        if self.status == b"T":
            # Leased, so that its views last as long as the block.
            self._version = self._block_stack.enter_context(self._engine.lease(found)).version
            self._version_read_at = time.monotonic()
        return found

    def _refresh(self, version: LakeVersion) -> LakeVersion:
        """The block's version, read again once its metadata files may have been deleted.

        A block may outlive these files, but not the snapshots they name, which later metadata files name as well."""
        if time.monotonic() - self._version_read_at < _METADATA_LIFETIME_S or not version.tables:
            return version
        return self._lake.version(AsOf(lsn=Lsn(version.cursor - 1))) or version

    def _transaction(self, found: command.TransactionControl) -> Completion:
        if found.action == "restore":
            if self.status == b"I":
                raise QueryError("25P01", "ROLLBACK TO SAVEPOINT can only be used in transaction blocks")
            self.status = b"T"
            return Completion(found.tag)
        if found.action == "begin":
            if self.status != b"I":
                return Completion(found.tag, [protocol.warning("25001", "there is already a transaction in progress")])
            self.status = b"T"
            return Completion(found.tag)
        notices = [] if self.status != b"I" else [protocol.warning("25P01", "there is no transaction in progress")]
        tag = "ROLLBACK" if self.status == b"E" else found.tag
        self.end_transaction(retained=self._holdable_cursors if tag == "COMMIT" else ())
        return Completion(tag, notices)

    def end_transaction(self, retained: Collection[str] = ()) -> None:
        self.status = b"I"
        self._version = None
        self._block_stack.close()
        self.settings.end_transaction()
        for name in [name for name in self.cursors if name not in retained]:
            self.cursors.pop(name).close()

    def fail_transaction(self) -> None:
        if self.status == b"T":
            self.status = b"E"

    # Settings

    def _set(self, found: command.Set) -> Completion:
        before = {name: self.settings.get(name) for name in REPORTED}
        as_of = self.settings.as_of
        self.settings.change(found.name, found.value, found.is_local)
        if self.settings.as_of != as_of:
            self._version = None
        changed = [name for name in REPORTED if self.settings.get(name) != before[name]]
        notices = [
            protocol.parameter_status(self.settings.display_name(name), self.settings.get(name) or "")
            for name in changed
        ]
        return Completion("RESET" if found.value is None else "SET", notices)

    def _show(self, found: command.Show) -> ResultSet:
        if found.name == "all":
            names = ["name", "setting", "description"]
            return _text_result(names, [[name, value, ""] for name, value in self.settings.all()], "SHOW")
        value = self.settings.get(found.name)
        if value is None:
            raise QueryError("42704", f'unrecognized configuration parameter "{found.name}"')
        return _text_result([found.name], [[value]], "SHOW")

    def _explain(self, found: command.Explain, parameter: Parameter | None) -> ResultSet:
        with ExitStack() as stack:
            plan = self._plan(found.query, parameter or _no_parameter, stack, binary=False)
            analyze = "ANALYZE " if found.is_analyze else ""
            rows = self._execute(self._cursor(plan, stack), f"EXPLAIN {analyze}{plan.translation.sql}").fetchall()
        return _text_result(["QUERY PLAN"], [[line] for row in rows for line in str(row[1]).splitlines()], "EXPLAIN")

    def _fetch(self, found: command.Fetch) -> ResultSet | Completion:
        rows = self.cursors.get(found.name)
        if rows is None:
            raise QueryError("34000", f'cursor "{found.name}" does not exist')
        if found.is_move:
            return Completion(f"MOVE {sum(batch.num_rows for batch in rows.take(found.count or 0))}")
        return replace(rows, batches=rows.take(found.count or 0), pending=None, close=lambda: None, tag="FETCH")

    def _declare(self, found: command.Declare, parameter: Parameter | None) -> Completion:
        if found.name in self.cursors:
            raise QueryError("42P03", f'cursor "{found.name}" already exists')
        self.cursors[found.name] = self.select(found.query, parameter)
        self._holdable_cursors.discard(found.name)
        if found.is_holdable:
            self._holdable_cursors.add(found.name)
        return Completion("DECLARE CURSOR")

    def _deallocate(self, found: command.Deallocate) -> Completion:
        known: dict[str, Any] = self.cursors if found.is_cursor else self.prepared_statements
        if found.name is not None and found.name not in known:
            what, sqlstate = ("cursor", "34000") if found.is_cursor else ("prepared statement", "26000")
            raise QueryError(sqlstate, f'{what} "{found.name}" does not exist')
        for name in [found.name] if found.name is not None else list(known):
            removed = known.pop(name)
            if found.is_cursor:
                removed.close()
        if found.is_cursor:
            return Completion("CLOSE CURSOR" if found.name is not None else "CLOSE CURSOR ALL")
        return Completion("DEALLOCATE ALL" if found.name is None else "DEALLOCATE")

    def _discard(self, found: command.Discard) -> Completion:
        if found.what == "all" and self.status != b"I":
            raise QueryError("25001", "DISCARD ALL cannot run inside a transaction block")
        if found.what == "all":
            self.settings.change("all", None)
            self.prepared_statements.clear()
            self.end_transaction()
        return Completion(f"DISCARD {found.what.upper()}")

    # Cancellation, called from other threads

    def begin_statement(self) -> None:
        with self._lock:
            self._reason = None
            self._deadline = time.monotonic() + self.settings.timeout_s

    def end_statement(self) -> None:
        with self._lock:
            self._deadline = None

    def cancel(self, reason: str = "canceling statement due to user request") -> None:
        with self._lock:
            if self._deadline is None:
                return
            self._reason = reason
            for cursor in self._running:
                cursor.interrupt()

    def check_time(self) -> None:
        """Cancel a statement that timed out. Called periodically, which also repeats a cancellation:
        DuckDB loses an interrupt that arrives just before a query starts."""
        deadline, reason = self._deadline, self._reason
        if reason is not None:
            self.cancel(reason)
        elif deadline is not None and time.monotonic() > deadline:
            self.cancel("canceling statement due to statement timeout")

    @property
    def is_busy(self) -> bool:
        return self._deadline is not None

    def check_canceled(self) -> None:
        with self._lock:
            reason = self._reason
        if reason is not None:
            raise QueryError(CANCELED, reason)


@dataclass(frozen=True)
class _Plan:
    lease: CatalogLease
    translation: Translation
    is_system: bool
    """Whether the statement needs the system catalogs."""


def _no_parameter(number: int) -> Typed:
    raise QueryError("42P02", f"there is no parameter ${number}")


def _fields(translation: Translation) -> list[ResultField]:
    pairs = zip(translation.names, translation.types, strict=True)
    return [ResultField(name, t.oid, t.size, t.modifier) for name, t in pairs]


def _text_result(names: Sequence[str], rows: Sequence[Sequence[str]], tag: str) -> ResultSet:
    arrays = [pa.array([row[n] for row in rows], pa.string()) for n in range(len(names))]
    batch = pa.record_batch(arrays, list(names))
    types = [WireType(wire_type.TEXT)] * len(names)
    return ResultSet([ResultField(name, wire_type.TEXT) for name in names], types, iter([batch]), tag=tag)
