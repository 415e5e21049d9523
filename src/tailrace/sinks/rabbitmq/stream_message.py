"""Messages in streams: AMQP 1.0, as every stream client expects, encoded column by column.

A message has three sections: properties (message id, content type), application properties (the headers) and the body.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.change import Position
from tailrace.errors import PoisonError, TailraceError
from tailrace.log.segment import payload_buffers
from tailrace.sinks.messages.message import POSITION, OutgoingMessages
from tailrace.sinks.rabbitmq import message_header, stream_frame
from tailrace.sinks.rabbitmq.binary_column import Piece, integers, join, lengths
from tailrace.sinks.rabbitmq.message_header import MessageFormat, MessageHeader

I64 = npt.NDArray[np.int64]
MessageOrder = tuple[Position, int]
"""A message's position, and its order among the messages of one change."""

PUBLISHER: Final = "Tailrace-Publisher"
"""The publisher's name. It tells the sink's own messages from those of others."""
ORDER: Final = "Tailrace-Order"
"""The order among the messages of one change; missing if it is 0."""

_PROPERTIES, _APPLICATION_PROPERTIES, _DATA = b"\x00\x53\x73", b"\x00\x53\x74", b"\x00\x53\x75"
_NULL, _STR8, _STR32, _SYM8, _BIN32 = b"\x40", b"\xa1", b"\xb1", b"\xa3", b"\xb0"
_LIST32, _MAP32 = b"\xd0", b"\xd1"
_BEFORE_CONTENT_TYPE: Final = _NULL * 5
"""User id, to, subject, reply to and correlation id come between the message id and the content type."""


def encode(messages: OutgoingMessages, publisher: str, message_format: MessageFormat) -> pa.Array:
    """Return the messages without their bodies, up to the size of the body."""
    headers = message_format.headers(messages)
    if messages.order.any():
        order = pa.array(messages.order, mask=messages.order == 0).cast(pa.string()).cast(pa.binary())
        headers.append(MessageHeader(ORDER, order))
    publisher_field = _text(PUBLISHER) + _text(publisher)
    pieces: list[Piece] = [publisher_field]
    count = np.full(len(messages), 2, np.int64)
    size = np.full(len(messages), 4 + len(publisher_field), np.int64)
    for header in headers:
        field = _field(header)
        count += 2 * header.values.is_valid().to_numpy(zero_copy_only=False)
        size += sum(len(piece) if isinstance(piece, bytes) else lengths(piece) for piece in field)
        pieces += field
    return join(
        [
            *_properties(messages, message_format),
            _APPLICATION_PROPERTIES + _MAP32,
            integers(size, 4),
            integers(count, 4),
            *pieces,
            _DATA + _BIN32,
            integers(lengths(messages.values), 4),
        ]
    )


def check_sizes(messages: OutgoingMessages, heads: pa.Array, max_frame_bytes: int) -> None:
    """Raise a PoisonError for messages that do not fit into a frame: the broker closes the connection when it gets
    one."""
    if not max_frame_bytes:
        return
    most = max_frame_bytes - stream_frame.PUBLISH_HEAD_BYTES - stream_frame.ENTRY_HEAD_BYTES
    sizes = lengths(heads) + lengths(messages.values)
    large = np.flatnonzero(sizes > most)
    if not len(large):
        return
    positions = tuple(dict.fromkeys(str(messages.at.position(int(row))) for row in large))
    largest = f"{int(sizes[large].max()):,}"
    raise PoisonError(
        f"{positions[0]} makes a message of {largest} bytes, and the broker accepts {most:,} in a stream"
        if len(positions) == 1
        else f"{len(positions):,} changes from {positions[0]} on make messages of up to {largest} bytes, and the broker"
        f" accepts {most:,} in a stream",
        "Raise stream.frame_max of the broker, or exclude the column with `columns` in the sink's settings.",
        positions,
    )


def entries(heads: pa.Array, messages: OutgoingMessages, publishing_ids: I64) -> tuple[memoryview, I64]:
    """Return the messages with their publishing ids, as frames contain them, and the offset at which each one ends."""
    values = message_header.bodies(messages)
    sizes = lengths(heads) + lengths(values)
    offsets, data = payload_buffers(join([integers(publishing_ids, 8), integers(sizes, 4), heads, values]))
    return data, offsets[1:].astype(np.int64)


def application_properties(message: memoryview) -> dict[str, Any]:
    """Return the application properties of a message; none if it has none, or is not encoded as AMQP 1.0."""
    try:
        for descriptor, value in _sections(bytes(message)):
            if descriptor == 0x74 and isinstance(value, dict):
                return value
    except (ValueError, TypeError, IndexError):
        pass  # another client's message
    return {}


def message_order(properties: dict[str, Any]) -> MessageOrder | None:
    """Return where a message of the sink belongs."""
    try:
        return Position.parse(str(properties[POSITION])), int(properties.get(ORDER, 0))
    except (KeyError, ValueError, TailraceError):
        return None


def _text(value: str) -> bytes:
    """Return a text of at most 255 bytes."""
    return _STR8 + bytes([len(value.encode())]) + value.encode()


def _field(header: MessageHeader) -> list[Piece]:
    """Return a header's name and value, or nothing in rows that lack it."""
    pieces = [_text(header.name), *_value(header)]
    return [join(pieces).fill_null(b"")] if header.values.null_count else pieces


def _value(header: MessageHeader) -> list[Piece]:
    sizes = lengths(header.values)
    if not header.is_text:
        return [_BIN32, integers(sizes, 4), header.values]
    if sizes.max(initial=0) < 256:
        return [_STR8, integers(sizes, 1), header.values]
    return [_STR32, integers(sizes, 4), header.values]


def _properties(messages: OutgoingMessages, message_format: MessageFormat) -> list[Piece]:
    ids = messages.ids.cast(pa.binary())
    id_sizes = lengths(ids)
    content_types = message_format.content_types(messages)
    fields: list[Piece] = [_STR32, integers(id_sizes, 4), ids]
    count, size = 1, 4 + 5 + id_sizes
    if isinstance(content_types, pa.Array):
        type_sizes = lengths(content_types)
        fields += [_BEFORE_CONTENT_TYPE + _SYM8, integers(type_sizes, 1), content_types]
        count, size = 7, size + len(_BEFORE_CONTENT_TYPE) + 2 + type_sizes
    elif content_types:
        content_type = _BEFORE_CONTENT_TYPE + _SYM8 + bytes([len(content_types)]) + content_types
        fields.append(content_type)
        count, size = 7, size + len(content_type)
    return [_PROPERTIES + _LIST32, integers(size, 4), struct.pack(">I", count), *fields]


def _sections(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield descriptor and value of each section before the body."""
    offset = 0
    while offset < len(data):
        if data[offset] != 0:
            raise ValueError("not a section")
        descriptor, offset = _decode(data, offset + 1)
        if descriptor == 0x75:
            return
        value, offset = _decode(data, offset)
        yield descriptor, value


_WIDTHS: Final = {0x4: 0, 0x5: 1, 0x6: 2, 0x7: 4, 0x8: 8, 0x9: 16}
"""The sizes of AMQP 1.0's types of fixed width, by the first half of their code."""


def _decode(data: bytes, offset: int) -> tuple[Any, int]:
    """Return the value at an offset, and where it ends. Integers and texts are exact, other values are their bytes."""
    code = data[offset]
    offset += 1
    if (kind := code >> 4) in _WIDTHS:
        end = offset + _WIDTHS[kind]
        return int.from_bytes(data[offset:end], "big"), end
    width = 1 if kind in (0xA, 0xC, 0xE) else 4
    size = int.from_bytes(data[offset : offset + width], "big")
    offset += width
    end = offset + size
    if end > len(data):
        raise ValueError("the value is cut off")
    if code in (0xA1, 0xB1, 0xA3, 0xB3):
        return data[offset:end].decode(), end
    if code not in (0xC1, 0xD1):
        return data[offset:end], end
    items, offset = [], offset + width
    while offset < end:
        item, offset = _decode(data, offset)
        items.append(item)
    return dict(zip(items[::2], items[1::2], strict=True)), end
