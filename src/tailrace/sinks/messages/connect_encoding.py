"""Payloads of Kafka Connect with a schema registry: as Confluent's Avro and JSON Schema converters write them."""

from __future__ import annotations

import json
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.sinks.messages import avro, connect_avro, connect_json_schema
from tailrace.sinks.messages.avro_type import avro_type
from tailrace.sinks.messages.connect_avro import DECIMAL, ConnectSchema, branches
from tailrace.sinks.messages.connect_payload import ConnectColumn, ConnectPayload, ConnectStruct
from tailrace.sinks.messages.connect_schema import quoted_strings
from tailrace.sinks.messages.payload import Integers, Texts
from tailrace.sinks.messages.piece import Pieces, join
from tailrace.sinks.messages.schema_registry import AVRO, JSON, Schema
from tailrace.types import Form, mapping

Mask = npt.NDArray[np.bool_]


@lru_cache(maxsize=1024)
def avro_schema(connect: str) -> Schema:
    """Return the Avro schema for a schema that Connect's JSON converter printed."""
    schema = connect_avro.avro_schema(_parsed(connect))
    return Schema(AVRO, schema["name"], json.dumps(schema, ensure_ascii=False))


@lru_cache(maxsize=1024)
def json_schema(connect: str) -> Schema:
    """Return the JSON Schema for a schema that Connect's JSON converter printed."""
    schema = connect_json_schema.json_schema(_parsed(connect))
    return Schema(JSON, schema["title"], json.dumps(schema, ensure_ascii=False))


@lru_cache(maxsize=1024)
def _parsed(connect: str) -> ConnectSchema:
    found: ConnectSchema = json.loads(connect)
    return found


def avro_pieces(payload: ConnectPayload, count: int) -> Pieces:
    """Return the pieces of `count` messages in Avro."""
    return _fields(_parsed(payload.schema), payload.value, count, payload.present)


def json_pieces(payload: ConnectPayload, count: int) -> Pieces:
    """Return the messages in JSON."""
    return [payload.value.json(count).cast(pa.binary())]


def _fields(connect: ConnectSchema, value: ConnectStruct, count: int, rows: Mask | None) -> Pieces:
    """Encode a structure in the rows whose values count (None: all). The fields have the order of the schema."""
    values = dict(value.fields)
    found: Pieces = []
    for field in connect["fields"]:
        match values[field["field"]]:
            case str() as constant:
                found.append(connect_avro.encoded_value(field, json.loads(constant)))
            case ConnectColumn() as column:
                found += _column(field, column, count, rows)
            case ConnectStruct() as nested:
                found += _nested(field, nested, count, rows)
            case Texts() | Integers() as typed:
                found += _typed(field, typed)
            case texts:
                found += connect_avro.json_pieces(field, texts, rows)
    return found


def _typed(connect: ConnectSchema, column: Texts | Integers) -> Pieces:
    if isinstance(column.values, int | str):
        return [connect_avro.encoded_value(connect, column.values)]
    return (avro.binaries if isinstance(column, Texts) else avro.integers)(column.values, branches(connect))


def _nested(connect: ConnectSchema, value: ConnectStruct, count: int, rows: Mask | None) -> Pieces:
    optional, present = branches(connect), value.present
    if optional is None:
        return _fields(connect, value, count, rows)
    head = bytes([optional.value])
    if present is None or present.all():
        return [head, *_fields(connect, value, count, rows)]
    if not present.any():
        return [avro.null(optional)]
    inner = present if rows is None else present & rows
    return [avro.if_present(present, join([head, *_fields(connect, value, count, inner)], count), optional)]


def _column(connect: ConnectSchema, value: ConnectColumn, count: int, rows: Mask | None) -> Pieces:
    if value.replaced is None or not value.replaced.any():
        return _values(connect, value, rows)
    replacement = connect_avro.encoded_value(connect, json.loads(value.replacement))
    if value.replaced.all():
        return [replacement]
    kept = ~value.replaced if rows is None else ~value.replaced & rows
    values = join(_values(connect, value, kept), count)
    return [pc.if_else(pa.array(value.replaced), pa.scalar(replacement), values)]


def _values(connect: ConnectSchema, value: ConnectColumn, rows: Mask | None) -> Pieces:
    if not _is_direct(connect, value):
        return connect_avro.json_pieces(connect, value.type.convert(value.texts), rows)
    optional = branches(connect)
    if optional is None:
        connect_avro.refuse_nulls(value.texts, rows)
    if connect["type"] == "string":
        return avro.binaries(value.texts, optional)
    return avro_type(value.column).encode(value.texts, optional)


def _is_direct(connect: ConnectSchema, value: ConnectColumn) -> bool:
    """Return whether PostgreSQL's texts can be encoded without making JSON of them first, which takes longer."""
    form = mapping(value.column).form
    match connect["type"], connect.get("name"):
        case "string", _:
            return value.type.convert is quoted_strings
        case "bytes", name if name == DECIMAL:
            has_scale = form in (Form.DECIMAL, Form.MONEY)
            return has_scale and mapping(value.column).arrow.scale == int(connect["parameters"]["scale"])
        case "boolean", None:
            return form is Form.BOOLEAN
        case "int16" | "int32" | "int64", None:
            return form is Form.INTEGER
        case "float" | "double", None:
            return form is Form.FLOAT
    return False
