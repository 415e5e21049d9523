"""The commits since which tables and columns have had their names. In older rows a name may mean another one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from psycopg import sql

from tailrace.change import Relation
from tailrace.sinks.database.postgresql.destination import Connection

_CREATE = """
CREATE TABLE IF NOT EXISTS {shapes} (
    sink text NOT NULL,
    oid bigint NOT NULL,
    schema text NOT NULL,
    "table" text NOT NULL,
    since bigint NOT NULL,
    key text[] NOT NULL,
    columns jsonb NOT NULL,
    PRIMARY KEY (sink, oid)
);
COMMENT ON TABLE {shapes} IS 'Tailrace: from which commit on tables and their columns have had their names';
"""


class ColumnNaming(NamedTuple):
    """A column, and since when it has had its name."""

    number: int | None
    """`attnum`."""
    since: int
    """The first commit in which both the column and the table had their names."""


@dataclass(frozen=True)
class TableNaming:
    """A table's name and columns, and since when it has had them."""

    since: int
    """The first commit in which the table had its name."""
    schema: str
    table: str
    key: tuple[str, ...]
    columns: dict[str, ColumnNaming]

    @property
    def columns_since(self) -> dict[str, int]:
        return {name: column.since for name, column in self.columns.items()}


@dataclass
class NamingHistory:
    """The names of all tables of a trail."""

    connection: Connection
    schema: str
    sink: str
    is_stored: bool = True
    """Whether it is stored at the destination."""
    _tables: dict[int, TableNaming] | None = None

    @property
    def _table(self) -> sql.Identifier:
        return sql.Identifier(self.schema, "shapes")

    def create(self) -> None:
        self.connection.execute(sql.SQL(_CREATE).format(shapes=self._table))

    def reload(self) -> None:
        """Read the names from the destination again, after a transaction that failed."""
        self._tables = None

    def tables(self) -> dict[int, TableNaming]:
        """The tables, by oid."""
        if self._tables is None:
            self._tables = {}
            query = sql.SQL('SELECT oid, since, schema, "table", key, columns FROM {} WHERE sink = %s')
            for oid, since, schema, table, key, columns in (
                self.connection.execute(query.format(self._table), [self.sink]) if self.is_stored else ()
            ):
                named = {name: ColumnNaming(*column) for name, column in columns.items()}
                self._tables[oid] = TableNaming(since, schema, table, tuple(key), named)
        return self._tables

    def update(self, relation: Relation, commit_lsn: int) -> None:
        """Record that a relation is in use as of a commit."""
        previous = self.tables().get(relation.oid)
        names = relation.schema, relation.name
        same = previous if previous is not None and (previous.schema, previous.table) == names else None
        columns = {}
        for column in relation.columns:
            named = same.columns.get(column.name) if same is not None else None
            has_name = named is not None and named.number == column.number
            columns[column.name] = named if named and has_name else ColumnNaming(column.number, commit_lsn)
        since = same.since if same is not None else commit_lsn
        table = TableNaming(since, relation.schema, relation.name, relation.key, columns)
        if table == previous:
            return
        self.tables()[relation.oid] = table
        if self.is_stored:
            self.connection.execute(
                sql.SQL(
                    'INSERT INTO {} (sink, oid, since, schema, "table", key, columns)'
                    " VALUES (%s, %s, %s, %s, %s, %s, %s::jsonb) ON CONFLICT (sink, oid) DO UPDATE SET"
                    ' since = excluded.since, schema = excluded.schema, "table" = excluded."table",'
                    " key = excluded.key, columns = excluded.columns"
                ).format(self._table),
                [self.sink, relation.oid, since, table.schema, table.table, list(table.key), json.dumps(columns)],
            )

    def of(self, schema: str, table: str) -> TableNaming | None:
        """The table that had this name last."""
        found = [naming for naming in self.tables().values() if (naming.schema, naming.table) == (schema, table)]
        return max(found, key=lambda naming: naming.since, default=None)
