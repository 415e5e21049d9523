"""The table `changes` at the destination: made where it is missing, brought up to date where Bemi or Zemi made it."""

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
from tailrace.errors import SinkRefused
from tailrace.sinks.audit.context import Range
from tailrace.sinks.database.destination import Connection

_log = logging.getLogger("tailrace.deliver")

# Theirs first, in their order; what follows created_at is ours, and NULL in rows that they wrote.
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
_AS_GOOD_AS: Final = {
    "text": ("text", "character varying"),
    "timestamptz": ("timestamp with time zone",),
}
_COMMENTS: Final = {
    "xid": "the transaction",
    "commit_position": "the LSN of its commit: changes are in order by this and ordinal",
    "ordinal": "the change's number within its transaction",
    "previous_key": "the key before, where the change gave the row another",
    "unchanged": "columns whose values PostgreSQL did not send and nobody knows",
}
_INDEXES: Final = {
    # One row's life, and what a value was when it was last sent.
    "key": ('(schema, "table", primary_key, commit_position, ordinal)', ""),
    "previous_key": ('(schema, "table", previous_key)', "WHERE previous_key IS NOT NULL"),
    "committed_at": ("(committed_at)", ""),
    "position": ("(position)", ""),
    "commit_position": ("(commit_position, ordinal)", ""),
    # Ascends with the commits, more or less: a few pages tell where a transaction is.
    "xid": ("USING brin (xid)", ""),
    "context": ("USING gin (context jsonb_path_ops)", ""),
    "unchanged": ("(commit_position)", "WHERE unchanged IS NOT NULL"),
}
_COMMENT: Final = f"{OWN} what happened to the rows of other tables"


@dataclass(frozen=True)
class ChangesTable:
    connection: Connection
    schema: str
    name: str
    is_partitioned: bool = False
    """By month of `committed_at`."""

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def _quoted(self) -> str:
        return self.identifier.as_string(self.connection)

    @property
    def text(self) -> str:
        return f"{self.schema}.{self.name}"

    def create(self) -> None:
        """What is there already, and as it should be, is not touched: the sink's user need not own it then."""
        found = self.connection.execute(
            "SELECT c.relkind::text, obj_description(c.oid, 'pg_class') FROM pg_class c"
            " JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
            [self.schema, self.name],
        ).fetchone()
        if found is None:
            self._make()
        elif (found[0] == "p") != self.is_partitioned or found[0] not in "rp":
            kind = {"p": "is partitioned", "r": "is not partitioned"}.get(found[0], "is no table")
            raise SinkRefused(
                f"{self.text} {kind}, and the sink's settings say otherwise",
                'set `partition = "month"` where it is, and not where it is not; or name another `table`',
            )
        if found is None or not str(found[1] or "").startswith(OWN):
            self._comment(self.identifier)
        self._add_columns()
        self._check_uniqueness()
        self._add_indexes()

    def _make(self) -> None:
        _log.info("making table %s", self.text)
        columns = sql.SQL(", ").join(
            [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind)) for name, kind in _COLUMNS.items()]
        )
        key = "id, committed_at" if self.is_partitioned else "id"
        by_month = " PARTITION BY RANGE (committed_at)" if self.is_partitioned else ""
        # A schema that everybody has is not ours to make.
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
            [self._quoted],
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
        """A key may be longer than 255 characters, a time finer than a second. No row is rewritten for it."""
        unlimited = re.sub(r"\(\d+\)", "", found)
        if unlimited not in _AS_GOOD_AS.get(wanted, (wanted,)):
            raise SinkRefused(
                f"{self.text}: column {name} is {found}, and has to be {wanted}",
                "change its type, or name another `table`",
            )
        if unlimited == found:
            return
        _log.info("%s: column %s is %s, and becomes %s", self.text, name, found, wanted)
        try:
            with self.connection.transaction():
                self.connection.execute(
                    sql.SQL("ALTER TABLE {} ALTER COLUMN {} TYPE {}").format(
                        self.identifier, sql.Identifier(name), sql.SQL(wanted)
                    )
                )
        except psycopg.errors.FeatureNotSupported as error:
            # A view shows it. What does not fit is refused when it comes.
            _log.warning("%s: column %s stays %s: %s", self.text, name, found, error.diag.message_primary)

    def _check_uniqueness(self) -> None:
        """Of ids, and of nothing else: rows of one COPY share their LSN, and a row may be told to be there already."""
        rows = self.connection.execute(
            "SELECT n.nspname, c.relname, k.conname, ARRAY(SELECT a.attname::text FROM pg_attribute a"
            " WHERE a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey))"
            " FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_namespace n ON n.oid = c.relnamespace"
            " LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.conrelid = i.indrelid"
            " WHERE i.indrelid = %s::regclass AND i.indisunique",
            [self._quoted],
        ).fetchall()
        for schema, index, constraint, columns in rows:
            if "id" in columns:
                continue
            _log.warning("%s: dropping %s: changes need not differ in %s", self.text, index, ", ".join(columns))
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
                _log.info("%s: making index %s; with many rows this takes a while", self.text, name)
            self.connection.execute(
                sql.SQL("CREATE INDEX {} ON {} {} {}").format(
                    sql.Identifier(name), self.identifier, sql.SQL(columns), sql.SQL(condition)
                )
            )

    def spelling(self) -> str:
        """How an insert is called here: CREATE, where rows that Bemi or Zemi wrote say so."""
        query = sql.SQL("SELECT operation FROM {} WHERE operation IN ('INSERT', 'CREATE') LIMIT 1")
        row = self.connection.execute(query.format(self.identifier)).fetchone()
        return str(row[0]) if row else "INSERT"

    def end(self, database: str) -> int:
        """The last commit of a source that is in it, 0 for none: what commits after it is not there."""
        query = sql.SQL(
            "SELECT commit_position FROM {} WHERE commit_position IS NOT NULL AND database = %s"
            " ORDER BY commit_position DESC LIMIT 1"
        )
        row = self.connection.execute(query.format(self.identifier), [database]).fetchone()
        return int(row[0]) if row else 0

    def set_context(self, database: str, context: Range) -> None:
        """Of changes that are there already."""
        self.connection.execute(
            sql.SQL(
                "UPDATE {} SET context = %s::jsonb WHERE database = %s AND commit_position = %s"
                " AND ordinal BETWEEN %s AND %s"
            ).format(self.identifier),
            [context.text, database, context.commit_lsn, context.first, context.last],
        )

    def add_partitions(self, months: Iterable[int]) -> None:
        """By number, counted from the year 0."""
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
        """Rows that committed before it: whole months at once where it is partitioned, else so many at most."""
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
            [self._quoted],
        ).fetchall()
        old = {partition(self.name, month) for month in range(last - 1200, last)}
        found = [name for (name,) in children if name in old]
        for name in found:
            self.connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(self.schema, name)))
            _log.info("%s: %s is older than is kept, and was dropped", self.text, name)
        return len(found)


def month_of(microseconds: int) -> int:
    moment = datetime.fromtimestamp(microseconds / 1_000_000, UTC)
    return moment.year * 12 + moment.month - 1


def first_day(month: int) -> str:
    return f"{month // 12:04d}-{month % 12 + 1:02d}-01 00:00:00+00"


def partition(table: str, month: int) -> str:
    return f"{table}_{month // 12:04d}_{month % 12 + 1:02d}"
