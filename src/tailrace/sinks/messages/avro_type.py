"""Avro types for PostgreSQL's, of all envelopes except `debezium`.

docs/messages.md has the table. A value that the type cannot hold raises ValueError: the change then cannot be encoded,
and becomes a dead letter or stops the sink.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column, Type
from tailrace.pgoutput.cell import Cells, UnreadableError, read
from tailrace.sinks.messages import avro
from tailrace.sinks.messages.avro import Branches
from tailrace.sinks.messages.piece import Pieces
from tailrace.text import DATE_INFINITY, TIMESTAMP_INFINITY
from tailrace.types import Form, TypeMapping, base, mapping, numeric_modifier, sql_name

POSTGRES_TYPE: Final = "postgres.type"
"""A property of strings that hold PostgreSQL's text of another type: the type's name."""
_TEXT_TYPES: Final = ("text", "varchar", "bpchar")
_LEAST_NUMERIC_MODIFIER: Final = 4
_LOGICAL: Final[dict[Form, tuple[str, str]]] = {
    Form.DATE: ("int", "date"),
    Form.TIME: ("long", "time-micros"),
    Form.TIMESTAMP: ("long", "local-timestamp-micros"),
    Form.TIMESTAMPTZ: ("long", "timestamp-micros"),
}


@dataclass(frozen=True)
class AvroType:
    schema: Any
    """Without null."""
    encode: Callable[[pa.Array, Branches | None], Pieces]
    """Encodes PostgreSQL's texts. Without branches, a null is encoded as anything."""


def avro_type(column: Column) -> AvroType:
    """Return the type of a column."""
    return _avro_type(column.type, column.modifier)


@lru_cache(maxsize=4096)
def _avro_type(declared: Type, modifier: int) -> AvroType:
    found = mapping(Column("", declared, modifier))
    _, modifier = base(declared, modifier)
    match found.form:
        case Form.BOOLEAN:
            return AvroType("boolean", lambda texts, branches: avro.booleans(_typed(texts, found), branches))
        case Form.INTEGER:
            name = "long" if found.arrow == pa.int64() else "int"
            return AvroType(name, lambda texts, branches: avro.integers(_typed(texts, found), branches))
        case Form.FLOAT:
            name = "float" if found.arrow == pa.float32() else "double"
            return AvroType(name, lambda texts, branches: avro.floats(_typed(texts, found), branches))
        case Form.BINARY:
            return AvroType("bytes", lambda texts, branches: avro.binaries(_typed(texts, found), branches))
        case Form.DECIMAL | Form.MONEY:
            schema = decimal_schema(found.arrow.precision, found.arrow.scale)
            return AvroType(schema, lambda texts, branches: avro.decimals(_typed(texts, found), branches))
        case Form.NUMERIC if modifier >= _LEAST_NUMERIC_MODIFIER:
            return _large_decimal(*numeric_modifier(modifier))
        case Form.DATE | Form.TIME | Form.TIMESTAMP | Form.TIMESTAMPTZ:
            name, logical = _LOGICAL[found.form]
            integer, infinity = (pa.int32(), DATE_INFINITY) if name == "int" else (pa.int64(), TIMESTAMP_INFINITY)

            def encode(texts: pa.Array, branches: Branches | None) -> Pieces:
                numbers = _typed(texts, found).cast(integer)
                if pc.any(pc.is_in(numbers, pa.array([infinity, -infinity], integer))).as_py():
                    raise ValueError("the type has no value for it")
                return avro.integers(numbers, branches)

            return AvroType({"type": name, "logicalType": logical}, encode)
    return AvroType(_string(declared), avro.binaries)


def decimal_schema(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def _large_decimal(precision: int, scale: int) -> AvroType:
    """Return the type of a numeric of more than 38 digits, or with a scale that Avro does not have.

    Avro's scale is not negative, and not larger than the precision.
    """
    digits, places = max(precision - min(scale, 0), scale), max(scale, 0)

    def encode(texts: pa.Array, branches: Branches | None) -> Pieces:
        distinct = texts.dictionary_encode()
        encoded = [avro.decimal_bytes(Decimal(text), places) for text in distinct.dictionary.to_pylist()]
        return avro.binaries(pa.array(encoded, pa.binary()).take(distinct.indices), branches)

    return AvroType(decimal_schema(digits, places), encode)


def postgres_type(declared: Type) -> str | None:
    """Return the name of a type that is a string with PostgreSQL's text; None if it is a type of texts itself."""
    type_, _ = base(declared, -1)
    return None if type_.schema == "pg_catalog" and type_.name in _TEXT_TYPES else sql_name(type_)


def _string(declared: Type) -> Any:
    name = postgres_type(declared)
    if name is None:
        return "string"
    return {"type": "string", **({"logicalType": "uuid"} if name == "uuid" else {POSTGRES_TYPE: name})}


def _typed(texts: pa.Array, found: TypeMapping) -> pa.Array:
    try:
        values, special = read(Cells.of(texts), found)
    except UnreadableError as error:
        raise ValueError(str(error)) from None
    if len(special):
        raise ValueError("the type has no value for it")
    return values
