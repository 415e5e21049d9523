"""A sink's state at the destination: its cursor, and its tables with their last relations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

from tailrace.change import Lsn, Relation
from tailrace.delivery.contract import State
from tailrace.errors import FencedError, SinkError, SinkRefused
from tailrace.sinks.database.replica import DestinationTable

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
COMMENT ON TABLE {schema}.sinks IS 'Tailrace: the tables contain every change that commits below the cursor';
COMMENT ON TABLE {schema}.tables IS 'Tailrace: the tables it maintains, each with its last definition at the source';
"""


class Ledger:
    """The state of one sink, in tables of the destination that all its sinks share."""

    def __init__(self, connection: Connection, schema: str, sink: str) -> None:
        self._connection = connection
        self._schema = schema
        self._sink = sink
        self._sinks = sql.Identifier(schema, "sinks")
        self._tables = sql.Identifier(schema, "tables")

    def create(self, mode: str) -> None:
        """Create the tables and the sink's row; SinkRefused if the sink exists with another mode."""
        exists = "SELECT to_regclass(%s) IS NOT NULL"
        row = self._connection.execute(exists, [self._tables.as_string(self._connection)]).fetchone()
        if row != (True,):
            with self._connection.transaction():
                # Two sinks may create them at the same time.
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
                f"sink {self._sink} exists already with a mode other than {mode!r}",
                "give the sink another name and route it to other tables",
            )

    def lock(self) -> None:
        """Lock the sink for this session: only one process may deliver to it."""
        key = f"tailrace {self._schema} {self._sink}"
        try:
            with self._connection.transaction():
                # The server takes a moment to release the lock of a connection that this process has just closed.
                self._connection.execute("SET LOCAL lock_timeout = '2s'")
                self._connection.execute("SELECT pg_advisory_lock(hashtextextended(%s, 0))", [key])
        except psycopg.errors.LockNotAvailable:
            raise SinkError(
                f"another process is delivering to sink {self._sink} at this destination",
                "stop one of them; if the other was killed, the server releases its lock within 30 seconds; retrying",
            ) from None

    @property
    def cursor(self) -> sql.Composed:
        """An SQL expression for the cursor as a number, as of the statement that contains it."""
        return sql.SQL("(SELECT (cursor - '0/0'::pg_lsn)::bigint FROM {} WHERE name = {})").format(
            self._sinks, sql.Literal(self._sink)
        )

    def state(self) -> State:
        """The cursor, and the tables with an LSN of their own."""
        cursor = self._connection.execute(
            sql.SQL("SELECT cursor::text FROM {} WHERE name = %s").format(self._sinks), [self._sink]
        ).fetchone()
        tables = self._connection.execute(
            sql.SQL("SELECT oid, lsn::text FROM {} WHERE sink = %s AND lsn IS NOT NULL").format(self._tables),
            [self._sink],
        ).fetchall()
        found = Lsn.parse(cursor[0]) if cursor and cursor[0] else None
        return State(found, {oid: Lsn.parse(lsn) for oid, lsn in tables})

    def tables(self) -> dict[int, DestinationTable]:
        """The sink's tables, by the source's oid."""
        rows = self._connection.execute(
            sql.SQL(
                "SELECT oid, relation, target_schema, target_table FROM {} WHERE sink = %s AND relation IS NOT NULL"
            ).format(self._tables),
            [self._sink],
        )
        return {oid: DestinationTable(Relation.from_json(text), (schema, name)) for oid, text, schema, name in rows}

    def owner(self, target: tuple[str, str]) -> str | None:
        """The other sink that owns this table, if any."""
        row = self._connection.execute(
            sql.SQL("SELECT sink FROM {} WHERE target_schema = %s AND target_table = %s AND sink <> %s").format(
                self._tables
            ),
            [*target, self._sink],
        ).fetchone()
        return row[0] if row else None

    def lock_cursor(self, before: State) -> None:
        """Lock the cursor until the transaction ends; FencedError if another process has moved it."""
        row = self._connection.execute(
            sql.SQL("SELECT cursor::text FROM {} WHERE name = %s FOR UPDATE").format(self._sinks), [self._sink]
        ).fetchone()
        stored = Lsn.parse(row[0]) if row and row[0] else None
        if row is None or stored != before.cursor:
            raise FencedError(
                f"sink {self._sink} is at {stored} at its destination, but this process left it at {before.cursor}: "
                "it was rewound, or another process delivers to it",
                "restart deliver: it continues from the destination's cursor",
            )

    def advance(self, before: State, after: State) -> None:
        """Store a new state."""
        self._set_table_lsns(before.tables, after.tables)
        self._connection.execute(
            sql.SQL("UPDATE {} SET cursor = %s::pg_lsn, delivered_at = now() WHERE name = %s").format(self._sinks),
            [None if after.cursor is None else str(after.cursor), self._sink],
        )

    def _set_table_lsns(self, before: Mapping[int, Lsn], after: Mapping[int, Lsn]) -> None:
        """Store the LSN from which on the changes of each table are delivered."""
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

    def save_table(self, table: DestinationTable) -> None:
        self._connection.execute(
            sql.SQL(
                "INSERT INTO {} (sink, oid, relation, target_schema, target_table) VALUES (%s, %s, %s, %s, %s)"
                " ON CONFLICT (sink, oid) DO UPDATE SET relation = excluded.relation,"
                " target_schema = excluded.target_schema, target_table = excluded.target_table"
            ).format(self._tables),
            [self._sink, table.relation.oid, table.relation.to_json(), *table.target],
        )

    def delete_table(self, oid: int) -> None:
        self._connection.execute(
            sql.SQL("DELETE FROM {} WHERE sink = %s AND oid = %s").format(self._tables), [self._sink, oid]
        )
