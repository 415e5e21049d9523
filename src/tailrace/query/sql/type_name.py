"""The type that a type name of a statement means, and its modifier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.change import Type
from tailrace.query.query_error import QueryError
from tailrace.query.sql import pg_type
from tailrace.query.sql.pg_type import array_of
from tailrace.query.sql.syntax import Node, names, refuse, unwrap

if TYPE_CHECKING:
    from tailrace.query.sql.catalog import Catalog


def type_of(node: Node, catalog: Catalog) -> tuple[Type, int]:
    """The type that a type name means, and its modifier."""
    parts = names(node["names"])
    schema = parts[0] if len(parts) > 1 else None
    name = parts[-1]
    found = pg_type.find_built_in(name) if schema in (None, "pg_catalog") else None
    if schema is None and (own := catalog.type(None, name)) is not None and found is None:
        found = own
    if found is None:
        found = catalog.type(schema, name)
    if found is None or (found.kind == "p" and found.name != "record"):
        raise QueryError("42704", f'type "{".".join(parts)}" does not exist')
    modifiers = [_modifier(m) for m in node.get("typmods", ())]
    modifier = _pack(found, modifiers)
    if node.get("arrayBounds"):
        return array_of(found), modifier
    return found, modifier


def _modifier(node: Node) -> int:
    tag, fields = unwrap(node)
    if tag == "A_Const" and "ival" in fields:
        return int(fields["ival"].get("ival", 0))
    if tag == "A_Expr":
        return -_modifier(fields["rexpr"])
    raise refuse("this type modifier")


def _pack(type_: Type, modifiers: list[int]) -> int:
    """The modifier of a type from the numbers in its brackets."""
    if not modifiers:
        return -1
    match type_.name:
        case "numeric":
            scale = modifiers[1] if len(modifiers) > 1 else 0
            return ((modifiers[0] << 16) | (scale & 0x7FF)) + 4
        case "varchar" | "bpchar":
            return modifiers[0] + 4
        case "interval":
            return (modifiers[0] << 16) | (modifiers[1] if len(modifiers) > 1 else 0xFFFF)
    return modifiers[0]
