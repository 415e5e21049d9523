"""The table `changes` at the destination: creates it, or updates one that Bemi or Zemi created."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import psycopg
from psycopg import sql

from tailrace.change import OWN
from tailrace.delivery.context import ContextRange
from tailrace.errors import SinkRefused
from tailrace.sinks.database.postgresql.destination import Connection

_log = logging.getLogger("tailrace.deliver")

# The columns of Bemi and Zemi first, in their order. Those after created_at are Tailrace's, and NULL in others' rows.
_COLUMNS: Final = {
    "id": "uuid NOT NULL",
    "database": "text NOT NULL",
    "schema": "text NOT NULL",
    "table": "text NOT NULL",
    "operation": "text NOT NULL",
    "before": "jsonb",
    "after": "jsonb",
    "context": "jsonb",
    "primary_key": "text",
    "committed_at": "timestamptz NOT NULL",
    "position": "bigint NOT NULL",
    "queued_at": "timestamptz NOT NULL",
    "created_at": "timestamptz NOT NULL DEFAULT now()",
    "xid": "bigint",
    "commit_position": "bigint",
    "ordinal": "bigint",
    "previous_key": "text",
    "unchanged": "text[]",
}
_EQUIVALENT: Final = {
    "text": ("text", "character varying"),
    "timestamptz": ("timestamp with time zone",),
}
_COMMENTS: Final = {
    "xid": "the transaction",
    "commit_position": "the LSN of its commit: changes are in order by this and ordinal",
    "ordinal": "the change's number within its transaction",
    "previous_key": "the old key, if the change modified it",
    "unchanged": "columns with unknown values, which PostgreSQL did not send",
}
_INDEXES: Final = {
    # For the history of a row, and for the last known value of a column.
    "key": ('(schema, "table", primary_key, commit_position, ordinal)', ""),
    "previous_key": ('(schema, "table", previous_key)', "WHERE previous_key IS NOT NULL"),
    "committed_at": ("(committed_at)", ""),
    "position": ("(position)", ""),
    "commit_position": ("(commit_position, ordinal)", ""),
    # Transaction numbers roughly ascend with commits, so BRIN narrows a search to a few pages.
    "xid": ("USING brin (xid)", ""),
    "context": ("USING gin (context jsonb_path_ops)", ""),
    "unchanged": ("(commit_position)", "WHERE unchanged IS NOT NULL"),
}
_COMMENT: Final = f"{OWN} what happened to the rows of other tables"


@dataclass(frozen=True)
class ChangesTable:
    """One table `changes`."""

    connection: Connection
    schema: str
    name: str
    is_partitioned: bool = False
    """Whether it is partitioned by month of `committed_at`."""

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def _quoted_name(self) -> str:
        return self.identifier.as_string(self.connection)

    @property
    def text(self) -> str:
        return f"{self.schema}.{self.name}"

    def create(self) -> None:
        """Create or update the table. If nothing has to be altered, the sink's user need not own it."""
        found = self.connection.execute(
            "SELECT c.relkind::text, obj_description(c.oid, 'pg_class') FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
            [self.schema, self.name],
        ).fetchone()
        if found is None:
            self._create()
        elif (found[0] == "p") != self.is_partitioned or found[0] not in "rp":
            kind = {"p": "is partitioned", "r": "is not partitioned"}.get(found[0], "is not a table")
            raise SinkRefused(
                f"{self.text} {kind}, contrary to the sink's settings",
                'set `partition = "month"` only if the table is partitioned, or choose another `table`',
            )
        if found is None or not str(found[1] or "").startswith(OWN):
            self._comment(self.identifier)
        self._add_columns()
        self._check_uniqueness()
        self._add_indexes()

    def _create(self) -> None:
        _log.info("creating table %s", self.text)
        columns = sql.SQL(", ").join(
            [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in _COLUMNS.items()]
        )
        key = "id, committed_at" if self.is_partitioned else "id"
        by_month = " PARTITION BY RANGE (committed_at)" if self.is_partitioned else ""
        # The schema may be one that others use, too.
        self.connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.schema)))
        self.connection.execute(
            sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({})){}").format(
                self.identifier, columns, sql.SQL(key), sql.SQL(by_month)
            )
        )
        for name, comment in _COMMENTS.items():
            self.connection.execute(
                sql.SQL("COMMENT ON COLUMN {} IS {}").format(
                    sql.Identifier(self.schema, self.name, name), sql.Literal(comment)
                )
            )

    def _comment(self, identifier: sql.Identifier) -> None:
        self.connection.execute(sql.SQL("COMMENT ON TABLE {} IS {}").format(identifier, sql.Literal(_COMMENT)))

    def _add_columns(self) -> None:
        rows = self.connection.execute(
            "SELECT attname, attnotnull, atthasdef, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            [self._quoted_name],
        ).fetchall()
        there = {name: (is_required, kind) for name, is_required, _, kind in rows}
        if ("created_at", False) in {(name, has_default) for name, _, has_default, _ in rows}:
            default = sql.SQL("ALTER TABLE {} ALTER COLUMN created_at SET DEFAULT now()")
            self.connection.execute(default.format(self.identifier))
        for name, kind in _COLUMNS.items():
            if name not in there:
                _log.info("%s: adding column %s", self.text, name)
                column = sql.SQL("ALTER TABLE {} ADD COLUMN {} {}")
                nullable = kind.removesuffix(" NOT NULL")
                self.connection.execute(column.format(self.identifier, sql.Identifier(name), sql.SQL(nullable)))
                continue
            is_required, found = there[name]
            if is_required and "NOT NULL" not in kind:
                column = sql.SQL("ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL")
                self.connection.execute(column.format(self.identifier, sql.Identifier(name)))
            self._widen(name, found, kind.split()[0])

    def _widen(self, name: str, found: str, wanted: str) -> None:
        """Remove limits: a key may exceed 255 characters, a time be finer than a second. This rewrites no rows."""
        unlimited = re.sub(r"\(\d+\)", "", found)
        if unlimited not in _EQUIVALENT.get(wanted, (wanted,)):
            raise SinkRefused(
                f"{self.text}: column {name} has type {found}, but must have {wanted}",
                "change its type, or choose another `table`",
            )
        if unlimited == found:
            return
        _log.info("%s: changing column %s from %s to %s", self.text, name, found, wanted)
        try:
            with self.connection.transaction():
                self.connection.execute(
                    sql.SQL("ALTER TABLE {} ALTER COLUMN {} TYPE {}").format(
                        self.identifier, sql.Identifier(name), sql.SQL(wanted)
                    )
                )
        except psycopg.errors.FeatureNotSupported as error:
            # A view depends on it. Values that do not fit are refused when they arrive.
            _log.warning("%s: column %s remains %s: %s", self.text, name, found, error.diag.message_primary)

    def _check_uniqueness(self) -> None:
        """Make ids unique, and nothing else: rows of one COPY share their LSN, and rows may be redelivered."""
        rows = self.connection.execute(
            "SELECT n.nspname, c.relname, k.conname, ARRAY(SELECT a.attname::text FROM pg_attribute a"
            " WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey))"
            " FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
            " LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.conrelid = i.indrelid"
            " WHERE i.indrelid = %s::regclass AND i.indisunique",
            [self._quoted_name],
        ).fetchall()
        for schema, index, constraint, columns in rows:
            if "id" in columns:
                continue
            _log.warning(
                "%s: dropping %s: changes may share %s",
                self.text,
                index,
                ", ".join(columns),
            )
            if constraint is None:
                self.connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(schema, index)))
            else:
                drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}")
                self.connection.execute(drop.format(self.identifier, sql.Identifier(constraint)))
        if not any({*columns} in ({"id"}, {"id", "committed_at"}) for *_, columns in rows):
            self.connection.execute(sql.SQL("CREATE UNIQUE INDEX ON {} (id)").format(self.identifier))

    def _add_indexes(self) -> None:
        for suffix, (columns, condition) in _INDEXES.items():
            name = f"{self.name[: 62 - len(suffix) - 4]}_{suffix}_idx"
            exists = "SELECT to_regclass(%s) IS NOT NULL"
            quoted = sql.Identifier(self.schema, name).as_string(self.connection)
            if self.connection.execute(exists, [quoted]).fetchone() == (True,):
                continue
            if self.connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(self.identifier)).fetchone():
                _log.info("%s: creating index %s; this takes a while if there are many rows", self.text, name)
            self.connection.execute(
                sql.SQL("CREATE INDEX {} ON {} {} {}").format(
                    sql.Identifier(name), self.identifier, sql.SQL(columns), sql.SQL(condition)
                )
            )

    def insert_operation(self) -> str:
        """The operation of inserts: CREATE if rows that Bemi or Zemi wrote have it, else INSERT."""
        query = sql.SQL("SELECT operation FROM {} WHERE operation IN ('INSERT', 'CREATE') LIMIT 1")
        row = self.connection.execute(query.format(self.identifier)).fetchone()
        return str(row[0]) if row else "INSERT"

    def end(self, database: str) -> int:
        """The LSN of a source's last commit in the table; 0 for none."""
        query = sql.SQL(
            "SELECT commit_position FROM {} WHERE commit_position IS NOT NULL AND database = %s"
            " ORDER BY commit_position DESC LIMIT 1"
        )
        row = self.connection.execute(query.format(self.identifier), [database]).fetchone()
        return int(row[0]) if row else 0

    def set_context(self, database: str, context: ContextRange) -> None:
        """Set the context of changes that have been written already."""
        self.connection.execute(
            sql.SQL(
                "UPDATE {} SET context = %s::jsonb WHERE database = %s AND commit_position = %s"
                " AND ordinal BETWEEN %s AND %s"
            ).format(self.identifier),
            [context.text, database, context.commit_lsn, context.first, context.last],
        )

    def add_partitions(self, months: Iterable[int]) -> None:
        """Create missing partitions; months are counted from the year 0."""
        for month in sorted(set(months)):
            name = partition(self.name, month)
            own = sql.Identifier(self.schema, name)
            exists = "SELECT to_regclass(%s) IS NOT NULL"
            if self.connection.execute(exists, [own.as_string(self.connection)]).fetchone() == (True,):
                continue
            self.connection.execute(
                sql.SQL("CREATE TABLE {} PARTITION OF {} FOR VALUES FROM ({}) TO ({})").format(
                    own, self.identifier, sql.Literal(first_day(month)), sql.Literal(first_day(month + 1))
                )
            )
            self._comment(own)

    def drop_before(self, cutoff: datetime, limit: int) -> int:
        """Delete rows that committed before the cutoff: whole months if it is partitioned, else up to `limit` rows."""
        if self.is_partitioned:
            return self._drop_partitions(cutoff)
        deleted = self.connection.execute(
            sql.SQL(
                "DELETE FROM {t} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {t} WHERE committed_at < %s"
                " ORDER BY committed_at LIMIT %s))"
            ).format(t=self.identifier),
            [cutoff, limit],
        )
        return deleted.rowcount

    def _drop_partitions(self, cutoff: datetime) -> int:
        last = cutoff.astimezone(UTC).year * 12 + cutoff.astimezone(UTC).month - 1
        children = self.connection.execute(
            "SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid"
            " WHERE i.inhparent = %s::regclass",
            [self._quoted_name],
        ).fetchall()
        old = {partition(self.name, month) for month in range(last - 1200, last)}
        found = [name for (name,) in children if name in old]
        for name in found:
            self.connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(self.schema, name)))
            _log.info("%s: dropped partition %s, which was older than the retention", self.text, name)
        return len(found)


def month_of(microseconds: int) -> int:
    """The number of a time's month, counted from the year 0."""
    time = datetime.fromtimestamp(microseconds / 1_000_000, UTC)
    return time.year * 12 + time.month - 1


def first_day(month: int) -> str:
    return f"{month // 12:04d}-{month % 12 + 1:02d}-01 00:00:00+00"


def partition(table: str, month: int) -> str:
    return f"{table}_{month // 12:04d}_{month % 12 + 1:02d}"
