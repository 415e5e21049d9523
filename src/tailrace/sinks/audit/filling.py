"""Values that PostgreSQL did not send, from rows of `changes` that have them: the last known one is still right."""

from __future__ import annotations

from typing import Final

from psycopg import sql

from tailrace.sinks.audit.rows import FIELDS
from tailrace.sinks.audit.table import ChangesTable

_OTHERS: Final = [f.name for f in FIELDS if f.name not in ("after", "unchanged")]

_KNOWN: Final = """
SELECT coalesce(jsonb_object_agg(n.name, p.value) FILTER (WHERE p.value IS NOT NULL), '{{}}') AS found,
       array_agg(n.name) FILTER (WHERE p.value IS NULL) AS rest
FROM unnest(s.unchanged) n (name)
LEFT JOIN LATERAL (
    SELECT c.after -> n.name AS value
    FROM {changes} c
    WHERE c.schema = s.schema AND c."table" = s."table" AND c.primary_key = {key}
      AND c.commit_position >= {since} AND (c.commit_position, c.ordinal) < (s.commit_position, s.ordinal)
      AND c.database = s.database AND c.after ? n.name AND NOT n.name = ANY (coalesce(c.unchanged, '{{}}'))
    ORDER BY c.commit_position DESC, c.ordinal DESC LIMIT 1
) p ON true
"""
_INSERT: Final = """
INSERT INTO {changes} (after, unchanged, {others})
SELECT s.after || k.found, k.rest, {values} FROM {rows} s CROSS JOIN LATERAL ({known}) k
ON CONFLICT DO NOTHING
"""


def insert(table: ChangesTable, rows: sql.Composable, since: int) -> int:
    """Rows that lack values, with those that are known; how many rows there were."""
    known = sql.SQL(_KNOWN).format(
        changes=table.identifier, since=sql.Literal(since), key=sql.Identifier("s", "key_before")
    )
    statement = sql.SQL(_INSERT).format(
        changes=table.identifier,
        others=sql.SQL(", ").join([sql.Identifier(name) for name in _OTHERS]),
        values=sql.SQL(", ").join([sql.Identifier("s", name) for name in _OTHERS]),
        rows=rows,
        known=known,
    )
    return table.connection.execute(statement).rowcount
