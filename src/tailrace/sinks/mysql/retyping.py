"""Which columns can change their type in MySQL with the same values as in PostgreSQL. Pure."""

from __future__ import annotations

from typing import Final

from tailrace.change import Column
from tailrace.sinks.mysql.column_mapping import ColumnMapping
from tailrace.types import base, numeric_modifier

_TEXTS: Final = frozenset({"text", "varchar"})
_INTEGERS: Final = ("int2", "int4", "int8")
_SAME_TEXT: Final = frozenset({*_TEXTS, *_INTEGERS, "name", "uuid", "json", "jsonb"})
"""Types whose cast to text yields the text that MySQL has or makes of them."""
_TIMES: Final = frozenset({"timestamp", "timestamptz"})


def is_same_type(before: Column, after: Column) -> bool:
    """Whether a column still has its type. A domain is its base type, and labels of an enum may be added."""
    return _type_name(before) == _type_name(after) and _modifier(before) == _modifier(after)


def retains_values(before: ColumnMapping, after: ColumnMapping) -> bool:
    """Whether a column of one type can become a column of another in place.

    Values then convert as PostgreSQL's casts do, or the server reports one that does not fit. For all other types, such
    as a boolean that becomes text, MySQL would make another value of it.
    """
    old, new = _type_name(before.column), _type_name(after.column)
    if new in _TEXTS or (new == "json" and old in _TEXTS):
        return _casts_to_its_text(before)
    if _is_printed(before) or _is_printed(after):
        return False
    if old in _INTEGERS:
        is_wider = new in _INTEGERS and _INTEGERS.index(old) <= _INTEGERS.index(new)
        return is_wider or new == "numeric" or (new == "float8" and old != "int8")
    if old == new == "numeric":
        return _scale(before.column) <= _scale(after.column)
    if new in _TIMES:
        # The session's time zone decides at the source; Tailrace takes UTC for it.
        return old == "date" or (old in _TIMES and _digits(before.column) <= _digits(after.column))
    return old == new == "time" and _digits(before.column) <= _digits(after.column)


def _casts_to_its_text(before: ColumnMapping) -> bool:
    type_, modifier = base(before.column.type, before.column.modifier)
    if type_.kind == "e" or _type_name(before.column) in _SAME_TEXT:
        return True
    # A numeric without a scale has other zeros in MySQL.
    return _type_name(before.column) == "numeric" and (_is_printed(before) or modifier >= 4)


def _is_printed(column: ColumnMapping) -> bool:
    """Whether the column is text in MySQL."""
    return column.type.is_text


def _type_name(column: Column) -> str:
    type_, _ = base(column.type, column.modifier)
    return type_.name if type_.schema == "pg_catalog" else f"{type_.schema}.{type_.name}"


def _modifier(column: Column) -> int:
    return base(column.type, column.modifier)[1]


def _scale(column: Column) -> int:
    modifier = _modifier(column)
    return numeric_modifier(modifier)[1] if modifier >= 4 else 1 << 16


def _digits(column: Column) -> int:
    modifier = _modifier(column)
    return 6 if modifier < 0 else modifier
