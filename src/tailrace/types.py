"""The one table that maps PostgreSQL types to Arrow types, JSON and Python values.

`mapping(column)` returns a column's entry, with domains resolved and modifiers applied. Types that the table does not
name (enums, composites, arrays, ranges, types of extensions, unknown types) are strings with PostgreSQL's own text.

A value that its Arrow type cannot hold (NaN in a decimal, 24:00:00, a timestamp beyond int64) is NULL in its column.
Its text is in a map beside the row, from column name to text (`SPECIALS`).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from typing import Any, Final

import pyarrow as pa

from tailrace import text
from tailrace.change import Column, Relation, Type
from tailrace.errors import DecodeError

TYPE_METADATA: Final = b"postgres.type"
"""Arrow field metadata: the column's type in SQL, such as `numeric(10,2)` or `public.mood`."""

SPECIALS: Final = pa.map_(pa.string(), pa.string())

INTERVAL: Final = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])


class Form(Enum):
    """The text format of a type: what a parser has to know about it."""

    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    DECIMAL = "decimal"
    MONEY = "money"
    TEXT = "text"
    NUMERIC = "numeric"
    JSON = "json"
    BINARY = "binary"
    DATE = "date"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    TIME = "time"
    INTERVAL = "interval"


@dataclass(frozen=True, slots=True)
class TypeMapping:
    """How Tailrace represents one PostgreSQL type. Values are UTF-8 text, as in a change's image."""

    form: Form
    arrow: pa.DataType
    parse: Callable[[str], Any]

    def arrow_value(self, value: bytes | None) -> Any:
        """The value that Arrow stores, in plain Python (temporal values are integers), or `text.SPECIAL`."""
        return None if value is None else self._read(self.parse, value)

    def python_value(self, value: bytes | None) -> bool | int | float | Decimal | bytes | str | None:
        if value is None:
            return None
        return self._read(_PYTHON.get(self.form, str), value)  # type: ignore[no-any-return]

    def json_text(self, value: bytes | None) -> str:
        """The value as one line of JSON. Numbers retain PostgreSQL's digits; json and jsonb are nested as they are."""
        return "null" if value is None else self._read(_JSON.get(self.form, _quote), value)

    def _read(self, reader: Callable[[str], Any], value: bytes) -> Any:
        try:
            return reader(str(value, "utf-8"))
        except UnicodeDecodeError:
            raise DecodeError("a value is not valid UTF-8") from None
        except ValueError as reason:
            raise DecodeError(f"a value's text does not follow PostgreSQL's format: {reason}") from None


def _quote(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _number(value: str) -> str:
    return _quote(value) if value in ("NaN", "Infinity", "-Infinity") else value


def _nested(value: str) -> str:
    # JSON allows raw line breaks only between tokens, so this changes no string.
    return value.replace("\r", " ").replace("\n", " ")


_JSON: Final[dict[Form, Callable[[str], str]]] = {
    Form.BOOLEAN: lambda value: "true" if text.boolean(value) else "false",
    Form.INTEGER: str,
    Form.FLOAT: _number,
    Form.DECIMAL: _number,
    Form.NUMERIC: _number,
    Form.JSON: _nested,
}

_PYTHON: Final[dict[Form, Callable[[str], Any]]] = {
    Form.BOOLEAN: text.boolean,
    Form.INTEGER: int,
    Form.FLOAT: float,
    Form.DECIMAL: Decimal,
    Form.NUMERIC: Decimal,
    Form.MONEY: text.money,
    Form.BINARY: text.binary,
}


def _integer(bits: int, arrow: pa.DataType) -> TypeMapping:
    return TypeMapping(Form.INTEGER, arrow, partial(text.integer, low=-(2 ** (bits - 1)), high=2 ** (bits - 1) - 1))


TEXT: Final = TypeMapping(Form.TEXT, pa.string(), str)
"""The mapping that retains any value as PostgreSQL's own text."""
BINARY: Final = TypeMapping(Form.BINARY, pa.binary(), text.binary)
_NUMERIC: Final = TypeMapping(Form.NUMERIC, pa.string(), str)
_JSON_TEXT: Final = TypeMapping(Form.JSON, pa.string(), str)

_TABLE: Final[dict[str, TypeMapping]] = {
    "bool": TypeMapping(Form.BOOLEAN, pa.bool_(), text.boolean),
    "int2": _integer(16, pa.int16()),
    "int4": _integer(32, pa.int32()),
    "int8": _integer(64, pa.int64()),
    "oid": _integer(64, pa.int64()),
    "float4": TypeMapping(Form.FLOAT, pa.float32(), text.float32),
    "float8": TypeMapping(Form.FLOAT, pa.float64(), text.float64),
    "numeric": _NUMERIC,
    "money": TypeMapping(Form.MONEY, pa.decimal128(19, 2), text.money),
    "bytea": BINARY,
    "date": TypeMapping(Form.DATE, pa.date32(), text.date),
    "timestamp": TypeMapping(Form.TIMESTAMP, pa.timestamp("us"), partial(text.timestamp, zone=None)),
    "timestamptz": TypeMapping(Form.TIMESTAMPTZ, pa.timestamp("us", "UTC"), partial(text.timestamp, zone="+00")),
    "time": TypeMapping(Form.TIME, pa.time64("us"), text.time),
    "interval": TypeMapping(Form.INTERVAL, INTERVAL, text.interval),
    "json": _JSON_TEXT,
    "jsonb": _JSON_TEXT,
}
"""The types of `pg_catalog` that are not represented as plain text."""


def mapping(column: Column) -> TypeMapping:
    return _mapping(column.type, column.modifier)


@lru_cache(maxsize=4096)
def _mapping(declared: Type, modifier: int) -> TypeMapping:
    type_, modifier = base(declared, modifier)
    if type_.schema != "pg_catalog" or type_.kind != "b":
        return TEXT
    if type_.name == "numeric" and modifier >= 4:
        precision, scale = numeric_modifier(modifier)
        if 1 <= precision <= 38 and 0 <= scale <= precision:
            parse = partial(text.decimal, precision=precision, scale=scale)
            return TypeMapping(Form.DECIMAL, pa.decimal128(precision, scale), parse)
    return _TABLE.get(type_.name, TEXT)


def base(type_: Type, modifier: int) -> tuple[Type, int]:
    """The type under any number of domains, and the modifier that applies to it."""
    while type_.kind == "d" and type_.base is not None:
        modifier = type_.base_modifier if type_.base_modifier != -1 else modifier
        type_ = type_.base
    return type_, modifier


def numeric_modifier(modifier: int) -> tuple[int, int]:
    """Return precision and scale. The scale may be negative, or larger than the precision."""
    packed = modifier - 4
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400


def field(column: Column) -> pa.Field:
    """The column's Arrow field.

    It is always nullable: old images of deletes and special values are NULL even if the column is NOT NULL.
    """
    metadata = {TYPE_METADATA: sql_name(column.type, column.modifier).encode()}
    return pa.field(column.name, mapping(column).arrow, metadata=metadata)


def schema(relation: Relation, as_text: bool = False) -> pa.Schema:
    fields = [field(column) for column in relation.columns]
    return pa.schema([f.with_type(TEXT.arrow) for f in fields] if as_text else fields)


def sql_name(type_: Type, modifier: int = -1) -> str:
    """The type as SQL declares it, with names quoted where SQL requires it."""
    if type_.element is not None:
        return sql_name(type_.element, modifier) + "[]"
    if type_.schema != "pg_catalog":
        return f"{_identifier(type_.schema)}.{_identifier(type_.name)}"
    if type_.name == "char":
        return '"char"'  # SQL reads it as bpchar without the quotes
    return type_.name + (_modifier(type_.name, modifier) if modifier >= 0 else "")


SQL_NAMES: Final = {
    "bool": "boolean",
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "varchar": "character varying",
    "bpchar": "character",
    "timestamptz": "timestamp with time zone",
    "timestamp": "timestamp without time zone",
    "timetz": "time with time zone",
    "time": "time without time zone",
    "varbit": "bit varying",
    "char": '"char"',
}
"""Names for which format_type differs from pg_type."""


def data_type(type_: Type) -> str:
    """The type in information_schema: `timestamp with time zone`, `ARRAY`, `USER-DEFINED`; for a domain its base."""
    if type_.kind == "d" and type_.base is not None:
        type_ = type_.base
    if type_.schema != "pg_catalog" and type_.element is None:
        return "USER-DEFINED"
    if type_.element is not None or type_.name in ("int2vector", "oidvector"):
        return "ARRAY"
    return SQL_NAMES.get(type_.name, type_.name)


def _identifier(name: str) -> str:
    plain = name.isascii() and name.isidentifier() and name == name.lower()
    return name if plain else '"' + name.replace('"', '""') + '"'


_INTERVAL_FIELDS: Final = {2: "year", 1: "month", 3: "day", 10: "hour", 11: "minute", 12: "second"}


def _modifier(name: str, modifier: int) -> str:
    if name == "numeric":
        precision, scale = numeric_modifier(modifier)
        return f"({precision},{scale})"
    if name in ("varchar", "bpchar"):
        return f"({modifier - 4})"
    if name in ("bit", "varbit", "time", "timetz", "timestamp", "timestamptz"):
        return f"({modifier})"
    if name == "interval":
        fields = [word for bit, word in _INTERVAL_FIELDS.items() if modifier >> 16 >> bit & 1]
        limits = "" if len(fields) == 6 else " " + " to ".join(dict.fromkeys((fields[0], fields[-1])))
        precision = modifier & 0xFFFF
        return limits + ("" if precision == 0xFFFF else f"({precision})")
    return ""
