"""The defaults of columns in Debezium's schemas: literals as they are, and a placeholder for what is computed.

A NOT NULL column that PostgreSQL did not send has its default in the old row of a delete.
"""

from __future__ import annotations

import re
from decimal import Decimal
from functools import lru_cache
from typing import Final

import pyarrow as pa

from tailrace.change import Column
from tailrace.sinks.messages.connect_type import TypeOptions, connect_type
from tailrace.types import numeric_modifier

_FUNCTION: Final = re.compile(r"\(?[A-Za-z0-9_.]+\(.*\)", re.DOTALL)
_LITERAL: Final = re.compile(r"'((?:[^']|'')*)'")
_CURRENT: Final = frozenset({"current_timestamp", "current_time", "current_date", "localtime", "localtimestamp"})
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
_COMPUTED: Final = {
    **dict.fromkeys(("int2", "int4", "int8", "float4", "float8", "numeric", "varbit"), "0"),
    **dict.fromkeys(("text", "varchar", "bpchar", "xml"), ""),
    **dict.fromkeys(("json", "jsonb"), "{}"),
    "bool": "f",
    "bit": "00",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "date": "1970-01-01",
    "time": "00:00:00",
    "timestamp": "1970-01-01 00:00:00",
    "timestamptz": "1970-01-01 00:00:00+00",
    "interval": "00:00:00",
}
"""By type: what stands for a default that PostgreSQL computes. Other types have no defaults in schemas."""
_DECLARED: Final = 4
"""The smallest modifier of a numeric with a precision."""
_NUMBERS: Final = frozenset({"int2", "int4", "int8", "float4", "float8", "numeric"})


@lru_cache(maxsize=4096)
def default_value(column: Column, options: TypeOptions) -> str | None:
    """Return the default as JSON; None if a schema does not show it."""
    if column.default is None or column.default.startswith("NULL::"):
        return None
    text = _literal(column, column.default)
    if text is None:
        return None
    type_ = connect_type(column, options)
    if type_.schema["type"] == "struct":
        return None
    try:
        (found,) = type_.convert(pa.array([text], pa.string())).to_pylist()
    except (ValueError, pa.ArrowInvalid):
        return None
    return str(found)


def _literal(column: Column, expression: str) -> str | None:
    """Return PostgreSQL's text of the default."""
    type_ = column.type
    if type_.kind == "e":
        match = _LITERAL.match(expression)
        return None if match is None else match[1].replace("''", "'")
    if type_.schema != "pg_catalog" or type_.name not in _COMPUTED:
        return None
    if _FUNCTION.match(expression) or expression.lower() in _CURRENT:
        return _COMPUTED[type_.name]
    match = _LITERAL.search(expression)
    text = expression if match is None else match[1].replace("''", "'")
    if type_.name == "bool":
        return "t" if text.lower() == "true" else "f"
    if type_.name in _NUMBERS and match is None and not _NUMBER.fullmatch(text):
        return None
    if type_.name == "numeric" and column.modifier >= _DECLARED:
        return _scaled(text, numeric_modifier(column.modifier)[1])
    return text


def _scaled(text: str, scale: int) -> str | None:
    """Return a number with as many digits as its column has; None if it has more."""
    if scale < 0 or not _NUMBER.fullmatch(text):
        return text
    number = Decimal(text)
    shown = f"{number:.{scale}f}"
    return shown if Decimal(shown) == number else None
