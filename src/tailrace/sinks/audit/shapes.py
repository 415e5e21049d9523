"""Since when the columns of each table have had their names: an older row's JSON may mean another column by one."""

from __future__ import annotations

import json
from dataclasses import dataclass

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
COMMENT ON TABLE {shapes} IS 'Tailrace: from which commit on the columns of a table have had their names';
"""


@dataclass(frozen=True)
class Shape:
    since: int
    """The first commit under it."""
    schema: str
    table: str
    key: tuple[str, ...]
    columns: dict[str, int | None]
    """Name → `attnum`."""


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
                self._known[oid] = Shape(since, schema, table, tuple(key), columns)
        return self._known

    def meet(self, relation: Relation, commit_lsn: int) -> None:
        columns = {column.name: column.number for column in relation.columns}
        known = self.known().get(relation.oid)
        since = known.since if known is not None and known.columns == columns else commit_lsn
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

    def since(self, oid: int) -> int:
        return self.known()[oid].since

    def of(self, schema: str, table: str) -> Shape | None:
        """Of the table that last had this name."""
        found = [shape for shape in self.known().values() if (shape.schema, shape.table) == (schema, table)]
        return max(found, key=lambda shape: shape.since, default=None)
