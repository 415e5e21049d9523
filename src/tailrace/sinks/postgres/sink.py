"""The PostgreSQL replica: data and cursor change in one transaction, so every change takes effect exactly once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from tailrace.log.decoding import TableChanges
from tailrace.sinks.base import Load, Parallel, Part, Receipt, State, Step
from tailrace.sinks.database.declared import Types
from tailrace.sinks.database.destination import Connection, Destination
from tailrace.sinks.database.failure import classified
from tailrace.sinks.database.ledger import Ledger
from tailrace.sinks.database.rows import Rows, Table
from tailrace.sinks.database.staging import Scratch, Stage, prefix, remove_leftovers
from tailrace.sinks.gathering import gathered
from tailrace.sinks.postgres import effect as mirrored
from tailrace.sinks.postgres import history, mirror, versions
from tailrace.sinks.postgres.effect import Effect
from tailrace.sinks.postgres.tables import Tables


@dataclass(frozen=True)
class PostgresOptions(Destination):
    mode: str = field(default="mirror", metadata={"choices": ("mirror", "history")})
    """`mirror`: the tables as they are. `history`: every version of every row, with the time it was valid."""


class PostgresSink:
    Options: ClassVar[type] = PostgresOptions
    values: ClassVar[Literal["text", "typed"]] = "text"
    parallel: ClassVar[Parallel] = Parallel.RANGES
    whole_transactions: ClassVar[bool] = False
    keeps_tables: ClassVar[bool] = True
    start: ClassVar[str] = "snapshot"
    interval_ms: ClassVar[int] = 0
    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, options: PostgresOptions, context: object = None) -> None:  # noqa: ARG002
        self.name = name
        self._options = options.checked()
        self._session: _Session | None = None

    def __getstate__(self) -> dict[str, Any]:
        """For executors: without connections, with the password."""
        return {"name": self.name, "_options": self._options.carried(), "_session": None}

    def open(self) -> State:
        self.close()
        options = self._options
        with classified():
            connection = options.connect()
            try:
                ledger = Ledger(connection, options.schema, self.name)
                ledger.create(options.mode)
                ledger.lock()
                remove_leftovers(connection, options.schema, prefix(self.name))
                types = Types(connection)
                tables = Tables(connection, ledger, types, self.name, ledger.known(), options.mode == "history")
                self._session = _Session(connection, ledger, types, tables, Scratch(connection))
                return ledger.state()
            except BaseException:
                connection.close()
                raise

    def pending(self) -> Step | None:
        return None

    def begin(self, step: Step) -> None:
        pass

    def stage(self, part: Part) -> Receipt:
        stage = Stage(prefix(self.name), self._options.schema, part.step)
        found: list[Effect[Rows]] = []
        with self._options.staging() as connection:
            for run in gathered(part.chunks):
                effect = self._effect(run, is_load=part.load is not None)
                name = ".".join(effect.target)
                found.append(effect.stored(lambda table, name=name: stage.put(table, name, connection.get)))  # type: ignore[misc]
        return tuple(found)

    def commit(self, step: Step, receipts: Sequence[Receipt]) -> None:
        session = self._opened()
        staged = [effect for receipt in receipts for effect in receipt]
        tables = session.tables.copy()
        with classified(), session.scratch.transaction():
            session.ledger.begin(step.before)
            work = mirror.Work(session.connection, session.types, session.scratch, self.name, self._options.schema)
            for load in step.loads:
                self._load(work, tables, load, [e for e in staged if e.is_load and _is_of(e, load)])
            for effect in staged:
                if not effect.is_load:
                    self._apply(work, tables, effect)
            session.ledger.move(step.before, step.after)
        session.tables = tables
        if any(rows.is_staged for effect in staged for rows in effect.rows()):
            with classified():
                remove_leftovers(session.connection, self._options.schema, prefix(self.name))

    def tend(self) -> None:
        pass

    def rewind(self, state: State) -> None:
        session = self._opened()
        with classified(), session.connection.transaction():
            session.ledger.move(session.ledger.state(), state)

    def close(self) -> None:
        if self._session is not None:
            self._session.connection.close()
            self._session = None

    @property
    def _is_history(self) -> bool:
        return self._options.mode == "history"

    def _effect(self, run: TableChanges, *, is_load: bool) -> Effect[Table]:
        if run.is_truncate:
            moment = versions.moment(run.at, 0)
            return Effect(run.relation, run.target, run.span, is_truncate=True, moment=moment)
        if self._is_history:
            return versions.loaded(run) if is_load else versions.versioned(run)
        return mirrored.loaded(run) if is_load else mirrored.mirrored(run)

    def _apply(self, work: mirror.Work, tables: Tables, effect: Effect[Rows]) -> None:
        where = tables.ready(effect.relation, effect.target, effect.nulls)
        (history if self._is_history else mirror).apply(work, where, effect)

    def _load(self, work: mirror.Work, tables: Tables, load: Load, staged: Sequence[Effect[Rows]]) -> None:
        where = tables.begin_load(load)
        if self._is_history:
            history.return_to(work, where, load.lsn)
            history.end(work, where, next((e.moment for e in staged if e.moment), ("now", f"{load.lsn}:0")))
        for effect in staged:
            self._apply(work, tables, effect)
        tables.end_load(load, sum(rows.count for effect in staged for rows in effect.rows()))

    def _opened(self) -> _Session:
        assert self._session is not None, "open() comes first"
        return self._session


@dataclass
class _Session:
    connection: Connection
    ledger: Ledger
    types: Types
    tables: Tables
    scratch: Scratch


def _is_of(effect: Effect[Rows], load: Load) -> bool:
    return effect.relation.oid == load.relation.oid
