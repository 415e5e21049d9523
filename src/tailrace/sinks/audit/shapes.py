"""Since when each table, and each column of it, has had its name: an older row may mean another one by it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from psycopg import sql

from tailrace.change import Relation
from tailrace.sinks.database.destination import Connection

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


class Named(NamedTuple):
    number: int | None
    """`attnum`."""
    since: int
    """The first commit in which the column had its name, and the table too."""


@dataclass(frozen=True)
class Shape:
    since: int
    """The first commit in which the table had its name."""
    schema: str
    table: str
    key: tuple[str, ...]
    columns: dict[str, Named]

    @property
    def columns_since(self) -> dict[str, int]:
        return {name: column.since for name, column in self.columns.items()}


@dataclass
class Shapes:
    connection: Connection
    schema: str
    sink: str
    is_kept: bool = True
    """At the destination, from one run to the next."""
    _known: dict[int, Shape] | None = None

    @property
    def _table(self) -> sql.Identifier:
        return sql.Identifier(self.schema, "shapes")

    def create(self) -> None:
        self.connection.execute(sql.SQL(_CREATE).format(shapes=self._table))

    def forget(self) -> None:
        """What a transaction that failed had met: the destination is asked again."""
        self._known = None

    def known(self) -> dict[int, Shape]:
        """By oid."""
        if self._known is None:
            self._known = {}
            query = sql.SQL('SELECT oid, since, schema, "table", key, columns FROM {} WHERE sink = %s')
            for oid, since, schema, table, key, columns in (
                self.connection.execute(query.format(self._table), [self.sink]) if self.is_kept else ()
            ):
                named = {name: Named(*column) for name, column in columns.items()}
                self._known[oid] = Shape(since, schema, table, tuple(key), named)
        return self._known

    def meet(self, relation: Relation, commit_lsn: int) -> None:
        known = self.known().get(relation.oid)
        had = known if known is not None and (known.schema, known.table) == (relation.schema, relation.name) else None
        columns = {}
        for column in relation.columns:
            named = had.columns.get(column.name) if had is not None else None
            is_same = named is not None and named.number == column.number
            columns[column.name] = named if named and is_same else Named(column.number, commit_lsn)
        since = had.since if had is not None else commit_lsn
        shape = Shape(since, relation.schema, relation.name, relation.key, columns)
        if shape == known:
            return
        self.known()[relation.oid] = shape
        if self.is_kept:
            self.connection.execute(
                sql.SQL(
                    'INSERT INTO {} (sink, oid, since, schema, "table", key, columns)'
                    " VALUES (%s, %s, %s, %s, %s, %s, %s::jsonb) ON CONFLICT (sink, oid) DO UPDATE SET"
                    ' since = excluded.since, schema = excluded.schema, "table" = excluded."table",'
                    " key = excluded.key, columns = excluded.columns"
                ).format(self._table),
                [self.sink, relation.oid, since, shape.schema, shape.table, list(shape.key), json.dumps(columns)],
            )

    def of(self, schema: str, table: str) -> Shape | None:
        """Of the table that last had this name."""
        found = [shape for shape in self.known().values() if (shape.schema, shape.table) == (schema, table)]
        return max(found, key=lambda shape: shape.since, default=None)
