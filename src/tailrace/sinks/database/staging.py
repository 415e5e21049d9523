"""Rows brought to the destination: into tables of their own while a part is staged, into temporary ones in a commit."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import psycopg
from psycopg import sql

from tailrace.sinks.base import Step
from tailrace.sinks.database.copying import lines
from tailrace.sinks.database.declared import Types
from tailrace.sinks.database.failure import refused_rows
from tailrace.sinks.database.rows import Field, Rows, Table

Connection = psycopg.Connection[Any]

INLINE_BYTES = 1024 * 1024
"""Of one part's rows, as COPY has them: what goes through Spark's driver without anybody noticing."""
_LONE: Final = 16
"""Times as many, when it is the only one: it goes nowhere, and to stage it would only mean to write it twice."""
_KEPT: Final = 32
"""Temporary tables that a session keeps: PostgreSQL empties each of them at every commit that used any."""


class Stage:
    """Where one attempt at one part puts its rows. Connects when it must."""

    def __init__(self, prefix: str, schema: str, step: Step) -> None:
        self._name = f"{prefix}{uuid.uuid4().hex}"
        self._schema = schema
        self._numbers = count()
        self._room = INLINE_BYTES * (_LONE if step.parts == 1 and not step.loads else 1)

    def put(self, table: Table, name: str, connect: Callable[[], Connection]) -> Rows:
        """`name` is what messages call the table that the rows are for."""
        text: list[bytes] = []
        if sum(a.nbytes for a in table.arrays) <= self._room:
            text = list(lines(table.arrays, len(table)))
            size = sum(map(len, text))
            if size <= self._room:
                self._room -= size
                return Rows(table.fields, len(table), b"".join(text), table.positions)
        return self._staged(connect(), table, text, name)

    def _staged(self, connection: Connection, table: Table, text: list[bytes], name: str) -> Rows:
        own = f"{self._name}_{next(self._numbers)}"
        where = sql.Identifier(self._schema, own)
        columns = declarations(Types(connection), table.fields)
        # Not logged: after a crash of the destination it is empty or gone, and the commit notices.
        with connection.transaction():
            # COPY need not lock or log what nobody else can see yet.
            connection.execute(
                sql.SQL("CREATE UNLOGGED TABLE {} ({}) WITH (autovacuum_enabled = off)").format(where, columns)
            )
            try:
                copy_in(connection, where, text or lines(table.arrays, len(table)))
            except psycopg.Error as error:
                raise refused_rows(error, name, table.fields, table.positions) from None
        keys = [f.name for f in table.fields if f.name.startswith("k")]
        connection.execute(sql.SQL("ANALYZE {}{}").format(where, _analyzed(table.fields, keys)))
        return Rows(table.fields, len(table), table=own)


def _analyzed(fields: tuple[Field, ...], keys: list[str]) -> sql.Composable:
    """Statistics of a few columns tell the planner how many rows there are, and that is what it must know."""
    names = keys or [f.name for f in fields[:1]]
    return sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, names))) if names else sql.SQL("")


def declarations(types: Types, fields: tuple[Field, ...]) -> sql.Composed:
    return sql.SQL(", ").join(
        [sql.SQL("{} {}").format(sql.Identifier(f.name), sql.SQL(types.of_field(f))) for f in fields]
    )


def copy_in(connection: Connection, where: sql.Composable, text: Iterable[bytes]) -> None:
    with connection.cursor() as cursor, cursor.copy(sql.SQL("COPY {} FROM STDIN").format(where)) as copy:
        for some in text:
            copy.write(some)


class Scratch:
    """Temporary tables of one session, kept from commit to commit: to make one costs more than to fill it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._free: dict[tuple[str, ...], list[str]] = {}
        self._used: list[tuple[tuple[str, ...], str]] = []
        self._made: set[str] = set()
        self._numbers = count()

    def fill(self, types: Types, rows: Rows, name: str) -> sql.Identifier:
        assert rows.lines is not None
        shape = tuple([f"{f.name} {types.of_field(f)}" for f in rows.fields])
        free = self._free.setdefault(shape, [])
        if free:
            own = free.pop()
        else:
            own = f"rows_{next(self._numbers)}"
            create = sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS")
            self._connection.execute(create.format(sql.Identifier("pg_temp", own), declarations(types, rows.fields)))
            self._made.add(own)
        self._used.append((shape, own))
        where = sql.Identifier("pg_temp", own)
        try:
            copy_in(self._connection, where, [rows.lines])
        except psycopg.Error as error:
            raise refused_rows(error, name, rows.fields, rows.positions) from None
        return where

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What was made in it is gone when it fails."""
        try:
            with self._connection.transaction():
                yield
        except BaseException:
            self._used = [(shape, own) for shape, own in self._used if own not in self._made]
            raise
        finally:
            for shape, own in self._used:
                self._free.setdefault(shape, []).append(own)
            self._used.clear()
            self._made.clear()
        if sum(map(len, self._free.values())) > _KEPT:
            names = [sql.Identifier("pg_temp", own) for owns in self._free.values() for own in owns]
            self._connection.execute(sql.SQL("DROP TABLE {}").format(sql.SQL(", ").join(names)))
            self._free.clear()


def prefix(sink: str) -> str:
    """What the names of a sink's staging tables begin with."""
    return f"staged_{hashlib.sha256(sink.encode()).hexdigest()[:12]}_"


def remove_leftovers(connection: Connection, schema: str, prefix: str) -> None:
    """Of attempts that died, or were too late. One that still writes is left for the next time."""
    query = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND starts_with(relname, %s)"
    quoted = sql.Identifier(schema).as_string(connection)
    for (name,) in connection.execute(query, [quoted, prefix]).fetchall():
        try:
            with connection.transaction():
                connection.execute("SET LOCAL lock_timeout = 1")
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, name)))
        except psycopg.errors.LockNotAvailable:
            continue
