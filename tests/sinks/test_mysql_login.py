"""Servers that are not what they claim to be: the sink `mysql` gives its password to none of them."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tailrace.errors import SinkRefused
from tailrace.settings import Secret
from tailrace.sinks.mysql.mysql_error import classify_errors
from tailrace.sinks.mysql.options import MysqlOptions
from tailrace.sinks.mysql.session import MysqlSession

PASSWORD = "s3cret"
# CONNECT_WITH_DB, PROTOCOL_41, SECURE_CONNECTION, PLUGIN_AUTH; no TLS.
_CAPABILITIES = 0x8 | 0x200 | 0x8000 | 0x80000
_GREETING = (
    b"\x0a8.0.0\0" + struct.pack("<I", 1) + b"12345678\0" + struct.pack("<H", _CAPABILITIES & 0xFFFF) + b"\x21\x02\0"
    + struct.pack("<H", _CAPABILITIES >> 16) + b"\x15" + bytes(10) + b"123456789012\0mysql_native_password\0"
)  # fmt: skip


@contextmanager
def rogue(plugin: bytes, prompt: bytes) -> Iterator[tuple[int, bytearray]]:
    """A server that asks for the password in clear text. Yields its port, and what it gets."""
    received = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(10)
                connection.sendall(_packet(0, _GREETING))
                received.extend(connection.recv(65_536))
                connection.sendall(_packet(2, b"\xfe" + plugin + b"\0" + prompt))
                while piece := connection.recv(65_536):
                    received.extend(piece)

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1], received
        thread.join(20)


def _packet(number: int, body: bytes) -> bytes:
    return struct.pack("<I", len(body))[:3] + bytes([number]) + body


@pytest.mark.parametrize(("plugin", "prompt"), [(b"mysql_clear_password", b""), (b"dialog", b"\x02Password: ")])
def test_no_server_gets_the_password_in_clear_text(plugin: bytes, prompt: bytes) -> None:
    with rogue(plugin, prompt) as (port, received):
        options = MysqlOptions(f"mysql://ann@127.0.0.1:{port}/shop", Secret(PASSWORD))
        with pytest.raises(SinkRefused, match="clear text"), classify_errors():
            MysqlSession(options)
    assert b"ann" in received
    assert PASSWORD.encode() not in received
