"""The demo's NATS server, and a consumer of its stream, as any program could be one. Needs what the sink needs."""

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
from tailrace.sinks.nats import NatsOptions, frames, stream
from tailrace.sinks.nats.wire import Message, Wire, headers

_STREAM: Final = "CDC"
_INBOX: Final = "_INBOX.demo"
_KEPT_S: Final = 7 * 24 * 3600
"""Longer than any demo runs: the stream is to hold every change."""
_LOOK_S: Final = 0.1


class Seen(NamedTuple):
    """A message."""

    subject: str
    id: str
    text: str


class Consuming:
    """From the context's beginning to its end, a server; once there is a stream, it is followed from its first message
    on."""

    def __init__(self) -> None:
        self._server = NatsServer()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="consumer", daemon=True)
        self._error: TailraceError | None = None
        self.last: Seen | None = None
        self.newest: dict[str, Seen] = {}
        """By operation."""
        self.positions: list[Position] = []
        """Of every message, in the stream's order."""
        self.rows: dict[str, dict[tuple[Any, ...], dict[str, Any]]] = {table: {} for table in KEYS}
        """What the messages make of each table, by its key."""

    def __enter__(self) -> Consuming:
        self._server.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._server.close()

    @property
    def sink(self) -> settings.Sink:
        """Who publishes: in JSON, which reads well in a terminal."""
        return {"type": "nats", "name": "bus", "url": self._server.url, "encoding": "json", "max_age_s": _KEPT_S}

    @property
    def command(self) -> str:
        """What to type into another terminal."""
        return f"nats sub -s {self._server.url} 'cdc.>'"

    def finish(self) -> int:
        """How many messages the stream holds; all of them are consumed then."""
        with closing(self._connected()) as wire:
            held = int(stream.checked(wire.ask(f"$JS.API.STREAM.INFO.{_STREAM}"))["state"]["messages"])
        wait_until(lambda: len(self.positions) >= held or self._error is not None, 10)
        if self._error is not None:
            raise self._error
        return held

    def _connected(self, listen: str = "") -> Wire:
        return Wire(NatsOptions(url=self._server.url), "demo", listen)

    def _run(self) -> None:
        try:
            with closing(self._connected(_INBOX)) as wire:
                self._consume(wire)
        except TailraceError as error:
            self._error = error

    def _consume(self, wire: Wire) -> None:
        while not _is_followed(wire):
            if self._stopping.wait(_LOOK_S):
                return
        while not self._stopping.is_set():
            if (message := wire.next(_LOOK_S)) is not None:
                self._take(message)

    def _take(self, message: Message) -> None:
        said, text = headers(message.headers), bytes(message.payload).decode()
        payload = json.loads(text)
        operation = payload["operation"]
        if "table" in payload:
            rows, row = self.rows[payload["table"]], payload["data"]
            key = tuple(row[column] for column in KEYS[payload["table"]])
            if operation == "DELETE":
                rows.pop(key, None)
            else:
                rows[key] = row
        self.last = self.newest[operation] = Seen(message.subject.decode(), said["Nats-Msg-Id"], text)
        self.positions.append(Position.parse(said[frames.POSITION]))


def _is_followed(wire: Wire) -> bool:
    """The stream's messages come to us from now on; not while there is no stream."""
    config = {"deliver_subject": _INBOX, "deliver_policy": "all", "ack_policy": "none"}
    answer = wire.ask(f"$JS.API.CONSUMER.CREATE.{_STREAM}", {"stream_name": _STREAM, "config": config})
    if answer.get("error", {}).get("err_code") == stream.NO_STREAM:
        return False
    stream.checked(answer)
    return True
