"""Values that PostgreSQL did not send, from rows of `changes` that have them: the last known one is still right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from psycopg import sql

from tailrace.sinks.audit.rows import ERASED, FIELDS
from tailrace.sinks.audit.shapes import Shape
from tailrace.sinks.database.destination import Connection

_OTHERS: Final = [f.name for f in FIELDS if f.name not in ("after", "unchanged")]

# A row that came to its key without the value is not the one that had the key before it; and whose value was erased had
# that one, and none of those before.
_KNOWN: Final = """
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


def refill(connection: Connection, changes: sql.Identifier, shape: Shape) -> int:
    """Rows of a table that still lack values, of which others know by now; how many there were."""
    statement = sql.SQL(_REFILL).format(changes=changes, known=_known(changes, shape))
    return connection.execute(statement, [shape.schema, shape.table, shape.since]).rowcount


def insert(
    connection: Connection,
    changes: sql.Identifier,
    rows: sql.Identifier,
    shape: Shape,
    into: sql.Identifier | None = None,
    more: Sequence[str] = (),
) -> int:
    """Rows that lack values, with those that `changes` knows, into it or another table; how many rows there were."""
    others = [*_OTHERS, *more]
    statement = sql.SQL(_INSERT).format(
        into=into or changes,
        others=sql.SQL(", ").join([sql.Identifier(name) for name in others]),
        values=sql.SQL(", ").join([sql.Identifier("s", name) for name in others]),
        rows=rows,
        known=_known(changes, shape),
    )
    return connection.execute(statement).rowcount


def _known(changes: sql.Identifier, shape: Shape) -> sql.Composed:
    since = sql.SQL("{}::jsonb").format(sql.Literal(json.dumps(shape.columns_since)))
    erased = sql.SQL("{}::jsonb").format(sql.Literal(json.dumps(ERASED)))
    return sql.SQL(_KNOWN).format(changes=changes, since=since, erased=erased)
