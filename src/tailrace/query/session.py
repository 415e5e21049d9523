"""One client's session: its settings, its transaction, and how a statement of it becomes an answer.

Knows nothing of sockets. A statement sees all tables at one moment: the newest, or the one `tailrace.as_of` names; in a
transaction block all statements see that of the first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from tailrace.change import Lsn
from tailrace.query import catalogue, command, naming, oid, wire
from tailrace.query.answer import BATCH_ROWS, Rows, Word, ahead
from tailrace.query.catalogue import functions as catalogue_functions
from tailrace.query.engine import Engine, Standing
from tailrace.query.failure import CANCELED, Failure
from tailrace.query.history import AsOf
from tailrace.query.inspection import inspected
from tailrace.query.lake import Lake, Moment
from tailrace.query.lexer import Token, tokens, words
from tailrace.query.oid import WireType
from tailrace.query.resolving import passed_through, resolved
from tailrace.query.session_settings import REPORTED, VERSION, SessionSettings
from tailrace.query.shape import literal
from tailrace.query.translate import Context, translate
from tailrace.query.wire import Field

Parameter = Callable[[int], str]

_CATALOGUE_WORDS: Final = frozenset(
    {*catalogue.names(), *catalogue_functions.NAMES, "information_schema", "to_regclass", "to_regtype", "regclass",
     "regtype", "regnamespace", "regrole", "regproc", "regprocedure"}
)  # fmt: skip
_FILES_STAY_S: Final = 10.0
"""A table's metadata file outlives the next hundred steps: twenty seconds where they come at their fastest."""
_VERSION_TEXT: Final = f"PostgreSQL {VERSION} (Tailrace, DuckDB)"


@dataclass(frozen=True)
class Prepared:
    statement: Sequence[Token]
    """Empty for an empty query."""
    types: tuple[int, ...]


class Session:
    def __init__(self, engine: Engine, lake: Lake, user: str, database: str, most_seconds: float, process: int) -> None:
        self.settings = SessionSettings(user, most_seconds)
        self.status = b"I"
        """As ReadyForQuery tells it: idle, in a transaction, in one that failed."""
        self._engine = engine
        self._lake = lake
        self._user = user
        self._database = database
        self._process = process
        self._bare = engine.bare_cursor()
        self._moment: Moment | None = None
        self._since = 0.0
        self._held: ExitStack = ExitStack()
        self._lock = threading.Lock()
        self._running: set[Any] = set()
        self._reason: str | None = None
        self._deadline: float | None = None
        self.cursors: dict[str, Rows] = {}
        self._held_cursors: set[str] = set()
        self.prepared: dict[str, Prepared] = {}

    def close(self) -> None:
        self.end_transaction()
        self._bare.close()

    # Statements

    def run(self, statement: Sequence[Token], parameter: Parameter | None = None, binary: bool = False) -> Rows | Word:
        found = command.parse(statement)
        if self.status == b"E" and not isinstance(found, command.Transaction):
            raise Failure("25P02", "current transaction is aborted, commands ignored until end of transaction block")
        match found:
            case command.Select():
                return self.select(found.query, parameter, binary)
            case command.Transaction():
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
                raise Failure("0A000", "COPY stands for itself")
            case command.Done():
                return Word(found.tag)
        raise AssertionError(found)

    def select(self, statement: Sequence[Token], parameter: Parameter | None = None, binary: bool = False) -> Rows:
        with ExitStack() as stack:
            standing, sql, path, with_catalogue, columns = self._planned(statement, parameter, stack)
            cursor = standing.cursor(path, with_catalogue)
            stack.callback(self._release, cursor)
            with self._lock:
                self._running.add(cursor)
            self.check_canceled()
            found = self._executed(cursor, sql)
            types = [oid.of(str(column[1])) for column in found.description]
            if not all(type_.is_native for type_ in types):
                found = self._executed(cursor, _as_text(sql, types))
            reader = found.fetch_record_batch(BATCH_ROWS)
            names = naming.renamed(statement, [column[0] for column in found.description])
            types = passed_through(statement, [column[0] for column in found.description], types, columns, binary)
            fields = [Field(name, t.oid, t.size, t.modifier) for name, t in zip(names, types, strict=True)]
            batches = self._checked(ahead(reader))
            # In this order: what still fetches is interrupted and waited for before its connection goes.
            stack.callback(batches.close)
            stack.callback(cursor.interrupt)
            return Rows(fields, types, batches, stack.pop_all().close)

    def described(self, statement: Sequence[Token], given: Sequence[int]) -> list[Field] | None:
        """The columns of a statement whose parameters have no values yet; None where it has none."""
        found = command.parse(statement)
        if isinstance(found, command.Show):
            return self._show(found).fields  # type: ignore[return-value]
        if isinstance(found, command.Explain):
            return [Field("QUERY PLAN", oid.TEXT)]
        if not isinstance(found, command.Select):
            return None

        def unknown(number: int) -> str:
            type_ = oid.PARAMETERS.get(given[number - 1] if number <= len(given) else 0)
            return "NULL" if type_ is None else f"CAST(NULL AS {type_})"

        with ExitStack() as stack:
            standing, sql, path, with_catalogue, columns = self._planned(statement, unknown, stack)
            cursor = standing.cursor(path, with_catalogue)
            try:
                told = self._executed(cursor, f"DESCRIBE {sql}").fetchall()
            finally:
                cursor.close()
        names = naming.renamed(statement, [row[0] for row in told])
        types = [oid.of(row[1]) for row in told]
        types = passed_through(statement, [row[0] for row in told], types, columns, binary=True)
        return [Field(name, t.oid, t.size, t.modifier) for name, t in zip(names, types, strict=True)]

    def columns(self, statement: Sequence[Token]) -> dict[str, int]:
        """Column → OID, of the tables that a statement names: to guess what its parameters are."""
        if not isinstance(command.parse(statement), command.Select):
            return {}
        with ExitStack() as stack:
            columns = self._planned(statement, lambda _: "NULL", stack)[-1]
        return {name: types[0][0] for name, types in columns.items() if len(types) == 1}

    def _planned(
        self, statement: Sequence[Token], parameter: Parameter | None, stack: ExitStack
    ) -> tuple[Standing, str, list[str], bool, dict[str, list[tuple[int, int]]]]:
        """The statement in DuckDB's words, with the views it needs made; they last as long as the stack."""
        moment = self.moment()
        standing = stack.enter_context(self._engine.standing_at(moment))
        with_catalogue = any((token.name or "") in _CATALOGUE_WORDS for token in statement)
        sql = translate(statement, self._context(standing, parameter))
        path = self.settings.search_path
        touched = inspected(self._bare, sql)
        known = standing.catalogue().name if with_catalogue else None
        tables = resolved(touched, path, standing.moment, known)
        columns: dict[str, list[tuple[int, int]]] = {}
        for name in tables:
            table = standing.moment.tables.get(name)
            for column in self._lake.relation(table.relation).columns if table is not None else ():
                types = columns.setdefault(column.name, [])
                if (column.type.oid, column.modifier) not in types:
                    types.append((column.type.oid, column.modifier))
        if tables and touched.unpruned:
            standing = stack.enter_context(self._engine.standing_at(moment, touched.unpruned))
        standing.prepare(tables)
        return standing, sql, path, with_catalogue, columns

    def _executed(self, cursor: Any, sql: str) -> Any:
        try:
            return cursor.execute(sql)
        except Exception:
            self.check_canceled()
            raise

    def _checked(self, batches: Generator[pa.RecordBatch, None, None]) -> Generator[pa.RecordBatch]:
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

    def _context(self, standing: Standing, parameter: Parameter | None) -> Context:
        database, user = literal(self._database), literal(self._user)
        path = [
            s for s in self.settings.search_path if s in {schema for schema, _ in standing.moment.tables} | {"public"}
        ]
        schema = literal(path[0]) if path else "NULL"
        schemas = f"[{', '.join(map(literal, ['pg_catalog', *path]))}]"
        constants = {
            "current_database": database,
            "current_catalog": database,
            "current_user": user,
            "session_user": user,
            "current_role": user,
            "user": user,
            "current_schema": schema,
            "version": literal(_VERSION_TEXT),
            "pg_backend_pid": str(self._process),
        }
        return Context(
            {name: (lambda v=value: v) for name, value in constants.items()},  # type: ignore[misc]
            self.settings.get,
            lambda kind, name: self._oid(standing, kind, name),
            lambda: f"{standing.catalogue().name}.info",
            self._database,
            schemas,
            self._set_config,
            parameter,
        )

    def _set_config(self, name: str, value: str, is_local: bool) -> None:
        self.settings.change(name, value, is_local and self.status == b"T")

    def _oid(self, standing: Standing, kind: str, name: str) -> int | None:
        parts = [token.name for token in words(tokens(name)) if token.name is not None]
        known = standing.catalogue()
        if kind == "regtype":
            return known.types.get(parts[-1] if parts else "")
        if kind != "regclass":
            return None
        if len(parts) == 2:
            return known.tables.get((parts[0], parts[1]))
        path = [*self.settings.search_path, "pg_catalog"]
        return next((known.tables[s, parts[0]] for s in path if (s, parts[0]) in known.tables), None)

    # Moments and transactions

    def moment(self) -> Moment:
        if self._moment is not None:
            return self._again(self._moment)
        found = self._lake.moment(self.settings.as_of)
        if found is None:
            found = self._engine.nothing(self._database)
        if self.status == b"T":
            # Held, so that its views last as long as the block.
            self._moment = self._held.enter_context(self._engine.standing_at(found)).moment
            self._since = time.monotonic()
        return found

    def _again(self, moment: Moment) -> Moment:
        """The moment of a block. Its tables' metadata files do not stay for as long as a block may, but the snapshots
        that they name do, and later files name them too."""
        if time.monotonic() - self._since < _FILES_STAY_S or not moment.tables:
            return moment
        return self._lake.moment(AsOf(lsn=Lsn(moment.cursor - 1))) or moment

    def _transaction(self, found: command.Transaction) -> Word:
        if found.word == "restore":
            if self.status == b"I":
                raise Failure("25P01", "ROLLBACK TO SAVEPOINT can only be used in transaction blocks")
            self.status = b"T"
            return Word(found.tag)
        if found.word == "begin":
            if self.status != b"I":
                return Word(found.tag, [wire.warning("25001", "there is already a transaction in progress")])
            self.status = b"T"
            return Word(found.tag)
        notices = [] if self.status != b"I" else [wire.warning("25P01", "there is no transaction in progress")]
        tag = "ROLLBACK" if self.status == b"E" else found.tag
        self.end_transaction(kept=self._held_cursors if tag == "COMMIT" else ())
        return Word(tag, notices)

    def end_transaction(self, kept: Collection[str] = ()) -> None:
        self.status = b"I"
        self._moment = None
        self._held.close()
        self.settings.end_transaction()
        for name in [name for name in self.cursors if name not in kept]:
            self.cursors.pop(name).close()

    def failed(self) -> None:
        if self.status == b"T":
            self.status = b"E"

    # Settings

    def _set(self, found: command.Set) -> Word:
        before = {name: self.settings.get(name) for name in REPORTED}
        as_of = self.settings.as_of
        self.settings.change(found.name, found.value, found.is_local)
        if self.settings.as_of != as_of:
            self._moment = None
        changed = [name for name in REPORTED if self.settings.get(name) != before[name]]
        notices = [wire.parameter_status(self.settings.told(name), self.settings.get(name) or "") for name in changed]
        return Word("RESET" if found.value is None else "SET", notices)

    def _show(self, found: command.Show) -> Rows:
        if found.name == "all":
            names = ["name", "setting", "description"]
            return _texts(names, [[name, value, ""] for name, value in self.settings.all()], "SHOW")
        value = self.settings.get(found.name)
        if value is None:
            raise Failure("42704", f'unrecognized configuration parameter "{found.name}"')
        return _texts([found.name], [[value]], "SHOW")

    def _explain(self, found: command.Explain, parameter: Parameter | None) -> Rows:
        with ExitStack() as stack:
            standing, sql, path, with_catalogue, _ = self._planned(found.query, parameter, stack)
            cursor = standing.cursor(path, with_catalogue)
            try:
                analyze = "ANALYZE " if found.is_analyze else ""
                told = self._executed(cursor, f"EXPLAIN {analyze}{sql}").fetchall()
            finally:
                cursor.close()
        return _texts(["QUERY PLAN"], [[line] for row in told for line in str(row[1]).splitlines()], "EXPLAIN")

    def _fetch(self, found: command.Fetch) -> Rows | Word:
        rows = self.cursors.get(found.name)
        if rows is None:
            raise Failure("34000", f'cursor "{found.name}" does not exist')
        if found.is_move:
            return Word(f"MOVE {sum(batch.num_rows for batch in rows.take(found.count or 0))}")
        return replace(rows, batches=rows.take(found.count or 0), rest=None, close=lambda: None, tag="FETCH")

    def _declare(self, found: command.Declare, parameter: Parameter | None) -> Word:
        if found.name in self.cursors:
            raise Failure("42P03", f'cursor "{found.name}" already exists')
        self.cursors[found.name] = self.select(found.query, parameter)
        self._held_cursors.discard(found.name)
        if found.is_held:
            self._held_cursors.add(found.name)
        return Word("DECLARE CURSOR")

    def _deallocate(self, found: command.Deallocate) -> Word:
        known: dict[str, Any] = self.cursors if found.is_cursor else self.prepared
        if found.name is not None and found.name not in known:
            what, sqlstate = ("cursor", "34000") if found.is_cursor else ("prepared statement", "26000")
            raise Failure(sqlstate, f'{what} "{found.name}" does not exist')
        for name in [found.name] if found.name is not None else list(known):
            gone = known.pop(name)
            if found.is_cursor:
                gone.close()
        if found.is_cursor:
            return Word("CLOSE CURSOR" if found.name is not None else "CLOSE CURSOR ALL")
        return Word("DEALLOCATE ALL" if found.name is None else "DEALLOCATE")

    def _discard(self, found: command.Discard) -> Word:
        if found.what == "all" and self.status != b"I":
            raise Failure("25001", "DISCARD ALL cannot run inside a transaction block")
        if found.what == "all":
            self.settings.change("all", None)
            self.prepared.clear()
            self.end_transaction()
        return Word(f"DISCARD {found.what.upper()}")

    # Cancelling, from other threads

    def begin(self) -> None:
        with self._lock:
            self._reason = None
            self._deadline = time.monotonic() + self.settings.timeout_s

    def end(self) -> None:
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
        """To be called now and then: also, an interruption is lost on a query that has not quite begun."""
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
            raise Failure(CANCELED, reason)


def _as_text(sql: str, types: Sequence[WireType]) -> str:
    """The same rows, with DuckDB's own text for what Arrow does not hold."""
    columns = [f"c{n}" if t.is_native else f"CAST(c{n} AS VARCHAR) AS c{n}" for n, t in enumerate(types)]
    return f"SELECT {', '.join(columns)} FROM ({sql}) t({', '.join(f'c{n}' for n in range(len(types)))})"  # noqa: S608


def _texts(names: Sequence[str], rows: Sequence[Sequence[str]], tag: str) -> Rows:
    arrays = [pa.array([row[n] for row in rows], pa.string()) for n in range(len(names))]
    batch = pa.record_batch(arrays, list(names))
    types = [oid.of("VARCHAR")] * len(names)
    return Rows([Field(name, oid.TEXT) for name in names], types, iter([batch]), tag=tag)
