"""DuckDB macros and types for PostgreSQL's functions, operators and types that DuckDB lacks or defines differently.

They precede DuckDB's own on the search path, so a macro replaces a function of the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.query.table_view import NUMERIC

if TYPE_CHECKING:
    from tailrace.query.lake_view import LakeVersion

_TYPES: Final = {
    "name": "VARCHAR",
    "citext": "VARCHAR",
    "jsonb": "VARCHAR",
    "inet": "VARCHAR",
    "cidr": "VARCHAR",
    "macaddr": "VARCHAR",
    "xml": "VARCHAR",
    "tsvector": "VARCHAR",
    "regconfig": "VARCHAR",
    "pg_lsn": "VARCHAR",
    "pg_node_tree": "VARCHAR",
    "xid": "BIGINT",
    "money": "DECIMAL(19, 2)",
}

_TRUE_FOR_ALL: Final = (
    "has_table_privilege", "has_schema_privilege", "has_database_privilege", "has_column_privilege",
    "has_any_column_privilege", "has_function_privilege", "has_type_privilege", "has_sequence_privilege",
    "has_server_privilege", "has_tablespace_privilege", "pg_has_role",
)  # fmt: skip

_TEXT: Final = "CAST(a AS VARCHAR)"
_FLOAT: Final = (
    f"CASE {_TEXT} WHEN 'nan' THEN 'NaN' WHEN 'inf' THEN 'Infinity' WHEN '-inf' THEN '-Infinity'"
    f" ELSE regexp_replace({_TEXT}, '\\.0$', '') END"
)
# PostgreSQL writes `mons` for months, `-1 days`, and a plus sign after a negative part.
_INTERVAL: Final = (
    f"regexp_replace(regexp_replace(regexp_replace({_TEXT}, 'month', 'mon'), '(-1 (?:year|mon|day))\\b', '\\1s'),"
    " '(-[0-9]+ (?:days|mons|years)) ([0-9])', '\\1 +\\2')"
)
_MAX_TEXT_BYTES: Final = 64 * 1024 * 1024
_TOO_LONG: Final = "error('requested length too large')"
_BACKSLASH: Final = "chr(92)"


def _like_macro(operator: str, function: str) -> str:
    """A macro for LIKE and its variants, where a backslash escapes unless ESCAPE is given; in DuckDB nothing does.

    DuckDB skips files by a pattern only with its own operator."""
    own = f'system.main."{operator}"(a, b)'
    return (
        f'"{operator}"(a, b) AS CASE WHEN contains(b, {_BACKSLASH}) THEN {function}(a, b, {_BACKSLASH}) ELSE {own} END'
    )


def _division_macro(name: str) -> str:
    """A macro that reports division by zero, for which DuckDB returns NULL."""
    failed = "error('division by zero')"
    return f'"{name}"(a, b) AS CASE WHEN b = 0 AND a IS NOT NULL THEN {failed} ELSE system.main."{name}"(a, b) END'


# The number of groups in a regular expression: opening brackets not escaped and not followed by a question mark.
_GROUPS: Final = "len(regexp_extract_all(regexp_replace(b, '\\\\.', '', 'g'), '\\((?:[^?]|$)'))"
_GROUP: Final = ", ".join(f"regexp_extract(a, b, {number}, 's')" for number in range(1, 10))

_MACROS: Final = (
    # With integer_division, DuckDB calls `/` `//`.
    *map(_division_macro, ("//", "%", "mod")),
    # The sum of integers is a bigint, that of bigints a numeric: a later division depends on the type.
    "sum(a INTEGER) AS system.main.sum(a)::BIGINT, (a BIGINT) AS system.main.sum(a)::DECIMAL(38, 0),"
    " (a HUGEINT) AS system.main.sum(a)::DECIMAL(38, 0), (a) AS system.main.sum(a)",
    *(
        _like_macro(*pair)
        for pair in (
            ("~~", "like_escape"),
            ("!~~", "not_like_escape"),
            ("~~*", "ilike_escape"),
            ("!~~*", "not_ilike_escape"),
        )
    ),
    # PostgreSQL's ~ finds a match anywhere. DuckDB's matches the whole text and also implements SIMILAR TO, so the
    # translation renames ~. With 's', a dot also matches the end of a line.
    "regexp_full_match(a, b) AS system.main.regexp_full_match(a,"
    " replace(replace(replace(b, '.', '\\.'), '%', '.*'), '_', '.'), 's')",
    """"@~"(a, b) AS system.main.regexp_matches(a, b, 's')""",
    """"~*"(a, b) AS system.main.regexp_matches(a, b, 'is')""",
    """"!@~"(a, b) AS NOT system.main.regexp_matches(a, b, 's')""",
    """"!~*"(a, b) AS NOT system.main.regexp_matches(a, b, 'is')""",
    "regexp_replace(a, b, c) AS system.main.regexp_replace(a, b, c, 's'),"
    " (a, b, c, o) AS system.main.regexp_replace(a, b, c, 's' || o)",
    f"regexp_match(a, b) AS CASE WHEN NOT system.main.regexp_matches(a, b, 's') THEN NULL"
    f" WHEN {_GROUPS} = 0 THEN [regexp_extract(a, b, 0, 's')] ELSE [{_GROUP}][1:{_GROUPS}] END",
    "regexp_matches(a, b) AS unnest(list_filter([regexp_match(a, b)], lambda found: found IS NOT NULL)),"
    " (a, b, o) AS error('regexp_matches with flags is not supported')",
    # DuckDB cannot be interrupted while it builds a single text.
    f"repeat(a, n) AS CASE WHEN strlen(a) * n::HUGEINT > {_MAX_TEXT_BYTES} THEN {_TOO_LONG}"
    " ELSE system.main.repeat(a, n) END",
    *(
        f"{name}(a, n) AS {name}(a, n, ' '),"
        f" (a, n, b) AS CASE WHEN n > {_MAX_TEXT_BYTES} THEN {_TOO_LONG} ELSE system.main.{name}(a, n, b) END"
        for name in ("lpad", "rpad")
    ),
    # For a start below 1 DuckDB counts from the end, whereas PostgreSQL starts before the text.
    "substring(a, s) AS system.main.substring(a, greatest(s, 1)),"
    " (a, s, n) AS system.main.substring(a, greatest(s, 1), greatest(n + least(s, 1) - 1, 0))",
    "substr(a, s) AS substring(a, s), (a, s, n) AS substring(a, s, n)",
    # DuckDB truncates a timestamp to a DATE. In PostgreSQL it stays a timestamp, and a date becomes a timestamptz.
    "date_trunc(a, b DATE) AS (system.main.date_trunc(a, b) + INTERVAL 0 SECOND)::TIMESTAMPTZ,"
    " (a, b) AS system.main.date_trunc(a, b) + INTERVAL 0 SECOND",
    # DuckDB's seconds are integers.
    "date_part(a, b) AS CASE lower(a) WHEN 'second' THEN system.main.date_part('microseconds', b) / 1000000::DOUBLE"
    " WHEN 'seconds' THEN system.main.date_part('microseconds', b) / 1000000::DOUBLE"
    " WHEN 'milliseconds' THEN system.main.date_part('microseconds', b) / 1000::DOUBLE"
    " ELSE system.main.date_part(a, b)::DOUBLE END",
    "clock_timestamp() AS now()",
    "statement_timestamp() AS now()",
    "transaction_timestamp() AS now()",
    # A double rounds half to even, a numeric half away from zero.
    "round(a DOUBLE) AS round_even(a, 0), (a FLOAT) AS round_even(a, 0), (a DECIMAL(38, 10)) AS system.main.round(a),"
    " (a, n) AS system.main.round(a, n)",
    "trunc(a) AS system.main.trunc(a), (a, n) AS a::DECIMAL(38, 10) - a::DECIMAL(38, 10) % (10 ** -n)::DECIMAL(38, 10)",
    "div(a, b) AS system.main.trunc(a / b)",
    # An explicit cast to PostgreSQL's text.
    f"as_text(a) AS CASE typeof(a) WHEN 'DECIMAL({NUMERIC[0]},{NUMERIC[1]})' THEN rtrim(rtrim({_TEXT}, '0'), '.')"
    f" WHEN 'DOUBLE' THEN {_FLOAT} WHEN 'FLOAT' THEN {_FLOAT}"
    f" WHEN 'BLOB' THEN '\\x' || lower(hex(CAST({_TEXT} AS BLOB)))"
    f" WHEN 'INTERVAL' THEN {_INTERVAL} ELSE {_TEXT} END",
    "as_time(a TIMESTAMPTZ) AS a::TIMESTAMP::TIME, (a VARCHAR) AS a::TIME, (a) AS a::TIME",
    "rounded(a TIMESTAMP, n) AS make_timestamp(round(epoch_us(a), n - 6)::BIGINT),"
    " (a TIMESTAMPTZ, n) AS make_timestamptz(round(epoch_us(a), n - 6)::BIGINT),"
    " (a TIME, n) AS (make_timestamp(round(epoch_us(DATE '1970-01-01' + a), n - 6)::BIGINT))::TIME",
    "initcap(a) AS array_to_string(list_transform(regexp_extract_all(lower(a), '[a-z0-9]+|[^a-z0-9]+'),"
    " lambda w: upper(w[1]) || w[2:]), '')",
    "overlay(a, b, s) AS a[:s - 1] || b || a[s + length(b):], (a, b, s, n) AS a[:s - 1] || b || a[s + n:]",
    "btrim(a) AS trim(a), (a, b) AS trim(a, b)",
    "to_hex(a) AS lower(system.main.to_hex(a))",
    "cardinality(a) AS len(a)",
    "array_length(a, n) AS nullif(system.main.array_length(a, n), 0)",
    "array_upper(a, n) AS nullif(len(a), 0)",
    "array_lower(a, n) AS CASE WHEN len(a) > 0 THEN 1 END",
    "quote_ident(a) AS CASE WHEN system.main.regexp_matches(a, '^[a-z_][a-z0-9_]*$') THEN a"
    """ ELSE '"' || replace(a, '"', '""') || '"' END""",
    "quote_literal(a) AS '''' || replace(a::VARCHAR, '''', '''''') || ''''",
    "sha256(a) AS unhex(system.main.sha256(a))",
    "json_agg(a) AS to_json(list(a))",
    "jsonb_agg(a) AS to_json(list(a))",
    "to_jsonb(a) AS to_json(a)",
    "json_array_length(a) AS system.main.json_array_length(a)::INTEGER",
    "jsonb_array_length(a) AS json_array_length(a)",
    *(
        f"{name}(a) AS CASE json_type(a) WHEN 'VARCHAR' THEN 'string' WHEN 'OBJECT' THEN 'object'"
        " WHEN 'ARRAY' THEN 'array' WHEN 'BOOLEAN' THEN 'boolean' WHEN 'NULL' THEN 'null'"
        " ELSE CASE WHEN json_type(a) IS NOT NULL THEN 'number' END END"
        for name in ("json_typeof", "jsonb_typeof")
    ),
    "jsonb_extract_path_text(a, b) AS json_extract_string(a, b)",
    # Functions that clients call to inspect the server.
    "_pg_expandarray(a) AS unnest(list_transform(a, lambda v, i: {'x': v, 'n': i}))",
    "pg_is_in_recovery() AS true",
    "pg_is_wal_replay_paused() AS false",
    "pg_stat_get_numscans(a) AS NULL::BIGINT",
    'parse_ident(a) AS list_transform(regexp_extract_all(a, \'"(?:[^"]|"")+"|[^."]+\'), lambda part: CASE WHEN'
    " part[1] = '\"' THEN replace(part[2:-2], '\"\"', '\"') ELSE lower(trim(part)) END)",
    "pg_get_expr(a, b) AS a, (a, b, c) AS a",
    "pg_get_viewdef(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR",
    "pg_get_partkeydef(a) AS NULL::VARCHAR",
    "pg_get_statisticsobjdef_columns(a) AS NULL::VARCHAR",
    "pg_get_function_identity_arguments(a) AS NULL::VARCHAR",
    "pg_get_function_arguments(a) AS NULL::VARCHAR",
    "pg_get_function_result(a) AS NULL::VARCHAR",
    "pg_get_triggerdef(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR",
    "pg_get_ruledef(a) AS NULL::VARCHAR, (a, b) AS NULL::VARCHAR",
    "pg_get_serial_sequence(a, b) AS NULL::VARCHAR",
    "pg_relation_is_publishable(a) AS false",
    "pg_encoding_to_char(a) AS 'UTF8'",
    "pg_char_to_encoding(a) AS 6",
    "shobj_description(a, b) AS NULL::VARCHAR",
    "pg_tablespace_location(a) AS ''",
    "pg_relation_size(a) AS NULL::BIGINT, (a, b) AS NULL::BIGINT",
    "pg_table_size(a) AS NULL::BIGINT",
    "pg_total_relation_size(a) AS NULL::BIGINT",
    "pg_database_size(a) AS NULL::BIGINT",
    "pg_size_pretty(a) AS format_bytes(a)",
    "pg_function_is_visible(a) AS true",
    "pg_statistics_obj_is_visible(a) AS true",
    "pg_collation_is_visible(a) AS true",
    "pg_opclass_is_visible(a) AS true",
    "pg_operator_is_visible(a) AS true",
    "pg_postmaster_start_time() AS now()",
    "pg_conf_load_time() AS now()",
    "pg_my_temp_schema() AS 0",
    "pg_is_other_temp_schema(a) AS false",
    "txid_current() AS 1::BIGINT",
    "inet_server_addr() AS NULL::VARCHAR",
    "inet_client_addr() AS NULL::VARCHAR",
    *(f"{name}(a, b) AS true, (a, b, c) AS true, (a, b, c, d) AS true" for name in _TRUE_FOR_ALL),
)

_TABLE_MACROS: Final = (
    # Functions in FROM, where a scalar function is a table of one row.
    "string_to_array(a, b) AS TABLE SELECT system.main.string_to_array(a, b) AS string_to_array",
    "pg_show_all_settings() AS TABLE SELECT NULL::VARCHAR AS name, NULL::VARCHAR AS setting WHERE false",
    "pg_get_keywords() AS TABLE SELECT NULL::VARCHAR AS word, NULL::VARCHAR AS catcode WHERE false",
    "pg_get_publication_tables(a) AS TABLE SELECT 0::BIGINT AS relid WHERE false",
    "pg_partition_ancestors(a) AS TABLE SELECT 0::BIGINT AS relid WHERE false",
    "aclexplode(a) AS TABLE SELECT 0::BIGINT AS grantor, 0::BIGINT AS grantee, '' AS privilege_type,"
    " false AS is_grantable WHERE false",
)

STATEMENTS: Final = (
    *(f"CREATE TYPE {name} AS {type_}" for name, type_ in _TYPES.items()),
    *(f"CREATE MACRO {macro}" for macro in (*_MACROS, *_TABLE_MACROS)),
)


def freshness(catalog: str, version: LakeVersion) -> str:
    """The statement that creates `tailrace_freshness()` in a version's catalog."""
    committed = "NULL" if version.committed_at is None else f"'{version.committed_at.isoformat()}'"
    return (
        f"CREATE MACRO {catalog}.main.tailrace_freshness() AS TABLE SELECT '{version.cursor}' AS lsn,"
        f" {committed}::TIMESTAMPTZ AS committed_at, '{version.published_at.isoformat()}'::TIMESTAMPTZ AS published_at,"
        f" epoch(now() - {committed}::TIMESTAMPTZ) AS age_seconds"
    )
