"""The publication: whether it exists, and the tables, operations, columns and rows that it publishes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from tailrace.capture.postgres.catalog import IS_OWN
from tailrace.capture.postgres.check.fix import script
from tailrace.capture.postgres.check.table import SourceTable, names
from tailrace.finding import Finding, Severity
from tailrace.settings import SourceSettings

if TYPE_CHECKING:
    from tailrace.capture.postgres.check.server import ServerState

_OPERATIONS = ("insert", "update", "delete", "truncate")


class Member(NamedTuple):
    """A table as it is published."""

    columns: tuple[str, ...] | None
    """None if there is no column list."""
    row_filter: str | None


@dataclass(frozen=True)
class Publication:
    name: str
    exists: bool = False
    is_for_all_tables: bool = False
    operations: tuple[str, ...] = _OPERATIONS
    via_root: bool = True
    sends_generated: bool = False
    tables: Mapping[int, Member] = field(default_factory=dict)
    """The published tables by oid, without Tailrace's own."""
    listed: frozenset[int] = frozenset()
    """Tables that the publication names, even if their changes are published under another table's name."""

    def publishes(self, table: SourceTable) -> bool:
        return table.oid in self.tables or table.root in self.tables

    def requires_identity(self, table: SourceTable) -> bool:
        """Whether PostgreSQL rejects UPDATE and DELETE on the table without a replica identity."""
        return self.publishes(table) and not {"update", "delete"}.isdisjoint(self.operations)


def read_publication(connection: psycopg.Connection[Any], name: str) -> Publication:
    # pubgencols exists since 18; read through JSON, a missing column is NULL.
    row = connection.execute(
        "SELECT p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot,"
        " pg_catalog.to_jsonb(p) ->> 'pubgencols' FROM pg_catalog.pg_publication p WHERE p.pubname = %s",
        [name],
    ).fetchone()
    if row is None:
        return Publication(name)
    for_all, *publishes, via_root, generated = row
    operations = tuple(word for word, is_published in zip(_OPERATIONS, publishes, strict=True) if is_published)
    tables = _members(connection, name)
    listed = connection.execute(
        "SELECT r.prrelid FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid"
        " WHERE p.pubname = %s",
        [name],
    ).fetchall()
    return Publication(
        name, True, for_all, operations, via_root, generated == "s", tables, frozenset(oid for (oid,) in listed)
    )


def _members(connection: psycopg.Connection[Any], name: str) -> dict[int, Member]:
    # Since 15. attnames has all columns if there is no column list; only pg_publication_rel shows whether there is one.
    columns: LiteralString = "NULL, NULL"
    if connection.info.server_version >= 150000:
        columns = "CASE WHEN r.prattrs IS NOT NULL THEN t.attnames::text[] END, t.rowfilter"
    found = connection.execute(
        f"SELECT c.oid, {columns} FROM pg_catalog.pg_publication_tables t"  # noqa: S608 (a literal of ours)
        " JOIN pg_catalog.pg_publication p ON p.pubname = t.pubname"
        " JOIN pg_catalog.pg_namespace n ON n.nspname = t.schemaname"
        " JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename"
        " LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid"
        f" WHERE t.pubname = %s AND NOT {IS_OWN}",
        [name],
    ).fetchall()
    return {oid: Member(None if columns is None else tuple(columns), rows) for oid, columns, rows in found}


def publication_findings(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    server: ServerState,
    publication: Publication,
    tables: Sequence[SourceTable],
) -> Iterator[Finding]:
    # A partition is published with its root.
    whole = [t for t in tables if t.is_capturable and t.root is None and source.covers(t.schema, t.name)]
    if not publication.exists:
        yield from _missing_findings(connection, server, publication, whole)
        return
    subject = f"publication {publication.name}"
    if missing := [word for word in _OPERATIONS if word not in publication.operations]:
        yield Finding(
            Severity.WARNING,
            subject,
            f"does not publish {', '.join(missing)}: these operations are not captured",
            script(
                connection,
                "ALTER PUBLICATION {} SET (publish = {});",
                publication.name,
                sql.Literal(", ".join(_OPERATIONS)),
            ),
        )
    sent = publication.tables.keys() | publication.listed
    sent |= {table.root for table in tables if table.oid in publication.tables and table.root}
    outside = [t for t in whole if t.oid not in sent and t.has_identity and not publication.is_for_all_tables]
    if outside:
        yield Finding(
            Severity.WARNING,
            subject,
            f"lacks tables that source.tables matches: {names(outside)}",
            script(connection, "ALTER PUBLICATION {} ADD TABLE {};", publication.name, [t.identifier for t in outside]),
        )
    if not publication.tables:
        yield Finding(Severity.WARNING, subject, "has no tables: nothing is captured until it has some")
    if beyond := [
        t for t in tables if t.oid in publication.tables and t.root is None and not source.covers(t.schema, t.name)
    ]:
        yield Finding(
            Severity.NOTE,
            subject,
            f"has tables that source.tables does not match, which are captured too: {names(beyond)}",
        )
    if any(t.root for t in tables if t.oid in publication.tables) and not publication.via_root:
        yield Finding(
            Severity.NOTE,
            subject,
            "publishes partitions under their own names, not their root's: a row that moves between partitions is a "
            "DELETE and an INSERT in two tables",
            script(connection, "ALTER PUBLICATION {} SET (publish_via_partition_root = true);", publication.name),
        )
    yield from _restriction_findings(connection, publication, tables)


def _missing_findings(
    connection: psycopg.Connection[Any], server: ServerState, publication: Publication, tables: Sequence[SourceTable]
) -> Iterator[Finding]:
    subject = f"publication {publication.name}"
    ready = [t for t in tables if t.has_identity]
    members = sql.SQL(" FOR TABLE {}").format(sql.SQL(", ").join([t.identifier for t in ready]))
    fix = script(
        connection,
        "CREATE PUBLICATION {}{} WITH (publish_via_partition_root = true);",
        publication.name,
        members if ready else sql.SQL(""),
    )
    not_owned = [t for t in ready if not t.is_owned]
    if server.is_superuser or (server.may_create_in_database and not not_owned):
        if ready:
            yield Finding(Severity.NOTE, subject, "does not exist yet: capture creates it", fix)
        else:
            message = (
                "does not exist yet, and source.tables matches no table that it could have: capture creates it empty, "
                "and adds tables as they are created"
            )
            yield Finding(Severity.WARNING, subject, message, fix)
        return
    why = f"does not own {names(not_owned)}" if not_owned else f"may not CREATE in database {server.database}"
    yield Finding(Severity.ERROR, subject, f"does not exist, and role {server.role} cannot create it: it {why}", fix)


def _restriction_findings(
    connection: psycopg.Connection[Any], publication: Publication, tables: Sequence[SourceTable]
) -> Iterator[Finding]:
    for table in tables:
        member = publication.tables.get(table.oid)
        if member is None:
            continue
        if member.columns is not None:
            hidden = set(table.identity_columns) - set(member.columns)
            if (hidden or table.identity == "f") and publication.requires_identity(table):
                yield Finding(
                    Severity.ERROR,
                    table.subject,
                    "is published with a column list that does not cover its replica identity: UPDATE and DELETE on it "
                    "fail at the source",
                    _sql_without_column_list(connection, publication, table, member),
                )
            else:
                yield Finding(
                    Severity.NOTE, table.subject, f"is published with a column list: only {', '.join(member.columns)}"
                )
        if member.row_filter is not None:
            yield Finding(
                Severity.NOTE,
                table.subject,
                f"is published with a row filter, {member.row_filter}: an UPDATE across it arrives as INSERT or DELETE",
            )


def _sql_without_column_list(
    connection: psycopg.Connection[Any], publication: Publication, table: SourceTable, member: Member
) -> str:
    drop = script(connection, "ALTER PUBLICATION {} DROP TABLE {};", publication.name, table.identifier)
    add = script(connection, "ALTER PUBLICATION {} ADD TABLE {}", publication.name, table.identifier)
    # The server printed the expression, so it needs no quoting.
    return f"{drop}\n{add}{f' WHERE {member.row_filter}' if member.row_filter else ''};"
