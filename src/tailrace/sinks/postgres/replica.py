"""The tables at the destination: creates, renames, alters and empties them, in the transaction of a commit."""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg import sql

from tailrace.change import Relation
from tailrace.column_name import with_suffix
from tailrace.delivery.contract import REWIND, Load
from tailrace.errors import SinkDiverged, SinkRefused
from tailrace.sinks.database.destination_type import DestinationTypes
from tailrace.sinks.database.ledger import DestinationTable, Ledger
from tailrace.sinks.postgres.replica_table import ReplicaTable
from tailrace.state.fold import has_key

Connection = psycopg.Connection[Any]

_MIN_ROWS_TO_ANALYZE: Final = 10_000
"""Rows; with fewer, the planner's choice does not matter."""


class Replica:
    """The tables of one sink, as of the last commit. A commit, which may fail, works on a `copy`."""

    def __init__(
        self,
        connection: Connection,
        ledger: Ledger,
        types: DestinationTypes,
        sink: str,
        known: dict[int, DestinationTable],
        is_history: bool,
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._types = types
        self._sink = sink
        self._is_history = is_history
        self._tables = known
        self._nullable_columns: set[tuple[int, str]] = set()

    def copy(self) -> Replica:
        copy = Replica(self._connection, self._ledger, self._types, self._sink, dict(self._tables), self._is_history)
        copy._nullable_columns = set(self._nullable_columns)
        return copy

    def prepare(self, relation: Relation, target: tuple[str, str], nulls: tuple[str, ...] = ()) -> sql.Identifier:
        """The table, created or altered to hold rows of this relation.

        Args:
            relation: The relation.
            target: Schema and name at the destination.
            nulls: Columns that contain NULL although the relation declares them NOT NULL.
        """
        known = self._tables.get(relation.oid)
        if known is None:
            self._free_target(relation, target)
            self._create(relation, target).add_key(relation)
        elif known.target != target or (known.relation is not relation and known.relation != relation):
            self._alter(known, relation, target)
        for name in nulls:
            if (relation.oid, name) not in self._nullable_columns:
                self._table(target).allow_null(name)
                self._nullable_columns.add((relation.oid, name))
        return sql.Identifier(*target)

    def begin_load(self, load: Load) -> sql.Identifier:
        """The table for a snapshot; empty, unless it is a history."""
        relation, target = load.relation, load.target
        if self._is_history:
            self._continue(relation, target)
        else:
            self._free_target(relation, target)
        self._nullable_columns = {(oid, name) for oid, name in self._nullable_columns if oid != relation.oid}
        if (known := self._tables.get(relation.oid)) is not None and self._exists(known.target):
            if self._is_history:
                return self.prepare(relation, target)
            if self._table(known.target).fits(relation):
                # Somebody may have added indexes, grants or views.
                return self._empty(known, relation, target)
            self._connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(*known.target)))
        self._create(relation, target)
        return sql.Identifier(*target)

    def end_load(self, load: Load, rows: int) -> None:
        """Add the key after the rows: they are sorted once, rather than inserted one by one."""
        if not self._is_history:
            self._table(load.target).add_key(load.relation)
        if rows > _MIN_ROWS_TO_ANALYZE:
            self._connection.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(*load.target)))

    def _empty(self, known: DestinationTable, relation: Relation, target: tuple[str, str]) -> sql.Identifier:
        if known.target != target:
            self._move(known.target, target)
        where = sql.Identifier(*target)
        self._connection.execute(sql.SQL("TRUNCATE {}").format(where))
        self._table(target).set_nullability(relation)
        self._save(relation, target)
        return where

    def _continue(self, relation: Relation, target: tuple[str, str]) -> None:
        """Continue the history of a table whose name a new table at the source has taken."""
        for oid, known in list(self._tables.items()):
            if known.target == target and oid != relation.oid:
                self._tables[relation.oid] = known
                del self._tables[oid]
                self._ledger.delete_table(oid)

    def _create(self, relation: Relation, target: tuple[str, str]) -> ReplicaTable:
        table = self._table(target)
        if self._exists(target):
            self._adopt(table, relation, target)
        else:
            self._create_schema(target[0])
            table.create(relation)
            if self._is_history:
                table.add_key(relation)
        self._save(relation, target)
        return table

    def _adopt(self, table: ReplicaTable, relation: Relation, target: tuple[str, str]) -> None:
        """Use an existing table that Tailrace did not create, if it is empty and as Tailrace would have created it."""
        name = ".".join(target)
        hint = "drop or rename it, or deliver the source's table elsewhere with `route`"
        if (owner := self._ledger.owner(target)) is not None:
            raise SinkRefused(f"{name} belongs to sink {owner}", "deliver one of them elsewhere with `route`")
        kind = self._connection.execute("SELECT relkind FROM pg_class WHERE oid = %s::regclass", [_quote_table(target)])
        # Rows of partitions can be found only by key: their ctids are not unique.
        if kind.fetchone() not in ([("r",), ("p",)] if has_key(relation) else [("r",)]):
            raise SinkRefused(f"{name} exists already and is not an ordinary table", hint)
        if not table.fits(relation):
            raise SinkRefused(
                f"{name} exists already with other columns or another primary key, and Tailrace did not create it",
                hint,
            )
        first = sql.SQL("SELECT FROM {} LIMIT 1").format(sql.Identifier(*target))
        if self._connection.execute(first).fetchone() is not None:
            raise SinkRefused(f"{name} exists already and has rows, and Tailrace did not create it", hint)

    def _free_target(self, relation: Relation, target: tuple[str, str]) -> None:
        """Rename the table that has this name: it was renamed or dropped at the source, without a change to show it."""
        for oid, known in list(self._tables.items()):
            if known.target == target and oid != relation.oid:
                renamed = (target[0], with_suffix(target[1], f"~{oid}"))
                self._move(known.target, renamed)
                self._save(known.relation, renamed)

    def _alter(self, known: DestinationTable, relation: Relation, target: tuple[str, str]) -> None:
        try:
            if known.target != target:
                self._free_target(relation, target)
                self._move(known.target, target)
            if known.relation != relation:
                self._nullable_columns = {(oid, name) for oid, name in self._nullable_columns if oid != relation.oid}
                self._table(target).alter(known.relation, relation)
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            raise SinkDiverged(
                f"{'.'.join(target)} is missing at the destination, or one of its columns is", REWIND.format(self._sink)
            ) from None
        self._save(relation, target)

    def _move(self, old: tuple[str, str], new: tuple[str, str]) -> None:
        schema, name = old
        rename = sql.SQL("ALTER TABLE {} RENAME TO {}")
        if schema != new[0]:
            self._create_schema(new[0])
            # Another table may have the old name in the new schema, or the new name in the old one.
            interim = f"~{name}"[:30]
            self._connection.execute(rename.format(sql.Identifier(schema, name), sql.Identifier(interim)))
            move = sql.SQL("ALTER TABLE {} SET SCHEMA {}")
            self._connection.execute(move.format(sql.Identifier(schema, interim), sql.Identifier(new[0])))
            schema, name = new[0], interim
        if name != new[1]:
            self._connection.execute(rename.format(sql.Identifier(schema, name), sql.Identifier(new[1])))

    def _create_schema(self, schema: str) -> None:
        quoted = sql.Identifier(schema)
        # CREATE SCHEMA IF NOT EXISTS requires the privilege to create a schema even if it exists.
        is_absent = "SELECT to_regnamespace(%s) IS NULL"
        if self._connection.execute(is_absent, [quoted.as_string(self._connection)]).fetchone() == (True,):
            self._connection.execute(sql.SQL("CREATE SCHEMA {}").format(quoted))

    def _save(self, relation: Relation, target: tuple[str, str]) -> None:
        self._tables[relation.oid] = DestinationTable(relation, target)
        self._ledger.save_table(relation.oid, self._tables[relation.oid])

    def _exists(self, target: tuple[str, str]) -> bool:
        query = "SELECT to_regclass(%s) IS NOT NULL"
        return self._connection.execute(query, [_quote_table(target)]).fetchone() == (True,)

    def _table(self, target: tuple[str, str]) -> ReplicaTable:
        where = sql.Identifier(*target)
        return ReplicaTable(self._connection, self._types, self._sink, where, is_history=self._is_history)


def _quote_table(target: tuple[str, str]) -> str:
    return sql.Identifier(*target).as_string(None)
