"""Kafka Connect's schemas as JSON Schemas, as Confluent's JSON Schema converter writes them."""

from __future__ import annotations

from typing import Any, Final

from tailrace.sinks.messages.connect_avro import ConnectSchema
from tailrace.sinks.messages.json_schema import DIALECT

_INTEGERS: Final = ("int8", "int16", "int32", "int64")
_FLOATS: Final = {"float": "float32", "double": "float64"}


def json_schema(connect: ConnectSchema) -> dict[str, Any]:
    """Return the JSON Schema of a schema that is not optional."""
    return {"$schema": DIALECT, **_type(connect)}


def _type(connect: ConnectSchema) -> dict[str, Any]:
    kind = connect["type"]
    if kind in _INTEGERS:
        found: dict[str, Any] = {"type": "integer", "connect.type": kind}
    elif kind in _FLOATS:
        found = {"type": "number", "connect.type": _FLOATS[kind]}
    elif kind == "bytes":
        found = {"type": "string", "connect.type": "bytes"}
    elif kind == "array":
        found = {"type": "array", "items": _optional(connect["items"])}
    elif kind == "struct":
        properties = {
            field["field"]: {**_optional(field), "connect.index": index}
            for index, field in enumerate(connect["fields"])
        }
        found = {"type": "object", "properties": properties}
    else:
        found = {"type": kind}
    return found | _annotations(connect)


def _annotations(connect: ConnectSchema) -> dict[str, Any]:
    names = {"name": "title", "doc": "description", "version": "connect.version", "default": "default"}
    found = {names[key]: connect[key] for key in names if key in connect}
    return found | ({"connect.parameters": dict(connect["parameters"])} if connect.get("parameters") else {})


def _optional(connect: ConnectSchema) -> dict[str, Any]:
    type_ = _type(connect)
    return {"oneOf": [{"type": "null"}, type_]} if connect.get("optional") else type_
