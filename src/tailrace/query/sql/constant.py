"""Constants of a statement, and what the session answers: numbers, texts, the date, the user."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tailrace.query.sql import pg_type
from tailrace.query.sql.cast import convert
from tailrace.query.sql.literal import decimal, integer
from tailrace.query.sql.modifier import apply_modifier
from tailrace.query.sql.pg_type import BOOL, INT4, INT8, UNKNOWN
from tailrace.query.sql.syntax import Node, refuse
from tailrace.query.sql.typed import Typed
from tailrace.query.table_view import sql_literal

if TYPE_CHECKING:
    from tailrace.query.sql.catalog import Catalog

_VALUE_FUNCTIONS: Final = {
    "SVFOP_CURRENT_DATE": ("date", "CAST(CAST(now() AS TIMESTAMP) AS DATE)"),
    "SVFOP_CURRENT_TIMESTAMP": ("timestamptz", "now()"),
    "SVFOP_LOCALTIMESTAMP": ("timestamp", "CAST(now() AS TIMESTAMP)"),
    "SVFOP_LOCALTIME": ("time", "CAST(CAST(now() AS TIMESTAMP) AS TIME)"),
}
_SESSION_VALUES: Final = {
    "SVFOP_CURRENT_USER": "current_user", "SVFOP_SESSION_USER": "session_user", "SVFOP_USER": "user",
    "SVFOP_CURRENT_ROLE": "current_role", "SVFOP_CURRENT_CATALOG": "current_catalog",
    "SVFOP_CURRENT_SCHEMA": "current_schema",
}  # fmt: skip


def constant(node: Node) -> Typed:
    if node.get("isnull"):
        return Typed("NULL", UNKNOWN)
    if "ival" in node:
        return integer(node["ival"].get("ival", 0), INT4)
    if "fval" in node:
        return _number(node["fval"].get("fval", "0"))
    if "boolval" in node:
        return Typed("true" if node["boolval"].get("boolval") else "false", BOOL, is_constant=True)
    if "sval" in node:
        text = node["sval"].get("sval", "")
        return Typed(sql_literal(text), UNKNOWN, literal=text, is_constant=True)
    if "bsval" in node:
        return convert(Typed("", UNKNOWN, literal=node["bsval"].get("bsval", "b")), pg_type.built_in("bit"))
    raise refuse("this constant")


def _number(text: str) -> Typed:
    plain = text.replace("_", "")
    if plain[:2].lower() in ("0x", "0o", "0b") or plain.removeprefix("-").isdecimal():
        number = int(plain, 0) if plain[:2].lower() in ("0x", "0o", "0b") else int(plain)
        if -(2**31) <= number < 2**31:
            return integer(number, INT4)
        if -(2**63) <= number < 2**63:
            return integer(number, INT8)
        plain = str(number)
    return decimal(plain)


def session_value(node: Node, catalog: Catalog) -> Typed:
    """CURRENT_DATE, CURRENT_USER and the like."""
    op = node["op"]
    if op in _VALUE_FUNCTIONS:
        type_, sql = _VALUE_FUNCTIONS[op]
        return Typed(sql, pg_type.built_in(type_))
    if op in _SESSION_VALUES:
        return Typed(catalog.constant(_SESSION_VALUES[op]) or "NULL", pg_type.NAME)
    if op in ("SVFOP_CURRENT_TIMESTAMP_N", "SVFOP_LOCALTIMESTAMP_N"):
        type_, sql = _VALUE_FUNCTIONS[op.removesuffix("_N")]
        return apply_modifier(Typed(sql, pg_type.built_in(type_)), node.get("typmod", 6))
    raise refuse(op.removeprefix("SVFOP_"))
