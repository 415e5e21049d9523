"""Brings rows to the destination: into staging tables during `stage`, into temporary tables during `commit`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import psycopg
from psycopg import sql

from tailrace.postgres import copy_text
from tailrace.sinks.database.postgresql.destination_error import copy_error
from tailrace.sinks.database.postgresql.destination_type import DestinationTypes
from tailrace.sinks.database.staged_rows import RowBatch, StagedRows, StagingField

Connection = psycopg.Connection[Any]

_MAX_TEMPORARY_TABLES: Final = 32
"""PostgreSQL truncates all of a session's temporary tables at every commit that used any of them."""


class CopyWriter:
    """Writes rows as COPY does. Connects to the destination only to stage them."""

    def __init__(self, prefix: str, schema: str, connect: Callable[[], Connection], name: str) -> None:
        """`prefix` begins the names of the sink's staging tables, `name` is the target for messages."""
        self._prefix = prefix
        self._schema = schema
        self._connect = connect
        self._name = name

    def encode(self, batch: RowBatch) -> StagedRows:
        text = b"".join(copy_text.lines(batch.arrays, len(batch)))
        return StagedRows(batch.fields, len(batch), text, batch.positions)

    def stage(self, batch: RowBatch) -> StagedRows:
        connection = self._connect()
        own = f"{self._prefix}{uuid.uuid4().hex}"
        where = sql.Identifier(self._schema, own)
        columns = declarations(DestinationTypes(connection), batch.fields)
        # Unlogged: after a crash of the destination it is empty or missing, which the commit detects.
        with connection.transaction():
            # COPY into a table of the same transaction needs less locking and WAL.
            connection.execute(
                sql.SQL("CREATE UNLOGGED TABLE {} ({}) WITH (autovacuum_enabled = off)").format(where, columns)
            )
            try:
                copy_in(connection, where, copy_text.lines(batch.arrays, len(batch)))
            except psycopg.Error as error:
                raise copy_error(error, self._name, batch.fields, batch.positions) from None
        keys = [f.name for f in batch.fields if f.name.startswith("k")]
        connection.execute(sql.SQL("ANALYZE {}{}").format(where, _columns_to_analyze(batch.fields, keys)))
        return StagedRows(batch.fields, len(batch), table=own)


def _columns_to_analyze(fields: tuple[StagingField, ...], keys: list[str]) -> sql.Composable:
    """The columns to ANALYZE: a few are enough for the planner to know the number of rows."""
    names = keys or [f.name for f in fields[:1]]
    return sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, names))) if names else sql.SQL("")


def declarations(types: DestinationTypes, fields: tuple[StagingField, ...]) -> sql.Composed:
    return sql.SQL(", ").join(
        [sql.SQL("{} {}").format(sql.Identifier(f.name), sql.SQL(types.of_field(f))) for f in fields]
    )


def copy_in(connection: Connection, where: sql.Composable, text: Iterable[bytes]) -> None:
    """COPY text into a table."""
    with connection.cursor() as cursor, cursor.copy(sql.SQL("COPY {} FROM STDIN").format(where)) as copy:
        for data in text:
            copy.write(data)


class TemporaryTables:
    """Temporary tables of one session, reused across commits: creating one costs more than filling it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._free: dict[tuple[str, ...], list[str]] = {}
        self._filled_tables: list[tuple[tuple[str, ...], str]] = []
        self._new_tables: set[str] = set()
        self._numbers = count()

    def fill(self, types: DestinationTypes, rows: StagedRows, name: str) -> sql.Identifier:
        """A temporary table that contains the rows; `name` is the target, for messages."""
        assert rows.lines is not None
        shape = tuple([f"{f.name} {types.of_field(f)}" for f in rows.fields])
        free = self._free.setdefault(shape, [])
        if free:
            own = free.pop()
        else:
            own = f"rows_{next(self._numbers)}"
            create = sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DELETE ROWS")
            self._connection.execute(create.format(sql.Identifier("pg_temp", own), declarations(types, rows.fields)))
            self._new_tables.add(own)
        self._filled_tables.append((shape, own))
        where = sql.Identifier("pg_temp", own)
        try:
            copy_in(self._connection, where, [rows.lines])
        except psycopg.Error as error:
            raise copy_error(error, name, rows.fields, rows.positions) from None
        return where

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction; if it fails, the tables that were created in it no longer exist."""
        try:
            with self._connection.transaction():
                yield
        except BaseException:
            self._filled_tables = [(shape, own) for shape, own in self._filled_tables if own not in self._new_tables]
            raise
        finally:
            for shape, own in self._filled_tables:
                self._free.setdefault(shape, []).append(own)
            self._filled_tables.clear()
            self._new_tables.clear()
        if sum(map(len, self._free.values())) > _MAX_TEMPORARY_TABLES:
            names = [sql.Identifier("pg_temp", own) for owns in self._free.values() for own in owns]
            self._connection.execute(sql.SQL("DROP TABLE {}").format(sql.SQL(", ").join(names)))
            self._free.clear()


def remove_leftovers(connection: Connection, schema: str, prefix: str) -> None:
    """Drop the staging tables of earlier attempts. One that is still being written is skipped until the next time."""
    query = "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace(%s) AND starts_with(relname, %s)"
    quoted = sql.Identifier(schema).as_string(connection)
    for (name,) in connection.execute(query, [quoted, prefix]).fetchall():
        try:
            with connection.transaction():
                connection.execute("SET LOCAL lock_timeout = 1")
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, name)))
        except psycopg.errors.LockNotAvailable:
            continue
