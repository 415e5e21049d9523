"""A client that sends single protocol messages, including those that no driver would send."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Self


class RawClient:
    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def start(self, user: str = "reader", **parameters: str) -> list[tuple[bytes, bytes]]:
        pairs = {"user": user, "database": "shop", **parameters}
        body = struct.pack("!i", 196_608) + b"".join(f"{k}\0{v}\0".encode() for k, v in pairs.items()) + b"\0"
        self.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        return self.until(b"Z")

    def send(self, kind: bytes, body: bytes = b"") -> None:
        self.socket.sendall(kind + struct.pack("!i", len(body) + 4) + body)

    def message(self) -> tuple[bytes, bytes]:
        kind, size = struct.unpack("!ci", self._exactly(5))
        return kind, self._exactly(size - 4)

    def until(self, last: bytes) -> list[tuple[bytes, bytes]]:
        """Read messages up to one of this type or a fatal error."""
        found = [self.message()]
        while found[-1][0] != last and not (found[-1][0] == b"E" and b"FATAL" in found[-1][1]):
            found.append(self.message())
        return found

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            if not piece:
                raise ConnectionError
            data += piece
        return data
