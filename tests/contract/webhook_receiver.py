"""An HTTP server as a destination. It verifies every signature with an independent library, and remembers requests.

What it answers is up to the test. The expected content of requests is built from the changes that `LogReader` returns.
"""

from __future__ import annotations

import base64
import gzip
import json
import socket
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import quote

from standardwebhooks.webhooks import Webhook
from tests.contract.destinations import assert_same
from tests.contract.message_destination import MESSAGES, MessageDestination, ReceivedMessage
from tests.contract.scenario import Mark, Scenario

from tailrace.change import Change, Lsn, Position
from tailrace.delivery.contract import State
from tailrace.log.ddl_message import OWN_PREFIXES

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
OTHER_SECRET = "whsec_" + base64.b64encode(bytes(range(100, 124))).decode()


@dataclass(frozen=True)
class Received:
    """A request, after its signature was verified."""

    method: str
    path: str
    headers: Mapping[str, str]
    """With names in lower case."""
    content: bytes
    """Decompressed."""

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def changes(self) -> list[Any]:
        found = self.json
        return found if isinstance(found, list) else [found]


@dataclass(frozen=True)
class Answer:
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Hang:
    """Read the request and answer nothing."""


@dataclass(frozen=True)
class Reset:
    """Read the request and reset the connection."""


@dataclass(frozen=True)
class Drip:
    """Answer with a body that never ends, slowly."""

    status: int = 500


Reaction = Answer | Hang | Reset | Drip
React = Callable[[Received], Reaction]


def _accept(_: Received) -> Reaction:
    return Answer()


class HttpReceiver:
    """A server on 127.0.0.1. `accepted` has the requests that were answered with 2xx, in the order of the answers."""

    def __init__(self, react: React = _accept, context: ssl.SSLContext | None = None, secret: str = SECRET) -> None:
        self.react = react
        self.requests: list[Received] = []
        """All that arrived."""
        self.accepted: list[Received] = []
        self.secret = secret
        self.failures: list[str] = []
        """What a handler found wrong: a faulty signature, or two changes of a key at the same time."""
        self.connections: set[Any] = set()
        self.interim = b""
        """What is sent before each answer."""
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._in_flight: Counter[Any] = Counter()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True  # the client is gone

            def do_POST(self) -> None:
                receiver._serve(self)

            do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST  # noqa: N815

            def log_message(self, *arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

            def handle_error(self, request: Any, client_address: Any) -> None:
                error = sys.exception()
                if not isinstance(error, OSError):  # a client may reject the certificate, or disconnect
                    receiver.failures.append(repr(error))

            def finish_request(self, request: Any, client_address: Any) -> None:
                receiver.connections.add(client_address)
                if context is None:
                    super().finish_request(request, client_address)
                    return
                with context.wrap_socket(request, server_side=True) as encrypted:
                    super().finish_request(encrypted, client_address)

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]
        self._scheme = "http" if context is None else "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://localhost:{self.port}/hook"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        assert not self.failures, self.failures[:3]

    def settings(self, **more: Any) -> dict[str, Any]:
        return {"type": "webhook", "url": self.url, "secret": self.secret, "allow_private": True, **more}

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        received = self._read(handler)
        keys = _keys(received)
        with self._lock:
            self.requests.append(received)
            busy = [key for key in keys if self._in_flight[key]]
            if busy:
                self.failures.append(f"changes of {busy[0]} are in flight on two connections")
            self._in_flight.update(keys)
        try:
            reaction = self.react(received)
        finally:
            with self._lock:
                self._in_flight.subtract(keys)
        if isinstance(reaction, Answer) and 200 <= reaction.status < 300:
            self.accepted.append(received)
        self._answer(handler, reaction)

    def _answer(self, handler: BaseHTTPRequestHandler, reaction: Reaction) -> None:
        match reaction:
            case Answer(status, headers, body):
                handler.wfile.write(self.interim)
                handler.send_response(status)
                for name, value in headers.items():
                    handler.send_header(name, value)
                handler.send_header("content-length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)
                handler.wfile.flush()
            case Hang():
                self._closing.wait()
                handler.close_connection = True
            case Reset():
                handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                handler.connection.close()
                handler.close_connection = True
            case Drip(status=status):
                handler.send_response(status)
                handler.send_header("content-length", "1000000000")
                handler.end_headers()
                for _ in range(200):
                    if self._closing.wait(0.05):
                        return
                    handler.wfile.write(b"x")
                    handler.wfile.flush()
                self.failures.append("the client went on reading an answer that never ends")
                handler.close_connection = True

    def _read(self, handler: BaseHTTPRequestHandler) -> Received:
        body = handler.rfile.read(int(handler.headers["content-length"] or 0))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        content = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        received = Received(handler.command, handler.path, headers, content)
        if handler.command != "OPTIONS" and self.secret:
            try:
                Webhook(self.secret).verify(content, headers, json_parse=False)
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}")
        return received


def _keys(received: Received) -> list[Any]:
    """The rows that a request in the envelope `tailrace` is about, before and after."""
    if "json" not in received.headers.get("content-type", ""):
        return []
    images = [
        (change["relation_id"], row)
        for change in (received.changes if received.content else [])
        if isinstance(change, dict) and "relation_id" in change
        for row in (change["data"], change.get("old_key"))
    ]
    return list(dict.fromkeys((oid, row["id"]) for oid, row in images if row and "id" in row))


@dataclass
class WebhookReceiver(MessageDestination):
    """The destination of one sink, in the envelope `tailrace`."""

    is_exact: ClassVar[bool] = False
    server: HttpReceiver
    more: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""

    def beside(self, name: str) -> WebhookReceiver:
        return WebhookReceiver(self.server, self.more, f"/{name}")

    def settings(self) -> Mapping[str, Any]:
        return self.server.settings(
            **{"url": f"{self.server.url}{self.name}", "path": "/tables/{schema}/{table}", **self.more}
        )

    def name_of(self, schema: str, table: str) -> str:
        return f"/tables/{quote(schema, safe='')}/{quote(table, safe='')}"

    def requests(self) -> list[Received]:
        """The accepted ones, in the order of the answers."""
        return [one for one in list(self.server.accepted) if one.path.startswith(f"/hook{self.name}")]

    def received(self) -> list[ReceivedMessage]:
        """Each change in a request. A batch has no headers for them: position and last are not compared then."""
        found = []
        for request in self.requests():
            path = request.path.removeprefix(f"/hook{self.name}")
            for payload in request.changes:
                headers = {name.title(): value for name, value in request.headers.items()}
                if isinstance(request.json, list):
                    headers |= {"Tailrace-Position": payload["msg_id"].partition("-")[0], "Tailrace-Last": "false"}
                subject = (
                    payload["subject"].removeprefix("/") if payload["operation"] == "MESSAGE" else payload["subject"]
                )
                # No key: `assert_order_per_key` knows which columns are the key.
                found.append(
                    ReceivedMessage(path or MESSAGES, None, headers, payload | {"subject": subject or MESSAGES})
                )
        return found

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State, began: Lsn) -> None:
        super().assert_holds(scenario, mark, state, began)
        first = dict.fromkeys(record.position for record in self.records())
        assert_order_per_key([scenario.changes[position] for position in first])

    def assert_changes(self, changes: Iterable[Change], *, again: bool = False) -> None:
        """Assert that the receiver accepted exactly these changes: once, or at least once if `again`. They arrived in
        order for each key, and repetitions are equal."""
        expected = {c.position: c for c in changes if c.prefix not in OWN_PREFIXES}
        self._assert_ids(self.received())
        found: dict[Position, Any] = {}
        records = list(self.records())
        for record in records:
            found.setdefault(record.position, record.content)
        assert again or len(records) == len(found), f"{len(records) - len(found)} changes were delivered twice"
        assert_same(found, expected)
        for position, change in expected.items():
            assert found[position] == self.content(change), f"{position}: {change.operation} of {change.table}"
        assert_order_per_key([expected[position] for position in found])


def assert_order_per_key(changes: list[Change]) -> None:
    """Assert that changes, as they arrived, are in log order for each row and each table without a key. A TRUNCATE
    comes after all changes before it, and before all after it."""
    last_of_row: dict[Any, Position] = {}
    last_of_table: dict[int, Position] = {}
    highest: dict[int, Position] = {}
    for change in changes:
        at, oid = change.position, 0 if change.relation is None else change.relation.oid
        rows = _rows(change)
        for row in rows:
            assert last_of_row.get(row, at) <= at, f"{at} came after {last_of_row[row]}, of the same row"
            last_of_row[row] = at
        assert last_of_table.get(oid, at) <= at, f"{at} came after {last_of_table[oid]}, which concerns the table"
        if not rows:
            assert highest.get(oid, at) <= at, f"{at}, which concerns the table, came after {highest[oid]}"
            last_of_table[oid] = at
        highest[oid] = max(highest.get(oid, at), at)


def _rows(change: Change) -> list[Any]:
    relation = change.relation
    if relation is None or not relation.key:
        return []
    names = [column.name for column in relation.columns]
    images = [image for image in (change.old, change.new) if image is not None]
    return [(relation.oid, *(image[names.index(name)] for name in relation.key)) for image in images]
