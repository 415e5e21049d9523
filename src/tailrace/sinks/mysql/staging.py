"""Brings rows to the destination: into staging tables during `stage`, into other tables during `commit`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pymysql

from tailrace.change import Column
from tailrace.sinks.database.staged_rows import RowBatch, StagedRows, StagingField
from tailrace.sinks.mysql import load_data, mysql_error
from tailrace.sinks.mysql.column_mapping import ColumnMapping
from tailrace.sinks.mysql.identifier import quote
from tailrace.sinks.mysql.session import LOCK_WAIT_TIMEOUT_S, MysqlSession
from tailrace.sinks.mysql.table_definition import POSITION_TYPE
from tailrace.sinks.mysql.table_name import TableName, TableNames

_MAX_VALUES_ROWS: Final = 500
"""So many rows are written by one INSERT. More are faster by LOAD DATA, which takes one exchange more."""
_MAX_VALUES_BYTES: Final = 512 * 1024
"""Less than the smallest `max_allowed_packet` that `tailrace check` accepts."""
_TYPES: Final = {"bigint": "BIGINT", "timestamptz": "DATETIME(6)", "text": POSITION_TYPE}
"""Of Tailrace's own fields."""
_ENGINES: Final = ("MyISAM", "InnoDB")
"""Of staging tables. MyISAM writes no log: after a crash of the server, rows may be missing, which the commit detects.
Some servers do not offer it."""
_NO_COLUMN: Final = "no_column"
"""The column of a staging table for a table without columns, which MySQL does not have."""


class RowFormat:
    """The columns of staging tables for one table, and the text of their rows."""

    def __init__(self, columns: Sequence[ColumnMapping]) -> None:
        self._mappings = {column.column.name: column for column in columns}

    def declarations(self, fields: Sequence[StagingField]) -> str:
        # All are nullable: a staging table only has to hold the values.
        declared = [f"{quote(field.name)} {self._sql_type(field)} NULL" for field in fields]
        return ", ".join(declared or [f"{_NO_COLUMN} BOOLEAN NULL"])

    def encode(self, batch: RowBatch) -> list[pa.Array]:
        """The values in MySQL's format; PoisonError for those that a column cannot hold."""
        if not batch.fields:
            return [pa.nulls(len(batch), pa.string())]
        return [
            self._mappings[field.type.name].encode(array, batch.positions)
            if isinstance(field.type, Column)
            else _own_text(field, array)
            for field, array in zip(batch.fields, batch.arrays, strict=True)
        ]

    def _sql_type(self, field: StagingField) -> str:
        if isinstance(field.type, Column):
            return self._mappings[field.type.name].sql_type
        return _TYPES[field.type]


def staged_names(fields: Sequence[StagingField]) -> list[str]:
    """The names of a staging table's columns."""
    return [field.name for field in fields] or [_NO_COLUMN]


def _own_text(field: StagingField, array: pa.Array) -> pa.Array:
    """Arrow prints times with the Z of UTC, which MySQL does not read."""
    return pc.replace_substring(array, "Z", "") if field.type == "timestamptz" else array


class LoadWriter:
    """Writes rows for multi-row statements or LOAD DATA. Connects to the destination only to stage them."""

    def __init__(
        self, prefix: str, names: TableNames, format: RowFormat, connect: Callable[[], MysqlSession], table: str
    ) -> None:
        """`prefix` begins the names of the sink's staging tables, `table` is the target for messages."""
        self._prefix = prefix
        self._names = names
        self._format = format
        self._connect = connect
        self._table = table

    def encode(self, batch: RowBatch) -> StagedRows:
        columns = self._format.encode(batch)
        if len(batch) <= _MAX_VALUES_ROWS:
            text = b",".join(load_data.row_literals(columns))
            if len(text) <= _MAX_VALUES_BYTES:
                return StagedRows(batch.fields, len(batch), text, batch.positions, is_values=True)
        text = b"".join(load_data.lines(columns, len(batch)))
        return StagedRows(batch.fields, len(batch), text, batch.positions)

    def stage(self, batch: RowBatch) -> StagedRows:
        columns = self._format.encode(batch)
        session = self._connect()
        name = self._names.own(f"{self._prefix}{uuid.uuid4().hex[:20]}")
        _create_table(session, name, self._format.declarations(batch.fields))
        lines = load_data.lines(columns, len(batch))
        load(session, name.sql, staged_names(batch.fields), lines, batch_rows(batch), self._table)
        session.commit()
        return StagedRows(batch.fields, len(batch), table=name.name)


def _create_table(session: MysqlSession, name: TableName, declarations: str) -> None:
    """Create a table without a key: LOAD DATA would ignore rows with a key that exists."""
    for engine in _ENGINES:
        try:
            session.execute(
                f"CREATE TABLE {name.sql} ({declarations}) ENGINE = {engine}"
                f" CHARACTER SET utf8mb4 COLLATE {session.collation}"
            )
            return
        except pymysql.Error as error:
            if mysql_error.number_of(error) not in mysql_error.ENGINE_UNAVAILABLE or engine == _ENGINES[-1]:
                raise


def batch_rows(batch: RowBatch) -> StagedRows:
    """What messages need to know of rows."""
    return StagedRows(batch.fields, len(batch), positions=batch.positions)


def load(
    session: MysqlSession,
    table: str,
    columns: Sequence[str],
    lines: Iterable[bytes],
    rows: StagedRows,
    name: str,
) -> int:
    """LOAD DATA into a table, and return how many rows it wrote.

    LOAD DATA LOCAL makes warnings of errors: any warning is an error here, except that of a key that exists, whose row
    was not written.

    Args:
        session: The session.
        table: The table in SQL.
        columns: The columns' names.
        lines: The rows' text.
        rows: The rows, for messages.
        name: The target, for messages.
    """
    written, warnings = session.load(table, columns, lines)
    if warnings:
        found = session.rows("SHOW WARNINGS")
        for _, number, message in found:
            if number != mysql_error.DUPLICATE_KEY:
                raise mysql_error.value_error(number, message, name, columns, rows)
        if written == rows.count:
            # The server does not say what the warning is, and it is not about a key that exists.
            raise mysql_error.value_error(0, "", name, columns, rows)
    return written


class TemporaryTables:
    """Temporary tables of one transaction."""

    def __init__(self, session: MysqlSession, database: str) -> None:
        self._session = session
        self._database = database
        self._numbers = count()
        self._names: list[TableName] = []

    def create(self, definition: str) -> tuple[str, int]:
        """Create a temporary table; return its name in SQL and how many rows it has. `definition` follows the name."""
        name = TableName(self._database, f"tailrace_rows_{next(self._numbers)}")
        self._names.append(name)
        return name.sql, self._session.execute(f"CREATE TEMPORARY TABLE {name.sql} {definition}")

    def drop(self) -> None:
        for name in self._names:
            self._session.execute(f"DROP TEMPORARY TABLE IF EXISTS {name.sql}")
        self._names.clear()


def remove_leftovers(session: MysqlSession, names: TableNames, prefix: str) -> None:
    """Drop the staging tables of earlier attempts. One that is still being written is skipped until the next time."""
    own = names.own(prefix)
    found = session.rows(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = %s AND left(table_name, %s) = %s",
        [own.database, len(own.name), own.name],
    )
    if not found:
        return
    session.execute("SET SESSION lock_wait_timeout = 1")
    for (name,) in found:
        try:
            session.execute(f"DROP TABLE IF EXISTS {TableName(own.database, name).sql}")
        except pymysql.Error as error:
            if mysql_error.number_of(error) != mysql_error.LOCK_TIMEOUT:
                raise
    session.execute(f"SET SESSION lock_wait_timeout = {LOCK_WAIT_TIMEOUT_S}")
