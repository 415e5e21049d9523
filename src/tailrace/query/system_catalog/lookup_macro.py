"""DuckDB macros for PostgreSQL's functions that look up the system catalogs.

They read tables of their own (`LOOKUP_TABLES`), whose column names no argument has. DuckDB substitutes a macro's
arguments as text, so an argument `oid` would otherwise refer to the column of the table inside.
"""

from __future__ import annotations

from typing import Final

LOOKUP_TABLES: Final = {
    "_definitions": {"_oid": "oid", "_text": "text"},
    "_types": {"_oid": "oid", "_text": "text", "_base": "text"},
    "_relations": {"_oid": "oid", "_text": "text", "_visible": "bool"},
    "_names": {"_oid": "oid", "_text": "text"},
    "_schemas": {"_oid": "oid", "_text": "text"},
    "_roles": {"_oid": "oid", "_text": "text"},
    "_columns": {"_oid": "oid", "_number": "int4", "_text": "text"},
    "_comments": {"_oid": "oid", "_number": "int4", "_text": "text"},
}

# The text of a type modifier: varchar(n), numeric(p,s), timestamp(n).
_MODIFIER: Final = """CASE
    WHEN m IS NULL OR m < 0 THEN ''
    WHEN _base IN ('varchar', 'bpchar') THEN '(' || (m - 4) || ')'
    WHEN _base = 'numeric' THEN '(' || ((m - 4) >> 16) || ',' || ((m - 4) & 2047) || ')'
    WHEN _base IN ('time', 'timetz', 'timestamp', 'timestamptz', 'bit', 'varbit') THEN '(' || m || ')'
    ELSE '' END"""
# "timestamp(3) without time zone": the modifier follows the first word.
_TYPE: Final = f"""CASE WHEN _text LIKE 'time% time zone' THEN regexp_replace(_text, '^(\\w+)', '\\1' || {_MODIFIER})
    WHEN _text LIKE '%[]' THEN left(_text, -2) || {_MODIFIER} || '[]' ELSE _text || {_MODIFIER} END"""


def _lookup(table: str, expression: str = "_text", also: str = "") -> str:
    return f"(SELECT {expression} FROM {{c}}.{table} WHERE _oid = TRY_CAST(o AS BIGINT){also})"  # noqa: S608


def _comment(number: str) -> str:
    return f"(SELECT _text FROM {{c}}._comments WHERE _oid = regclass_oid(o) AND _number = {number})"  # noqa: S608


# As an identifier is read: in lower case unless it is quoted.
_FOLDED: Final = "array_to_string(list_transform(pg_identifier_parts(o::VARCHAR), lambda part: quote_ident(part)), '.')"
_NAME: Final = "CASE WHEN o::VARCHAR = '0' THEN '-' ELSE o::VARCHAR END"
_MACROS: Final = (
    f"format_type(o, m) AS coalesce({_lookup('_types', _TYPE)}, CASE WHEN o IS NOT NULL THEN '???' END)",
    f"pg_get_userbyid(o) AS coalesce({_lookup('_roles')}, 'unknown (OID=' || o || ')')",
    f"pg_get_indexdef(o) AS {_lookup('_definitions')}, (o, n, pretty) AS"
    f" CASE WHEN n = 0 THEN {_lookup('_definitions')} ELSE {_lookup('_columns', also=' AND _number = n')} END",
    f"pg_get_constraintdef(o) AS {_lookup('_definitions')}, (o, pretty) AS {_lookup('_definitions')}",
    # For names only known at run time: `(schema || '.' || name)::regclass`.
    f"regclass_oid(o) AS coalesce(TRY_CAST(o AS BIGINT), (SELECT _oid FROM {{c}}._names WHERE _text = {_FOLDED}))",  # noqa: S608
    "regclass_of(o) AS CASE WHEN o IS NOT NULL THEN coalesce(regclass_oid(o),"
    """ error('[42P01] relation "' || o::VARCHAR || '" does not exist')) END""",
    f"obj_description(o) AS {_comment('0')}, (o, k) AS {_comment('0')}",
    f"col_description(o, n) AS {_comment('n')}",
    f"pg_table_is_visible(o) AS coalesce({_lookup('_relations', '_visible')}, false)",
    f"pg_type_is_visible(o) AS {_lookup('_types')} NOT LIKE '%.%'",
    f"regclass_name(o) AS coalesce({_lookup('_relations')}, {_NAME})",
    f"regtype_name(o) AS coalesce({_lookup('_types')}, {_NAME})",
    f"regnamespace_name(o) AS coalesce({_lookup('_schemas')}, {_NAME})",
    f"regrole_name(o) AS coalesce({_lookup('_roles')}, {_NAME})",
    "regproc_name(o) AS o::VARCHAR",
)

NAMES: Final = frozenset(macro.partition("(")[0] for macro in _MACROS)
"""Functions that need the system catalog."""


def statements(catalog: str) -> list[str]:
    return [f"CREATE MACRO {macro.replace('{c}', f'{catalog}.main')}" for macro in _MACROS]
