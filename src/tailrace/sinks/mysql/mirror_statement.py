"""The statements of a mirror in MySQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pymysql

from tailrace.change import Relation
from tailrace.errors import SinkError
from tailrace.sinks.database.divergence import divergence, may_differ
from tailrace.sinks.database.staged_rows import StagedRows
from tailrace.sinks.database.table_write import RowGroup, TableWrite
from tailrace.sinks.mysql import mysql_error
from tailrace.sinks.mysql.column_mapping import ColumnMapping
from tailrace.sinks.mysql.identifier import quote
from tailrace.sinks.mysql.session import MysqlSession
from tailrace.sinks.mysql.staging import RowFormat, TemporaryTables, load, staged_names
from tailrace.sinks.mysql.table_definition import ROW_NUMBER, DefinitionFormat
from tailrace.sinks.mysql.table_name import TableNames
from tailrace.state.fold import key_columns

BY_KEY: Final = "STRAIGHT_JOIN"
"""Rows of the table are looked up by key, whatever the optimizer assumes about a table that was filled just now."""


@dataclass(frozen=True)
class RowSource:
    """Rows for a statement: in a table, or still in memory until a statement needs them in one."""

    rows: StagedRows
    table: str | None = None
    """In SQL."""


class MysqlRunner:
    """Runs statements over staged rows in one transaction. Each must affect exactly the expected number of rows."""

    def __init__(
        self,
        session: MysqlSession,
        names: TableNames,
        format: DefinitionFormat,
        temporary: TemporaryTables,
        sink: str,
    ) -> None:
        self.session = session
        self._names = names
        self._format = format
        self._temporary = temporary
        self._sink = sink
        self._columns: dict[str, tuple[ColumnMapping, ...]] = {}

    def table(self, target: tuple[str, str]) -> str:
        """A table in SQL."""
        return self._names.of(target).sql

    def columns(self, relation: Relation) -> tuple[ColumnMapping, ...]:
        if relation.digest not in self._columns:
            self._columns[relation.digest] = self._format.columns(relation)
        return self._columns[relation.digest]

    def source(self, change: TableWrite[StagedRows], rows: StagedRows) -> RowSource:
        """Rows in memory or in their staging table, where all of them must be."""
        if rows.table is None:
            return RowSource(rows)
        table = self._names.staged(rows.table).sql
        try:
            count = self.session.value(f"SELECT count(*) FROM {table}")
        except pymysql.Error as error:
            if mysql_error.number_of(error) != mysql_error.NO_SUCH_TABLE:
                raise
            count = None
        if count != rows.count:
            raise SinkError(
                f"rows staged for {change.name} are missing at the destination: it crashed, or the sink was reopened",
                "staging them again automatically",
            )
        return RowSource(rows, table)

    def source_table(self, change: TableWrite[StagedRows], source: RowSource) -> str:
        """The table that contains the rows, in SQL."""
        if source.table is not None:
            return source.table
        columns = RowFormat(self.columns(change.relation)).declarations(source.rows.fields)
        collation = self.session.collation
        table, _ = self._temporary.create(f"({columns}) ENGINE = InnoDB CHARACTER SET utf8mb4 COLLATE {collation}")
        written = self.fill(change, table, staged_names(source.rows.fields), source.rows)
        self._expect(written, source.rows.count, change, "a temporary table")
        return table

    def fill(self, change: TableWrite[StagedRows], table: str, columns: Sequence[str], rows: StagedRows) -> int:
        """Write rows in memory to a table, and return how many were written."""
        assert rows.lines is not None
        if not rows.is_values:
            return load(self.session, table, columns, [rows.lines], rows, change.name)
        names = ", ".join(map(quote, columns))
        try:
            return self.session.execute(f"INSERT INTO {table} ({names}) VALUES ".encode() + rows.lines)
        except pymysql.Error as error:
            number = mysql_error.number_of(error)
            if mysql_error.is_value_error(number):
                message = str(error.args[-1])
                raise mysql_error.value_error(number, message, change.name, columns, rows) from None
            raise

    def create_temporary(self, query: str, expected: int, change: TableWrite[StagedRows], what: str) -> str:
        """A temporary table that contains a query's rows, in SQL."""
        table = ""

        def create() -> int:
            nonlocal table
            table, count = self._temporary.create(f"ENGINE = InnoDB AS {query}")
            return count

        self.check(create, expected, change, what)
        return table

    def run(self, statement: str, expected: int, change: TableWrite[StagedRows], what: str) -> None:
        """Execute a statement; SinkDiverged if it does not affect the expected number of rows.

        Args:
            statement: The statement.
            expected: How many rows it must affect.
            change: The net change that it is part of, for messages.
            what: What it does, for messages.
        """
        self.check(lambda: self.session.execute(statement), expected, change, what)

    def check(self, write: Callable[[], int], expected: int, change: TableWrite[StagedRows], what: str) -> None:
        """Write; SinkDiverged if this does not affect the expected number of rows."""
        try:
            written = write()
        except pymysql.Error as error:
            number = mysql_error.number_of(error)
            if number == mysql_error.DUPLICATE_KEY:
                raise divergence(self._sink, change.name, change.span, "a row to insert exists already") from None
            if number in (mysql_error.NO_SUCH_TABLE, mysql_error.NO_SUCH_COLUMN):
                raise divergence(self._sink, change.name, change.span, "the table or a column is missing") from None
            raise
        self._expect(written, expected, change, what)

    def _expect(self, written: int, expected: int, change: TableWrite[StagedRows], what: str) -> None:
        if not may_differ(change.relation, what) and written != expected:
            what = f"{what} affected {written:,} of {expected:,} rows"
            raise divergence(self._sink, change.name, change.span, what)


class MysqlMirror:
    """Fulfils `MirrorStatements`."""

    def __init__(self, runner: MysqlRunner) -> None:
        self._runner = runner

    def source(self, change: TableWrite[StagedRows], rows: StagedRows) -> RowSource:
        return self._runner.source(change, rows)

    def truncate(self, target: tuple[str, str]) -> None:
        # TRUNCATE would commit.
        self._runner.session.execute(f"DELETE FROM {self._runner.table(target)}")

    def remove_copies(self, change: TableWrite[StagedRows], rows: StagedRows) -> None:
        runner = self._runner
        columns, source = runner.columns(change.relation), runner.source_table(change, runner.source(change, rows))
        total = int(runner.session.value(f"SELECT sum(n) FROM {source}"))
        number = quote(ROW_NUMBER)
        statement = (
            f"DELETE t FROM {runner.table(change.target)} t JOIN ("
            f" SELECT t.{number} AS place, d.n, row_number() OVER (PARTITION BY d.digest) AS number"
            f" FROM (SELECT {number}, {present_digest(columns)} AS digest FROM {runner.table(change.target)}) t"
            f" JOIN (SELECT n, {staged_digest(columns)} AS digest FROM {source}) d ON d.digest = t.digest"
            f") found ON found.place = t.{number} WHERE found.number <= found.n"
        )
        runner.run(statement, total, change, "a delete")

    def delete(self, change: TableWrite[StagedRows], rows: StagedRows, source: RowSource) -> None:
        runner = self._runner
        key = matches(change.relation, runner.columns(change.relation), "k")
        table = runner.table(change.target)
        statement = f"DELETE t FROM {runner.source_table(change, source)} d {BY_KEY} {table} t ON {key}"
        runner.run(statement, rows.count, change, "a delete")

    def complete(self, change: TableWrite[StagedRows], group: RowGroup[StagedRows], source: RowSource) -> RowSource:
        return complete(self._runner, change, group, source)

    def update(self, change: TableWrite[StagedRows], group: RowGroup[StagedRows]) -> None:
        runner, relation = self._runner, change.relation
        columns = runner.columns(relation)
        fixed = {*key_columns(relation), *group.unsent}
        sets = [f"t.{quote(column.name)} = d.c{i}" for i, column in enumerate(columns) if i not in fixed]
        if not sets:
            return
        source = runner.source_table(change, runner.source(change, group.rows))
        statement = (
            f"UPDATE {source} d {BY_KEY} {runner.table(change.target)} t ON {matches(relation, columns, 'c')}"
            f" SET {', '.join(sets)}"
        )
        runner.run(statement, group.rows.count, change, "an update")

    def insert(self, change: TableWrite[StagedRows], rows: StagedRows, source: RowSource) -> None:
        runner = self._runner
        columns = runner.columns(change.relation)
        table = runner.table(change.target)
        names = [column.name for column in columns]
        if source.table is None and columns:
            # Into the table itself: a row that exists is an error or, in LOAD DATA, missing from the count.
            runner.check(lambda: runner.fill(change, table, names, rows), rows.count, change, "an insert")
            return
        values = ", ".join([f"c{i}" for i in range(len(columns))]) or "NULL"
        listed = ", ".join(map(quote, names or [ROW_NUMBER]))
        statement = f"INSERT INTO {table} ({listed}) SELECT {values} FROM {runner.source_table(change, source)}"
        runner.run(statement, rows.count, change, "an insert")


def matches(relation: Relation, columns: Sequence[ColumnMapping], letter: str) -> str:
    """Joins the table `t` with the staged rows `d` by their old key (`k`) or their current key (`c`)."""
    return " AND ".join(
        [
            f"t.{quote(columns[i].name)} = d.{f'k{n}' if letter == 'k' else f'c{i}'}"
            for n, i in enumerate(key_columns(relation))
        ]
    )


def complete(
    runner: MysqlRunner,
    change: TableWrite[StagedRows],
    group: RowGroup[StagedRows],
    source: RowSource,
    *,
    only: str = "TRUE",
    also: Sequence[str] = (),
) -> RowSource:
    """Create a table of rows whose unsent values come from the rows with the old keys, before those are deleted.

    Args:
        runner: Runs the statement.
        change: The net change.
        group: The rows.
        source: The rows' source.
        only: Which rows of the target to consider.
        also: Other staged columns to copy.
    """
    columns = runner.columns(change.relation)
    values = [
        f"{f't.{quote(column.name)}' if i in group.unsent else f'd.c{i}'} AS c{i}" for i, column in enumerate(columns)
    ]
    query = (
        f"SELECT {', '.join([*(f'd.{name}' for name in also), *values])} FROM {runner.source_table(change, source)} d"
        f" {BY_KEY} {runner.table(change.target)} t ON {matches(change.relation, columns, 'k')} AND {only}"
    )
    return RowSource(group.rows, runner.create_temporary(query, group.rows.count, change, "an update"))


def present_digest(columns: Sequence[ColumnMapping]) -> str:
    """A digest of a row of the table, which differs for rows that differ in any byte."""
    return _digest([quote(column.name) for column in columns])


def staged_digest(columns: Sequence[ColumnMapping]) -> str:
    """The same digest of a staged row."""
    return _digest([f"c{i}" for i in range(len(columns))])


def _digest(values: Sequence[str]) -> str:
    # Each value with its length, so that no two rows become the same text.
    parts = [f"IFNULL(CONCAT(LENGTH({value}), ':', CAST({value} AS BINARY)), '-')" for value in values]
    return f"SHA2(CONCAT({', '.join(parts)}), 256)" if parts else "''"
