"""Messages to an exchange: AMQP 0-9-1, encoded column by column as frames that are sent as they are.

A message consists of the frame of `basic.publish`, the frame of its header, and frames of its body.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log.segment import payload_buffers
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.rabbitmq import message_header
from tailrace.sinks.rabbitmq.binary_column import Piece, integers, join, lengths
from tailrace.sinks.rabbitmq.message_header import MessageFormat, MessageHeader

I64 = npt.NDArray[np.int64]

CHANNEL: Final = 1
FRAME_BYTES: Final = 8
"""What a frame has beside its content: type, channel, size and end."""
_METHOD, _HEADER, _BODY = (struct.pack(">BH", kind, CHANNEL) for kind in (1, 2, 3))
_END: Final = b"\xce"
_PUBLISH: Final = struct.pack(">HHH", 60, 40, 0)
_MANDATORY: Final = b"\x01"
"""An unroutable message is returned. Otherwise it would be confirmed and lost."""
_CLASS: Final = struct.pack(">HH", 60, 0)
_CONTENT_TYPE, _HEADERS, _DELIVERY_MODE, _MESSAGE_ID = 1 << 15, 1 << 13, 1 << 12, 1 << 7
_PERSISTENT: Final = b"\x02"


def encode(
    messages: OutgoingMessages, exchange: str, message_format: MessageFormat, max_frame_bytes: int
) -> tuple[memoryview, I64]:
    """Return the frames of all messages, and the offset at which the frames of each one end."""
    frames = join([*_method(messages, exchange), *_header(messages, message_format), _body(messages, max_frame_bytes)])
    offsets, data = payload_buffers(frames)
    return data, offsets[1:].astype(np.int64)


def _method(messages: OutgoingMessages, exchange: str) -> list[Piece]:
    keys = messages.destinations.cast(pa.binary())
    sizes = lengths(keys)
    name = exchange.encode()
    start = _PUBLISH + bytes([len(name)]) + name
    return [_METHOD, integers(len(start) + 1 + sizes + 1, 4), start, integers(sizes, 1), keys, _MANDATORY + _END]


def _header(messages: OutgoingMessages, message_format: MessageFormat) -> list[Piece]:
    flags = _HEADERS | _DELIVERY_MODE | _MESSAGE_ID
    content_type = _content_type(messages, message_format)
    flags |= _CONTENT_TYPE if content_type else 0
    fields = [piece for header in message_format.headers(messages) for piece in _field(header)]
    ids = messages.ids.cast(pa.binary())
    properties: list[Piece] = [
        *content_type,
        integers(_size(fields, len(messages)), 4),
        *fields,
        _PERSISTENT,
        integers(lengths(ids), 1),
        ids,
    ]
    start: list[Piece] = [_CLASS, integers(lengths(messages.values), 8), struct.pack(">H", flags)]
    size = _size([*start, *properties], len(messages))
    return [_HEADER, integers(size, 4), *start, *properties, _END]


def _content_type(messages: OutgoingMessages, message_format: MessageFormat) -> list[Piece]:
    content_types = message_format.content_types(messages)
    if isinstance(content_types, bytes):
        return [bytes([len(content_types)]) + content_types] if content_types else []
    return [integers(lengths(content_types), 1), content_types]


def _field(header: MessageHeader) -> list[Piece]:
    """Return a header's name and value, or nothing in rows that lack it."""
    name = header.name.encode()
    kind = b"S" if header.is_text else b"x"
    pieces: list[Piece] = [bytes([len(name)]) + name + kind, integers(lengths(header.values), 4), header.values]
    return [join(pieces).fill_null(b"")] if header.values.null_count else pieces


def _size(pieces: list[Piece], count: int) -> I64:
    size = np.zeros(count, np.int64)
    for piece in pieces:
        size += len(piece) if isinstance(piece, bytes) else lengths(piece)
    return size


def _body(messages: OutgoingMessages, max_frame_bytes: int) -> pa.Array:
    """Return the frames of each body. An empty body has none."""
    values = message_header.bodies(messages)
    sizes = lengths(values)
    frames = join([_BODY, integers(sizes, 4), values, _END])
    most = max_frame_bytes - FRAME_BYTES if max_frame_bytes else 1 << 31
    if sizes.min(initial=1) and sizes.max(initial=0) <= most:
        return frames
    is_other = (sizes == 0) | (sizes > most)
    others = [_cut(values[int(row)].as_buffer(), most) for row in np.flatnonzero(is_other)]
    return pc.replace_with_mask(frames, pa.array(is_other), pa.array(others, pa.binary()))


def _cut(body: pa.Buffer, most: int) -> bytes:
    view = memoryview(body)
    parts = (view[start : start + most] for start in range(0, len(view), most))
    return b"".join(_BODY + struct.pack(">I", len(part)) + part + _END for part in parts)
