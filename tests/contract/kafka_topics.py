"""The topics of one sink as a destination, read by a consumer that sees committed messages only."""

from __future__ import annotations

import hashlib
import itertools
import json
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition
from tests.contract.message_destination import MESSAGES, MessageDestination, ReceivedMessage
from tests.fixtures.kafka import QUIET

from tailrace.embedded.kafka import KafkaServer
from tailrace.embedded.process import wait_until

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Consumed:
    """A message as a consumer sees it."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, str]


@dataclass
class KafkaTopics(MessageDestination):
    server: KafkaServer
    more: Mapping[str, Any] = field(default_factory=dict)
    number: int = field(default_factory=lambda: next(_numbers))

    def beside(self, name: str) -> KafkaTopics:
        return KafkaTopics(self.server, self.more)

    @property
    def prefix(self) -> str:
        return f"t{self.number}"

    def settings(self) -> Mapping[str, Any]:
        return {
            "type": "kafka",
            "url": self.server.url,
            "topic_prefix": self.prefix,
            "message_topic": f"{self.prefix}.{MESSAGES}",
            "cursor_topic": f"cursor-{self.prefix}",
            "partitions": 3,
            **self.more,
        }

    def name_of(self, schema: str, table: str) -> str:
        return f"{_escaped(schema)}.{_escaped(table)}"

    def received(self) -> Sequence[ReceivedMessage]:
        found = []
        for message in self.consume():
            payload = json.loads(message.value or b"")
            topic = message.topic.removeprefix(f"{self.prefix}.")
            subject = payload["subject"].removeprefix(f"{self.prefix}.")
            found.append(ReceivedMessage(topic, message.key, message.headers, payload | {"subject": subject}))
        return found

    def fingerprint(self) -> Any:
        """Partition by partition: a consumer gets those of several in any order."""
        return sorted(self.consume(), key=lambda message: (message.topic, message.partition))

    def consume(self, isolation: str = "read_committed") -> list[Consumed]:
        """All messages in the sink's topics."""
        return list(consume(self.server.bootstrap, f"{self.prefix}.", isolation))

    def when_more(self, act: Callable[[], None]) -> None:
        """Act as soon as the sink has written another progress, which may not be committed yet."""
        configuration = {"bootstrap.servers": self.server.bootstrap, "isolation.level": "read_uncommitted"}
        consumer = Consumer({**configuration, "group.id": "tests", **QUIET})
        cursor = TopicPartition(f"cursor-{self.prefix}", 0)
        try:
            before = consumer.get_watermark_offsets(cursor, 30)
            assert wait_until(lambda: consumer.get_watermark_offsets(cursor, 30) != before, 60)
            act()
        finally:
            consumer.close()


def _escaped(name: str) -> str:
    allowed = string.ascii_letters + string.digits + "_-"
    escaped = "".join(c if c in allowed else "".join(f"_x{byte:02X}" for byte in c.encode()) for c in name)
    if len(escaped) <= 96:
        return escaped
    return f"{escaped[:64]}_x{hashlib.sha256(name.encode()).hexdigest()[:30]}"


def consume(bootstrap: str, prefix: str, isolation: str = "read_committed", **configuration: Any) -> Iterator[Consumed]:
    """All messages in the topics that begin with a prefix, each partition's in its order."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "tests",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 5,
            "auto.offset.reset": "error",
            **QUIET,
            **configuration,
        }
    )
    try:
        topics = [topic for topic in consumer.list_topics(timeout=30).topics.values() if topic.topic.startswith(prefix)]
        # To ask for the beginning of each partition takes longer than to read it.
        partitions = [TopicPartition(t.topic, number, 0) for t in topics for number in t.partitions]
        consumer.assign(partitions)
        waiting = {(one.topic, one.partition) for one in partitions}
        while waiting:
            message = consumer.poll(30)
            assert message is not None, f"no answer for {waiting}"
            where = str(message.topic()), int(message.partition() or 0)
            error = message.error()
            if error is None:
                pairs: Any = message.headers() or ()
                headers = {name: value.decode() for name, value in pairs}
                yield Consumed(*where, message.key(), message.value(), headers)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                waiting.discard(where)
    finally:
        consumer.close()
