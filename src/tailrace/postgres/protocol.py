"""PostgreSQL protocol version 3: messages read from a socket with size limits, and built as bytes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

VERSION_3: Final = 196_608
CANCEL: Final = 80_877_102
TLS: Final = 80_877_103
GSS: Final = 80_877_104

# As PostgreSQL's own MAX_STARTUP_PACKET_LENGTH; a password message is smaller still.
MAX_STARTUP: Final = 10_000
MAX_BEFORE_AUTHENTICATION: Final = 4_096
# A statement with its parameters. PostgreSQL allows 1 GB, which a shared server should not hold in memory.
MAX_MESSAGE: Final = 64 * 1024 * 1024


class ClientDisconnectedError(Exception):
    """The client closed the connection."""


class ProtocolError(Exception):
    """The client violated the protocol. The connection must be closed."""


@dataclass(frozen=True)
class ResultField:
    """A column of a result, as described by RowDescription."""

    name: str
    oid: int
    size: int = -1
    modifier: int = -1
    format: int = 0


def read_exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if not got:
            raise ClientDisconnectedError
        view = view[got:]
    return bytes(data)


def read_startup(sock: socket.socket) -> tuple[int, bytes]:
    """Read the first packet, which has no type byte: returns its code and the rest."""
    (size,) = struct.unpack("!i", read_exactly(sock, 4))
    if not 8 <= size <= MAX_STARTUP:
        raise ProtocolError(f"invalid startup packet length {size}")
    body = read_exactly(sock, size - 4)
    return struct.unpack("!i", body[:4])[0], body[4:]


def read_message(sock: socket.socket, limit: int = MAX_MESSAGE) -> tuple[bytes, bytes]:
    kind, size = struct.unpack("!ci", read_exactly(sock, 5))
    if not 4 <= size <= limit:
        raise ProtocolError(f"invalid message length {size}, the limit is {limit}")
    return kind, read_exactly(sock, size - 4)


class BodyReader:
    """Reads the fields of one message body, and never beyond its end."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def text(self) -> str:
        end = self._body.find(0, self._at)
        if end < 0:
            raise ProtocolError("unterminated string in message")
        value, self._at = self._body[self._at : end], end + 1
        return value.decode("utf-8", "strict")

    def byte(self) -> bytes:
        return self.take(1)

    def int16(self) -> int:
        """Unsigned: a format code, or a count, for which clients send up to 65,535."""
        return int(struct.unpack("!H", self.take(2))[0])

    def int32(self) -> int:
        return int(struct.unpack("!i", self.take(4))[0])

    def take(self, count: int) -> bytes:
        value = self._body[self._at : self._at + count]
        if count < 0 or len(value) != count:
            raise ProtocolError("insufficient data left in message")
        self._at += count
        return value

    def value(self) -> bytes | None:
        size = self.int32()
        return None if size == -1 else self.take(size)

    def rest(self) -> bytes:
        return self._body[self._at :]


def parameters(body: bytes) -> dict[str, str]:
    """The names and values in a startup packet."""
    reader = BodyReader(body)
    found = {}
    while name := reader.text():
        found[name] = reader.text()
    return found


def message(kind: bytes, body: bytes = b"") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _text(value: str) -> bytes:
    return value.replace("\0", "").encode() + b"\0"


def authentication(code: int, body: bytes = b"") -> bytes:
    return message(b"R", struct.pack("!i", code) + body)


def negotiation(unknown: Sequence[str]) -> bytes:
    """NegotiateProtocolVersion: tells a client that requests more than version 3.0 which options are unknown."""
    return message(b"v", struct.pack("!ii", VERSION_3, len(unknown)) + b"".join(map(_text, unknown)))


def parameter_status(name: str, value: str) -> bytes:
    return message(b"S", _text(name) + _text(value))


def key_data(process: int, secret: int) -> bytes:
    return message(b"K", struct.pack("!iI", process, secret))


def ready(status: bytes) -> bytes:
    return message(b"Z", status)


def complete(tag: str) -> bytes:
    return message(b"C", _text(tag))


def row_description(fields: Sequence[ResultField]) -> bytes:
    parts = [struct.pack("!h", len(fields))]
    parts += [_text(f.name) + struct.pack("!ihihih", 0, 0, f.oid, f.size, f.modifier, f.format) for f in fields]
    return message(b"T", b"".join(parts))


def data_row(values: Iterable[str | None]) -> bytes:
    cells = [b"\xff\xff\xff\xff" if v is None else struct.pack("!i", len(e := v.encode())) + e for v in values]
    return message(b"D", struct.pack("!h", len(cells)) + b"".join(cells))


def parameter_description(oids: Sequence[int]) -> bytes:
    return message(b"t", struct.pack(f"!H{len(oids)}I", len(oids), *oids))


def copy_out(formats: Sequence[int]) -> bytes:
    overall = int(any(formats))
    return message(b"H", struct.pack(f"!bh{len(formats)}h", overall, len(formats), *formats))


def copy_both() -> bytes:
    """CopyBothResponse, with which a replication stream begins."""
    return message(b"W", struct.pack("!bh", 0, 0))


def copy_data(body: bytes) -> bytes:
    return message(b"d", body)


def _notice(kind: bytes, severity: str, sqlstate: str, text: str, more: Mapping[bytes, str]) -> bytes:
    fields = {b"S": severity, b"V": severity, b"C": sqlstate, b"M": text, **more}
    return message(kind, b"".join(letter + _text(value) for letter, value in fields.items() if value) + b"\0")


def error(sqlstate: str, text: str, hint: str = "", severity: str = "ERROR") -> bytes:
    return _notice(b"E", severity, sqlstate, text, {b"H": hint})


def warning(sqlstate: str, text: str) -> bytes:
    return _notice(b"N", "WARNING", sqlstate, text, {})


PARSE_COMPLETE: Final = message(b"1")
BIND_COMPLETE: Final = message(b"2")
CLOSE_COMPLETE: Final = message(b"3")
NO_DATA: Final = message(b"n")
EMPTY_QUERY: Final = message(b"I")
SUSPENDED: Final = message(b"s")
COPY_DONE: Final = message(b"c")
