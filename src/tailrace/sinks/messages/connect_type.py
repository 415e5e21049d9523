"""Kafka Connect's types for PostgreSQL's, as Debezium's PostgreSQL connector chooses them, and values as JSON.

docs/messages.md lists the types for which Debezium's choice differs. A value that the type cannot hold raises
ValueError: the change then cannot be encoded, and becomes a dead letter or stops the sink.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from tailrace import text
from tailrace.change import Column, Type
from tailrace.sinks.messages.connect_number import NUMBERS, base64_text, bits_type, decimal_type, java_float
from tailrace.sinks.messages.connect_schema import (
    ConnectType,
    Convert,
    convert_each,
    named_schema,
    ordered_schema,
    quoted_strings,
)
from tailrace.sinks.messages.connect_time import TimeMode, temporal_type
from tailrace.sinks.messages.literal import array_elements, hstore_pairs
from tailrace.types import base

DecimalMode = Literal["precise", "double", "string"]

UNAVAILABLE: Final = "__debezium_unavailable_value"
_INTEGERS: Final = ("int16", "int32", "int64")


@dataclass(frozen=True)
class TypeOptions:
    decimal: DecimalMode = "precise"
    time: TimeMode = "adaptive"
    unavailable: str = UNAVAILABLE


def connect_type(column: Column, options: TypeOptions) -> ConnectType:
    """Return the type of a column."""
    return _of(*base(column.type, column.modifier), options)


@lru_cache(maxsize=4096)
def _of(type_: Type, modifier: int, options: TypeOptions) -> ConnectType:
    if type_.element is not None:
        return _array(type_.element, modifier, options)
    if type_.kind == "e":
        return _string(options, "io.debezium.data.Enum", parameters={"allowed": ",".join(type_.labels)})
    if type_.schema != "pg_catalog":
        if type_.name == "hstore":
            return _string(options, "io.debezium.data.Json", convert_each(_hstore))
        return _string(options, "io.debezium.data.Ltree" if type_.name == "ltree" else None)
    if (temporal := temporal_type(type_.name, modifier, options.time)) is not None:
        return temporal
    if type_.name in ("numeric", "money"):
        return decimal_type(type_.name, modifier, options.decimal)
    if type_.name in ("bit", "varbit"):
        return bits_type(modifier)
    if type_.name == "bytea":
        placeholder = json.dumps(base64.b64encode(options.unavailable.encode()).decode())
        return ConnectType(
            {"type": "bytes"}, convert_each(lambda value: base64_text(text.binary(value))), '""', placeholder
        )
    if type_.name in _PLAIN:
        return _PLAIN[type_.name]
    return _string(options, _NAMED_STRINGS.get(type_.name))


def _booleans(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, "t"), "true", "false")


def _point(value: str) -> str:
    x, y = (float(part) for part in value.strip("()").split(","))
    wkb = struct.pack("<BIdd", 1, 1, x, y)
    numbers = [java_float({"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(n), repr(n))) for n in (x, y)]
    return f'{{"x":{numbers[0]},"y":{numbers[1]},"wkb":{base64_text(wkb)},"srid":null}}'


_POINT: Final = ConnectType(
    {
        "type": "struct",
        "fields": [
            {"type": "double", "optional": False, "field": "x"},
            {"type": "double", "optional": False, "field": "y"},
            {"type": "bytes", "optional": True, "field": "wkb"},
            {"type": "int32", "optional": True, "field": "srid"},
        ],
        "name": "io.debezium.data.geometry.Point",
        "version": 1,
        "doc": "Geometry (POINT)",
    },
    convert_each(_point),
    _point("(0,0)"),
)

_PLAIN: Final[Mapping[str, ConnectType]] = {
    **NUMBERS,
    "bool": ConnectType({"type": "boolean"}, _booleans, "false"),
    "point": _POINT,
}

_NAMED_STRINGS: Final[Mapping[str, str]] = {
    "json": "io.debezium.data.Json",
    "jsonb": "io.debezium.data.Json",
    "xml": "io.debezium.data.Xml",
    "uuid": "io.debezium.data.Uuid",
    "tsvector": "io.debezium.data.Tsvector",
}


def _string(
    options: TypeOptions, name: str | None = None, convert: Convert = quoted_strings, **more: Any
) -> ConnectType:
    schema = {"type": "string"} if name is None else named_schema("string", name, **more)
    placeholder = json.dumps(options.unavailable, ensure_ascii=False)
    return ConnectType(schema, convert, '""', placeholder, _header_strings if convert is quoted_strings else None)


def _header_strings(texts: pa.Array) -> pa.Array:
    """Quote as Connect does in headers: control characters stay as they are."""
    escaped = pc.replace_substring(pc.replace_substring(texts, "\\", "\\\\"), '"', '\\"')
    return pc.binary_join_element_wise('"', escaped, '"', "")


def _hstore(value: str) -> str:
    pairs = json.dumps(hstore_pairs(value), ensure_ascii=False, separators=(",", ":"))
    return json.dumps(pairs, ensure_ascii=False)


def _array(element: Type, modifier: int, options: TypeOptions) -> ConnectType:
    type_, modifier = base(element, modifier)
    item = _of(type_, modifier, options)
    placeholder = None if item.unavailable is None else f"[{item.unavailable}]"
    if item.schema["type"] in _INTEGERS:
        placeholder = json.dumps(list(options.unavailable.encode()), separators=(",", ":"))
    elif type_.name == "uuid":
        digest = hashlib.md5(options.unavailable.encode(), usedforsecurity=False).digest()
        placeholder = f'["{uuid.UUID(bytes=digest, version=3)}"]'

    def convert(texts: pa.Array) -> pa.Array:
        lists = [None if value is None else array_elements(value) for value in texts.to_pylist()]
        flat = pa.array([one for found in lists for one in found or ()], pa.string())
        elements = iter(item.convert(flat).fill_null("null").to_pylist())
        rows = [None if found is None else f"[{','.join(next(elements) for _ in found)}]" for found in lists]
        return pa.array(rows, pa.string())

    schema = {"type": "array", "items": ordered_schema(item.schema, is_optional=True)}
    return ConnectType(schema, convert, "[]", placeholder)
