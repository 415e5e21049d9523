"""Streams and a queue of RabbitMQ as destinations, read by independent consumers: rstream and aio-pika."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import itertools
import json
import time
import uuid
import warnings
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import aio_pika
import aio_pika.exceptions
import rstream
import rstream.exceptions
from aio_pika.abc import AbstractIncomingMessage
from rstream.amqp import amqp_decoder
from tests.contract.message_destination import MESSAGES, MessageDestination, ReceivedMessage
from tests.contract.scenario import Scenario

from tailrace.embedded.rabbitmq import RabbitMqServer

_numbers = itertools.count(1)

Answer = TypeVar("Answer")


def run(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a client. rstream and aio-pika leave their sockets to the garbage collector. Clients of rstream are not
    closed: that takes the better part of a second, and fails if the broker has ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            return asyncio.run(work)
        finally:
            gc.collect()


@dataclass(frozen=True)
class Consumed:
    """A message as a consumer sees it."""

    destination: str
    """The stream or routing key."""
    id: str
    content_type: str
    headers: Mapping[str, Any]
    body: bytes


def _received(consumed: Consumed, prefix: str) -> ReceivedMessage:
    payload = json.loads(consumed.body)
    assert consumed.content_type == "application/json"
    assert consumed.id == payload["msg_id"]
    subject = payload["subject"].removeprefix(f"{prefix}.")
    destination = consumed.destination.removeprefix(f"{prefix}.")
    # One key for all: the order of the whole stream or queue is promised.
    return ReceivedMessage(destination, "", consumed.headers, payload | {"subject": subject})


@dataclass
class RabbitMqStreams(MessageDestination):
    server: RabbitMqServer
    tables: Sequence[tuple[str, str]]
    """All tables that may have a stream."""
    more: Mapping[str, Any] = field(default_factory=dict)
    number: int = field(default_factory=lambda: next(_numbers))

    @classmethod
    def of(cls, server: RabbitMqServer, scenario: Scenario, **more: Any) -> RabbitMqStreams:
        """A destination of the scenario's tables, under all names that they ever have."""
        names = {(c.relation.schema, c.relation.name) for c in scenario.changes.values() if c.relation is not None}
        names |= {(s.relation.schema, s.relation.name) for s in scenario.snapshots}
        names |= {("shaped", f"the_{table}") for _, table in names}
        return cls(server, sorted(names), more)

    def beside(self, name: str) -> RabbitMqStreams:
        return RabbitMqStreams(self.server, self.tables, self.more)

    @property
    def prefix(self) -> str:
        return f"s{self.number}"

    def settings(self) -> Mapping[str, Any]:
        return {
            "type": "rabbitmq",
            "url": self.server.url,
            "stream": f"{self.prefix}.{{schema}}.{{table}}",
            "stream_port": self.server.stream_port,
            "create": True,
            "logical_messages": f"{self.prefix}.{MESSAGES}",
            **self.more,
        }

    def name_of(self, schema: str, table: str) -> str:
        return f"{_queue_token(schema)}.{_queue_token(table)}"

    def stream_of(self, schema: str, table: str) -> str:
        return f"{self.prefix}.{self.name_of(schema, table)}"

    def received(self) -> Sequence[ReceivedMessage]:
        return [_received(message, self.prefix) for message in self.consume()]

    def consume(self) -> list[Consumed]:
        """The sink's messages in all streams."""
        return run(self._consume({self.stream_of(*table) for table in self.tables} | {f"{self.prefix}.{MESSAGES}"}))

    def fingerprint(self) -> Any:
        return self.consume()

    def when_more(self, act: Callable[[], None]) -> None:
        """Act as soon as one of the streams has another message. The act may end the broker."""

        async def wait() -> None:
            arrived = asyncio.Event()
            next_message = rstream.ConsumerOffsetSpecification(rstream.OffsetType.NEXT)
            consumer = await self._consumer()
            for stream in {self.stream_of(*table) for table in self.tables}:
                if await consumer.stream_exists(stream):
                    await consumer.subscribe(
                        stream, lambda *_: arrived.set(), offset_specification=next_message, decoder=bytes
                    )
            await asyncio.wait_for(arrived.wait(), 60)
            act()

        run(wait())

    def publish(self, stream: str, content: bytes, count: int = 1) -> None:
        """Publish as another client."""

        async def publish() -> None:
            producer = await self._producer()
            await asyncio.gather(*(producer.send_wait(stream, content) for _ in range(count)))

        run(publish())

    async def _producer(self) -> rstream.Producer:
        producer = rstream.Producer("127.0.0.1", self.server.stream_port, **self._login)
        await producer.start()
        return producer

    async def _consumer(self) -> rstream.Consumer:
        consumer = rstream.Consumer("127.0.0.1", self.server.stream_port, **self._login)
        await consumer.start()
        return consumer

    @property
    def _login(self) -> dict[str, Any]:
        return {"username": self.server.user, "password": self.server.password}

    async def _consume(self, names: set[str]) -> list[Consumed]:
        """Read each stream up to a message that is published now: the protocol does not tell where a stream ends. So
        the sink has to find its own last message before those of another client."""
        end = f"end {uuid.uuid4()}".encode()
        found: dict[str, list[Consumed]] = {}
        left: set[str] = set()
        finished = asyncio.Event()

        def receive(content: bytes, context: Any) -> None:
            if content == end:
                left.discard(context.stream)
                if not left:
                    finished.set()
            elif (message := _stream_message(context.stream, content)) is not None:
                found.setdefault(context.stream, []).append(message)

        consumer = await self._consumer()
        left |= {name for name in sorted(names) if await consumer.stream_exists(name)}
        if not left:
            return []
        producer = await self._producer()
        for stream in sorted(left):
            await producer.send_wait(stream, end)
        for stream in sorted(left):
            await consumer.subscribe(stream, receive, decoder=bytes, initial_credit=100)
        await asyncio.wait_for(finished.wait(), 120)
        return [message for stream in sorted(found) for message in found[stream]]


def _stream_message(stream: str, content: bytes) -> Consumed | None:
    """A message of the sink; None for another client's."""
    if not content.startswith(b"\x00\x53"):
        return None
    raw = amqp_decoder(content)
    headers = {name.decode(): _text(value) for name, value in (raw.application_properties or {}).items()}
    content_type = (raw.properties.content_type or b"").decode()
    return Consumed(stream, raw.properties.message_id.decode(), content_type, headers, bytes(raw.body or b""))


def _text(value: bytes) -> str | bytes:
    """rstream returns texts and bytes alike."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


@dataclass
class RabbitMqQueue(MessageDestination):
    """A topic exchange, and a queue that gets everything."""

    is_exact: ClassVar[bool] = False

    server: RabbitMqServer
    more: Mapping[str, Any] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Of the queue."""
    number: int = field(default_factory=lambda: next(_numbers))
    _taken: list[Consumed] = field(default_factory=list)

    def __post_init__(self) -> None:
        run(self._declare())

    def beside(self, name: str) -> RabbitMqQueue:
        return RabbitMqQueue(self.server, self.more, self.arguments)

    @property
    def prefix(self) -> str:
        return f"q{self.number}"

    def settings(self) -> Mapping[str, Any]:
        return {
            "type": "rabbitmq",
            "url": self.server.url,
            "exchange": self.prefix,
            "routing_key": f"{self.prefix}.{{schema}}.{{table}}",
            "logical_messages": f"{self.prefix}.{MESSAGES}",
            **self.more,
        }

    def name_of(self, schema: str, table: str) -> str:
        return f"{_key_token(schema)}.{_key_token(table)}"

    def received(self) -> Sequence[ReceivedMessage]:
        return [_received(message, self.prefix) for message in self.consume()]

    def consume(self) -> list[Consumed]:
        """Take what is in the queue, and return it after what was taken before."""
        run(self._take())
        return list(self._taken)

    def when_more(self, act: Callable[[], None]) -> None:
        """Act as soon as the queue has another message. The act may end the broker."""

        async def wait() -> None:
            connection = await aio_pika.connect(self.server.url)
            channel = await connection.channel()

            async def count() -> int:
                queue = await channel.declare_queue(self.prefix, passive=True)
                return queue.declaration_result.message_count or 0

            before, give_up_at = await count(), time.monotonic() + 60
            while await count() == before:
                assert time.monotonic() < give_up_at
            act()
            with suppress(OSError, TimeoutError, aio_pika.exceptions.AMQPError):
                await asyncio.wait_for(connection.close(), 10)

        run(wait())

    def bind(self, *keys: str) -> None:
        """Bind the queue to these routing keys instead of all."""

        async def bind() -> None:
            async with await aio_pika.connect(self.server.url) as connection:
                channel = await connection.channel()
                queue = await channel.get_queue(self.prefix)
                await queue.unbind(self.prefix, "#")
                for key in keys:
                    await queue.bind(self.prefix, key)

        run(bind())

    async def _declare(self) -> None:
        async with await aio_pika.connect(self.server.url) as connection:
            channel = await connection.channel()
            exchange = await channel.declare_exchange(self.prefix, aio_pika.ExchangeType.TOPIC, durable=True)
            queue = await channel.declare_queue(self.prefix, durable=True, arguments=dict(self.arguments))
            await queue.bind(exchange, "#")

    async def _take(self) -> None:
        async with await aio_pika.connect(self.server.url) as connection:
            channel = await connection.channel()
            queue = await channel.get_queue(self.prefix)
            while (raw := await queue.get(fail=False)) is not None:
                assert raw.delivery_mode is aio_pika.DeliveryMode.PERSISTENT
                self._taken.append(amqp_message(raw.routing_key or "", raw))
                await raw.ack()


def is_readable(place: RabbitMqStreams | RabbitMqQueue) -> bool:
    """Whether the broker, which was started again, has recovered everything."""
    try:
        place.consume()
    except (OSError, rstream.exceptions.ServerError):
        return False
    return True


def amqp_message(destination: str, raw: AbstractIncomingMessage) -> Consumed:
    return Consumed(destination, raw.message_id or "", raw.content_type or "", dict(raw.headers), raw.body)


def _queue_token(name: str) -> str:
    coded = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else _coded(c) for c in name)
    return coded if len(coded) <= 100 else f"{coded[:66]}::{hashlib.sha256(coded.encode()).hexdigest()[:32]}"


def _key_token(name: str) -> str:
    return "".join(_coded(c) if c.isspace() or c in ".*#:" or ord(c) < 32 or ord(c) == 127 else c for c in name)


def _coded(character: str) -> str:
    return "".join(f":{byte:02X}" for byte in character.encode())
