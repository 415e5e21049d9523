"""The tables at the destination: which is whose, made, moved, emptied for a load. All in one transaction."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from tailrace.change import Relation
from tailrace.errors import SinkDiverged, SinkRefused
from tailrace.log.fold import has_key
from tailrace.sinks.base import REWIND, Load
from tailrace.sinks.database.declared import Types
from tailrace.sinks.database.ledger import Known, Ledger
from tailrace.sinks.postgres.shape import Shape, shortened

Connection = psycopg.Connection[Any]

_WORTH_STATISTICS: Final = 10_000
"""Rows; fewer are found whatever the planner thinks."""


class Tables:
    """What is known of them holds from commit to commit; `copy` is for one that may fail."""

    def __init__(
        self, connection: Connection, ledger: Ledger, types: Types, sink: str, known: dict[int, Known], is_history: bool
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._types = types
        self._sink = sink
        self._is_history = is_history
        self._known = known
        self._relaxed: set[tuple[int, str]] = set()

    def copy(self) -> Tables:
        copy = Tables(self._connection, self._ledger, self._types, self._sink, dict(self._known), self._is_history)
        copy._relaxed = set(self._relaxed)
        return copy

    def ready(self, relation: Relation, target: tuple[str, str], nulls: tuple[str, ...] = ()) -> sql.Identifier:
        """The table, such that rows of this relation fit; `nulls` names columns that hold NULL against its word."""
        known = self._known.get(relation.oid)
        if known is None:
            self._clear_the_way(relation, target)
            self._make(relation, target).add_key(relation)
        elif known.target != target or (known.relation is not relation and known.relation != relation):
            self._become(known, relation, target)
        for name in nulls:
            if (relation.oid, name) not in self._relaxed:
                self._shape(target).allow_null(name)
                self._relaxed.add((relation.oid, name))
        return sql.Identifier(*target)

    def begin_load(self, load: Load) -> sql.Identifier:
        """The table; empty, unless it is a history."""
        relation, target = load.relation, load.target
        if self._is_history:
            self._go_on(relation, target)
        else:
            self._clear_the_way(relation, target)
        self._relaxed = {(oid, name) for oid, name in self._relaxed if oid != relation.oid}
        if (own := self._known.get(relation.oid)) is not None and self._exists(own.target):
            if self._is_history:
                return self.ready(relation, target)
            if self._shape(own.target).fits(relation):
                # Somebody may have made indexes, grants or views of it.
                return self._empty(own, relation, target)
            self._connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(*own.target)))
        self._make(relation, target)
        return sql.Identifier(*target)

    def end_load(self, load: Load, rows: int) -> None:
        """The key is made when the rows are there: sorted once, in place of row by row."""
        if not self._is_history:
            self._shape(load.target).add_key(load.relation)
        if rows > _WORTH_STATISTICS:
            self._connection.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(*load.target)))

    def _empty(self, known: Known, relation: Relation, target: tuple[str, str]) -> sql.Identifier:
        if known.target != target:
            self._move(known.target, target)
        where = sql.Identifier(*target)
        self._connection.execute(sql.SQL("TRUNCATE {}").format(where))
        self._shape(target).follow_nullability(relation)
        self._remember(relation, target)
        return where

    def _go_on(self, relation: Relation, target: tuple[str, str]) -> None:
        """At the source a new table took the name of another: versions of that one stay, and go on with the new's."""
        for oid, known in list(self._known.items()):
            if known.target == target and oid != relation.oid:
                self._known[relation.oid] = known
                del self._known[oid]
                self._ledger.forget(oid)

    def _make(self, relation: Relation, target: tuple[str, str]) -> Shape:
        shape = self._shape(target)
        if self._exists(target):
            self._adopt(shape, relation, target)
        else:
            self._make_schema(target[0])
            shape.create(relation)
            if self._is_history:
                shape.add_key(relation)
        self._remember(relation, target)
        return shape

    def _adopt(self, shape: Shape, relation: Relation, target: tuple[str, str]) -> None:
        """A table that we did not make: ours from now on if it is empty and just as we would have made it."""
        name = ".".join(target)
        hint = "drop or rename it, or send the source's table elsewhere with `route`"
        if (owner := self._ledger.owner(target)) is not None:
            raise SinkRefused(f"{name} belongs to sink {owner}", "send one of them elsewhere with `route`")
        kind = self._connection.execute("SELECT relkind FROM pg_class WHERE oid = %s::regclass", [_quoted(target)])
        # Rows of partitions are found by their key alone: their places are not unique.
        if kind.fetchone() not in ([("r",), ("p",)] if has_key(relation) else [("r",)]):
            raise SinkRefused(f"{name} is there already, and is no plain table", hint)
        if not shape.fits(relation):
            raise SinkRefused(
                f"{name} is there already, with other columns or another primary key, and Tailrace did not make it",
                hint,
            )
        first = sql.SQL("SELECT FROM {} LIMIT 1").format(sql.Identifier(*target))
        if self._connection.execute(first).fetchone() is not None:
            raise SinkRefused(f"{name} is there already, with rows in it, and Tailrace did not make it", hint)

    def _clear_the_way(self, relation: Relation, target: tuple[str, str]) -> None:
        """A table of ours that has this name was renamed at the source, or dropped: no change of it has told us."""
        for oid, known in list(self._known.items()):
            if known.target == target and oid != relation.oid:
                aside = (target[0], shortened(target[1], f"~{oid}"))
                self._move(known.target, aside)
                self._remember(known.relation, aside)

    def _become(self, known: Known, relation: Relation, target: tuple[str, str]) -> None:
        try:
            if known.target != target:
                self._clear_the_way(relation, target)
                self._move(known.target, target)
            if known.relation != relation:
                self._relaxed = {(oid, name) for oid, name in self._relaxed if oid != relation.oid}
                self._shape(target).become(known.relation, relation)
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            raise SinkDiverged(
                f"{'.'.join(target)} is not at the destination as it was left there", REWIND.format(self._sink)
            ) from None
        self._remember(relation, target)

    def _move(self, old: tuple[str, str], new: tuple[str, str]) -> None:
        schema, name = old
        rename = sql.SQL("ALTER TABLE {} RENAME TO {}")
        if schema != new[0]:
            self._make_schema(new[0])
            # In either schema another table may have the name that it has in the other.
            between = f"~{name}"[:30]
            self._connection.execute(rename.format(sql.Identifier(schema, name), sql.Identifier(between)))
            move = sql.SQL("ALTER TABLE {} SET SCHEMA {}")
            self._connection.execute(move.format(sql.Identifier(schema, between), sql.Identifier(new[0])))
            schema, name = new[0], between
        if name != new[1]:
            self._connection.execute(rename.format(sql.Identifier(schema, name), sql.Identifier(new[1])))

    def _make_schema(self, schema: str) -> None:
        quoted = sql.Identifier(schema)
        # CREATE SCHEMA IF NOT EXISTS asks for the right to make one, also where there is nothing to make.
        is_absent = "SELECT to_regnamespace(%s) IS NULL"
        if self._connection.execute(is_absent, [quoted.as_string(self._connection)]).fetchone() == (True,):
            self._connection.execute(sql.SQL("CREATE SCHEMA {}").format(quoted))

    def _remember(self, relation: Relation, target: tuple[str, str]) -> None:
        self._known[relation.oid] = Known(relation, target)
        self._ledger.remember(relation.oid, self._known[relation.oid])

    def _exists(self, target: tuple[str, str]) -> bool:
        query = "SELECT to_regclass(%s) IS NOT NULL"
        return self._connection.execute(query, [_quoted(target)]).fetchone() == (True,)

    def _shape(self, target: tuple[str, str]) -> Shape:
        where = sql.Identifier(*target)
        return Shape(self._connection, self._types, self._sink, where, is_history=self._is_history)


def _quoted(target: tuple[str, str]) -> str:
    return sql.Identifier(*target).as_string(None)
