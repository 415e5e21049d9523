"""Kafka Connect's types for PostgreSQL's, as Debezium's PostgreSQL connector chooses them, and values as JSON.

docs/messages.md lists the types for which Debezium's choice differs. A value that the type cannot hold raises
ValueError: the change then cannot be encoded, and becomes a dead letter or stops the sink.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tailrace import text
from tailrace.change import Column, Type
from tailrace.log import json_columns
from tailrace.sinks.messages import connect_time
from tailrace.sinks.messages.literal import array_elements, hstore_pairs
from tailrace.types import base, numeric_modifier

DecimalMode = Literal["precise", "double", "string"]
TimeMode = Literal["adaptive", "adaptive_time_microseconds", "connect"]
Convert = Callable[[pa.Array], pa.Array]
"""Turns PostgreSQL's texts into JSON texts; NULL stays NULL."""

UNAVAILABLE: Final = "__debezium_unavailable_value"
_UNBOUNDED_BITS: Final = 2**31 - 1
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True)
class ConnectType:
    schema: Mapping[str, Any]
    """As Connect's JSON converter prints it, without `optional` and `field`."""
    convert: Convert
    zero: str = '""'
    """The JSON value of a NOT NULL column that PostgreSQL did not send, in the old row of a delete."""
    unavailable: str | None = None
    """The JSON value for a large value that an update did not change and PostgreSQL did not send."""


@dataclass(frozen=True)
class TypeOptions:
    decimal: DecimalMode = "precise"
    time: TimeMode = "adaptive"
    unavailable: str = UNAVAILABLE


def connect_type(column: Column, options: TypeOptions) -> ConnectType:
    """Return the type of a column."""
    type_, modifier = base(column.type, column.modifier)
    return _of(type_, modifier, options)


def _of(type_: Type, modifier: int, options: TypeOptions) -> ConnectType:
    if type_.element is not None:
        return _array(type_.element, modifier, options)
    if type_.kind == "e":
        return _string(options, "io.debezium.data.Enum", allowed=",".join(type_.labels))
    if type_.schema != "pg_catalog":
        if type_.name == "hstore":
            return _string(options, "io.debezium.data.Json", convert=_each(_hstore))
        return _string(options, "io.debezium.data.Ltree" if type_.name == "ltree" else None)
    if (temporal := connect_time.schema_and_convert(type_.name, modifier, options.time)) is not None:
        schema, convert = temporal
        return ConnectType(schema, convert, '"1970-01-01T00:00:00Z"' if schema["type"] == "string" else "0")
    if type_.name in ("numeric", "money"):
        return _decimal(type_.name, modifier, options)
    if type_.name in ("bit", "varbit"):
        return _bits(_UNBOUNDED_BITS if modifier < 0 else modifier)
    if type_.name == "bytea":
        placeholder = json.dumps(base64.b64encode(options.unavailable.encode()).decode())
        return ConnectType({"type": "bytes"}, _each(lambda value: _base64(text.binary(value))), '""', placeholder)
    if type_.name == "point":
        return _point()
    if type_.name in _PLAIN:
        name, convert, zero = _PLAIN[type_.name]
        return ConnectType({"type": name}, convert, zero)
    return _string(options, _NAMED_STRINGS.get(type_.name))


def _as_is(texts: pa.Array) -> pa.Array:
    return texts


def _each(convert: Callable[[str], str]) -> Convert:
    """Convert value by value. Distinct values only: columns of such types have few, or are rare."""

    def convert_all(texts: pa.Array) -> pa.Array:
        distinct = texts.dictionary_encode()
        converted = [convert(value) for value in distinct.dictionary.to_pylist()]
        return pa.array(converted, pa.string()).take(distinct.indices)

    return convert_all


def _booleans(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, "t"), "true", "false")


def _floats(texts: pa.Array) -> pa.Array:
    is_word = pc.is_in(texts, pa.array(_NOT_FINITE))
    return pc.if_else(is_word, json_columns.quote(texts), texts)


_PLAIN: Final[Mapping[str, tuple[str, Convert, str]]] = {
    "bool": ("boolean", _booleans, "false"),
    "int2": ("int16", _as_is, "0"),
    "int4": ("int32", _as_is, "0"),
    "int8": ("int64", _as_is, "0"),
    "oid": ("int64", _as_is, "0"),
    "float4": ("float", _floats, "0.0"),
    "float8": ("double", _floats, "0.0"),
}

_NAMED_STRINGS: Final[Mapping[str, str]] = {
    "json": "io.debezium.data.Json",
    "jsonb": "io.debezium.data.Json",
    "xml": "io.debezium.data.Xml",
    "uuid": "io.debezium.data.Uuid",
    "tsvector": "io.debezium.data.TsVector",
}


def _string(
    options: TypeOptions, name: str | None = None, convert: Convert = json_columns.quote, **parameters: str
) -> ConnectType:
    schema: dict[str, Any] = {"type": "string"}
    if name is not None:
        schema |= {"name": name, "version": 1}
    if parameters:
        schema["parameters"] = parameters
    return ConnectType(schema, convert, '""', json.dumps(options.unavailable, ensure_ascii=False))


def _hstore(value: str) -> str:
    return json.dumps(json.dumps(hstore_pairs(value), ensure_ascii=False), ensure_ascii=False)


def _base64(value: bytes) -> str:
    return f'"{base64.b64encode(value).decode()}"'


def _decimal(name: str, modifier: int, options: TypeOptions) -> ConnectType:
    def number(value: str) -> str:
        return value.replace("$", "").replace(",", "") if name == "money" else value

    if options.decimal == "double":
        return ConnectType({"type": "double"}, _each(lambda value: _double(number(value))), "0.0")
    if options.decimal == "string":
        return ConnectType({"type": "string"}, _each(lambda value: json.dumps(number(value))), '"0"')
    if name == "numeric" and modifier < 4:
        fields = [
            {"type": "int32", "optional": False, "field": "scale"},
            {"type": "bytes", "optional": False, "field": "value"},
        ]
        schema = {"type": "struct", "fields": fields, "name": "io.debezium.data.VariableScaleDecimal", "version": 1}
        doc = {"doc": "Variable scaled decimal"}
        return ConnectType({**schema, **doc}, _each(_variable_scale), '{"scale":0,"value":"AA=="}')
    precision, scale = (19, 2) if name == "money" else numeric_modifier(modifier)
    parameters = {"scale": str(scale)}
    if name == "numeric":
        parameters["connect.decimal.precision"] = str(precision)
    schema = {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": parameters,
    }
    return ConnectType(schema, _each(lambda value: _base64(_unscaled(_finite(number(value)), scale))), '"AA=="')


def _double(value: str) -> str:
    return json.dumps(value) if value in _NOT_FINITE else repr(float(value))


def _finite(value: str) -> Decimal:
    if value in _NOT_FINITE:
        raise ValueError("a Decimal has no value for it")
    return Decimal(value)


def _variable_scale(value: str) -> str:
    number = _finite(value)
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    shown = list(digits)
    while exponent < 0 and shown[-1] == 0:
        shown.pop()
        exponent += 1
        shown = shown or [0]
    scale = max(-exponent, 0)
    unscaled = _unscaled(Decimal((sign, tuple(shown), exponent)), scale)
    return f'{{"scale":{scale},"value":{_base64(unscaled)}}}'


def _unscaled(number: Decimal, scale: int) -> bytes:
    """Return the unscaled number in two's complement, big-endian, as Java's BigInteger prints it."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    shift = exponent + scale
    magnitude = int("".join(map(str, digits)))
    if shift < 0 and magnitude % 10**-shift:
        raise ValueError("more digits than the scale allows")
    magnitude = magnitude * 10**shift if shift >= 0 else magnitude // 10**-shift
    value: int = -magnitude if sign else magnitude
    # Two's complement needs one bit for the sign; of negative numbers, -2^n fits into n bits beside it.
    bits = (value if value >= 0 else ~value).bit_length() + 1
    return value.to_bytes((bits + 7) // 8, "big", signed=True)


def _bits(length: int) -> ConnectType:
    if length == 1:
        return ConnectType({"type": "boolean"}, _each(lambda value: "true" if value == "1" else "false"), "false")
    schema = {
        "type": "bytes",
        "name": "io.debezium.data.Bits",
        "version": 1,
        "parameters": {"length": str(length)},
    }

    def convert(value: str) -> str:
        number = int(value or "0", 2)
        return _base64(number.to_bytes((number.bit_length() + 7) // 8, "little"))

    return ConnectType(schema, _each(convert))


def _point() -> ConnectType:
    fields = [
        {"type": "double", "optional": False, "field": "x"},
        {"type": "double", "optional": False, "field": "y"},
        {"type": "bytes", "optional": True, "field": "wkb"},
        {"type": "int32", "optional": True, "field": "srid"},
    ]
    schema = {"type": "struct", "fields": fields, "name": "io.debezium.data.geometry.Point", "version": 1}

    def convert(value: str) -> str:
        x, y = (float(part) for part in value.strip("()").split(","))
        wkb = struct.pack("<BIdd", 1, 1, x, y)
        return f'{{"x":{_double(repr(x))},"y":{_double(repr(y))},"wkb":{_base64(wkb)},"srid":null}}'

    return ConnectType(schema, _each(convert), '{"x":0.0,"y":0.0,"wkb":null,"srid":null}')


def _array(element: Type, modifier: int, options: TypeOptions) -> ConnectType:
    type_, modifier = base(element, modifier)
    item = _of(type_, modifier, options)
    placeholder = None if item.unavailable is None else f"[{item.unavailable}]"
    if item.schema["type"] in ("int16", "int32", "int64"):
        placeholder = json.dumps(list(options.unavailable.encode()))

    def convert(texts: pa.Array) -> pa.Array:
        lists = [None if value is None else array_elements(value) for value in texts.to_pylist()]
        flat = pa.array([one for found in lists for one in found or ()], pa.string())
        elements = iter(item.convert(flat).fill_null("null").to_pylist())
        rows = [None if found is None else f"[{','.join(next(elements) for _ in found)}]" for found in lists]
        return pa.array(rows, pa.string())

    return ConnectType({"type": "array", "items": {**item.schema, "optional": True}}, convert, "[]", placeholder)
