"""A random workload on a real PostgreSQL, which the same seed repeats exactly.

One thread drives several connections and chooses at random which one continues, so transactions interleave in an order
that the seed determines. A connection only touches rows of its own lane (by a number in the key), so none ever waits
for another. Steps that need a whole table wait until the other connections have ended their transactions.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg import sql
from tests import values

Connection = psycopg.Connection[Any]
_KEYS = 40  # per lane: few, so that keys are reused
_WIDE = "body"


@dataclass
class Table:
    """`lane` is the column whose value, modulo the number of lanes, gives the row's lane."""

    schema: str
    name: str
    columns: dict[str, str]
    key: tuple[str, ...]
    identity: str = "DEFAULT"
    lane: str = "id"

    @property
    def qualified(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def escaped(self) -> sql.SQL:
        """The name, escaped for a statement with parameters."""
        return _sql(self.qualified.as_string().replace("%", "%%"))

    @property
    def extra(self) -> list[str]:
        """Columns that may be dropped or renamed."""
        return [c for c in self.columns if c.startswith("c")]

    def declaration(self) -> sql.Composed:
        columns = [sql.SQL("{} {}").format(sql.Identifier(c), _sql(t)) for c, t in self.columns.items()]
        if self.key:
            columns.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, self.key))))
        return sql.SQL("CREATE TABLE {} ({})").format(self.qualified, sql.SQL(", ").join(columns))


def _sql(text: str) -> sql.SQL:
    return sql.SQL(text)


def _tables(rng: random.Random) -> list[Table]:
    def extra(low: int, high: int) -> dict[str, str]:
        count = rng.randint(low, high)
        return {f"c{i}": rng.choice(list(values.TYPES)) for i in range(count)}

    return [
        Table("public", "simple", {"id": "int4", **extra(1, 4)}, ("id",)),
        # The key's order differs from that of the columns.
        Table("public", "pair", {"c0": "text", "id": "int8", "part": "text", **extra(1, 3)}, ("part", "id")),
        Table("public", "labelled", {"label": "text", "id": "int4", **extra(1, 3)}, ("label",)),
        Table("public", "bag", {"id": "int4", "c0": "text", "c1": "bool"}, (), "FULL"),
        Table("public", "full_keyed", {"id": "int4", **extra(2, 4), _WIDE: "text"}, ("id",), "FULL"),
        Table("public", "wide", {"id": "int4", _WIDE: "text", "c0": "int4", "body2": "text"}, ("id",)),
        Table("public", "every_type", {"id": "int4", **{f"c{i}": t for i, t in enumerate(values.TYPES)}}, ("id",)),
        Table('od"d.Schema', "Wëird /..% näme 🐘", {"id": "int4", "c 'q\"\\": "text", **extra(0, 2)}, ("id",)),
    ]


class Workload:
    """`create` the tables, then `run` a number of transactions, or `start` and `stop` a thread, as a context does.

    `connect` returns an autocommitting connection. With `survive`, a lost connection is replaced, for tests that crash
    the server, which cannot be repeated exactly anyway. The thread sleeps `rest_s` after each transaction. `exclusive`
    is the share of steps that need whole tables: TRUNCATE, and with `ddl` changes of definitions. With `swaps`, rows
    exchange their keys.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        seed: int = 0,
        *,
        lanes: int = 3,
        ddl: bool = False,
        survive: bool = False,
        rest_s: float = 0.0,
        exclusive: float = 0.02,
        swaps: bool = False,
    ) -> None:
        self.tables = _tables(random.Random(seed))
        self.committed = 0
        self.redefinitions = 0
        """Statements that changed a table's definition."""
        self._rng = random.Random(seed + 1)
        self._connect = connect
        self._count = lanes
        self._ddl = ddl
        self._survive = survive
        self._rest_s = rest_s
        self._exclusively = exclusive
        self._actions = [*_ACTIONS, *([(_Lane._swap_keys, 2)] if swaps else [])]
        self._lanes: list[_Lane] = []
        self._names = itertools.count(1)
        self._stop = threading.Event()
        self._hold = threading.Lock()
        self._pausing = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def create(self) -> list[Table]:
        with self._connect() as connection:
            connection.execute(values.DECLARATIONS)
            for table in self.tables:
                connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(table.schema)))
                connection.execute(table.declaration())
                change = sql.SQL("ALTER TABLE {} REPLICA IDENTITY {}")
                connection.execute(change.format(table.qualified, sql.SQL(table.identity)))
                for column in table.columns:
                    if column.startswith(_WIDE):
                        apart = sql.SQL("ALTER TABLE {} ALTER {} SET STORAGE EXTERNAL")
                        connection.execute(apart.format(table.qualified, sql.Identifier(column)))
        return self.tables

    def run(self, transactions: int) -> None:
        """Run this many more commits, and leave no transaction open."""
        end = self.committed + transactions
        while self.committed < end:
            self._step()
        self._finish()

    def start(self) -> Self:
        self._thread = threading.Thread(target=self._go, name="workload", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End open transactions. Raises the thread's error, if any."""
        self._stop.set()
        if self._thread:
            self._thread.join()
        self._thread = None
        self._stop.clear()
        for lane in self._lanes:
            lane.connection.close()
        self._lanes = []
        if self._error:
            raise self._error

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause while the context lasts, with no open transaction, so that a test can read the rows."""
        self._pausing.set()  # a lock alone would mostly be taken by the thread that just released it
        with self._hold:
            self._pausing.clear()
            self._finish()
            yield

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _go(self) -> None:
        try:
            while not self._stop.is_set():
                before = self.committed
                with self._hold:
                    self._step()
                if self._rest_s and self.committed > before:
                    time.sleep(self._rest_s)
                while self._pausing.is_set():
                    time.sleep(0.001)
            with self._hold:
                self._finish()
        except BaseException as error:
            self._error = error

    def _step(self) -> None:
        try:
            while len(self._lanes) < self._count:
                self._lanes.append(_Lane(self, len(self._lanes), self._connect()))
            lane = self._rng.choice(self._lanes)
            if not lane.is_open and self._rng.random() < self._exclusively:
                self._finish()
                lane.begin()
                self._exclusive(lane)
                while lane.is_open:  # the others would wait for its lock
                    lane.step()
            lane.step()
        except psycopg.OperationalError:
            if not self._survive:
                raise
            for lane in self._lanes:
                lane.connection.close()
            self._lanes = []
            time.sleep(0.05)

    def _finish(self) -> None:
        for lane in self._lanes:
            with suppress(*[psycopg.OperationalError] if self._survive else []):
                lane.end()

    def _exclusive(self, lane: _Lane) -> None:
        """Run TRUNCATE or change a table's definition while no other connection is in a transaction."""
        connection = lane.connection
        table = self._rng.choice(self.tables)
        type_ = self._rng.choice(list(values.TYPES))
        kind = self._rng.choice(["add", "drop", "rename"]) if self._ddl and self._rng.random() < 0.7 else "truncate"
        target = table.qualified
        if kind == "truncate":
            others = [t for t in self.tables if t is not table and self._rng.random() < 0.2]
            names = sql.SQL(", ").join(t.qualified for t in [table, *others])
            options = self._rng.choice(["", " RESTART IDENTITY", " CASCADE"])
            connection.execute(sql.SQL("TRUNCATE {}" + options).format(names))
        elif kind == "add":
            # A column with a default is never renamed: only a catalogue that still has this name knows its value in
            # older rows.
            default = values.value(self._rng, type_) if self._rng.random() < 0.5 else None
            name = f"{'d' if default is not None else 'c'}_{next(self._names)}"
            literal = sql.SQL("DEFAULT {}::" + type_).format(sql.Literal(default))
            add = sql.SQL("ALTER TABLE {} ADD {} {} {}")
            connection.execute(add.format(target, sql.Identifier(name), _sql(type_), literal))
            table.columns[name] = type_
        elif table.extra and kind == "drop":
            name = self._rng.choice(table.extra)
            connection.execute(sql.SQL("ALTER TABLE {} DROP {}").format(target, sql.Identifier(name)))
            del table.columns[name]
        elif table.extra:
            old, new = self._rng.choice(table.extra), f"c_{next(self._names)}"
            rename = sql.SQL("ALTER TABLE {} RENAME {} TO {}")
            connection.execute(rename.format(target, sql.Identifier(old), sql.Identifier(new)))
            table.columns = {new if c == old else c: t for c, t in table.columns.items()}
        if kind != "truncate":
            self.redefinitions += 1
            lane.replace(table)  # so that pgoutput describes every definition, not only the last one


class _Lane:
    """One connection and its transaction, if any."""

    def __init__(self, workload: Workload, number: int, connection: Connection) -> None:
        self.connection = connection
        self.is_open = False
        self._workload = workload
        self._rng = workload._rng
        self._number = number
        self._savepoints = 0

    def step(self) -> None:
        if not self.is_open:
            self.begin()
        roll = self._rng.random()
        if roll < 0.2:
            self.end()
        elif roll < 0.28:
            self.connection.execute("SAVEPOINT s")
            self._savepoints += 1
        elif roll < 0.34 and self._savepoints:
            # Rolling back or releasing it uncovers the older savepoint of the same name.
            if self._rng.random() < 0.7:
                self.connection.execute("ROLLBACK TO s")
            self.connection.execute("RELEASE s")
            self._savepoints -= 1
        elif roll < 0.38:
            content = self._rng.randbytes(self._rng.randint(0, 30))
            arguments = (self._rng.random() < 0.5, values.text(self._rng, 8), content)
            self.connection.execute("SELECT pg_logical_emit_message(%s, %s, %s::bytea)", arguments)
        else:
            table = self._rng.choice(self._workload.tables)
            actions, weights = zip(*self._workload._actions, strict=True)
            self._rng.choices(actions, weights)[0](self, table)

    def begin(self) -> None:
        self.connection.execute("BEGIN")
        self.is_open = True
        self._savepoints = 0

    def end(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        # The first statement changes the definition; rolling it back would invalidate the workload's own record of it.
        if self._rng.random() < 0.1 and not self._workload._ddl:
            self.connection.execute("ROLLBACK")
        else:
            self.connection.execute("COMMIT")
            self._workload.committed += 1

    def _id(self, table: Table) -> int:
        spread = 4 if not table.key else _KEYS
        return self._rng.randrange(spread) * self._workload._count + self._number

    def _values(self, table: Table, id: int) -> dict[str, Any]:
        return {column: self._value(table, column, id) for column in table.columns}

    def _value(self, table: Table, column: str, id: int) -> Any:
        if column == table.lane:
            return id
        if column == "label":
            return f'{id}: "ключ"\''
        if column == "part":
            return f"p{id % 3}"
        if column.startswith(_WIDE):
            return self._rng.choice([values.bulky(self._rng), values.bulky(self._rng), "", None])
        if not table.key and column == "c0":
            return self._rng.choice(["same", "other"])  # so that some rows are identical
        return values.value(self._rng, table.columns[column])

    def replace(self, table: Table) -> None:
        """Insert or replace a row."""
        id = self._id(table)
        where = sql.SQL("DELETE FROM {} WHERE {} = {}").format(table.escaped, sql.Identifier(table.lane), id)
        self.connection.execute(where, [])
        self._insert(table, [id])

    def _insert(self, table: Table, ids: list[int] | None = None) -> None:
        ids = ids or [self._id(table) for _ in range(self._rng.choice([1, 1, 2, 5, 20]))]
        rows = [self._values(table, id) for id in ids]
        one = sql.SQL("({})").format(sql.SQL(", ").join(self._parameter(table, c) for c in table.columns))
        statement = sql.SQL("INSERT INTO {} ({}) VALUES {} ON CONFLICT DO NOTHING").format(
            table.escaped,
            sql.SQL(", ").join(map(sql.Identifier, table.columns)),
            sql.SQL(", ").join([one] * len(rows)),
        )
        self.connection.execute(statement, [v for row in rows for v in row.values()])

    def _parameter(self, table: Table, column: str) -> sql.SQL:
        return _sql(f"%s::{table.columns[column]}")

    def _update(self, table: Table) -> None:
        id = self._id(table)
        fixed = {table.lane, *table.key}
        free = [c for c in table.columns if c not in fixed]
        names = self._rng.sample(free, k=min(len(free), self._rng.randint(1, 3)))
        if not names:
            return
        sets = [sql.SQL("{} = {}").format(sql.Identifier(c), self._parameter(table, c)) for c in names]
        self._change(
            table,
            sql.SQL("UPDATE {} SET {}").format(table.escaped, sql.SQL(", ").join(sets)),
            id,
            [self._value(table, c, id) for c in names],
        )

    def _update_key(self, table: Table) -> None:
        old, new = self._id(table), self._id(table)
        names = list(dict.fromkeys([*table.key, table.lane]))
        sets = [sql.SQL("{} = {}").format(sql.Identifier(c), self._parameter(table, c)) for c in names]
        statement = sql.SQL("UPDATE {} SET {}").format(table.escaped, sql.SQL(", ").join(sets))
        if table.key:
            with_new = sql.SQL("SELECT FROM {} WHERE {} = {}")
            row = self.connection.execute(
                with_new.format(table.escaped, sql.Identifier(table.lane), new), []
            ).fetchone()
            if row is not None:
                return
        self._change(table, statement, old, [self._value(table, c, new) for c in names])

    def _swap_keys(self, table: Table) -> None:
        """Exchange the keys of two rows, through a key that no row has."""
        first, second = self._id(table), self._id(table)
        if not table.key or first == second:
            return
        free = self._workload._count * (_KEYS + 1) + self._number
        for old, new in ((first, free), (second, first), (free, second)):
            names = list(dict.fromkeys([*table.key, table.lane]))
            sets = [sql.SQL("{} = {}").format(sql.Identifier(c), self._parameter(table, c)) for c in names]
            statement = sql.SQL("UPDATE {} SET {}").format(table.escaped, sql.SQL(", ").join(sets))
            self._change(table, statement, old, [self._value(table, c, new) for c in names])

    def _delete(self, table: Table) -> None:
        self._change(table, sql.SQL("DELETE FROM {}").format(table.escaped), self._id(table), [])

    def _change(self, table: Table, statement: sql.Composed, id: int, arguments: list[Any]) -> None:
        """A condition for exactly one row with this number, even if rows are identical."""
        where = sql.SQL(" WHERE ctid = (SELECT ctid FROM {} WHERE {} = {} LIMIT 1)")
        self.connection.execute(statement + where.format(table.escaped, sql.Identifier(table.lane), id), arguments)


_ACTIONS: list[tuple[Callable[[_Lane, Table], None], int]] = [
    (_Lane._insert, 4),
    (_Lane._update, 4),
    (_Lane._update_key, 1),
    (_Lane._delete, 2),
]
"""What a connection does to a table, and how often."""
