"""What must be recorded of a trail to verify it: its beginning, its retention, its gaps and its erasures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from psycopg import sql

from tailrace.change import Lsn
from tailrace.sinks.database.postgresql.destination import Connection

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {trails} (
    sink text PRIMARY KEY,
    begins_at pg_lsn NOT NULL,
    kept_since timestamptz
);
COMMENT ON TABLE {trails} IS
    'Tailrace: from which commit on an audit trail has every change, and from which time on it still has them';
CREATE TABLE IF NOT EXISTS {erasures} (
    sink text NOT NULL,
    schema text NOT NULL,
    "table" text NOT NULL,
    primary_key text NOT NULL,
    columns text[],
    erased_at timestamptz NOT NULL DEFAULT now(),
    erased_by text NOT NULL DEFAULT session_user
);
CREATE TABLE IF NOT EXISTS {gaps} (
    sink text NOT NULL,
    lost_from pg_lsn NOT NULL,
    lost_until pg_lsn NOT NULL,
    noted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (sink, lost_until)
);
COMMENT ON TABLE {gaps} IS 'Tailrace: between which LSNs an audit trail may lack changes, as slot or log were lost';
COMMENT ON TABLE {erasures} IS 'Tailrace: rows whose values were erased from an audit trail, and which of them';
"""


@dataclass(frozen=True)
class TrailRecord:
    """The record of one trail, in tables of the destination."""

    connection: Connection
    schema: str
    sink: str

    @property
    def trails(self) -> sql.Identifier:
        return sql.Identifier(self.schema, "trails")

    @property
    def erasures(self) -> sql.Identifier:
        return sql.Identifier(self.schema, "erasures")

    @property
    def gaps(self) -> sql.Identifier:
        return sql.Identifier(self.schema, "gaps")

    def create(self) -> None:
        tables = {"trails": self.trails, "erasures": self.erasures, "gaps": self.gaps}
        self.connection.execute(sql.SQL(_CREATE).format(**tables))

    def begin(self, lsn: Lsn) -> None:
        """Record where the trail begins; a rewind to an earlier LSN moves its beginning."""
        self.connection.execute(
            sql.SQL(
                "INSERT INTO {t} AS t (sink, begins_at) VALUES (%s, %s::pg_lsn) ON CONFLICT (sink)"
                " DO UPDATE SET begins_at = excluded.begins_at WHERE excluded.begins_at < t.begins_at"
            ).format(t=self.trails),
            [self.sink, str(lsn)],
        )

    def set_retention(self, cutoff: datetime) -> None:
        """Record that older rows are deleted, before they are: a concurrent verification must not miss them."""
        self.connection.execute(
            sql.SQL(
                "UPDATE {} SET kept_since = greatest(kept_since, %s) WHERE sink = %s"
                " AND kept_since IS DISTINCT FROM greatest(kept_since, %s)"
            ).format(self.trails),
            [cutoff, self.sink, cutoff],
        )

    @property
    def retained_since(self) -> sql.Composed:
        """An SQL expression for the time since which rows are retained."""
        return sql.SQL("(SELECT kept_since FROM {} WHERE sink = {})").format(self.trails, sql.Literal(self.sink))

    def beginning(self) -> Lsn | None:
        """Where the trail begins; None before the first delivery."""
        row = self.connection.execute(
            sql.SQL("SELECT begins_at::text FROM {} WHERE sink = %s").format(self.trails), [self.sink]
        ).fetchone()
        return Lsn.parse(row[0]) if row else None

    def add_gap(self, start: Lsn, end: Lsn) -> None:
        self.connection.execute(
            sql.SQL(
                "INSERT INTO {} (sink, lost_from, lost_until) VALUES (%s, %s::pg_lsn, %s::pg_lsn)"
                " ON CONFLICT DO NOTHING"
            ).format(self.gaps),
            [self.sink, str(start), str(end)],
        )

    def lost_ranges(self) -> list[tuple[Lsn, Lsn]]:
        """The ranges of LSNs whose changes may be missing."""
        query = sql.SQL("SELECT lost_from::text, lost_until::text FROM {} WHERE sink = %s ORDER BY lost_until")
        rows = self.connection.execute(query.format(self.gaps), [self.sink]).fetchall()
        return [(Lsn.parse(start), Lsn.parse(end)) for start, end in rows]

    def add_erasure(self, table: tuple[str, str], keys: Sequence[str], columns: Sequence[str] | None) -> None:
        for key in keys:
            self.connection.execute(
                sql.SQL(
                    'INSERT INTO {} (sink, schema, "table", primary_key, columns) VALUES (%s, %s, %s, %s, %s)'
                ).format(self.erasures),
                [self.sink, *table, key, None if columns is None else list(columns)],
            )
