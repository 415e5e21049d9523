"""The demo's NATS server and a consumer of its stream. Needs the dependencies of the sink `nats`."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from typing import Any, Final, NamedTuple

from tailrace import settings
from tailrace.change import Position
from tailrace.embedded.nats import NatsServer
from tailrace.embedded.process import wait_until
from tailrace.embedded.shop import KEYS
from tailrace.errors import TailraceError
from tailrace.sinks.messages.message import POSITION
from tailrace.sinks.nats import NatsOptions, jetstream
from tailrace.sinks.nats.client import NatsClient, NatsMessage, parse_headers

_STREAM: Final = "CDC"
_INBOX: Final = "_INBOX.demo"
_RETENTION_S: Final = 7 * 24 * 3600
"""Longer than any demo runs, so that the stream holds every change."""
_POLL_S: Final = 0.1


class ConsumedMessage(NamedTuple):
    """A message of the stream."""

    subject: str
    id: str
    text: str


class DemoConsumer:
    """Runs a NATS server until the context exits. Once the stream exists, consumes it from its first message."""

    def __init__(self) -> None:
        self._server = NatsServer()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)
        self._error: TailraceError | None = None
        self.last: ConsumedMessage | None = None
        self.newest: dict[str, ConsumedMessage] = {}
        """The newest message of each operation."""
        self.positions: list[Position] = []
        """The positions of all messages, in stream order."""
        self.rows: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {table: {} for table in KEYS}
        """The rows of each table, by key, as built from the messages."""

    def __enter__(self) -> DemoConsumer:
        self._server.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._server.close()

    @property
    def sink(self) -> settings.SinkTable:
        """The settings of the sink that publishes to the stream, in JSON, which is readable in a terminal."""
        return {"type": "nats", "name": "bus", "url": self._server.url, "encoding": "json", "max_age_s": _RETENTION_S}

    @property
    def command(self) -> str:
        """The command to subscribe from another terminal."""
        return f"nats sub -s {self._server.url} 'cdc.>'"

    def finish(self) -> int:
        """Wait until all messages of the stream are consumed, and return how many there are."""
        with closing(self._connect()) as wire:
            count = int(jetstream.raise_for_error(wire.request(f"$JS.API.STREAM.INFO.{_STREAM}"))["state"]["messages"])
        wait_until(lambda: len(self.positions) >= count or self._error is not None, 10)
        if self._error is not None:
            raise self._error
        return count

    def _connect(self, listen: str = "") -> NatsClient:
        return NatsClient(NatsOptions(url=self._server.url), "demo", listen)

    def _run(self) -> None:
        try:
            with closing(self._connect(_INBOX)) as wire:
                self._consume(wire)
        except TailraceError as error:
            self._error = error

    def _consume(self, wire: NatsClient) -> None:
        while not _subscribe(wire):
            if self._stopping.wait(_POLL_S):
                return
        while not self._stopping.is_set():
            if (message := wire.next_message(_POLL_S)) is not None:
                self._apply(message)

    def _apply(self, message: NatsMessage) -> None:
        fields, text = parse_headers(message.headers), bytes(message.payload).decode()
        payload = json.loads(text)
        operation = payload["operation"]
        if "table" in payload:
            rows, row = self.rows[payload["table"]], payload["data"]
            key = tuple(row[column] for column in KEYS[payload["table"]])
            if operation == "DELETE":
                rows.pop(key, None)
            else:
                rows[key] = row
        self.last = self.newest[operation] = ConsumedMessage(message.subject.decode(), fields["Nats-Msg-Id"], text)
        self.positions.append(Position.parse(fields[POSITION]))


def _subscribe(wire: NatsClient) -> bool:
    """Subscribe to the stream. Return False if it does not exist yet."""
    config = {"deliver_subject": _INBOX, "deliver_policy": "all", "ack_policy": "none"}
    answer = wire.request(f"$JS.API.CONSUMER.CREATE.{_STREAM}", {"stream_name": _STREAM, "config": config})
    if answer.get("error", {}).get("err_code") == jetstream.NO_STREAM:
        return False
    jetstream.raise_for_error(answer)
    return True
