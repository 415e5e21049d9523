"""Tables that `source.tables` matches and the publication lacks: which they are, why, and what would capture them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from tailrace.capture.postgres.catalog import IS_OWN
from tailrace.capture.postgres.source_error import source_errors
from tailrace.settings import SourceSettings


@dataclass(frozen=True)
class UncapturedTable:
    oid: int
    schema: str
    name: str
    reason: str
    fix: str = ""
    """The SQL that lets it be captured."""
    is_left_out: bool = False
    """Whether somebody left it out of the publication. That is listed, but it is not a warning."""

    @property
    def qualified_name(self) -> str:
        return f"{self.schema}.{self.name}"

    def __str__(self) -> str:
        return f"{self.qualified_name} is not captured: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        return {
            "table": self.qualified_name,
            "reason": self.reason,
            "fix": self.fix,
            "is_left_out": self.is_left_out,
            "oid": self.oid,
            "schema": self.schema,
            "name": self.name,
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Self:
        return cls(raw["oid"], raw["schema"], raw["name"], raw["reason"], raw["fix"], raw["is_left_out"])


@dataclass(frozen=True)
class UnpublishedTable:
    """A table that the publication lacks."""

    oid: int
    schema: str
    name: str
    is_unlogged: bool
    has_identity: bool
    has_generated_identity: bool
    """Whether its replica identity is FULL and includes generated columns, which 18 rejects."""
    is_owned: bool
    """Whether the role has the rights of the table's owner."""
    owns_publication: bool
    is_standby: bool

    @property
    def identifier(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def obstacle(self) -> str | None:
        """Why no role could publish it as it is; None if one could."""
        if self.is_unlogged:
            return "it is unlogged, so its changes are not in the write-ahead log"
        if self.has_generated_identity:
            return "it has replica identity FULL and generated columns, so its UPDATEs and DELETEs would fail"
        if not self.has_identity:
            return "it has no replica identity, so its UPDATEs and DELETEs would fail once it is published"
        return None

    @property
    def may_join(self) -> bool:
        """Whether this role can add it to the publication."""
        return self.obstacle is None and self.is_owned and self.owns_publication and not self.is_standby


# A partition is published with its root; a root is published if one of its partitions is.
_UNPUBLISHED: Final = f"""
WITH published AS MATERIALIZED (
    SELECT c.oid
    FROM pg_catalog.pg_publication_tables p
    JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
    WHERE p.pubname = %(publication)s
)
SELECT c.oid, n.nspname::text AS schema, c.relname::text AS name, c.relpersistence = 'u' AS is_unlogged,
       c.relreplident = 'f' OR EXISTS (
           SELECT FROM pg_catalog.pg_index i
           WHERE i.indrelid = c.oid AND i.indisvalid
             AND CASE c.relreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate
                                     WHEN 'i' THEN i.indisreplident ELSE false END) AS has_identity,
       c.relreplident = 'f' AND pg_catalog.current_setting('server_version_num')::int >= 180000 AND EXISTS (
           SELECT FROM pg_catalog.pg_attribute a
           WHERE a.attrelid = c.oid AND a.attgenerated <> '' AND NOT a.attisdropped) AS has_generated_identity,
       pg_catalog.pg_has_role(c.relowner, 'USAGE') AS is_owned,
       coalesce(pg_catalog.pg_has_role(u.pubowner, 'USAGE'), false) AS owns_publication,
       pg_catalog.pg_is_in_recovery() AS is_standby
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_publication u ON u.pubname = %(publication)s
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND NOT c.relispartition
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
  AND c.oid NOT IN (SELECT p.oid FROM published p)
  AND NOT (c.relkind = 'p' AND EXISTS (
      SELECT FROM pg_catalog.pg_partition_tree(c.oid) t JOIN published p ON p.oid = t.relid))
  AND NOT {IS_OWN}
ORDER BY n.nspname, c.relname
"""  # noqa: S608 (a literal of ours)


def has_publication(connection: psycopg.Connection[Any], publication: str) -> bool:
    query = "SELECT 1 FROM pg_catalog.pg_publication WHERE pubname = %s"
    with source_errors():
        return connection.execute(query, [publication]).fetchone() is not None


def unpublished_tables(connection: psycopg.Connection[Any], source: SourceSettings) -> list[UnpublishedTable]:
    """The tables that `source.tables` matches and the publication lacks: all of them if there is no publication yet."""
    with source_errors(), connection.cursor(row_factory=class_row(UnpublishedTable)) as cursor:
        found = cursor.execute(_UNPUBLISHED, {"publication": source.publication}).fetchall()
    return [table for table in found if source.covers(table.schema, table.name)]


def uncaptured_tables(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    tables: Collection[UnpublishedTable],
    left_out: Collection[int],
) -> Iterator[UncapturedTable]:
    """Say of each unpublished table why it is not captured.

    Args:
        connection: A connection to the source, which quotes names.
        source: The source's settings.
        tables: What `unpublished_tables` returned.
        left_out: The oids of tables that were there, and not published, before capture looked for new ones.
    """
    for table in tables:
        is_left_out = table.oid in left_out
        if is_left_out:
            reason = f"it was left out of publication {source.publication}"
            reason += f", and {table.obstacle}" if table.obstacle is not None else ""
        elif table.obstacle is not None:
            reason = table.obstacle
        elif table.may_join:
            reason = f"it is not in publication {source.publication} yet: a running capture adds it"
        else:
            missing = "the table" if table.owns_publication else "the publication"
            why = "the server is a standby" if table.is_standby else f"the role does not own {missing}"
            reason = f"it is not in publication {source.publication}, and capture cannot add it: {why}"
        fix = _fix(table, source.publication).as_string(connection)
        yield UncapturedTable(table.oid, table.schema, table.name, reason, fix, is_left_out=is_left_out)


def _fix(table: UnpublishedTable, publication: str) -> sql.Composable:
    if table.is_unlogged:
        return sql.SQL("ALTER TABLE {} SET LOGGED;").format(table.identifier)
    if table.has_generated_identity:
        return sql.SQL("")  # it depends on the table: `check` prints it
    if not table.has_identity:
        return sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL;").format(table.identifier)
    return sql.SQL("ALTER PUBLICATION {} ADD TABLE {};").format(sql.Identifier(publication), table.identifier)
