"""Views and functions at the destination: whole transactions, and rows as they were at a time."""

from __future__ import annotations

from typing import Final

from psycopg import sql

from tailrace.sinks.audit.changes_table import ChangesTable

_SQL: Final = """
CREATE OR REPLACE VIEW {own}.transactions AS
SELECT commit_position, max(xid) AS xid, max(committed_at) AS committed_at, database,
       count(*) AS changes,
       array_agg(DISTINCT schema || '.' || "table") AS tables,
       jsonb_agg(DISTINCT context) FILTER (WHERE context IS NOT NULL) AS contexts,
       jsonb_agg(jsonb_build_object(
           'ordinal', ordinal, 'schema', schema, 'table', "table", 'operation', operation,
           'primary_key', primary_key, 'before', before, 'after', after, 'context', context
       ) ORDER BY ordinal) AS details
FROM {changes}
WHERE commit_position IS NOT NULL
GROUP BY database, commit_position;
COMMENT ON VIEW {own}.transactions IS 'Tailrace: the changes of one transaction as one row';

CREATE OR REPLACE FUNCTION {own}.row_as_of(table_name text, key text, as_of timestamptz) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog AS $function$
SELECT CASE WHEN last.is_there THEN last.after END FROM (
    SELECT f.commit_position, f.ordinal, f.after, f.is_there FROM (
        (SELECT c.commit_position, c.ordinal, c.after, c.operation <> 'DELETE' AS is_there
         FROM {changes} c
         WHERE c.schema = {own}.schema_of(table_name) AND c."table" = {own}.name_of(table_name)
           AND c.primary_key = key AND c.committed_at <= as_of
         ORDER BY c.commit_position DESC, c.ordinal DESC LIMIT 1)
        UNION ALL
        (SELECT c.commit_position, c.ordinal, NULL, false
         FROM {changes} c
         WHERE c.schema = {own}.schema_of(table_name) AND c."table" = {own}.name_of(table_name)
           AND c.previous_key = key AND c.committed_at <= as_of
         ORDER BY c.commit_position DESC, c.ordinal DESC LIMIT 1)
        UNION ALL
        (SELECT c.commit_position, c.ordinal, NULL, false
         FROM {changes} c
         WHERE c.schema = {own}.schema_of(table_name) AND c."table" = {own}.name_of(table_name)
           AND c.primary_key IS NULL AND c.operation = 'TRUNCATE' AND c.committed_at <= as_of
         ORDER BY c.commit_position DESC, c.ordinal DESC LIMIT 1)
    ) f ORDER BY f.commit_position DESC, f.ordinal DESC LIMIT 1
) last
$function$;
COMMENT ON FUNCTION {own}.row_as_of IS 'Tailrace: a row as it was, NULL if it was not there or was never changed';

CREATE OR REPLACE FUNCTION {own}.table_as_of(table_name text, as_of timestamptz)
RETURNS TABLE (primary_key text, "row" jsonb)
LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog AS $function$
WITH events AS (
    SELECT c.primary_key AS key, c.commit_position, c.ordinal, c.after, c.operation,
           c.operation NOT IN ('DELETE', 'TRUNCATE') AS is_there
    FROM {changes} c
    WHERE c.schema = {own}.schema_of(table_name) AND c."table" = {own}.name_of(table_name)
      AND c.committed_at <= as_of AND c.commit_position IS NOT NULL
    UNION ALL
    SELECT c.previous_key, c.commit_position, c.ordinal, NULL, c.operation, false
    FROM {changes} c
    WHERE c.schema = {own}.schema_of(table_name) AND c."table" = {own}.name_of(table_name)
      AND c.committed_at <= as_of AND c.previous_key IS NOT NULL
), truncated AS (
    SELECT commit_position, ordinal FROM events WHERE operation = 'TRUNCATE'
    ORDER BY commit_position DESC, ordinal DESC LIMIT 1
), last AS (
    SELECT DISTINCT ON (v.key) v.key, v.after, v.is_there
    FROM events v LEFT JOIN truncated e ON true
    WHERE v.key IS NOT NULL
      AND (e.commit_position IS NULL OR (v.commit_position, v.ordinal) > (e.commit_position, e.ordinal))
    ORDER BY v.key, v.commit_position DESC, v.ordinal DESC
)
SELECT key, after FROM last WHERE is_there
$function$;
COMMENT ON FUNCTION {own}.table_as_of IS
    'Tailrace: the rows of a table as they were, of those that have changed since the audit trail began';
"""
_NAMES: Final = """
CREATE OR REPLACE FUNCTION {own}.schema_of(table_name text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog AS
$function$ SELECT CASE WHEN array_length(parse_ident(table_name), 1) = 1 THEN 'public'
           ELSE (parse_ident(table_name))[1] END $function$;
CREATE OR REPLACE FUNCTION {own}.name_of(table_name text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog AS
$function$ SELECT CASE WHEN array_length(parse_ident(table_name), 1) = 1 THEN (parse_ident(table_name))[1]
           ELSE (parse_ident(table_name))[2] END $function$;
"""


def create(table: ChangesTable, schema: str) -> None:
    """Recreate them at every start, which is cheap, so that they are those of this version."""
    for text in (_NAMES, _SQL):
        statement = sql.SQL(text).format(own=sql.Identifier(schema), changes=table.identifier)
        table.connection.execute(statement)
