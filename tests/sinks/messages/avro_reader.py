"""Reads Avro with fastavro, an implementation that is not Tailrace's.

Python's dates end in the year 9999, so dates and times are read as the numbers that Avro has for them.
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa

from tailrace.sinks.messages.connect_payload import ConnectPayload
from tailrace.sinks.messages.payload import Record
from tailrace.sinks.messages.piece import join
from tailrace.sinks.messages.registry_encoding import AvroFormat

_AS_NUMBERS = ("date", "time-micros", "time-millis", "timestamp-micros", "timestamp-millis", "local-timestamp-micros")


class BareAvro:
    """The encoding without a registry: messages are Avro alone, and the schemas are noted."""

    content_type = "avro/binary"

    def __init__(self) -> None:
        self.key: Any = None
        self.value: Any = None

    def encode_keys(self, keys: Record | ConnectPayload, destinations: pa.Array) -> pa.Array:
        self.key, encoded = self._encode(keys, len(destinations))
        return encoded

    def encode_values(self, values: Record | ConnectPayload, destinations: pa.Array) -> pa.Array:
        self.value, encoded = self._encode(values, len(destinations))
        return encoded

    def _encode(self, payload: Record | ConnectPayload, count: int) -> tuple[Any, pa.Array]:
        made = AvroFormat("shop")
        return json.loads(made.schema(payload).text), join(made.pieces(payload, count), count, payload.present)


def read(schema: Any, data: bytes) -> Any:
    """Read one message, which must be complete and have nothing after it."""
    source = io.BytesIO(data)
    found: Any = fastavro.schemaless_reader(source, fastavro.parse_schema(_without_times(schema)), None)
    assert not source.read(), "there are bytes after the message"
    return found


def _without_times(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_times(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("logicalType") in _AS_NUMBERS:
        return schema["type"]
    return {
        key: _without_times(value) if key in ("type", "items", "fields") else value for key, value in schema.items()
    }
