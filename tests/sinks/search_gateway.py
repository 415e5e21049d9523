"""A gateway in front of a real OpenSearch server, as clusters have one: TLS, credentials, and answers of its own."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from tailrace.embedded.opensearch import OpenSearchServer


class SearchGateway:
    """Forwards requests. `expected` is the value of `authorization` that it demands; `answer` may return a status
    instead of forwarding a request; `observe` sees path, status and body of each answer."""

    def __init__(
        self,
        server: OpenSearchServer,
        context: ssl.SSLContext | None = None,
        expected: str | None = None,
        answer: Callable[[str, str], int | None] = lambda _method, _path: None,
        observe: Callable[[str, int, bytes], None] = lambda _path, _status, _body: None,
    ) -> None:
        gateway = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                gateway._forward(self)

            def do_PUT(self) -> None:
                gateway._forward(self)

            def do_POST(self) -> None:
                gateway._forward(self)

            def do_DELETE(self) -> None:
                gateway._forward(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = server
        self._expected = expected
        self._answer = answer
        self._observe = observe

        class Listener(ThreadingHTTPServer):
            daemon_threads = True

            def finish_request(self, request: Any, client_address: Any) -> None:
                if context is None:
                    super().finish_request(request, client_address)
                    return
                # A client whose certificate is not accepted learns why, if the connection is closed after the alert.
                with suppress(ssl.SSLError), context.wrap_socket(request, server_side=True) as encrypted:
                    super().finish_request(encrypted, client_address)

        self._listener = Listener(("127.0.0.1", 0), Handler)
        scheme = "http" if context is None else "https"
        self.url = f"{scheme}://localhost:{self._listener.server_address[1]}"
        self._thread = threading.Thread(target=self._listener.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown()
        self._thread.join()
        self._listener.server_close()

    def _forward(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        status = self._answer(handler.command, handler.path)
        if self._expected is not None and handler.headers.get("authorization") != self._expected:
            status = 401
        data = b"{}"
        if status is None:
            client = http.client.HTTPConnection("127.0.0.1", self._server.port)
            headers = {"content-type": handler.headers["content-type"]} if body else {}
            client.request(handler.command, handler.path, body, headers)
            response = client.getresponse()
            status, data = response.status, response.read()
            client.close()
        self._observe(handler.path, status, data)
        handler.send_response(status)
        handler.send_header("content-type", "application/json")
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)
