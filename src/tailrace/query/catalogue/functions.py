"""PostgreSQL's functions that look into the catalogues, as macros of DuckDB."""

from __future__ import annotations

from typing import Final

# How a type's modifier is written: of varchar(n), numeric(p,s), timestamp(n).
_MODIFIER: Final = """CASE
    WHEN m IS NULL OR m < 0 THEN ''
    WHEN base IN ('varchar', 'bpchar') THEN '(' || (m - 4) || ')'
    WHEN base = 'numeric' THEN '(' || ((m - 4) >> 16) || ',' || ((m - 4) & 2047) || ')'
    WHEN base IN ('time', 'timetz', 'timestamp', 'timestamptz', 'bit', 'varbit') THEN '(' || m || ')'
    ELSE '' END"""
# "timestamp(3) without time zone": the modifier stands after the first word.
_TYPE_NAME: Final = f"""CASE WHEN name LIKE 'time% time zone'
    THEN regexp_replace(name, '^(\\w+)', '\\1' || {_MODIFIER})
    WHEN name LIKE '%[]' THEN left(name, -2) || {_MODIFIER} || '[]' ELSE name || {_MODIFIER} END"""

_MACROS: Final = (
    f"format_type(o, m) AS coalesce((SELECT {_TYPE_NAME} FROM {{c}}._type_names t WHERE t.oid = o),"
    " CASE WHEN o IS NOT NULL THEN '???' END)",
    "pg_get_userbyid(o) AS coalesce((SELECT rolname FROM {c}.pg_roles r WHERE r.oid = o), 'unknown (OID=' || o || ')')",
    "pg_get_indexdef(o) AS (SELECT definition FROM {c}._definitions d WHERE d.oid = o),"
    " (o, n, pretty) AS CASE WHEN n = 0 THEN (SELECT definition FROM {c}._definitions d WHERE d.oid = o)"
    " ELSE (SELECT attname FROM {c}.pg_attribute a WHERE a.attrelid = o AND a.attnum = n) END",
    "pg_get_constraintdef(o) AS (SELECT definition FROM {c}._definitions d WHERE d.oid = o),"
    " (o, pretty) AS (SELECT definition FROM {c}._definitions d WHERE d.oid = o)",
    "obj_description(o) AS (SELECT description FROM {c}.pg_description d WHERE d.objoid = o AND d.objsubid = 0),"
    " (o, c) AS (SELECT description FROM {c}.pg_description d WHERE d.objoid = o AND d.objsubid = 0)",
    "col_description(o, n) AS (SELECT description FROM {c}.pg_description d WHERE d.objoid = o AND d.objsubid = n)",
    "regclass_name(o) AS coalesce((SELECT CASE WHEN nspname IN ('public', 'pg_catalog') THEN '' ELSE quote_ident(nspname)"
    " || '.' END || quote_ident(relname) FROM {c}.pg_class c JOIN {c}.pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.oid = o), CASE WHEN o = 0 THEN '-' ELSE o::VARCHAR END)",
    "regtype_name(o) AS coalesce((SELECT name FROM {c}._type_names t WHERE t.oid = o),"
    " CASE WHEN o = 0 THEN '-' ELSE o::VARCHAR END)",
    "regnamespace_name(o) AS coalesce((SELECT quote_ident(nspname) FROM {c}.pg_namespace n WHERE n.oid = o), o::VARCHAR)",
    "regproc_name(o) AS o::VARCHAR",
    "regrole_name(o) AS coalesce((SELECT rolname FROM {c}.pg_roles r WHERE r.oid = o), o::VARCHAR)",
    "pg_table_is_visible(o) AS EXISTS (SELECT 1 FROM {c}.pg_class c JOIN {c}.pg_namespace n ON n.oid = c.relnamespace"
    " WHERE c.oid = o AND nspname IN ('public', 'pg_catalog'))",
    "pg_type_is_visible(o) AS EXISTS (SELECT 1 FROM {c}.pg_type c JOIN {c}.pg_namespace n ON n.oid = c.typnamespace"
    " WHERE c.oid = o AND nspname IN ('public', 'pg_catalog'))",
)

NAMES: Final = frozenset(macro.partition("(")[0] for macro in _MACROS)
"""Functions for which the catalogue has to be there."""


def statements(catalog: str) -> list[str]:
    return [f"CREATE MACRO {macro.replace('{c}', f'{catalog}.main')}" for macro in _MACROS]
