"""A mirror: effects on tables become effects on their copies, many rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import psycopg
from psycopg import sql

from tailrace.change import Column, Relation
from tailrace.errors import SinkError
from tailrace.log.fold import key_columns
from tailrace.sinks.database.declared import Types
from tailrace.sinks.database.failure import diverged
from tailrace.sinks.database.rows import Rows
from tailrace.sinks.database.staging import Scratch
from tailrace.sinks.postgres.effect import Effect, Some

Connection = psycopg.Connection[Any]

# A few rows are looked up one by one, whatever the planner thinks of tables that it knows nothing about.
_BY_INDEX = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_seqscan = off"
_AS_PLANNED = "SET LOCAL enable_hashjoin = on; SET LOCAL enable_mergejoin = on; SET LOCAL enable_seqscan = on"


_ALL = sql.SQL("true")


class Work:
    """Statements over rows that were brought, in one transaction; each must touch as many as there are."""

    def __init__(self, connection: Connection, types: Types, scratch: Scratch, sink: str, schema: str) -> None:
        self.connection = connection
        self._types = types
        self._scratch = scratch
        self._sink = sink
        self._schema = schema
        self._by_index = False
        self._numbers = count()

    def another(self) -> sql.Identifier:
        """A name for a temporary table of this transaction."""
        return sql.Identifier("pg_temp", f"completed_{next(self._numbers)}")

    def source(self, rows: Rows, name: str) -> sql.Identifier:
        """The table that the rows are in."""
        if rows.table is None:
            return self._scratch.fill(self._types, rows, name)
        where = sql.Identifier(self._schema, rows.table)
        try:
            with self.connection.transaction():
                first = self.connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(where)).fetchone()
        except psycopg.errors.UndefinedTable:
            first = None
        if first is None:
            raise SinkError(
                f"rows staged for {name} are no longer at the destination: it crashed, or the sink was opened since",
                "they are staged again",
            )
        return where

    def run(self, statement: sql.Composed, expected: int, effect: Effect[Rows], what: str, *, by_index: bool) -> None:
        if by_index != self._by_index:
            self.connection.execute(_BY_INDEX if by_index else _AS_PLANNED)
            self._by_index = by_index
        name = ".".join(effect.target)
        try:
            cursor = self.connection.execute(statement)
        except psycopg.errors.UniqueViolation:
            raise diverged(self._sink, name, effect.span, "a row that comes is there already") from None
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            raise diverged(self._sink, name, effect.span, "the table is not as it was left") from None
        if cursor.rowcount != expected:
            what = f"{what} found {cursor.rowcount:,} rows of {expected:,}"
            raise diverged(self._sink, name, effect.span, what)


def apply(work: Work, where: sql.Identifier, effect: Effect[Rows]) -> None:
    """Rows that go first, then those that stay, then those that come."""
    if effect.is_truncate:
        work.connection.execute(sql.SQL("TRUNCATE {}").format(where))
        return
    relation = effect.relation
    name = ".".join(effect.target)
    if effect.fewer is not None:
        _remove_copies(work, where, effect, effect.fewer)
    if effect.gone is not None:
        _delete(work, where, effect, effect.gone, work.source(effect.gone, name))
    coming = []
    for some in effect.moved:
        source = work.source(some.rows, name)
        coming.append((some.rows, completed(work, where, effect, some, source)))
        _delete(work, where, effect, some.rows, source)
    for some in effect.kept:
        _update(work, where, effect, some)
    if effect.born is not None:
        coming.append((effect.born, work.source(effect.born, name)))
    for rows, source in coming:
        names = sql.SQL("({})").format(columns(relation.columns)) if relation.columns else sql.SQL("")
        statement = sql.SQL("INSERT INTO {} {} SELECT {} FROM {}").format(
            where, names, _values(range(len(relation.columns))), source
        )
        work.run(statement, rows.count, effect, "an insert", by_index=False)


def columns(of: Sequence[Column]) -> sql.Composed:
    return sql.SQL(", ").join([sql.Identifier(column.name) for column in of])


def _values(columns: Sequence[int]) -> sql.Composed:
    return sql.SQL(", ").join([sql.Identifier(f"c{i}") for i in columns])


def matches(relation: Relation, letter: str) -> sql.Composed:
    """`t` is the table, `d` what was brought; the key stands there as it was (`k`) or as it is (`c`)."""
    pairs = [
        sql.SQL("t.{} = d.{}").format(
            sql.Identifier(relation.columns[i].name), sql.Identifier(f"k{n}" if letter == "k" else f"c{i}")
        )
        for n, i in enumerate(key_columns(relation))
    ]
    return sql.SQL(" AND ").join(pairs)


def _delete(work: Work, where: sql.Identifier, effect: Effect[Rows], rows: Rows, source: sql.Identifier) -> None:
    statement = sql.SQL("DELETE FROM {} t USING {} d WHERE {}").format(where, source, matches(effect.relation, "k"))
    work.run(statement, rows.count, effect, "a delete", by_index=not rows.is_staged)


def _update(work: Work, where: sql.Identifier, effect: Effect[Rows], some: Some[Rows]) -> None:
    relation = effect.relation
    fixed = {*key_columns(relation), *some.unsent}
    sets = [
        sql.SQL("{} = d.{}").format(sql.Identifier(column.name), sql.Identifier(f"c{i}"))
        for i, column in enumerate(relation.columns)
        if i not in fixed
    ]
    if not sets:
        return
    statement = sql.SQL("UPDATE {} t SET {} FROM {} d WHERE {}").format(
        where, sql.SQL(", ").join(sets), work.source(some.rows, ".".join(effect.target)), matches(relation, "c")
    )
    work.run(statement, some.rows.count, effect, "an update", by_index=not some.rows.is_staged)


def completed(
    work: Work,
    where: sql.Identifier,
    effect: Effect[Rows],
    some: Some[Rows],
    source: sql.Identifier,
    *,
    only: sql.SQL = _ALL,
    also: Sequence[str] = (),
) -> sql.Identifier:
    """Rows with the values that were not sent, from the rows that have them, before those go.

    Found by their old keys, among `only` some; `also` names what else was brought and is kept.
    """
    relation = effect.relation
    values = [
        sql.SQL("{} AS {}").format(
            sql.Identifier("t", column.name) if i in some.unsent else sql.Identifier("d", f"c{i}"),
            sql.Identifier(f"c{i}"),
        )
        for i, column in enumerate(relation.columns)
    ]
    kept = [sql.Identifier("d", name) for name in also]
    own = work.another()
    statement = sql.SQL(
        "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT {} FROM {} t JOIN {} d ON {} AND {}"
    ).format(own, sql.SQL(", ").join([*kept, *values]), where, source, matches(relation, "k"), only)
    work.run(statement, some.rows.count, effect, "an update", by_index=not some.rows.is_staged)
    return own


def whole_row(relation: Relation) -> tuple[sql.Composed, sql.Composed]:
    """The row in the table `t`, and a row that was brought, as texts: types without equality are compared too."""
    row = sql.SQL("ROW({})::text")
    there = row.format(sql.SQL(", ").join([sql.Identifier("t", c.name) for c in relation.columns]))
    return there, row.format(_values(range(len(relation.columns))))


def _remove_copies(work: Work, where: sql.Identifier, effect: Effect[Rows], rows: Rows) -> None:
    """Of equal rows exactly as many as go."""
    there, brought = whole_row(effect.relation)
    source = work.source(rows, ".".join(effect.target))
    total = work.connection.execute(sql.SQL("SELECT sum(n)::bigint FROM {}").format(source)).fetchone()
    assert total is not None
    statement = sql.SQL(
        "DELETE FROM {where} WHERE ctid = ANY (ARRAY("
        " SELECT place FROM ("
        "  SELECT t.place, d.n, row_number() OVER (PARTITION BY d.whole) AS number"
        "  FROM (SELECT ctid AS place, {there} AS whole FROM {where} t) t"
        "  JOIN (SELECT {brought} AS whole, n FROM {source}) d USING (whole)"
        " ) found WHERE number <= n))"
    ).format(where=where, there=there, brought=brought, source=source)
    work.run(statement, total[0], effect, "a delete", by_index=False)
