"""The tables in PostgreSQL: creates, renames, alters and drops them, in the transaction of a commit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from tailrace.delivery.contract import REWIND
from tailrace.errors import SinkDiverged, SinkRefused
from tailrace.sinks.database.postgresql.destination_type import DestinationTypes
from tailrace.sinks.database.postgresql.ledger import Ledger
from tailrace.sinks.database.replica import DestinationTable
from tailrace.sinks.postgres.table_definition import ReplicaTable
from tailrace.state.fold import has_key

Connection = psycopg.Connection[Any]

_MIN_ROWS_TO_ANALYZE: Final = 10_000
"""Rows; with fewer, the planner's choice does not matter."""


class PostgresDefinitions:
    def __init__(
        self, connection: Connection, ledger: Ledger, types: DestinationTypes, sink: str, is_history: bool
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._types = types
        self._sink = sink
        self._is_history = is_history

    def exists(self, target: tuple[str, str]) -> bool:
        query = "SELECT to_regclass(%s) IS NOT NULL"
        return self._connection.execute(query, [_quote_table(target)]).fetchone() == (True,)

    def owner(self, target: tuple[str, str]) -> str | None:
        return self._ledger.owner(target)

    def create(self, table: DestinationTable, *, for_load: bool) -> None:
        self._create_schema(table.target[0])
        definition = self._table(table.target)
        definition.create(table.relation)
        # After a load the rows are sorted once for the key, rather than inserted one by one.
        if self._is_history or not for_load:
            definition.add_key(table.relation)
        self._ledger.save_table(table)

    def adopt(self, table: DestinationTable) -> None:
        hint = "drop or rename it, or deliver the source's table elsewhere with `route`"
        kind = self._connection.execute(
            "SELECT relkind FROM pg_class WHERE oid = %s::regclass", [_quote_table(table.target)]
        )
        # Rows of partitions can be found only by key: their ctids are not unique.
        if kind.fetchone() not in ([("r",), ("p",)] if has_key(table.relation) else [("r",)]):
            raise SinkRefused(f"{table.name} exists already and is not an ordinary table", hint)
        if not self._table(table.target).fits(table.relation):
            raise SinkRefused(
                f"{table.name} exists already with other columns or another primary key, "
                "and Tailrace did not create it",
                hint,
            )
        first = sql.SQL("SELECT FROM {} LIMIT 1").format(sql.Identifier(*table.target))
        if self._connection.execute(first).fetchone() is not None:
            raise SinkRefused(f"{table.name} exists already and has rows, and Tailrace did not create it", hint)
        self._ledger.save_table(table)

    def alter(self, old: DestinationTable, new: DestinationTable) -> None:
        try:
            if old.target != new.target:
                self._move(old.target, new.target)
            if old.relation != new.relation:
                self._table(new.target).alter(old.relation, new.relation)
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            raise SinkDiverged(
                f"{new.name} is missing at the destination, or one of its columns is", REWIND.format(self._sink)
            ) from None
        self._ledger.save_table(new)

    def reuse(self, old: DestinationTable, new: DestinationTable) -> bool:
        if not self._table(old.target).fits(new.relation):
            return False
        if old.target != new.target:
            self._move(old.target, new.target)
        # Without rows, columns can become NOT NULL again.
        self._connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(*new.target)))
        self._table(new.target).set_nullability(new.relation)
        self._ledger.save_table(new)
        return True

    def drop(self, table: DestinationTable) -> None:
        self._connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(*table.target)))

    def forget(self, oid: int) -> None:
        self._ledger.delete_table(oid)

    def allow_null(self, table: DestinationTable, columns: Sequence[str]) -> None:
        for name in columns:
            self._table(table.target).allow_null(name)

    def end_load(self, table: DestinationTable, rows: int) -> None:
        if not self._is_history:
            self._table(table.target).add_key(table.relation)
        if rows > _MIN_ROWS_TO_ANALYZE:
            self._connection.execute(sql.SQL("ANALYZE {}").format(sql.Identifier(*table.target)))

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

    def _table(self, target: tuple[str, str]) -> ReplicaTable:
        where = sql.Identifier(*target)
        return ReplicaTable(self._connection, self._types, self._sink, where, is_history=self._is_history)


def _quote_table(target: tuple[str, str]) -> str:
    return sql.Identifier(*target).as_string(None)
