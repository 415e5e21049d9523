"""A whole statement: its SQL for DuckDB, and the names and wire types of its result columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from tailrace.query.query_error import READ_ONLY, UNSUPPORTED, QueryError
from tailrace.query.sql import pg_type
from tailrace.query.sql.catalog import Catalog
from tailrace.query.sql.pg_type import base_type
from tailrace.query.sql.select import QueryTranslator
from tailrace.query.sql.syntax import parse_statement, refuse
from tailrace.query.sql.text_form import cast_text, elements
from tailrace.query.sql.typed import REG, Typed, is_column, representation
from tailrace.query.wire_type import TEXT, WireType

_NATIVE: Final = frozenset(
    ("bool", "int2", "int4", "int8", "float4", "float8", "bytea", "uuid", "date", "time", "timestamp", "timestamptz",
     "interval", "oid", "xid")
)  # fmt: skip
_BINARY_TEXTS: Final = frozenset(("text", "varchar", "bpchar", "name", "char", "json", "xml", "jsonb", "numeric"))
"""Types represented as text whose binary form the server writes."""
_ELEMENTS: Final = _NATIVE - {"xid"} | {"text", "varchar", "name", "numeric"}


@dataclass(frozen=True)
class Translation:
    sql: str
    names: Sequence[str]
    types: Sequence[WireType]


def translate(statement: str, catalog: Catalog, binary: bool = False) -> Translation:
    """Translate a query. With `binary`, the client wants binary results, or has not chosen yet."""
    tag, fields = parse_statement(statement)
    if tag != "SelectStmt":
        raise _refusal(tag)
    query = QueryTranslator(catalog).query({"SelectStmt": fields})
    columns = query.resolved()
    if any(c.value.fields for c in columns):
        raise refuse("a row in a select list", "Select its columns.")
    outputs = [wire(_represented(_known_array(v, catalog)), binary) for v in query.typed()]
    sql = query.prefix + query.build([value for value, _ in outputs])
    return Translation(sql, [c.name for c in columns], [type_ for _, type_ in outputs])


def _known_array(value: Typed, catalog: Catalog) -> Typed:
    """An array of a type of the source, with the OID of its type if a column of the source has it."""
    element = value.base.element
    if element is None or value.base.oid:
        return value
    found = catalog.type(element.schema, value.base.name)
    return value if found is None else replace(value, type=found)


def _represented(value: Typed) -> Typed:
    """A column whose DuckDB type is certain: DuckDB takes a NULL that it computes beforehand for an integer."""
    if value.scale is not None or is_column(value.sql):
        return value
    return replace(value, sql=f"CAST({value.sql} AS {representation(value.type, is_list=value.is_list)})")


def _refusal(tag: str) -> QueryError:
    word = {"ViewStmt": "CREATE VIEW", "CreateStmt": "CREATE TABLE", "CreateTableAsStmt": "CREATE TABLE AS"}.get(
        tag, tag.removesuffix("Stmt").upper()
    )
    if tag in ("PrepareStmt", "ExecuteStmt", "CallStmt", "LoadStmt", "DoStmt", "CheckPointStmt", "VariableSetStmt"):
        return QueryError(UNSUPPORTED, f"{word} is not supported", "This server only reads the lake's tables.")
    return QueryError(
        READ_ONLY, f"cannot execute {word} in a read-only transaction", "Only the sink writes to the lake."
    )


def wire(value: Typed, binary: bool) -> tuple[Typed, WireType]:
    """A result column as DuckDB returns it, and how it is sent."""
    base, name = value.base, value.name
    size = pg_type.size(base)
    own = WireType(base.oid or TEXT, size, value.modifier)
    if name == "interval":
        # Arrow has nanoseconds, which overflow.
        return value.with_sql(f"pg_short_interval({value.sql})"), own
    if name in _NATIVE:
        return value, own
    if name == "numeric":
        return value, own
    if name in ("int2vector", "oidvector"):
        return value.with_sql(cast_text(value)), WireType(TEXT) if binary else own
    if base.element is not None:
        return _array(value, own, binary)
    if name in REG:
        return (value, own) if binary else (value.with_sql(cast_text(value)), own)
    if name == "money":
        return value.with_sql(cast_text(value)), WireType(TEXT) if binary else own
    if binary and name not in _BINARY_TEXTS and base.kind != "e":
        return value, WireType(TEXT)
    return value, own


def _array(value: Typed, own: WireType, binary: bool) -> tuple[Typed, WireType]:
    element = base_type(value.base.element or pg_type.TEXT)
    if binary and element.name in _ELEMENTS and pg_type.is_own(element):
        inner = WireType(element.oid, pg_type.size(element))
        return value.with_sql(elements(value)), replace(own, element=inner)
    if not value.is_list:
        return value, WireType(TEXT) if binary else own
    return value.with_sql(cast_text(value)), WireType(TEXT) if binary else own
