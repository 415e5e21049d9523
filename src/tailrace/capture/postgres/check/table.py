"""The tables: replica identity, privileges, and what logical replication does not send."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from tailrace.capture.postgres.catalog import IS_OWN
from tailrace.capture.postgres.check.fix import script
from tailrace.finding import Finding, Severity

if TYPE_CHECKING:
    from tailrace.capture.postgres.check.publication import Publication
    from tailrace.capture.postgres.check.server import ServerState


@dataclass(frozen=True)
class SourceTable:
    oid: int
    schema: str
    name: str
    kind: str
    """`relkind`: r table, p partitioned, f foreign, m materialised view."""
    is_unlogged: bool
    root: int | None
    """For a partition, the oid of the topmost partitioned table."""
    identity: str
    identity_columns: list[str]
    has_primary_key: bool
    unique_index: str | None
    """An index that could serve as the replica identity."""
    stored: list[str]
    virtual: list[str]
    is_owned: bool
    may_enter_schema: bool
    may_select: bool
    hides_rows: bool

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def subject(self) -> str:
        return f"table {self.schema}.{self.name}"

    @property
    def is_capturable(self) -> bool:
        return self.kind in "rp" and not self.is_unlogged

    @property
    def has_identity(self) -> bool:
        return self.identity == "f" or bool(self.identity_columns)


# Policies apply to a table's owner only with FORCE. Superusers and BYPASSRLS are up to the caller.
_TABLES = f"""
SELECT c.oid, n.nspname::text AS schema, c.relname::text AS name, c.relkind::text AS kind,
       c.relpersistence = 'u' AS is_unlogged,
       CASE WHEN c.relispartition THEN pg_catalog.pg_partition_root(c.oid)::pg_catalog.oid END AS root,
       c.relreplident::text AS identity,
       ARRAY(SELECT a.attname::text
             FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid
             WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
               AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
               AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
            ) AS identity_columns,
       EXISTS (SELECT FROM pg_catalog.pg_index i
               WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate AND i.indisvalid) AS has_primary_key,
       (SELECT x.relname::text FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
        WHERE i.indrelid = c.oid AND i.indisunique AND i.indimmediate AND i.indisvalid
          AND i.indpred IS NULL AND i.indexprs IS NULL
          AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
                          WHERE a.attrelid = c.oid AND NOT a.attnotnull
                            AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
        ORDER BY i.indnkeyatts, x.relname LIMIT 1) AS unique_index,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = c.oid AND a.attgenerated = 's' AND NOT a.attisdropped ORDER BY a.attnum) AS stored,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
             WHERE a.attrelid = c.oid AND a.attgenerated = 'v' AND NOT a.attisdropped ORDER BY a.attnum) AS virtual,
       pg_catalog.pg_has_role(c.relowner, 'USAGE') AS is_owned,
       pg_catalog.has_schema_privilege(n.oid, 'USAGE') AS may_enter_schema,
       pg_catalog.has_table_privilege(c.oid, 'SELECT') AS may_select,
       c.relrowsecurity AND (c.relforcerowsecurity OR NOT pg_catalog.pg_has_role(c.relowner, 'USAGE')) AS hides_rows
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'f', 'm') AND c.relpersistence <> 't'
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' AND NOT {IS_OWN}
ORDER BY n.nspname, c.relname
"""  # noqa: S608 (a literal of ours)


def read_tables(connection: psycopg.Connection[Any]) -> list[SourceTable]:
    """All relations that hold rows, capturable or not, except temporary tables and Tailrace's own."""
    with connection.cursor(row_factory=class_row(SourceTable)) as cursor:
        return cursor.execute(_TABLES).fetchall()


def table_findings(
    connection: psycopg.Connection[Any], server: ServerState, publication: Publication, tables: Sequence[SourceTable]
) -> Iterator[Finding]:
    for table in tables:
        if table.is_capturable:
            yield from _identity_findings(connection, publication, table)
            yield from _generated_column_findings(connection, server, publication, table)
    # What the publication lacks is not copied. If there is none yet, it gets what can be published.
    copied = [t for t in tables if t.is_capturable and (publication.publishes(t) or not publication.exists)]
    yield from _privilege_findings(connection, server, [t for t in copied if t.has_identity or publication.exists])
    yield from _uncaptured_findings(connection, tables)


def _identity_findings(
    connection: psycopg.Connection[Any], publication: Publication, table: SourceTable
) -> Iterator[Finding]:
    # If partitions are published under their own names, their root's identity does not matter.
    if table.has_identity or (table.kind == "p" and publication.exists and not publication.publishes(table)):
        return
    fix = {
        "default": script(connection, "ALTER TABLE {} REPLICA IDENTITY DEFAULT;", table.identifier),
        "index": script(
            connection,
            "ALTER TABLE {} REPLICA IDENTITY USING INDEX {};",
            table.identifier,
            table.unique_index or "",
        ),
        "full": script(connection, "ALTER TABLE {} REPLICA IDENTITY FULL;", table.identifier),
    }["default" if table.has_primary_key else "index" if table.unique_index else "full"]
    why = {
        "n": "has replica identity NOTHING",
        "i": "has a replica identity index that was dropped",
    }.get(table.identity, "has no primary key and no other replica identity")
    if publication.requires_identity(table):
        message = f"{why}: UPDATE and DELETE on it fail at the source while it is published"
        yield Finding(Severity.ERROR, table.subject, message, fix)
    elif publication.publishes(table):
        yield Finding(Severity.WARNING, table.subject, f"{why}: only its inserts are captured", fix)
    else:
        message = f"{why}: it is not captured, because UPDATE and DELETE on it would fail once it is published"
        yield Finding(Severity.WARNING, table.subject, message, fix)


def _generated_column_findings(
    connection: psycopg.Connection[Any], server: ServerState, publication: Publication, table: SourceTable
) -> Iterator[Finding]:
    member = publication.tables.get(table.oid)
    listed = (member.columns if member else None) or ()
    stored = [name for name in table.stored if not publication.sends_generated and name not in listed]
    if stored:
        fix = ""
        message = f"column {', '.join(stored)} is generated: PostgreSQL {server.major} does not send it"
        if server.major >= 18:
            message = f"column {', '.join(stored)} is generated, and the publication does not send it"
            if publication.exists:
                statement = "ALTER PUBLICATION {} SET (publish_generated_columns = stored);"
                fix = script(connection, statement, publication.name)
        yield Finding(Severity.NOTE, table.subject, message, fix)
    if table.virtual:
        message = f"column {', '.join(table.virtual)} is a virtual generated column: PostgreSQL never sends it"
        yield Finding(Severity.NOTE, table.subject, message)
    if server.major >= 18 and table.identity == "f" and (unsent := [*stored, *table.virtual]):
        why = f"has replica identity FULL, and column {', '.join(unsent)} is generated and not published"
        fix = ""
        if publication.exists and not table.virtual:
            fix = script(connection, "ALTER PUBLICATION {} SET (publish_generated_columns = stored);", publication.name)
        elif table.has_primary_key:
            fix = script(connection, "ALTER TABLE {} REPLICA IDENTITY DEFAULT;", table.identifier)
        if publication.requires_identity(table):
            message = f"{why}: UPDATE and DELETE on it fail at the source while it is published"
            yield Finding(Severity.ERROR, table.subject, message, fix)
        else:
            message = f"{why}: it is not captured, because UPDATE and DELETE on it would fail once it is published"
            yield Finding(Severity.WARNING, table.subject, message, fix)


def _privilege_findings(
    connection: psycopg.Connection[Any], server: ServerState, tables: Sequence[SourceTable]
) -> Iterator[Finding]:
    for schema, group in groupby(tables, lambda table: table.schema):
        members = list(group)
        if not members[0].may_enter_schema:
            yield Finding(
                Severity.ERROR,
                f"schema {schema}",
                f"is not accessible to role {server.role}: snapshots cannot read its tables",
                script(connection, "GRANT USAGE ON SCHEMA {} TO {};", schema, server.role),
            )
        if denied := [table for table in members if not table.may_select]:
            yield Finding(
                Severity.ERROR,
                f"schema {schema}",
                f"has {_count(denied)} that role {server.role} may not read, as snapshots must: {names(denied)}",
                script(connection, "GRANT SELECT ON {} TO {};", [t.identifier for t in denied], server.role),
            )
    if not server.sees_all_rows and (hidden := [table for table in tables if table.hides_rows]):
        yield Finding(
            Severity.ERROR,
            f"role {server.role}",
            f"is subject to row security on {names(hidden)}: a snapshot cannot copy only the visible rows",
            script(connection, "ALTER ROLE {} BYPASSRLS;", server.role),
        )


def _uncaptured_findings(connection: psycopg.Connection[Any], tables: Sequence[SourceTable]) -> Iterator[Finding]:
    for table in tables:
        if table.is_unlogged:
            yield Finding(
                Severity.WARNING,
                table.subject,
                "is unlogged: its changes are not in the write-ahead log, so it is not captured",
                script(connection, "ALTER TABLE {} SET LOGGED;", table.identifier),
            )
        elif table.kind == "f":
            yield Finding(Severity.NOTE, table.subject, "is a foreign table: it is not captured")
        elif table.kind == "m":
            yield Finding(Severity.NOTE, table.subject, "is a materialised view: it is not captured")


def _count(tables: Sequence[SourceTable]) -> str:
    return "1 table" if len(tables) == 1 else f"{len(tables)} tables"


def names(tables: Sequence[SourceTable]) -> str:
    shown = ", ".join(f"{table.schema}.{table.name}" for table in tables[:5])
    return shown if len(tables) <= 5 else f"{shown} and {len(tables) - 5} more"
