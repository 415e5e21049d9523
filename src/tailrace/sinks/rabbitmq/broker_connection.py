"""A connection to a RabbitMQ broker: TLS, non-blocking reads and writes, heartbeats. Both protocols are on top of it.

A failed connection is not repaired: the transport is thrown away, and the sink makes another.
"""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Sequence
from typing import Final

from tailrace.errors import SinkError, SinkRefused
from tailrace.sinks.rabbitmq.options import RabbitMqOptions

CONNECT_S: Final = 10.0
"""How long to wait for a connection, and for the socket to accept a request."""
HEARTBEAT_S: Final = 20
"""What is proposed to the broker. It sends something twice in this time, however busy it is."""
RECONNECTING: Final = "Reconnecting automatically."
_RECEIVE_BYTES: Final = 256 * 1024
_BLOCKED: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class BrokerConnection:
    """One socket. Not thread-safe."""

    def __init__(self, options: RabbitMqOptions, addresses: Sequence[tuple[str, int]]) -> None:
        """Connect to the first address that answers."""
        self._socket = _connect(options, addresses)
        self._socket.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._heartbeat = b""
        self._sent_at = self._received_at = time.monotonic()

    def start_heartbeats(self, frame: bytes) -> None:
        """From now on send this frame while nothing else is sent, and expect something to arrive."""
        self._heartbeat = frame

    def close(self) -> None:
        self._socket.close()

    def write(self, data: memoryview | bytes) -> int:
        """Write what the socket accepts now, and return its size."""
        try:
            written = self._socket.send(data)
        except _BLOCKED:
            return 0
        except OSError as error:
            raise _lost(error) from error
        self._sent_at = time.monotonic()
        return written

    def write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if not (written := self.write(view)):
                self._wait(CONNECT_S, is_writing=True)
            view = view[written:]

    def receive(self, timeout_s: float, *, is_writing: bool = False) -> bytes:
        """Return what arrives within `timeout_s`; nothing if nothing does.

        Args:
            timeout_s: How long to wait.
            is_writing: Also return as soon as the socket accepts data. Otherwise whole frames were written.
        """
        is_pending = isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()
        if not is_pending:
            self._wait(timeout_s, is_writing=is_writing)
        try:
            arrived = self._socket.recv(_RECEIVE_BYTES)
        except _BLOCKED:
            return b""
        except OSError as error:
            raise _lost(error) from error
        if not arrived:
            raise SinkError("RabbitMQ closed the connection", RECONNECTING)
        self._received_at = time.monotonic()
        return arrived

    def _wait(self, timeout_s: float, *, is_writing: bool) -> None:
        self._poll.modify(self._socket, select.POLLIN | (select.POLLOUT if is_writing else 0))
        deadline = time.monotonic() + timeout_s
        while not self._poll.poll(1000 * min(max(deadline - time.monotonic(), 0), HEARTBEAT_S / 4)):
            now = time.monotonic()
            if self._heartbeat and now - self._received_at > 2 * HEARTBEAT_S:
                raise SinkError(f"RabbitMQ sent nothing for {2 * HEARTBEAT_S} s", RECONNECTING)
            if self._heartbeat and not is_writing and now - self._sent_at > HEARTBEAT_S / 2:
                self.write(self._heartbeat)
            if now >= deadline:
                return


def _connect(options: RabbitMqOptions, addresses: Sequence[tuple[str, int]]) -> socket.socket:
    failures: list[SinkError] = []
    context = options.tls_context()
    for host, port in addresses:
        try:
            connection = socket.create_connection((host, port), timeout=CONNECT_S)
        except OSError as error:
            failures.append(SinkError(f"{host}:{port}: {error}", "Is RabbitMQ running, and is this its port?"))
            continue
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection if context is None else context.wrap_socket(connection, server_hostname=host)
        except ssl.SSLError as error:
            connection.close()
            raise SinkRefused(
                f"{host}:{port}: {error}",
                "Set `tls_ca` to the authority that signed the broker's certificate, and use the host name in the"
                " certificate in `url`. Is this a TLS port?",
            ) from error
        except OSError as error:
            connection.close()
            failures.append(_lost(error))
        except BaseException:
            connection.close()
            raise
    raise failures[-1]


def _lost(error: OSError) -> SinkError:
    return SinkError(f"the connection to RabbitMQ was lost: {error}", RECONNECTING)
