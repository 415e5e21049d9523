"""Resolution of a statement's names: the tables it means, and the source types of its result columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tailrace.query import system_catalog
from tailrace.query.lake_view import LakeVersion
from tailrace.query.lexer import Token
from tailrace.query.query_error import QueryError
from tailrace.query.reference import References
from tailrace.query.result_column import find_plain_columns
from tailrace.query.table_view import STORED
from tailrace.query.wire_type import TEXT, WireType

# Types that the lake stores as PostgreSQL's text, and that clients parse into something better than text.
_AS_TEXT: Final = frozenset((114, 142, 1042, 1043))
"""json, xml, char(n), varchar: the binary form equals the text."""
_ONLY_AS_TEXT: Final = frozenset((3802, 869, 650, 829, 774, 1266, 1560, 1562, 3904, 3906, 3908, 3910, 3912, 3926))
"""jsonb, inet, cidr, macaddr, timetz, bit, ranges: the binary form differs from the text."""


def resolve_tables(
    references: References, path: Sequence[str], version: LakeVersion, system_catalog_name: str | None
) -> list[tuple[str, str]]:
    """The lake's tables among those that a statement names. Raises QueryError for an unknown name."""
    found = []
    for catalog, schema, name in references.tables:
        if catalog and catalog == system_catalog_name:
            continue
        if not schema and not catalog and (name.lower() in system_catalog.names()) and system_catalog_name is not None:
            continue
        schemas = [schema] if schema else path
        place = next((p for s in schemas if (p := _find(s, name, version)) is not None), None)
        if place is None and not schema and not catalog and name.lower() in references.ctes:
            continue
        if place is None or catalog:
            full = ".".join(filter(None, (catalog, schema, name)))
            hint = "" if version.tables or version.absent else "Nothing has been delivered to the lake yet."
            raise QueryError("42P01", f'relation "{full}" does not exist', hint)
        found.append(place)
    return found


def _find(schema: str, name: str, version: LakeVersion) -> tuple[str, str] | None:
    """Find a table by its name as written, else folded: DuckDB's parser does not report quotes."""
    known: Collection[tuple[str, str]] = {**version.tables, **version.absent}
    for s, n in ((schema, name), (schema.lower(), name.lower()), (schema, name.lower()), (schema.lower(), name)):
        if (s, n) in known:
            return s, n
        if n.endswith(STORED) and (s, n.removesuffix(STORED)) in known:
            return s, n
    return None


def source_types(
    statement: Sequence[Token],
    names: Sequence[str],
    types: Sequence[WireType],
    columns: Mapping[str, Sequence[tuple[int, int]]],
    binary: bool = False,
) -> list[WireType]:
    """The result types, with the source's type (jsonb, inet, …) for text that is an unchanged table column.

    With `binary`, the client wants binary results or has not chosen yet: then only types whose binary form is their
    text are replaced.
    """
    allowed = _AS_TEXT if binary else _AS_TEXT | _ONLY_AS_TEXT
    if not any(t.oid == TEXT for t in types):
        return list(types)
    found = []
    for name, type_, is_plain in zip(names, types, find_plain_columns(statement, names), strict=True):
        sources = columns.get(name, ())
        is_known = type_.oid == TEXT and is_plain and len(sources) == 1 and sources[0][0] in allowed
        found.append(replace(type_, oid=sources[0][0], modifier=sources[0][1]) if is_known else type_)
    return found
