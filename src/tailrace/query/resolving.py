"""Names of a statement against a moment: which tables are meant, and which columns of a result are a table's own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from tailrace.query import catalogue
from tailrace.query.failure import Failure
from tailrace.query.inspection import Inspected
from tailrace.query.lake import Moment
from tailrace.query.lexer import Token
from tailrace.query.naming import plain_columns
from tailrace.query.oid import TEXT, WireType
from tailrace.query.shape import STORED

# Types whose values lie in the lake as PostgreSQL's own text, which clients read into something better than a text.
_AS_TEXT: Final = frozenset((114, 142, 1042, 1043))
"""json, xml, char(n), varchar: their binary form is their text."""
_ONLY_AS_TEXT: Final = frozenset((3802, 869, 650, 829, 774, 1266, 1560, 1562, 3904, 3906, 3908, 3910, 3912, 3926))
"""jsonb, inet, cidr, macaddr, timetz, bit, ranges: their binary form is another."""


def resolved(
    named: Inspected, path: Sequence[str], moment: Moment, catalogue_name: str | None
) -> list[tuple[str, str]]:
    """The moment's tables among those that a statement names; a name that is nobody's is an error."""
    found = []
    for catalog, schema, name in named.tables:
        if catalog and catalog == catalogue_name:
            continue
        if not schema and not catalog and (name.lower() in catalogue.names()) and catalogue_name is not None:
            continue
        schemas = [schema] if schema else path
        place = next((p for s in schemas if (p := _find(s, name, moment)) is not None), None)
        if place is None and not schema and not catalog and name.lower() in named.own:
            continue
        if place is None or catalog:
            full = ".".join(filter(None, (catalog, schema, name)))
            hint = "" if moment.tables or moment.absent else "nothing has been delivered to the lake yet"
            raise Failure("42P01", f'relation "{full}" does not exist', hint)
        found.append(place)
    return found


def _find(schema: str, name: str, moment: Moment) -> tuple[str, str] | None:
    """As it is written, else as PostgreSQL folds it: the parser does not tell whether there were quotes."""
    known: Collection[tuple[str, str]] = {**moment.tables, **moment.absent}
    for s, n in ((schema, name), (schema.lower(), name.lower()), (schema, name.lower()), (schema.lower(), name)):
        if (s, n) in known:
            return s, n
        if n.endswith(STORED) and (s, n.removesuffix(STORED)) in known:
            return s, n
    return None


def passed_through(
    statement: Sequence[Token],
    names: Sequence[str],
    types: Sequence[WireType],
    columns: Mapping[str, Sequence[tuple[int, int]]],
    binary: bool = False,
) -> list[WireType]:
    """Texts that are a table's column as it is are told by the source's type: jsonb, inet, an array.

    `binary`: the client wants that form, or has not said yet; then only those whose binary form is their text.
    """
    allowed = _AS_TEXT if binary else _AS_TEXT | _ONLY_AS_TEXT
    if not any(t.oid == TEXT for t in types):
        return list(types)
    found = []
    for name, type_, is_plain in zip(names, types, plain_columns(statement, names), strict=True):
        sources = columns.get(name, ())
        is_known = type_.oid == TEXT and is_plain and len(sources) == 1 and sources[0][0] in allowed
        found.append(replace(type_, oid=sources[0][0], modifier=sources[0][1]) if is_known else type_)
    return found
