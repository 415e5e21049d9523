"""Kafka Connect's schemas and values as Avro, as Confluent's Avro converter writes them.

The converter stores what Avro lacks in properties: `connect.name`, `connect.version`, `connect.parameters`. Names are
adjusted as Debezium does with `schema.name.adjustment.mode` and `field.name.adjustment.mode` = avro: a character that
Avro does not allow becomes an underscore. Names that Avro allows stay the same, so it is always on.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import ConfigError
from tailrace.sinks.messages import avro
from tailrace.sinks.messages.avro import NULL_FIRST, NULL_LAST, Branches
from tailrace.sinks.messages.piece import Pieces

Mask = npt.NDArray[np.bool_]
ConnectSchema = Mapping[str, Any]
"""As Connect's JSON converter prints it."""

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
_PRECISION: Final = "connect.decimal.precision"
_DEFAULT_PRECISION: Final = 64
_TYPES: Final = {"int8": "int", "int16": "int", "int32": "int", "int64": "long"}
_INTEGERS: Final = tuple(_TYPES)
_SMALL_INTEGERS: Final = ("int8", "int16")
_LOGICAL: Final = {
    DECIMAL: "decimal",
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Time": "time-millis",
    "org.apache.kafka.connect.data.Timestamp": "timestamp-millis",
}


def avro_schema(connect: ConnectSchema) -> Any:
    """Return the Avro schema of a schema that is not optional."""
    return _type(connect, set())


def _type(connect: ConnectSchema, defined: set[str]) -> Any:
    kind = connect["type"]
    if kind == "struct":
        return _record(connect, defined)
    name = _TYPES.get(kind, kind)
    properties = _properties(connect)
    if kind == "array":
        return {"type": "array", "items": _optional(connect["items"], defined), **properties}
    return {"type": name, **properties} if properties else name


def _record(connect: ConnectSchema, defined: set[str]) -> Any:
    name = adjusted_name(connect["name"])
    if name in defined:
        return name
    defined.add(name)
    names = [_field_name(field["field"]) for field in connect["fields"]]
    _refuse_equal(names, [field["field"] for field in connect["fields"]], connect["name"])
    fields = []
    for adjusted, field in zip(names, connect["fields"], strict=True):
        shape = {"name": adjusted, "type": _optional(field, defined)}
        if "default" in field:
            shape["default"] = _default(field, field["default"])
        elif field.get("optional"):
            shape["default"] = None
        fields.append(shape)
    return {"type": "record", "name": name, "fields": fields, **_properties({**connect, "name": name})}


def _properties(connect: ConnectSchema) -> dict[str, Any]:
    """Return the properties in the order in which the converter adds them: a registry compares texts."""
    found: dict[str, Any] = {}
    name = connect.get("name")
    parameters = connect.get("parameters", {})
    if name == DECIMAL:
        found["scale"] = int(parameters["scale"])
        found["precision"] = int(parameters.get(_PRECISION, _DEFAULT_PRECISION))
    if "doc" in connect:
        found["connect.doc"] = connect["doc"]
    if "version" in connect:
        found["connect.version"] = connect["version"]
    if parameters:
        found["connect.parameters"] = dict(parameters)
    if "default" in connect:
        found["connect.default"] = _default(connect, connect["default"])
    if name is not None:
        found["connect.name"] = name
    if connect["type"] in _SMALL_INTEGERS:
        found["connect.type"] = connect["type"]
    if name in _LOGICAL:
        found["logicalType"] = _LOGICAL[name]
    return found


def _optional(connect: ConnectSchema, defined: set[str]) -> Any:
    type_ = _type(connect, defined)
    if not connect.get("optional"):
        return type_
    return ["null", type_] if branches(connect) is NULL_FIRST else [type_, "null"]


def branches(connect: ConnectSchema) -> Branches | None:
    """Return the branches of an optional type; None if it is not optional. Avro wants the type of a default first."""
    if not connect.get("optional"):
        return None
    return NULL_LAST if "default" in connect and connect["type"] != "struct" else NULL_FIRST


def _default(connect: ConnectSchema, value: Any) -> Any:
    match connect["type"]:
        case "bytes" if isinstance(value, str):
            return base64.b64decode(value).decode("latin-1")  # as Avro's JSON writes bytes
        case "struct" if isinstance(value, dict):
            return {
                _field_name(field["field"]): _default(field, value.get(field["field"])) for field in connect["fields"]
            }
        case "array" if isinstance(value, list):
            return [_default(connect["items"], item) for item in value]
    return value


def adjusted_name(name: str) -> str:
    """Adjust the full name of a schema."""
    return ".".join(_field_name(part) for part in name.split("."))


def _field_name(name: str) -> str:
    adjusted = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return f"_{adjusted}" if adjusted[:1].isdigit() else adjusted


def _refuse_equal(adjusted: Sequence[str], names: Sequence[str], schema: str) -> None:
    for place, name in enumerate(adjusted):
        if name in adjusted[:place]:
            other = names[adjusted.index(name)]
            raise ConfigError(
                f"fields {other} and {names[place]} of {schema} have the same name in Avro, {name}",
                "Exclude one of them with `columns` in the sink's settings, or use another encoding.",
            )


def refuse_nulls(values: pa.Array, rows: Mask | None) -> None:
    """Raise ValueError if a value is null in one of these rows (None: all)."""
    if values.null_count:
        is_null = pc.is_null(values).to_numpy(zero_copy_only=False)
        if (is_null if rows is None else is_null & rows).any():
            raise ValueError("a value that must not be null is missing")


def json_pieces(connect: ConnectSchema, texts: pa.Array, rows: Mask | None = None) -> Pieces:
    """Encode values that are JSON texts, as Connect's JSON converter writes them; NULL and `null` are null.

    Only in the rows whose values count (None: all); those of others mean nothing.
    """
    present = pc.if_else(pc.equal(texts, "null"), pa.scalar(None, pa.string()), texts)
    optional = branches(connect)
    if optional is None:
        refuse_nulls(present, rows)
    match connect["type"]:
        case kind if kind in _INTEGERS:
            return avro.integers(present.cast(pa.int64()), optional)
        case "boolean":
            return avro.booleans(pc.equal(present, "true"), optional)
        case "float" | "double":
            type_ = pa.float32() if connect["type"] == "float" else pa.float64()
            return avro.floats(pc.replace_substring(present, '"', "").cast(type_), optional)
        case "string":
            return avro.binaries(_unquoted(present), optional)
    distinct = present.dictionary_encode()
    required = {**connect, "optional": False}
    encoded = [encoded_value(required, json.loads(text)) for text in distinct.dictionary.to_pylist()]
    rows = pa.array(encoded, pa.binary()).take(distinct.indices)
    return avro.each(rows, optional)


def _unquoted(texts: pa.Array) -> pa.Array:
    """Return the strings that JSON texts stand for."""
    plain = pc.utf8_slice_codeunits(texts, 1, -1)
    if not pc.any(pc.match_substring(texts, "\\")).as_py():
        return plain
    escaped = pc.match_substring_regex(texts, r'\\[^"]')
    plain = pc.replace_substring(plain, r"\"", '"')
    if not pc.any(escaped).as_py():
        return plain
    # Other escapes are rare, so these values are read one by one.
    read = [json.loads(text) for text in texts.filter(escaped).to_pylist()]
    return pc.replace_with_mask(plain, pc.fill_null(escaped, False), pa.array(read, pa.string()))


def encoded_value(connect: ConnectSchema, value: Any) -> bytes:
    """Encode one value, given as Python's JSON reader returns it."""
    optional = branches(connect)
    if optional is not None:
        if value is None:
            return avro.null(optional)
        return bytes([optional.value]) + encoded_value({**connect, "optional": False}, value)
    match connect["type"]:
        case kind if kind in _INTEGERS:
            return avro.integer(int(value))
        case "boolean":
            return b"\1" if value else b"\0"
        case "float":
            return struct.pack("<f", float(value))
        case "double":
            return struct.pack("<d", float(value))
        case "string":
            return avro.text(value)
        case "bytes":
            return avro.binary(base64.b64decode(value))
        case "array":
            items = [encoded_value(connect["items"], item) for item in value]
            return avro.array(items)
        case "struct":
            return b"".join(encoded_value(field, value.get(field["field"])) for field in connect["fields"])
    raise ValueError(f"Connect's type {connect['type']} has no Avro encoding here")
