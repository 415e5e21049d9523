"""The statements of a mirror in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import psycopg
from psycopg import sql

from tailrace.change import Column, Relation
from tailrace.errors import SinkError
from tailrace.sinks.database.divergence import divergence, may_differ
from tailrace.sinks.database.postgresql.destination_type import DestinationTypes
from tailrace.sinks.database.postgresql.staging import TemporaryTables
from tailrace.sinks.database.staged_rows import StagedRows
from tailrace.sinks.database.table_write import RowGroup, TableWrite
from tailrace.state.fold import key_columns

Connection = psycopg.Connection[Any]

# A few rows are looked up by index, whatever the planner assumes about tables without statistics.
_BY_INDEX = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_seqscan = off"
_AS_PLANNED = "SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on; SET LOCAL enable_seqscan = on"
_ALL = sql.SQL("true")


class StatementRunner:
    """Runs statements over staged rows in one transaction. Each must affect exactly the expected number of rows."""

    def __init__(
        self, connection: Connection, types: DestinationTypes, temporary: TemporaryTables, sink: str, schema: str
    ) -> None:
        self.connection = connection
        self._types = types
        self._temporary = temporary
        self._sink = sink
        self._schema = schema
        self._by_index = False
        self._numbers = count()

    def new_table_name(self) -> sql.Identifier:
        """A name for another temporary table of this transaction."""
        return sql.Identifier("pg_temp", f"completed_{next(self._numbers)}")

    def source(self, rows: StagedRows, name: str) -> sql.Identifier:
        """The table that contains the rows; `name` is the target, for messages."""
        if rows.table is None:
            return self._temporary.fill(self._types, rows, name)
        table = sql.Identifier(self._schema, rows.table)
        try:
            with self.connection.transaction():
                first = self.connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(table)).fetchone()
        except psycopg.errors.UndefinedTable:
            first = None
        if first is None:
            raise SinkError(
                f"rows staged for {name} are missing at the destination: it crashed, or the sink was reopened",
                "staging them again automatically",
            )
        return table

    def run(
        self, statement: sql.Composed, expected: int, change: TableWrite[StagedRows], what: str, *, by_index: bool
    ) -> None:
        """Execute a statement; SinkDiverged if it does not affect the expected number of rows.

        Args:
            statement: The statement.
            expected: How many rows it must affect.
            change: The net change that it is part of, for messages.
            what: What it does, for messages.
            by_index: Whether to look rows up by index rather than as planned.
        """
        if by_index != self._by_index:
            self.connection.execute(_BY_INDEX if by_index else _AS_PLANNED)
            self._by_index = by_index
        name = change.name
        try:
            cursor = self.connection.execute(statement)
        except psycopg.errors.UniqueViolation:
            raise divergence(self._sink, name, change.span, "a row to insert exists already") from None
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            raise divergence(self._sink, name, change.span, "the table or a column is missing") from None
        if not may_differ(change.relation, what) and cursor.rowcount != expected:
            what = f"{what} affected {cursor.rowcount:,} of {expected:,} rows"
            raise divergence(self._sink, name, change.span, what)


class PostgresMirror:
    """Fulfils `MirrorStatements`. A source is a table."""

    def __init__(self, runner: StatementRunner) -> None:
        self._runner = runner

    def source(self, change: TableWrite[StagedRows], rows: StagedRows) -> sql.Identifier:
        return self._runner.source(rows, change.name)

    def truncate(self, target: tuple[str, str]) -> None:
        self._runner.connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(*target)))

    def remove_copies(self, change: TableWrite[StagedRows], rows: StagedRows) -> None:
        present, staged = whole_row(change.relation)
        source = self.source(change, rows)
        total = self._runner.connection.execute(sql.SQL("SELECT sum(n)::bigint FROM {}").format(source)).fetchone()
        assert total is not None
        statement = sql.SQL(
            "DELETE FROM {table} WHERE ctid = ANY (ARRAY("
            " SELECT place FROM ("
            "  SELECT t.place, d.n, row_number() OVER (PARTITION BY d.whole) AS number"
            "  FROM (SELECT ctid AS place, {present} AS whole FROM {table} t) t"
            "  JOIN (SELECT {staged} AS whole, n FROM {source}) d USING (whole)"
            " ) found WHERE number <= n))"
        ).format(table=table_of(change), present=present, staged=staged, source=source)
        self._runner.run(statement, total[0], change, "a delete", by_index=False)

    def delete(self, change: TableWrite[StagedRows], rows: StagedRows, source: sql.Identifier) -> None:
        statement = sql.SQL("DELETE FROM {} t USING {} d WHERE {}").format(
            table_of(change), source, matches(change.relation, "k")
        )
        self._runner.run(statement, rows.count, change, "a delete", by_index=not rows.is_staged)

    def complete(
        self, change: TableWrite[StagedRows], group: RowGroup[StagedRows], source: sql.Identifier
    ) -> sql.Identifier:
        return complete(self._runner, change, group, source)

    def update(self, change: TableWrite[StagedRows], group: RowGroup[StagedRows]) -> None:
        relation = change.relation
        fixed = {*key_columns(relation), *group.unsent}
        sets = [
            sql.SQL("{} = d.{}").format(sql.Identifier(column.name), sql.Identifier(f"c{i}"))
            for i, column in enumerate(relation.columns)
            if i not in fixed
        ]
        if not sets:
            return
        statement = sql.SQL("UPDATE {} t SET {} FROM {} d WHERE {}").format(
            table_of(change), sql.SQL(", ").join(sets), self.source(change, group.rows), matches(relation, "c")
        )
        self._runner.run(statement, group.rows.count, change, "an update", by_index=not group.rows.is_staged)

    def insert(self, change: TableWrite[StagedRows], rows: StagedRows, source: sql.Identifier) -> None:
        relation = change.relation
        names = sql.SQL("({})").format(columns(relation.columns)) if relation.columns else sql.SQL("")
        statement = sql.SQL("INSERT INTO {} {} SELECT {} FROM {}").format(
            table_of(change), names, _values(range(len(relation.columns))), source
        )
        self._runner.run(statement, rows.count, change, "an insert", by_index=False)


def table_of(change: TableWrite[StagedRows]) -> sql.Identifier:
    return sql.Identifier(*change.target)


def columns(of: Sequence[Column]) -> sql.Composed:
    return sql.SQL(", ").join([sql.Identifier(column.name) for column in of])


def _values(columns: Sequence[int]) -> sql.Composed:
    return sql.SQL(", ").join([sql.Identifier(f"c{i}") for i in columns])


def matches(relation: Relation, letter: str) -> sql.Composed:
    """Joins the table `t` with the staged rows `d` by their old key (`k`) or their current key (`c`)."""
    pairs = [
        sql.SQL("t.{} = d.{}").format(
            sql.Identifier(relation.columns[i].name), sql.Identifier(f"k{n}" if letter == "k" else f"c{i}")
        )
        for n, i in enumerate(key_columns(relation))
    ]
    return sql.SQL(" AND ").join(pairs)


def complete(
    runner: StatementRunner,
    change: TableWrite[StagedRows],
    group: RowGroup[StagedRows],
    source: sql.Identifier,
    *,
    only: sql.SQL = _ALL,
    also: Sequence[str] = (),
) -> sql.Identifier:
    """Create a table of rows whose unsent values come from the rows with the old keys, before those are deleted.

    Args:
        runner: Runs the statement.
        change: The net change.
        group: The rows.
        source: The table that contains them.
        only: Which rows of the target to consider.
        also: Other staged columns to copy.
    """
    relation = change.relation
    values = [
        sql.SQL("{} AS {}").format(
            sql.Identifier("t", column.name) if i in group.unsent else sql.Identifier("d", f"c{i}"),
            sql.Identifier(f"c{i}"),
        )
        for i, column in enumerate(relation.columns)
    ]
    copied = [sql.Identifier("d", name) for name in also]
    own = runner.new_table_name()
    statement = sql.SQL(
        "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} t JOIN {} d ON {} AND {}"
    ).format(own, sql.SQL(", ").join([*copied, *values]), table_of(change), source, matches(relation, "k"), only)
    runner.run(statement, group.rows.count, change, "an update", by_index=not group.rows.is_staged)
    return own


def whole_row(relation: Relation) -> tuple[sql.Composed, sql.Composed]:
    """A row of the table `t` and a staged row, both as text: this compares types without equality, too."""
    row = sql.SQL("ROW({})::text")
    present = row.format(sql.SQL(", ").join([sql.Identifier("t", c.name) for c in relation.columns]))
    return present, row.format(_values(range(len(relation.columns))))
