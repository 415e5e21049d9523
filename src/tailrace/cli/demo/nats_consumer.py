"""The demo's NATS server and a consumer of its stream. Needs the dependencies of the sink `nats`."""

from __future__ import annotations

from contextlib import closing
from typing import Final

from tailrace import settings
from tailrace.change import Position
from tailrace.cli.demo.demo_consumer import DemoConsumer
from tailrace.embedded.nats import NatsServer
from tailrace.sinks.messages.message import POSITION
from tailrace.sinks.nats import NatsOptions, jetstream
from tailrace.sinks.nats.client import NatsClient, NatsMessage, parse_headers

_STREAM: Final = "CDC"
_INBOX: Final = "_INBOX.demo"
_RETENTION_S: Final = 7 * 24 * 3600
"""Longer than any demo runs, so that the stream holds every change."""
_POLL_S: Final = 0.1


class NatsConsumer(DemoConsumer):
    name = "stream"
    place = "the stream"
    order = "in order"
    title = "log → NATS JetStream, as a consumer sees it"

    def __init__(self) -> None:
        super().__init__()
        self._server = NatsServer()

    @property
    def sink(self) -> settings.SinkTable:
        return {"type": "nats", "name": "bus", "url": self._server.url, "encoding": "json", "max_age_s": _RETENTION_S}

    @property
    def command(self) -> str:
        return f"nats sub -s {self._server.url} 'cdc.>'"

    def has_every(self, expected: list[Position]) -> bool:
        return self.positions == expected

    def _start(self) -> None:
        self._server.start()

    def _close(self) -> None:
        self._server.close()

    def _count(self) -> int:
        with closing(self._connect()) as wire:
            answer = jetstream.raise_for_error(wire.request(f"$JS.API.STREAM.INFO.{_STREAM}"))
        return int(answer["state"]["messages"])

    def _connect(self, listen: str = "") -> NatsClient:
        return NatsClient(NatsOptions(url=self._server.url), "demo", listen)

    def _consume(self) -> None:
        with closing(self._connect(_INBOX)) as wire:
            while not _subscribe(wire):
                if self._stopping.wait(_POLL_S):
                    return
            while not self._stopping.is_set():
                if (message := wire.next_message(_POLL_S)) is not None:
                    self._apply_message(message)

    def _apply_message(self, message: NatsMessage) -> None:
        headers = parse_headers(message.headers)
        text = bytes(message.payload).decode()
        self._apply(message.subject.decode(), headers["Nats-Msg-Id"], text, headers[POSITION])


def _subscribe(wire: NatsClient) -> bool:
    """Subscribe to the stream. Return False if it does not exist yet."""
    config = {"deliver_subject": _INBOX, "deliver_policy": "all", "ack_policy": "none"}
    answer = wire.request(f"$JS.API.CONSUMER.CREATE.{_STREAM}", {"stream_name": _STREAM, "config": config})
    if answer.get("error", {}).get("err_code") == jetstream.NO_STREAM:
        return False
    jetstream.raise_for_error(answer)
    return True
