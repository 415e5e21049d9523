"""PostgreSQL's functions, operators and types that DuckDB lacks or means differently, as macros and types of DuckDB.

They stand before DuckDB's own on the search path, so a macro of the same name takes its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tailrace.query.lake import Moment

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

# to_char's patterns in strftime's words; the longer ones first.
_PATTERNS: Final = (
    ("YYYY", "%Y"), ("yyyy", "%Y"), ("Month", "%B"), ("Mon", "%b"), ("Day", "%A"), ("Dy", "%a"), ("HH24", "%H"),
    ("hh24", "%H"), ("HH12", "%I"), ("hh12", "%I"), ("HH", "%I"), ("MI", "%M"), ("mi", "%M"), ("MM", "%m"),
    ("mm", "%m"), ("DDD", "%j"), ("DD", "%d"), ("dd", "%d"), ("SS", "%S"), ("ss", "%S"), ("MS", "%g"), ("US", "%f"),
    ("AM", "%p"), ("PM", "%p"), ("IW", "%V"), ("IYYY", "%G"), ("YY", "%y"), ("TZ", "%Z"), ("ID", "%u"),
)  # fmt: skip


def strftime(pattern: str) -> str:
    """to_char's pattern in strftime's words."""
    for number, (word, _) in enumerate(_PATTERNS):
        pattern = pattern.replace(word, chr(0xE000 + number))
    for number, (_, code) in enumerate(_PATTERNS):
        pattern = pattern.replace(chr(0xE000 + number), code)
    return pattern


def _strftime(pattern: str) -> str:
    """The same as an expression, for patterns that only DuckDB knows."""
    # By way of private characters, so that what one pattern became is not read as another.
    for number, (word, _) in enumerate(_PATTERNS):
        pattern = f"replace({pattern}, '{word}', chr({0xE000 + number}))"
    for number, (_, code) in enumerate(_PATTERNS):
        pattern = f"replace({pattern}, chr({0xE000 + number}), '{code}')"
    return pattern


_TRUE_FOR_ALL: Final = (
    "has_table_privilege", "has_schema_privilege", "has_database_privilege", "has_column_privilege",
    "has_any_column_privilege", "has_function_privilege", "has_type_privilege", "has_sequence_privilege",
    "has_server_privilege", "has_tablespace_privilege", "pg_has_role",
)  # fmt: skip

_MACROS: Final = (
    # Operators: PostgreSQL's ~ finds a match anywhere, DuckDB's own wants the whole text to match, and so is also what
    # SIMILAR TO becomes; the translation gives ~ another name.
    "regexp_full_match(a, b) AS system.main.regexp_full_match(a, replace(replace(b, '%', '.*'), '_', '.'))",
    '"@~"(a, b) AS regexp_matches(a, b)',
    """"~*"(a, b) AS regexp_matches(a, b, 'i')""",
    '"!@~"(a, b) AS NOT regexp_matches(a, b)',
    """"!~*"(a, b) AS NOT regexp_matches(a, b, 'i')""",
    # DuckDB truncates a timestamp to a DATE; PostgreSQL's stays a timestamp.
    "date_trunc(a, b) AS system.main.date_trunc(a, b) + INTERVAL 0 SECOND",
    # DuckDB's seconds are whole.
    "date_part(a, b) AS CASE lower(a) WHEN 'second' THEN system.main.date_part('microseconds', b) / 1000000::DOUBLE"
    " WHEN 'seconds' THEN system.main.date_part('microseconds', b) / 1000000::DOUBLE"
    " WHEN 'milliseconds' THEN system.main.date_part('microseconds', b) / 1000::DOUBLE"
    " ELSE system.main.date_part(a, b)::DOUBLE END",
    f"to_char(a, b) AS strftime(a, {_strftime('b')})",
    "clock_timestamp() AS now()",
    "statement_timestamp() AS now()",
    "transaction_timestamp() AS now()",
    "trunc(a) AS system.main.trunc(a), (a, n) AS system.main.trunc(a * 10 ** n) / 10 ** n",
    "div(a, b) AS system.main.trunc(a / b)",
    "initcap(a) AS array_to_string(list_transform(regexp_extract_all(lower(a), '[a-z0-9]+|[^a-z0-9]+'),"
    " lambda w: upper(w[1]) || w[2:]), '')",
    "overlay(a, b, s) AS a[:s - 1] || b || a[s + length(b):], (a, b, s, n) AS a[:s - 1] || b || a[s + n:]",
    "btrim(a) AS trim(a), (a, b) AS trim(a, b)",
    "to_hex(a) AS lower(system.main.to_hex(a))",
    "cardinality(a) AS len(a)",
    "array_upper(a, n) AS len(a)",
    "array_lower(a, n) AS CASE WHEN len(a) > 0 THEN 1 END",
    "quote_ident(a) AS CASE WHEN regexp_matches(a, '^[a-z_][a-z0-9_]*$') THEN a"
    """ ELSE '"' || replace(a, '"', '""') || '"' END""",
    "quote_literal(a) AS '''' || replace(a::VARCHAR, '''', '''''') || ''''",
    "regexp_match(a, b) AS CASE WHEN regexp_matches(a, b) THEN [regexp_extract(a, b)] END",
    "every(a) AS bool_and(a)",
    "json_agg(a) AS to_json(list(a))",
    "jsonb_agg(a) AS to_json(list(a))",
    "to_jsonb(a) AS to_json(a)",
    "jsonb_array_length(a) AS json_array_length(a)",
    "jsonb_typeof(a) AS lower(replace(json_type(a), 'VARCHAR', 'string'))",
    "jsonb_extract_path_text(a, b) AS json_extract_string(a, b)",
    # What clients ask of a server.
    "_pg_expandarray(a) AS unnest(list_transform(a, lambda v, i: {'x': v, 'n': i}))",
    "pg_is_in_recovery() AS true",
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


def freshness(catalog: str, moment: Moment) -> str:
    """`tailrace_freshness()` of a moment's catalog."""
    committed = "NULL" if moment.committed_at is None else f"'{moment.committed_at.isoformat()}'"
    return (
        f"CREATE MACRO {catalog}.main.tailrace_freshness() AS TABLE SELECT '{moment.cursor}' AS lsn,"
        f" {committed}::TIMESTAMPTZ AS committed_at, '{moment.published_at.isoformat()}'::TIMESTAMPTZ AS published_at,"
        f" epoch(now() - {committed}::TIMESTAMPTZ) AS age_seconds"
    )
