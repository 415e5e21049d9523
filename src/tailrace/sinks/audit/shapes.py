"""Since when the columns of each table have had their names: an older row's JSON may mean another column by one."""

from __future__ import annotations

import json
from dataclasses import dataclass

from psycopg import sql

from tailrace.change import Relation
from tailrace.sinks.postgres.destination import Connection

_CREATE = """
CREATE TABLE IF NOT EXISTS {shapes} (
    sink text NOT NULL,
    oid bigint NOT NULL,
    since bigint NOT NULL,
    columns jsonb NOT NULL,
    PRIMARY KEY (sink, oid)
);
COMMENT ON TABLE {shapes} IS 'Tailrace: from which commit on the columns of a table have had their names';
"""

Columns = dict[str, int | None]
"""Name → `attnum`."""


@dataclass
class Shapes:
    connection: Connection
    schema: str
    sink: str
    _known: dict[int, tuple[int, Columns]] | None = None

    @property
    def _table(self) -> sql.Identifier:
        return sql.Identifier(self.schema, "shapes")

    def create(self) -> None:
        self.connection.execute(sql.SQL(_CREATE).format(shapes=self._table))

    def forget(self) -> None:
        """What a transaction that failed had met: the destination is asked again."""
        self._known = None

    def _load(self) -> dict[int, tuple[int, Columns]]:
        if self._known is None:
            query = sql.SQL("SELECT oid, since, columns FROM {} WHERE sink = %s").format(self._table)
            rows = self.connection.execute(query, [self.sink]).fetchall()
            self._known = {oid: (since, columns) for oid, since, columns in rows}
        return self._known

    def meet(self, relation: Relation, commit_lsn: int) -> None:
        columns: Columns = {column.name: column.number for column in relation.columns}
        known = self._load().get(relation.oid)
        if known is not None and known[1] == columns:
            return
        self._load()[relation.oid] = commit_lsn, columns
        self.connection.execute(
            sql.SQL(
                "INSERT INTO {} (sink, oid, since, columns) VALUES (%s, %s, %s, %s::jsonb)"
                " ON CONFLICT (sink, oid) DO UPDATE SET since = excluded.since, columns = excluded.columns"
            ).format(self._table),
            [self.sink, relation.oid, commit_lsn, json.dumps(columns)],
        )

    def since(self, oid: int) -> int:
        return self._load()[oid][0]
