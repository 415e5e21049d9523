"""The encodings `avro` and `jsonschema`: each message names its schema, which is in a schema registry.

A key or value begins with a zero byte and the schema's id in four bytes, as Confluent's serialisers write it. A schema
belongs to a subject. By default each topic has two, for its keys and its values.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.sinks.messages import avro_encoding, connect_encoding, json_schema
from tailrace.sinks.messages.connect_payload import ConnectPayload
from tailrace.sinks.messages.payload import Record
from tailrace.sinks.messages.payload_encoding import ENCODINGS, encode_record
from tailrace.sinks.messages.piece import Pieces, join
from tailrace.sinks.messages.schema_registry import AVRO, JSON, Schema, SchemaRegistry

Payload = Record | ConnectPayload
Subjects = Literal["topic", "record", "topic_record"]
"""Confluent's strategies for the names of subjects."""

_MAGIC: Final = b"\0"


class SchemaFormat(Protocol):
    content_type: ClassVar[str]

    def schema(self, payload: Payload) -> Schema:
        """Return the schema of payloads."""

    def pieces(self, payload: Payload, count: int) -> Pieces:
        """Return the encoded payloads of `count` messages."""


@dataclass(frozen=True)
class AvroFormat:
    content_type: ClassVar[str] = "application/vnd.confluent.avro"
    namespace: str = ""
    """Precedes the names of records: the name of the source. Connect's records have names of their own."""

    def schema(self, payload: Payload) -> Schema:
        if isinstance(payload, ConnectPayload):
            return connect_encoding.avro_schema(payload.schema)
        schema = avro_encoding.schema(payload, self.namespace)
        return Schema(AVRO, schema["name"], json.dumps(schema, ensure_ascii=False))

    def pieces(self, payload: Payload, count: int) -> Pieces:
        if isinstance(payload, ConnectPayload):
            return connect_encoding.avro_pieces(payload, count)
        return avro_encoding.pieces(payload, count)


@dataclass(frozen=True)
class JsonSchemaFormat:
    content_type: ClassVar[str] = "application/vnd.confluent.json"
    namespace: str = ""

    def schema(self, payload: Payload) -> Schema:
        if isinstance(payload, ConnectPayload):
            return connect_encoding.json_schema(payload.schema)
        schema = json_schema.schema(payload, self.namespace)
        return Schema(JSON, schema["title"], json.dumps(schema, ensure_ascii=False))

    def pieces(self, payload: Payload, count: int) -> Pieces:
        if isinstance(payload, ConnectPayload):
            return connect_encoding.json_pieces(payload, count)
        return [pc.fill_null(encode_record(ENCODINGS["json"], payload, count), b"")]


@dataclass(frozen=True)
class RegistryEncoding:
    registry: SchemaRegistry
    format: SchemaFormat
    subjects: Subjects = "topic"

    @property
    def content_type(self) -> str:
        return self.format.content_type

    def encode_keys(self, keys: Payload, destinations: pa.Array) -> pa.Array:
        return self._encode(keys, destinations, "key")

    def encode_values(self, values: Payload, destinations: pa.Array) -> pa.Array:
        return self._encode(values, destinations, "value")

    def _encode(self, payload: Payload, destinations: pa.Array, role: str) -> pa.Array:
        count = len(destinations)
        if payload.present is not None and not payload.present.any():
            return pa.nulls(count, pa.binary())
        prefixes = self._prefixes(self.format.schema(payload), destinations, role)
        return join([prefixes, *self.format.pieces(payload, count)], count, payload.present)

    def _prefixes(self, schema: Schema, destinations: pa.Array, role: str) -> pa.Array | bytes:
        if self.subjects == "record":
            return self._prefix(schema, "", role)
        topics = destinations.dictionary_encode()
        prefixes = [self._prefix(schema, topic, role) for topic in topics.dictionary.to_pylist()]
        return prefixes[0] if len(prefixes) == 1 else pa.array(prefixes, pa.binary()).take(topics.indices)

    def _prefix(self, schema: Schema, topic: str, role: str) -> bytes:
        subject = {"topic": f"{topic}-{role}", "record": schema.name, "topic_record": f"{topic}-{schema.name}"}
        return _MAGIC + self.registry.schema_id(subject[self.subjects], schema).to_bytes(4, "big")
