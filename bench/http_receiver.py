"""A receiver of webhooks that costs as little as possible: a process that reads requests and answers 200 to each.

It counts requests and bytes of bodies, and parses nothing but the length.
"""

from __future__ import annotations

import multiprocessing
import selectors
import socket
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
_LENGTH = b"content-length: "
_READ_BYTES = 1 << 20


class Receiver:
    def __init__(self) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = listener.getsockname()[1]
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_serve, args=(listener, theirs), daemon=True)
        self._process.start()
        listener.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def counts(self) -> tuple[int, int]:
        """Return requests and bytes since the last call."""
        self._pipe.send(None)
        requests, size = self._pipe.recv()
        return requests, size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.join()


def _serve(listener: socket.socket, pipe: Connection) -> None:
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    selector.register(pipe, selectors.EVENT_READ)
    buffers: dict[socket.socket, bytearray] = {}
    requests = size = 0
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                made, _address = listener.accept()
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                buffers[made] = bytearray()
                selector.register(made, selectors.EVENT_READ)
                continue
            if key.fileobj is pipe:
                pipe.recv()
                pipe.send((requests, size))
                requests = size = 0
                continue
            client = key.fileobj
            assert isinstance(client, socket.socket)
            data = client.recv(_READ_BYTES)
            if not data:
                selector.unregister(client)
                client.close()
                del buffers[client]
                continue
            buffer = buffers[client]
            buffer += data
            while (end := buffer.find(b"\r\n\r\n")) >= 0:
                at = buffer.lower().find(_LENGTH, 0, end) + len(_LENGTH)
                length = int(buffer[at : buffer.find(b"\r\n", at)])
                if len(buffer) < end + 4 + length:
                    break
                del buffer[: end + 4 + length]
                requests, size = requests + 1, size + length
                client.sendall(_ANSWER)
