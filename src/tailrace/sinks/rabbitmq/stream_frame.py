"""Frames of RabbitMQ's stream protocol: bytes in, values out, without I/O.

A frame is a size, a command's key, a version, and the command's fields. Requests and responses carry a correlation id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

RESPONSE: Final = 0x8000
"""Set in the key of a response."""
PUBLISH_HEAD_BYTES: Final = 13
"""Size, key, version, publisher and the number of messages."""
ENTRY_HEAD_BYTES: Final = 12
"""A message's publishing id and size."""
_VERSION: Final = 1
_CHUNK_HEAD: Final = struct.Struct(">bbHIqQQIIII")
_IS_BATCH: Final = 0x80
"""Set in the first byte of an entry that holds several messages, maybe compressed. Tailrace publishes none."""


class Key(IntEnum):
    DECLARE_PUBLISHER = 1
    PUBLISH = 2
    PUBLISH_CONFIRM = 3
    PUBLISH_ERROR = 4
    QUERY_PUBLISHER_SEQUENCE = 5
    DELETE_PUBLISHER = 6
    SUBSCRIBE = 7
    DELIVER = 8
    CREDIT = 9
    UNSUBSCRIBE = 12
    CREATE = 13
    METADATA = 15
    METADATA_UPDATE = 16
    PEER_PROPERTIES = 17
    SASL_HANDSHAKE = 18
    SASL_AUTHENTICATE = 19
    TUNE = 20
    OPEN = 21
    CLOSE = 22
    HEARTBEAT = 23


class Code(IntEnum):
    """The codes of responses that are told apart."""

    OK = 1
    STREAM_DOES_NOT_EXIST = 2
    STREAM_ALREADY_EXISTS = 5
    STREAM_NOT_AVAILABLE = 6
    SASL_MECHANISM_NOT_SUPPORTED = 7
    AUTHENTICATION_FAILURE = 8
    SASL_ERROR = 9
    AUTHENTICATION_FAILURE_LOOPBACK = 11
    VIRTUAL_HOST_ACCESS_FAILURE = 12
    ACCESS_REFUSED = 16
    PRECONDITION_FAILED = 17


class FrameReader:
    """Reads the fields of one frame, one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._offset = 0

    def u8(self) -> int:
        return self._integer(1)

    def u16(self) -> int:
        return self._integer(2)

    def u32(self) -> int:
        return self._integer(4)

    def u64(self) -> int:
        return self._integer(8)

    def text(self) -> str:
        return str(self._take(self.u16()), "utf-8", "replace")

    def texts(self) -> list[str]:
        return [self.text() for _ in range(self.u32())]

    def properties(self) -> dict[str, str]:
        return {self.text(): self.text() for _ in range(self.u32())}

    def rest(self) -> memoryview:
        return self._data[self._offset :]

    def _integer(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def _take(self, size: int) -> memoryview:
        taken = self._data[self._offset : self._offset + size]
        if len(taken) < size:
            raise ValueError("the frame is too short")
        self._offset += size
        return taken


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def data(value: bytes) -> bytes:
    return struct.pack(">i", len(value)) + value


def properties(values: Mapping[str, str]) -> bytes:
    return struct.pack(">i", len(values)) + b"".join(text(name) + text(value) for name, value in values.items())


def texts(values: Sequence[str]) -> bytes:
    return struct.pack(">i", len(values)) + b"".join(map(text, values))


def command(key: int, content: bytes = b"") -> bytes:
    return struct.pack(">IHH", 4 + len(content), key, _VERSION) + content


def request(key: int, correlation: int, content: bytes = b"") -> bytes:
    return command(key, struct.pack(">I", correlation) + content)


def publish_head(publisher: int, count: int, size: int) -> bytes:
    """Return the beginning of a frame that publishes `count` messages, whose entries have `size` bytes together."""
    return struct.pack(">IHHBi", PUBLISH_HEAD_BYTES - 4 + size, Key.PUBLISH, _VERSION, publisher, count)


@dataclass(frozen=True)
class StreamChunk:
    """Messages that the broker stored together."""

    first_offset: int
    records: int
    entries: tuple[memoryview, ...]
    """The messages that were published singly."""

    @property
    def next_offset(self) -> int:
        return self.first_offset + self.records

    @classmethod
    def parse(cls, content: memoryview) -> StreamChunk:
        _, _, entries, records, _, _, first, _, size, _, _ = _CHUNK_HEAD.unpack_from(content)
        start = _CHUNK_HEAD.size
        return cls(first, records, tuple(_entries(content[start : start + size], entries)))


def _entries(content: memoryview, count: int) -> Iterator[memoryview]:
    offset = 0
    for _ in range(count):
        if content[offset] & _IS_BATCH:
            offset += 11 + int.from_bytes(content[offset + 7 : offset + 11], "big")
            continue
        size = int.from_bytes(content[offset : offset + 4], "big")
        yield content[offset + 4 : offset + 4 + size]
        offset += 4 + size
