"""The one table that maps PostgreSQL's types to those of MySQL and MariaDB. `docs/sinks/mysql.md` explains it.

Types that the table does not name (arrays, json, ranges, composites, types of extensions, unknown types) are text, as
PostgreSQL prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tailrace.change import Column
from tailrace.sinks.mysql.number_conversion import (
    FLOAT4,
    FLOAT8,
    MAX_DIGITS,
    MAX_SCALE,
    DecimalConversion,
    MoneyConversion,
)
from tailrace.sinks.mysql.time_conversion import DateConversion, TimeConversion, TimestampConversion
from tailrace.sinks.mysql.unrepresentable import PARTIAL_TYPES
from tailrace.sinks.mysql.value_conversion import (
    TEXT,
    BinaryConversion,
    BooleanConversion,
    Conversion,
    TextConversion,
    WideIntegerConversion,
)
from tailrace.types import base, numeric_modifier

CHARACTER_BYTES: Final = 4
"""The most that a character of utf8mb4 has. MySQL counts it for every character that a column may hold."""
MAX_VARCHAR: Final = 255
"""Longer texts are LONGTEXT: they would use up the 65,535 bytes that a row may have outside of such columns."""
_LONG_BYTES: Final = 12
"""Of a row, for a LONGTEXT or LONGBLOB."""
_MAX_INLINE_BYTES: Final = 255
"""InnoDB can move values of types with more bytes out of a row's page."""
_MOVED_BYTES: Final = 41
"""What is left in the page: 20 bytes in MariaDB, 40 in MySQL, and the length."""
_NAME_CHARACTERS: Final = 63


@dataclass(frozen=True)
class MysqlType:
    sql: str
    """The declaration, without a collation."""
    row_bytes: int
    """What it takes of the 65,535 bytes of a row, and of the 3,072 of a key."""
    conversion: Conversion
    characters: int | None = None
    """Of a VARCHAR."""
    is_text: bool = False
    """Whether it has the table's collation."""
    is_long: bool = False
    """LONGTEXT and LONGBLOB cannot be part of a key."""

    @property
    def is_binary(self) -> bool:
        return isinstance(self.conversion, BinaryConversion)

    @property
    def page_bytes(self) -> int:
        """What it takes of the 8,126 bytes of a row that must fit into one page of InnoDB."""
        return _MOVED_BYTES if self.is_long or self.row_bytes > _MAX_INLINE_BYTES + 1 else self.row_bytes


def varchar(characters: int, *, is_limit: bool = False) -> MysqlType:
    """A text type.

    Args:
        characters: Its length.
        is_limit: Whether PostgreSQL's type may have longer texts.
    """
    conversion = TextConversion(characters) if is_limit else TEXT
    size = characters * CHARACTER_BYTES
    return MysqlType(f"VARCHAR({characters})", size + (1 if size < 256 else 2), conversion, characters, is_text=True)


def varbinary(size: int) -> MysqlType:
    """A type for bytes in a key."""
    return MysqlType(f"VARBINARY({size})", size + (1 if size < 256 else 2), BinaryConversion(size))


LONGTEXT: Final = MysqlType("LONGTEXT", _LONG_BYTES, TEXT, is_text=True, is_long=True)
LONGBLOB: Final = MysqlType("LONGBLOB", _LONG_BYTES, BinaryConversion(), is_long=True)

_INTEGER: Final = Conversion()
_FIXED: Final[Mapping[str, MysqlType]] = {
    "bool": MysqlType("BOOLEAN", 1, BooleanConversion()),
    "int2": MysqlType("SMALLINT", 2, _INTEGER),
    "int4": MysqlType("INT", 4, _INTEGER),
    "int8": MysqlType("BIGINT", 8, _INTEGER),
    "oid": MysqlType("INT UNSIGNED", 4, _INTEGER),
    "xid": MysqlType("INT UNSIGNED", 4, WideIntegerConversion()),
    "cid": MysqlType("INT UNSIGNED", 4, WideIntegerConversion()),
    "xid8": MysqlType("BIGINT UNSIGNED", 8, WideIntegerConversion()),
    "float4": MysqlType("DOUBLE", 8, FLOAT4),
    "float8": MysqlType("DOUBLE", 8, FLOAT8),
    "money": MysqlType("DECIMAL(19,2)", 9, MoneyConversion()),
    "date": MysqlType("DATE", 3, DateConversion()),
    "uuid": MysqlType("CHAR(36) CHARACTER SET ascii COLLATE ascii_bin", 36, TEXT),
    "bytea": LONGBLOB,
}
_SHORT_TEXTS: Final[Mapping[str, int]] = {
    "name": _NAME_CHARACTERS,
    "char": 4,  # a byte beyond ASCII is a backslash and three digits
    "timetz": 24,
    "interval": 80,
    "inet": 49,
    "cidr": 49,
    "macaddr": 17,
    "macaddr8": 23,
    "pg_lsn": 17,
}
"""The most characters that PostgreSQL prints for a value of these types."""


def mysql_type(column: Column, *, as_text: bool) -> MysqlType:
    """The type of a column that is not part of a key.

    Args:
        column: The column.
        as_text: Whether to make it text if its own type has values that MySQL's types cannot hold.
    """
    type_, modifier = base(column.type, column.modifier)
    if type_.kind == "e":
        return varchar(_NAME_CHARACTERS)  # a label is a name
    if type_.schema != "pg_catalog" or type_.kind != "b" or type_.element is not None:
        return LONGTEXT
    if as_text and type_.name in PARTIAL_TYPES:
        return _printed_type(type_.name, modifier)
    if type_.name in _FIXED:
        return _FIXED[type_.name]
    if type_.name in _SHORT_TEXTS:
        return varchar(_SHORT_TEXTS[type_.name])
    make = _WITH_MODIFIER.get(type_.name)
    return LONGTEXT if make is None else make(modifier)


def is_partial(column: Column) -> bool:
    """Whether the column's type has values that MySQL's type cannot hold."""
    type_, _ = base(column.type, column.modifier)
    return type_.schema == "pg_catalog" and type_.name in PARTIAL_TYPES


def _printed_type(name: str, modifier: int) -> MysqlType:
    """The text type for a type whose values MySQL's cannot all hold."""
    if name != "numeric":
        return varchar(40)
    if modifier < 4:
        return LONGTEXT
    precision, scale = numeric_modifier(modifier)
    return _text_type(max(precision, precision - scale, scale) + len("-0."))


def _text_type(characters: int) -> MysqlType:
    return varchar(characters) if characters <= MAX_VARCHAR else LONGTEXT


def _numeric(modifier: int) -> MysqlType:
    if modifier < 4:
        return _decimal(MAX_DIGITS, MAX_SCALE, None)
    precision, declared = numeric_modifier(modifier)
    # A negative scale rounds to tens or hundreds; one larger than the precision has zeros after the point.
    whole, scale = max(precision - declared, 0), max(declared, 0)
    fraction = min(scale, MAX_SCALE)
    return _decimal(min(max(whole + fraction, 1), MAX_DIGITS), fraction, scale)


def _decimal(precision: int, scale: int, declared_scale: int | None) -> MysqlType:
    size = _decimal_bytes(precision - scale) + _decimal_bytes(scale)
    return MysqlType(f"DECIMAL({precision},{scale})", size, DecimalConversion(precision, scale, declared_scale))


def _decimal_bytes(digits: int) -> int:
    return digits // 9 * 4 + (digits % 9 + 1) // 2


def _timestamp(zone: str) -> Callable[[int], MysqlType]:
    def make(modifier: int) -> MysqlType:
        digits = 6 if modifier < 0 else modifier
        return MysqlType(f"DATETIME({digits})", 8, TimestampConversion(zone, digits))

    return make


def _time(modifier: int) -> MysqlType:
    return MysqlType(f"TIME({6 if modifier < 0 else modifier})", 6, TimeConversion())


def _characters(modifier: int) -> MysqlType:
    return LONGTEXT if modifier < 4 else _text_type(modifier - 4)


def _bits(modifier: int) -> MysqlType:
    return LONGTEXT if modifier < 0 else _text_type(modifier)


_WITH_MODIFIER: Final[Mapping[str, Callable[[int], MysqlType]]] = {
    "numeric": _numeric,
    "timestamp": _timestamp(""),
    "timestamptz": _timestamp("+00"),
    "time": _time,
    # Not CHAR, which does not return blanks at the end.
    "bpchar": _characters,
    "varchar": _characters,
    "bit": _bits,
    "varbit": _bits,
}
