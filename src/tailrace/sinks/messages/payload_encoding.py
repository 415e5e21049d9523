"""Encodes columns of values, and maps of them, as MessagePack or JSON.

Both agree on the values: integers, floats and booleans are native, json and jsonb nested. Numeric is a string
with the exact digits, a timestamp an ISO 8601 string with a Z. Everything else is PostgreSQL's text.
"""

from __future__ import annotations

import json as python_json
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column
from tailrace.log import json_columns
from tailrace.log.segment import payload_buffers
from tailrace.sinks.documents.json_value import iso_texts, json_strings, json_values
from tailrace.sinks.documents.row_document import enclose
from tailrace.sinks.messages import messagepack
from tailrace.sinks.messages.payload import ColumnValues, Integers, NameLists, Nulls, Record, Texts, Value
from tailrace.sinks.messages.piece import Pieces, join
from tailrace.types import Form, mapping

Mask = npt.NDArray[np.bool_]
EncodedField = tuple[str, "pa.Array | bytes", Mask | None]
"""A name, the encoded value of each row or the same one for all rows, and the rows that have it (None: all)."""

_NamedValue = tuple[bytes, "pa.Array | bytes", Mask | None]
"""The same with an encoded name."""


class MessageEncoding(Protocol):
    """What an envelope needs: it turns the keys and the values of messages into bytes."""

    @property
    def content_type(self) -> str:
        """The media type of values."""

    def encode_keys(self, keys: Record, destinations: pa.Array) -> pa.Array:
        """Encode the keys of messages to these destinations."""

    def encode_values(self, values: Record, destinations: pa.Array) -> pa.Array:
        """Encode the values of messages to these destinations."""


class PayloadEncoding(MessageEncoding, Protocol):
    """An encoding without schemas, in which any value stands for itself."""

    def text(self, value: str) -> bytes:
        """Encode one text."""

    def integer(self, value: int) -> bytes:
        """Encode one integer."""

    def texts(self, values: pa.Array) -> pa.Array:
        """Encode a column of texts."""

    def integers(self, values: pa.Array) -> pa.Array:
        """Encode a column of 64-bit integers."""

    def values(self, texts: pa.Array, column: Column) -> pa.Array:
        """Encode a column of values, given as PostgreSQL's texts."""

    def maps(self, fields: Sequence[EncodedField], count: int) -> pa.Array:
        """Return a map for each of `count` rows, of the fields that the row has."""

    def arrays(self, items: Sequence[tuple[bytes, Mask]], count: int) -> pa.Array:
        """Return an array for each of `count` rows, of the items that the row has."""

    def single_map(self, fields: Sequence[tuple[str, bytes]]) -> bytes:
        """Return one map of encoded values."""

    def single_array(self, items: Sequence[bytes]) -> bytes:
        """Return one array of encoded items."""

    def array_of_rows(self, rows: pa.Array) -> bytes:
        """Return one array of all rows, which are encoded."""

    def encode(self, value: object) -> bytes:
        """Encode a Python value."""


class SchemalessEncoding:
    """The base of encodings without schemas: messages to all destinations are the same."""

    def encode_keys(self: PayloadEncoding, keys: Record, destinations: pa.Array) -> pa.Array:
        return encode_record(self, keys, len(destinations))

    def encode_values(self: PayloadEncoding, values: Record, destinations: pa.Array) -> pa.Array:
        return encode_record(self, values, len(destinations))


class MessagePackEncoding(SchemalessEncoding):
    content_type = "application/msgpack"

    def text(self, value: str) -> bytes:
        return self.encode(value)

    def integer(self, value: int) -> bytes:
        return self.encode(value)

    def texts(self, values: pa.Array) -> pa.Array:
        return messagepack.texts(values)

    def integers(self, values: pa.Array) -> pa.Array:
        return messagepack.integers(values)

    def values(self, texts: pa.Array, column: Column) -> pa.Array:
        match mapping(column).form:
            case Form.BOOLEAN:
                return messagepack.booleans(pc.equal(texts, "t"))
            case Form.INTEGER:
                return messagepack.integers(texts.cast(pa.int64()))
            case Form.FLOAT:
                return messagepack.floats(texts.cast(pa.float64()))
            case Form.JSON:
                return messagepack.nested_values(texts)
        return messagepack.texts(iso_texts(texts, column))

    def maps(self, fields: Sequence[EncodedField], count: int) -> pa.Array:
        heads = _heads([present for _, _, present in fields], messagepack.map_head)
        return join(
            [heads, *_name_and_value((self.text(name), value, present) for name, value, present in fields)], count
        )

    def arrays(self, items: Sequence[tuple[bytes, Mask]], count: int) -> pa.Array:
        heads = _heads([present for _, present in items], messagepack.array_head)
        return join([heads, *_name_and_value((b"", item, present) for item, present in items)], count)

    def single_map(self, fields: Sequence[tuple[str, bytes]]) -> bytes:
        return messagepack.map_head(len(fields)) + b"".join(self.text(name) + value for name, value in fields)

    def single_array(self, items: Sequence[bytes]) -> bytes:
        return messagepack.array_head(len(items)) + b"".join(items)

    def array_of_rows(self, rows: pa.Array) -> bytes:
        return messagepack.array_head(len(rows)) + _concatenate(rows)

    def encode(self, value: object) -> bytes:
        packed: bytes = msgpack.packb(value)
        return packed


class JsonEncoding(SchemalessEncoding):
    content_type = "application/json"

    def text(self, value: str) -> bytes:
        return json_columns.quote_text(value).encode()

    def integer(self, value: int) -> bytes:
        return str(value).encode()

    def texts(self, values: pa.Array) -> pa.Array:
        return json_strings(values)

    def integers(self, values: pa.Array) -> pa.Array:
        return values.cast(pa.string()).fill_null("null").cast(pa.binary())

    def values(self, texts: pa.Array, column: Column) -> pa.Array:
        return json_values(texts, column)

    def maps(self, fields: Sequence[EncodedField], count: int) -> pa.Array:
        return enclose(b"{", [(self.text(name) + b":", value, present) for name, value, present in fields], b"}", count)

    def arrays(self, items: Sequence[tuple[bytes, Mask]], count: int) -> pa.Array:
        return enclose(b"[", [(b"", item, present) for item, present in items], b"]", count)

    def single_map(self, fields: Sequence[tuple[str, bytes]]) -> bytes:
        return b"{" + b",".join(self.text(name) + b":" + value for name, value in fields) + b"}"

    def single_array(self, items: Sequence[bytes]) -> bytes:
        return b"[" + b",".join(items) + b"]"

    def array_of_rows(self, rows: pa.Array) -> bytes:
        return b"[" + _concatenate(pc.binary_join_element_wise(rows, b",", b""))[:-1] + b"]"

    def encode(self, value: object) -> bytes:
        return python_json.dumps(value, ensure_ascii=False).encode()


ENCODINGS: Final[dict[str, PayloadEncoding]] = {"msgpack": MessagePackEncoding(), "json": JsonEncoding()}
"""The encodings that need nothing else. `registry_encoding` has those that need a schema registry."""


def encode_record(encoding: PayloadEncoding, record: Record, count: int) -> pa.Array:
    """Encode the records of `count` messages as maps; NULL for a message that has none."""
    if record.present is not None and not record.present.any():
        return pa.nulls(count, pa.binary())
    maps = encoding.maps(_fields(encoding, record, count), count)
    if record.present is None or record.present.all():
        return maps
    return pc.if_else(pa.array(record.present), maps, pa.scalar(None, pa.binary()))


def _encode_value(encoding: PayloadEncoding, value: Value, count: int) -> pa.Array | bytes:
    match value:
        case Texts(str() as text):
            return encoding.text(text)
        case Texts(texts):
            return encoding.texts(texts)
        case Integers(int() as integer):
            return encoding.integer(integer)
        case Integers(integers):
            return encoding.integers(integers)
        case ColumnValues(texts, column):
            return encoding.values(texts, column)
        case NameLists(items):
            everywhere = np.ones(count, np.bool_)
            masks = [(encoding.text(name), everywhere if mask is None else mask) for name, mask in items]
            return encoding.arrays(masks, count) if masks else encoding.single_array([])
        case Nulls():
            return encoding.encode(None)
        case Record():
            return _encode_map(encoding, value, count)


def _encode_map(encoding: PayloadEncoding, record: Record, count: int) -> pa.Array | bytes:
    absent = encoding.single_map([]) if record.is_empty_if_absent else encoding.encode(None)
    if record.present is not None and not record.present.any():
        return absent
    maps = encoding.maps(_fields(encoding, record, count), count)
    if record.present is None or record.present.all():
        return maps
    return pc.if_else(pa.array(record.present), maps, pa.scalar(absent, pa.binary()))


def _fields(encoding: PayloadEncoding, record: Record, count: int) -> list[EncodedField]:
    return [
        (field.name, _encode_value(encoding, field.value, count), field.present)
        for field in record.fields
        if not field.is_supplement and (field.present is None or field.present.any())
    ]


def _concatenate(encoded: pa.Array) -> bytes:
    """Return all values one after the other, as they are in memory."""
    return bytes(payload_buffers(encoded)[1])


def _name_and_value(fields: Iterable[_NamedValue]) -> Pieces:
    pieces: Pieces = []
    for name, value, present in fields:
        if present is None:
            pieces += [name, value]
        else:
            pair = (
                pc.binary_join_element_wise(name, value, b"")
                if isinstance(value, pa.Array)
                else pa.scalar(name + value)
            )
            pieces.append(pc.if_else(pa.array(present), pair, pa.scalar(b"")))
    return pieces


def _heads(masks: Sequence[Mask | None], head: Callable[[int], bytes]) -> pa.Array | bytes:
    """Return the head of each row's map or array, which gives the number of fields that the row has."""
    always_present = sum(mask is None for mask in masks)
    optional = [mask for mask in masks if mask is not None]
    if not optional:
        return head(always_present)
    heads = pa.array([head(always_present + more) for more in range(len(optional) + 1)], pa.binary())
    return heads.take(pa.array(np.sum(optional, axis=0)))
