"""The tables in MySQL: creates, renames, alters and drops them, by statements that a restart completes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tailrace.delivery.contract import REWIND
from tailrace.errors import SinkDiverged, SinkRefused
from tailrace.sinks.database import history
from tailrace.sinks.database.replica import DestinationTable
from tailrace.sinks.mysql import mysql_error
from tailrace.sinks.mysql.definition_change import DefinitionChanges, DefinitionStatement, RefusedDefinition
from tailrace.sinks.mysql.identifier import quote
from tailrace.sinks.mysql.ledger import MysqlLedger
from tailrace.sinks.mysql.session import MysqlSession
from tailrace.sinks.mysql.table_definition import RELOAD, DefinitionFormat, PresentTable, TableDefinition, alterations
from tailrace.sinks.mysql.table_name import TableName, TableNames

_MIN_ROWS_TO_ANALYZE: Final = 10_000
"""Rows; with fewer, the optimizer's choice does not matter."""
_SYSTEM_DATABASES: Final = ("mysql", "sys", "information_schema", "performance_schema")
_COMPARED: Final = "tailrace_compared"
"""A temporary table, created to see how the server describes a definition."""


class MysqlDefinitions:
    def __init__(
        self,
        session: MysqlSession,
        names: TableNames,
        ledger: MysqlLedger,
        changes: DefinitionChanges,
        sink: str,
        format: DefinitionFormat,
    ) -> None:
        self._session = session
        self._names = names
        self._ledger = ledger
        self._changes = changes
        self._sink = sink
        self._format = format

    def exists(self, target: tuple[str, str]) -> bool:
        return self._exists(self._names.of(target))

    def owner(self, target: tuple[str, str]) -> str | None:
        owner = self._ledger.owner(self._names.of(target))
        return owner[0] if owner is not None and owner[0] != self._sink else None

    def create(self, table: DestinationTable, *, for_load: bool) -> None:  # noqa: ARG002
        name = self._names.of(table.target)
        if self._format.is_history:
            history.check_names(table.relation, table.name)
        self._create_database(name.database)
        # InnoDB stores rows in the order of the key: to add it after a load would write them twice.
        self._changes.run([DefinitionStatement(self._definition(table).create, name)], table)

    def adopt(self, table: DestinationTable) -> None:
        name = self._names.of(table.target)
        hint = "drop or rename it, or deliver the source's table elsewhere with `route`"
        if (owner := self._ledger.owner(name)) is not None:
            raise SinkRefused(
                f"{owner[1]} and {table.name} would both be {name}", "deliver one of them elsewhere with `route`"
            )
        kind = self._session.row(
            "SELECT table_type, engine FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            list(name),
        )
        if kind != ("BASE TABLE", "InnoDB"):
            raise SinkRefused(f"{name} exists already and is not an InnoDB table", hint)
        if not self._fits(name, self._definition(table)):
            raise SinkRefused(
                f"{name} exists already with other columns or another primary key, and Tailrace did not create it", hint
            )
        if self._has_rows(name):
            raise SinkRefused(f"{name} exists already and has rows, and Tailrace did not create it", hint)
        self._ledger.save_table(table)

    def alter(self, old: DestinationTable, new: DestinationTable) -> None:
        old_name, new_name = self._names.of(old.target), self._names.of(new.target)
        if not self._exists(old_name):
            raise SinkDiverged(f"{old_name} is missing at the destination", REWIND.format(self._sink))
        statements = self._renaming(old_name, new_name)
        if old.relation != new.relation:
            before, after = self._format.of(old, new_name), self._format.of(new, new_name)
            statements += alterations(self._sink, before, after, self._present(old_name))
        try:
            self._changes.run(statements, new)
        except RefusedDefinition as refused:
            if refused.is_partial:
                raise
            if refused.number in (mysql_error.NO_SUCH_TABLE, mysql_error.NO_SUCH_COLUMN, mysql_error.NOTHING_TO_DROP):
                raise SinkDiverged(
                    f"{new_name} is missing at the destination, or one of its columns is", REWIND.format(self._sink)
                ) from None
            if mysql_error.is_value_error(refused.number):
                raise SinkRefused(
                    f"{new_name}: its definition changed at the source, and a value here cannot be converted: "
                    f"{mysql_error.describe(refused.number)}",
                    RELOAD.format(self._sink, new.relation.qualified_name),
                ) from None
            raise

    def reuse(self, old: DestinationTable, new: DestinationTable) -> bool:
        old_name, new_name = self._names.of(old.target), self._names.of(new.target)
        if not self._fits(old_name, self._definition(new)):
            return False
        self._changes.run(self._renaming(old_name, new_name), new)
        return True

    def drop(self, table: DestinationTable) -> None:
        name = self._names.of(table.target)
        self._ledger.delete_relation(table.relation.oid)
        self._changes.run([DefinitionStatement(f"DROP TABLE {name.sql}", name)], None)

    def forget(self, oid: int) -> None:
        self._ledger.delete_table(oid)

    def allow_null(self, table: DestinationTable, columns: Sequence[str]) -> None:
        definition = self._definition(table)
        strict = {str(row[0]).lower() for row in self._described(definition.name) if row[2] == "NO"}
        clauses = [
            f"MODIFY COLUMN {definition.declaration(column, is_nullable=True)}"
            for column in definition.columns
            if column.column.name in columns and column.name.lower() in strict
        ]
        if clauses:
            text = f"ALTER TABLE {definition.name.sql} {', '.join(clauses)}"
            self._changes.run([DefinitionStatement(text, definition.name)], None)

    def end_load(self, table: DestinationTable, rows: int) -> None:
        pass

    def _definition(self, table: DestinationTable) -> TableDefinition:
        return self._format.of(table, self._names.of(table.target))

    def _renaming(self, old: TableName, new: TableName) -> list[DefinitionStatement]:
        if old == new:
            return []
        if self._exists(new):
            owner = self._ledger.owner(new)
            raise SinkRefused(
                f"{old} cannot be renamed to {new}, which exists already"
                + (f" and belongs to sink {owner[0]} as {owner[1]}" if owner else ""),
                "drop or rename it, or deliver the source's table elsewhere with `route`",
            )
        self._create_database(new.database)
        return [DefinitionStatement(f"RENAME TABLE {old.sql} TO {new.sql}", old)]

    def _create_database(self, database: str) -> None:
        if database.lower() in _SYSTEM_DATABASES:
            raise SinkRefused(
                f"the schema {database} has the name of a database of the server", "rename it with `route`"
            )
        query = "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s"
        if self._session.value(query, [database]) is None:
            # It commits, and can be repeated: it belongs to no change of a table.
            self._changes.run_alone(f"CREATE DATABASE IF NOT EXISTS {quote(database)}")

    def _exists(self, name: TableName) -> bool:
        query = "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s"
        return self._session.value(query, list(name)) is not None

    def _has_rows(self, name: TableName) -> bool:
        return self._session.value(f"SELECT 1 FROM {name.sql} LIMIT 1") is not None

    def _present(self, name: TableName) -> PresentTable:
        def has_null(column: str) -> bool:
            return self._session.value(f"SELECT 1 FROM {name.sql} WHERE {quote(column)} IS NULL LIMIT 1") is not None

        columns = [str(row[0]) for row in self._described(name)]
        return PresentTable(columns, self._has_rows(name), has_null)

    def _fits(self, name: TableName, definition: TableDefinition) -> bool:
        """Whether a table has exactly the columns and the key of a definition."""
        if not self._exists(name):
            return False
        compared = TableName(name.database, _COMPARED)
        self._session.execute(f"CREATE TEMPORARY TABLE {compared.sql} ({', '.join(definition.declarations())})")
        try:
            return self._columns_and_key(name) == self._columns_and_key(compared)
        finally:
            self._session.execute(f"DROP TEMPORARY TABLE {compared.sql}")

    def _columns_and_key(self, name: TableName) -> tuple[set[Any], list[Any]]:
        keys = self._session.rows(f"SHOW KEYS FROM {name.sql} WHERE Key_name = 'PRIMARY'")
        return set(self._described(name)), [(row[3], row[4]) for row in keys]

    def _described(self, name: TableName) -> list[tuple[str, str, str, str | None]]:
        """Name, type, nullability and collation of each column."""
        rows = self._session.rows(f"SHOW FULL COLUMNS FROM {name.sql}")
        return [(row[0], row[1], row[3], row[2]) for row in rows]
