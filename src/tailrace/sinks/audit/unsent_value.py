"""Fills in values that PostgreSQL did not send from earlier rows of `changes`: the last known value still holds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from psycopg import sql

from tailrace.sinks.audit.change_row import ERASED, FIELDS
from tailrace.sinks.audit.naming_history import TableNaming
from tailrace.sinks.database.postgresql.destination import Connection

_OTHERS: Final = [f.name for f in FIELDS if f.name not in ("after", "unchanged")]

# A row that changed to its key without sending the value is not the row that had the key before. An erased value was
# the last one: earlier values must not be used in its place.
_KNOWN_VALUES: Final = """
SELECT coalesce(jsonb_object_agg(n.name, p.value) FILTER (WHERE p.value IS NOT NULL), '{{}}') AS found,
       array_agg(n.name) FILTER (WHERE p.value IS NULL) AS rest
FROM unnest(s.unchanged) n (name)
LEFT JOIN LATERAL (
    SELECT CASE WHEN NOT m.is_unknown THEN nullif(c.after -> n.name, {erased}) END AS value
    FROM {changes} c, LATERAL (SELECT n.name = ANY (coalesce(c.unchanged, '{{}}')) AS is_unknown) m
    WHERE c.schema = s.schema AND c."table" = s."table" AND c.primary_key = s.key_before
      AND c.commit_position >= ({since} ->> n.name)::bigint
      AND (c.commit_position, c.ordinal) < (s.commit_position, s.ordinal)
      AND c.database = s.database AND c.after ? n.name AND (NOT m.is_unknown OR c.previous_key IS NOT NULL)
    ORDER BY c.commit_position DESC, c.ordinal DESC LIMIT 1
) p ON true
"""
_REFILL: Final = """
UPDATE {changes} t SET after = t.after || k.found, unchanged = k.rest
FROM (SELECT *, coalesce(previous_key, primary_key) AS key_before FROM {changes}
      WHERE unchanged IS NOT NULL AND schema = %s AND "table" = %s AND commit_position >= %s) s
CROSS JOIN LATERAL ({known}) k
WHERE t.id = s.id AND t.committed_at = s.committed_at AND k.found <> '{{}}'
"""
_INSERT: Final = """
INSERT INTO {into} (after, unchanged, {others})
SELECT s.after || k.found, k.rest, {values} FROM {rows} s CROSS JOIN LATERAL ({known}) k
ON CONFLICT DO NOTHING
"""


def refill(connection: Connection, changes: sql.Identifier, naming: TableNaming) -> int:
    """Fill in values of rows in `changes` that other rows have by now; returns the number of rows."""
    statement = sql.SQL(_REFILL).format(changes=changes, known=_known_values(changes, naming))
    return connection.execute(statement, [naming.schema, naming.table, naming.since]).rowcount


def insert(
    connection: Connection,
    changes: sql.Identifier,
    rows: sql.Identifier,
    naming: TableNaming,
    into: sql.Identifier | None = None,
    more: Sequence[str] = (),
) -> int:
    """Insert incomplete rows with the values that `changes` has; returns the number of rows.

    Args:
        connection: The destination.
        changes: The table `changes`.
        rows: The table that contains the incomplete rows.
        naming: Since when the table and its columns have had their names.
        into: The table to insert into, if it is not `changes`.
        more: Further columns to copy.
    """
    others = [*_OTHERS, *more]
    statement = sql.SQL(_INSERT).format(
        into=into or changes,
        others=sql.SQL(", ").join([sql.Identifier(name) for name in others]),
        values=sql.SQL(", ").join([sql.Identifier("s", name) for name in others]),
        rows=rows,
        known=_known_values(changes, naming),
    )
    return connection.execute(statement).rowcount


def _known_values(changes: sql.Identifier, naming: TableNaming) -> sql.Composed:
    since = sql.SQL("{}::jsonb").format(sql.Literal(json.dumps(naming.columns_since)))
    erased = sql.SQL("{}::jsonb").format(sql.Literal(json.dumps(ERASED)))
    return sql.SQL(_KNOWN_VALUES).format(changes=changes, since=since, erased=erased)
