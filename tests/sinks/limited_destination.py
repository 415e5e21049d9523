"""Destinations of message sinks whose limit for a message's size can be changed."""

from __future__ import annotations

from abc import ABC, abstractmethod

from tests.contract.destinations import Place
from tests.contract.kafka_topics import KafkaTopics
from tests.contract.nats_stream import NatsStream
from tests.contract.valkey_streams import ValkeyStreams
from tests.contract.webhook_receiver import Answer, HttpReceiver, WebhookReceiver
from tests.fixtures.kafka import alter_topic, create_topic, topics

from tailrace.change import Position
from tailrace.embedded.kafka import KafkaServer
from tailrace.embedded.nats import NatsServer
from tailrace.embedded.valkey import ValkeyServer
from tailrace.sinks.valkey import command

UNLIMITED = 1_000_000


class LimitedDestination(ABC):
    """The destination of `public.t100`."""

    place: Place
    refusal: str
    """How the sink describes the limit."""

    @abstractmethod
    def set_limit(self, limit: int) -> None:
        """Set the size of the largest message that is accepted."""

    @abstractmethod
    def received(self) -> list[tuple[Position, str]]:
        """The positions and ids of the messages, in the order in which they were received."""

    def positions(self) -> list[Position]:
        return [position for position, _ in self.received()]

    @abstractmethod
    def forget_duplicates(self) -> None:
        """Wait until the destination takes every message for a new one."""


class LimitedStream(LimitedDestination):
    refusal = "bytes, and the server accepts {limit:,}"

    def __init__(self, server: NatsServer) -> None:
        self.place = self._stream = NatsStream(server, "json")

    def set_limit(self, limit: int) -> None:
        self._stream.make(max_msg_size=limit, duplicate_window=0.1)

    def received(self) -> list[tuple[Position, str]]:
        return [(message.position, message.headers["Nats-Msg-Id"]) for message in self._stream.changes()]

    def forget_duplicates(self) -> None:
        assert self._stream.wait_for_duplicate_window()


class LimitedTopic(LimitedDestination):
    def __init__(self, server: KafkaServer) -> None:
        self.place = self._topics = KafkaTopics(server, {"partitions": 1})
        self.topic = f"{self._topics.prefix}.public.t100"
        self.refusal = f"bytes, and topic {self.topic} accepts {{limit:,}}"

    def set_limit(self, limit: int) -> None:
        bootstrap = self._topics.server.bootstrap
        set_to = alter_topic if self.topic in topics(bootstrap) else create_topic
        set_to(bootstrap, self.topic, max_message_bytes=str(limit))

    def received(self) -> list[tuple[Position, str]]:
        table = self.topic.removeprefix(f"{self._topics.prefix}.")
        messages = [message for message in self._topics.received() if message.destination == table]
        return [(message.position, message.payload["msg_id"]) for message in messages]

    def forget_duplicates(self) -> None:
        """It knows none: messages and progress are one transaction."""


class LimitedReceiver(LimitedDestination):
    refusal = "rejected with 413"

    def __init__(self, server: HttpReceiver) -> None:
        self.place = self._receiver = WebhookReceiver(server, {"connections": 1})

    def set_limit(self, limit: int) -> None:
        self._receiver.server.react = lambda received: Answer(413 if len(received.content) > limit else 200)

    def received(self) -> list[tuple[Position, str]]:
        name = self._receiver.name_of("public", "t100")
        messages = [message for message in self._receiver.received() if message.destination == name]
        return [(message.position, message.payload["msg_id"]) for message in messages]

    def forget_duplicates(self) -> None:
        """It knows none: whatever comes is received."""


class LimitedEntries(LimitedDestination):
    """The server's own limit is 512 MiB. The sink's constant is set instead, so tasks have to run in this process."""

    refusal = "the row is larger than {limit:,} bytes"

    def __init__(self, server: ValkeyServer) -> None:
        self.place = self._streams = ValkeyStreams(server)

    def set_limit(self, limit: int) -> None:
        command.MAX_VALUE_BYTES = limit  # type: ignore[misc]

    def received(self) -> list[tuple[Position, str]]:
        name = self._streams.name_of("public", "t100")
        messages = [message for message in self._streams.received() if message.destination == name]
        return [(message.position, message.payload["msg_id"]) for message in messages]

    def forget_duplicates(self) -> None:
        """It knows none: entries and progress are one transaction."""
