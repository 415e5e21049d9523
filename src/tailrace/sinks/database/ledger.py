"""What a sink keeps of itself at the destination: its cursor, and the tables it has there as it last saw them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from tailrace.change import Lsn, Relation
from tailrace.errors import FencedError, SinkError, SinkRefused
from tailrace.sinks.base import State

Connection = psycopg.Connection[Any]

_CREATE = """
CREATE TABLE IF NOT EXISTS {schema}.sinks (
    name text PRIMARY KEY,
    mode text NOT NULL,
    cursor pg_lsn,
    delivered_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE IF NOT EXISTS {schema}.tables (
    sink text NOT NULL REFERENCES {schema}.sinks ON DELETE CASCADE,
    oid bigint NOT NULL,
    lsn pg_lsn,
    relation text,
    target_schema text,
    target_table text,
    PRIMARY KEY (sink, oid)
);
COMMENT ON TABLE {schema}.sinks IS 'Tailrace: every change that commits below the cursor is in the tables';
COMMENT ON TABLE {schema}.tables IS 'Tailrace: the tables it keeps, each as the source last described it';
"""


@dataclass(frozen=True)
class Known:
    """A table of ours at the destination."""

    relation: Relation
    target: tuple[str, str]


class Ledger:
    def __init__(self, connection: Connection, schema: str, sink: str) -> None:
        self._connection = connection
        self._schema = schema
        self._sink = sink
        self._sinks = sql.Identifier(schema, "sinks")
        self._tables = sql.Identifier(schema, "tables")

    def create(self, mode: str) -> None:
        exists = "SELECT to_regclass(%s) IS NOT NULL"
        row = self._connection.execute(exists, [self._tables.as_string(self._connection)]).fetchone()
        if row != (True,):
            with self._connection.transaction():
                # Two sinks may be here for the first time.
                self._connection.execute("SELECT pg_advisory_xact_lock(hashtextextended('tailrace', 0))")
                schema = sql.Identifier(self._schema)
                self._connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
                self._connection.execute(sql.SQL(_CREATE).format(schema=schema))
        insert = sql.SQL("INSERT INTO {} (name, mode) VALUES (%s, %s) ON CONFLICT DO NOTHING").format(self._sinks)
        self._connection.execute(insert, [self._sink, mode])
        found = self._connection.execute(
            sql.SQL("SELECT mode FROM {} WHERE name = %s").format(self._sinks), [self._sink]
        ).fetchone()
        if found != (mode,):
            raise SinkRefused(
                f"sink {self._sink} is there already with another mode than {mode!r}",
                "give the sink another name, and a route to other tables",
            )

    def lock(self) -> None:
        """For as long as the session lasts: one deliver at a time."""
        key = f"tailrace {self._schema} {self._sink}"
        row = self._connection.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", [key]).fetchone()
        if row != (True,):
            raise SinkError(
                f"another process delivers to sink {self._sink} at this destination",
                "stop one of them; if the other was killed, its server notices within half a minute, and this goes on",
            )

    @property
    def cursor(self) -> sql.Composed:
        """In a statement, as a number: what it is when the statement sees the tables."""
        return sql.SQL("(SELECT (cursor - '0/0'::pg_lsn)::bigint FROM {} WHERE name = {})").format(
            self._sinks, sql.Literal(self._sink)
        )

    def state(self) -> State:
        cursor = self._connection.execute(
            sql.SQL("SELECT cursor::text FROM {} WHERE name = %s").format(self._sinks), [self._sink]
        ).fetchone()
        tables = self._connection.execute(
            sql.SQL("SELECT oid, lsn::text FROM {} WHERE sink = %s AND lsn IS NOT NULL").format(self._tables),
            [self._sink],
        ).fetchall()
        found = Lsn.parse(cursor[0]) if cursor and cursor[0] else None
        return State(found, {oid: Lsn.parse(lsn) for oid, lsn in tables})

    def known(self) -> dict[int, Known]:
        rows = self._connection.execute(
            sql.SQL(
                "SELECT oid, relation, target_schema, target_table FROM {} WHERE sink = %s AND relation IS NOT NULL"
            ).format(self._tables),
            [self._sink],
        )
        return {oid: Known(Relation.from_json(text), (schema, name)) for oid, text, schema, name in rows}

    def owner(self, target: tuple[str, str]) -> str | None:
        """Another sink whose table this is."""
        row = self._connection.execute(
            sql.SQL("SELECT sink FROM {} WHERE target_schema = %s AND target_table = %s AND sink <> %s").format(
                self._tables
            ),
            [*target, self._sink],
        ).fetchone()
        return row[0] if row else None

    def begin(self, before: State) -> None:
        """In the commit's transaction: nobody else has moved the cursor, and nobody does until this is over."""
        row = self._connection.execute(
            sql.SQL("SELECT cursor::text FROM {} WHERE name = %s FOR UPDATE").format(self._sinks), [self._sink]
        ).fetchone()
        stored = Lsn.parse(row[0]) if row and row[0] else None
        if row is None or stored != before.cursor:
            raise FencedError(
                f"sink {self._sink} stands at {stored} at its destination, where this process left it at "
                f"{before.cursor}: it was rewound, or another process delivers to it",
                "start deliver again: it goes on from where the destination is",
            )

    def move(self, before: State, after: State) -> None:
        self._admit(before.tables, after.tables)
        self._connection.execute(
            sql.SQL("UPDATE {} SET cursor = %s::pg_lsn, delivered_at = now() WHERE name = %s").format(self._sinks),
            [None if after.cursor is None else str(after.cursor), self._sink],
        )

    def _admit(self, before: Mapping[int, Lsn], after: Mapping[int, Lsn]) -> None:
        """From which LSN on changes of each table count."""
        insert = sql.SQL(
            "INSERT INTO {} (sink, oid, lsn) VALUES (%s, %s, %s::pg_lsn)"
            " ON CONFLICT (sink, oid) DO UPDATE SET lsn = excluded.lsn"
        ).format(self._tables)
        for oid, lsn in after.items():
            if before.get(oid) != lsn:
                self._connection.execute(insert, [self._sink, oid, str(lsn)])
        for oid in before.keys() - after.keys():
            self._connection.execute(
                sql.SQL("UPDATE {} SET lsn = NULL WHERE sink = %s AND oid = %s").format(self._tables), [self._sink, oid]
            )

    def remember(self, oid: int, known: Known) -> None:
        self._connection.execute(
            sql.SQL(
                "INSERT INTO {} (sink, oid, relation, target_schema, target_table) VALUES (%s, %s, %s, %s, %s)"
                " ON CONFLICT (sink, oid) DO UPDATE SET relation = excluded.relation,"
                " target_schema = excluded.target_schema, target_table = excluded.target_table"
            ).format(self._tables),
            [self._sink, oid, known.relation.to_json(), *known.target],
        )

    def forget(self, oid: int) -> None:
        self._connection.execute(
            sql.SQL("DELETE FROM {} WHERE sink = %s AND oid = %s").format(self._tables), [self._sink, oid]
        )
