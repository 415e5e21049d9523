"""PostgreSQL type → Arrow type, JSON form, Python value: one table, for every part of Tailrace.

`mapping(column)` gives a column's row of the table, with domains resolved and modifiers applied. Types the
table does not name (enums, composites, arrays, ranges, extensions' types, unknown ones) are strings:
PostgreSQL's own text.

A value that its Arrow type cannot hold (NaN in a decimal, 24:00:00, a timestamp beyond int64) is NULL in its
column, and its text stands in a map beside the row, column name → text (`SPECIALS`).
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
"""Arrow field metadata: the column's type as SQL names it, such as `numeric(10,2)` or `public.mood`."""

SPECIALS: Final = pa.map_(pa.string(), pa.string())

INTERVAL: Final = pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())])


class Form(Enum):
    """How a type's text is written: what a parser of it has to know."""

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
class Mapping:
    """What one PostgreSQL type is in Tailrace. Texts are UTF-8, as they stand in a change's image."""

    form: Form
    arrow: pa.DataType
    parse: Callable[[str], Any]

    def arrow_value(self, value: bytes | None) -> Any:
        """The value Arrow stores, in plain Python (temporal values as integers), or `text.SPECIAL`."""
        return None if value is None else self._read(self.parse, value)

    def python_value(self, value: bytes | None) -> bool | int | float | Decimal | bytes | str | None:
        if value is None:
            return None
        return self._read(_PYTHON.get(self.form, str), value)  # type: ignore[no-any-return]

    def json_text(self, value: bytes | None) -> str:
        """One line of JSON. Numbers keep PostgreSQL's digits; json and jsonb are nested as they are."""
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
    # JSON allows raw line ends only between tokens, so this changes no string.
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


def _integer(bits: int, arrow: pa.DataType) -> Mapping:
    return Mapping(Form.INTEGER, arrow, partial(text.integer, low=-(2 ** (bits - 1)), high=2 ** (bits - 1) - 1))


TEXT: Final = Mapping(Form.TEXT, pa.string(), str)
"""Any value as PostgreSQL's own text."""
_NUMERIC: Final = Mapping(Form.NUMERIC, pa.string(), str)
_JSON_TEXT: Final = Mapping(Form.JSON, pa.string(), str)

_TABLE: Final[dict[str, Mapping]] = {
    "bool": Mapping(Form.BOOLEAN, pa.bool_(), text.boolean),
    "int2": _integer(16, pa.int16()),
    "int4": _integer(32, pa.int32()),
    "int8": _integer(64, pa.int64()),
    "oid": _integer(64, pa.int64()),
    "float4": Mapping(Form.FLOAT, pa.float32(), text.float32),
    "float8": Mapping(Form.FLOAT, pa.float64(), text.float64),
    "numeric": _NUMERIC,
    "money": Mapping(Form.MONEY, pa.decimal128(19, 2), text.money),
    "bytea": Mapping(Form.BINARY, pa.binary(), text.binary),
    "date": Mapping(Form.DATE, pa.date32(), text.date),
    "timestamp": Mapping(Form.TIMESTAMP, pa.timestamp("us"), partial(text.timestamp, zone=None)),
    "timestamptz": Mapping(Form.TIMESTAMPTZ, pa.timestamp("us", "UTC"), partial(text.timestamp, zone="+00")),
    "time": Mapping(Form.TIME, pa.time64("us"), text.time),
    "interval": Mapping(Form.INTERVAL, INTERVAL, text.interval),
    "json": _JSON_TEXT,
    "jsonb": _JSON_TEXT,
}
"""The types of `pg_catalog` that are more than their text."""


def mapping(column: Column) -> Mapping:
    return _mapping(column.type, column.modifier)


@lru_cache(maxsize=4096)
def _mapping(declared: Type, modifier: int) -> Mapping:
    type_, modifier = base(declared, modifier)
    if type_.schema != "pg_catalog" or type_.kind != "b":
        return TEXT
    if type_.name == "numeric" and modifier >= 4:
        precision, scale = numeric_modifier(modifier)
        if 1 <= precision <= 38 and 0 <= scale <= precision:
            parse = partial(text.decimal, precision=precision, scale=scale)
            return Mapping(Form.DECIMAL, pa.decimal128(precision, scale), parse)
    return _TABLE.get(type_.name, TEXT)


def base(type_: Type, modifier: int) -> tuple[Type, int]:
    """A domain's type underneath, through any number of domains, and the modifier that holds there."""
    while type_.kind == "d" and type_.base is not None:
        modifier = type_.base_modifier if type_.base_modifier != -1 else modifier
        type_ = type_.base
    return type_, modifier


def numeric_modifier(modifier: int) -> tuple[int, int]:
    """Precision and scale; the scale may be negative, or larger than the precision."""
    packed = modifier - 4
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400


def field(column: Column) -> pa.Field:
    """Nullable always: a delete's old image, and special values, have NULL where the table could not."""
    metadata = {TYPE_METADATA: sql_name(column.type, column.modifier).encode()}
    return pa.field(column.name, mapping(column).arrow, metadata=metadata)


def schema(relation: Relation, as_text: bool = False) -> pa.Schema:
    fields = [field(column) for column in relation.columns]
    return pa.schema([f.with_type(TEXT.arrow) for f in fields] if as_text else fields)


def sql_name(type_: Type, modifier: int = -1) -> str:
    """The type as SQL would declare it; names are quoted where SQL would need it."""
    if type_.element is not None:
        return sql_name(type_.element, modifier) + "[]"
    if type_.schema != "pg_catalog":
        return f"{_identifier(type_.schema)}.{_identifier(type_.name)}"
    if type_.name == "char":
        return '"char"'  # without quotes SQL means bpchar
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
"""Where format_type says something else than pg_type does."""


def data_type(type_: Type) -> str:
    """As information_schema has it: `timestamp with time zone`, `ARRAY`, `USER-DEFINED`; a domain is its base type."""
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
