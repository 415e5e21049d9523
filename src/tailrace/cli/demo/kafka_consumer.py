"""The demo's Kafka server and a consumer of its topics. Needs the dependencies of the sink `kafka`."""

from __future__ import annotations

import time
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

from tailrace import settings
from tailrace.change import Position
from tailrace.cli.demo.demo_consumer import DemoConsumer
from tailrace.embedded.kafka import KafkaServer
from tailrace.errors import SinkError
from tailrace.sinks.kafka.client_configuration import client_configuration
from tailrace.sinks.kafka.kafka_error import ReportedErrors
from tailrace.sinks.kafka.options import KafkaOptions
from tailrace.sinks.messages.message import POSITION

_PREFIX: Final = "shop"
_POLL_S: Final = 0.1
_TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 1.0
"""How often to look for new topics: the sink creates each with its table's first change."""


class KafkaConsumer(DemoConsumer):
    name = "kafka"
    place = "Kafka"
    order = "in order in each topic"
    title = "log → Kafka, as a consumer of committed messages sees it"

    def __init__(self) -> None:
        super().__init__()
        self._server = KafkaServer()

    @property
    def sink(self) -> settings.SinkTable:
        return {
            "type": "kafka",
            "name": "topics",
            "url": self._server.url,
            "topic_prefix": _PREFIX,
            "message_topic": f"{_PREFIX}.message",
            "partitions": 1,
            "start": "earliest",
        }

    @property
    def command(self) -> str:
        return f"kcat -b {self._server.bootstrap} -t {_PREFIX}.public.orders"

    def has_every(self, expected: list[Position]) -> bool:
        """Kafka promises the order in a partition, and the demo's topics have one each."""
        are_ordered = all(positions == sorted(positions) for positions in self.positions_by_destination.values())
        return are_ordered and sorted(self.positions) == expected

    def _start(self) -> None:
        self._server.start()

    def _close(self) -> None:
        self._server.close()

    def _count(self) -> int:
        """Transactions leave markers in the topics, so the messages have to be counted."""
        consumer = self._connect()
        try:
            partitions = self._topics(consumer)
            consumer.assign(partitions)
            waiting, count = len(partitions), 0
            while waiting:
                message = consumer.poll(_TIMEOUT_S)
                if message is None:
                    raise SinkError("the embedded Kafka server does not answer")
                if message.error() is None:
                    count += 1
                else:
                    waiting -= 1
            return count
        finally:
            consumer.close()

    def _consume(self) -> None:
        consumer = self._connect()
        try:
            known: set[str] = set()
            look_at = 0.0
            while not self._stopping.is_set():
                if time.monotonic() >= look_at:
                    new = [each for each in self._topics(consumer) if each.topic not in known]
                    consumer.incremental_assign(new)
                    known |= {each.topic for each in new}
                    look_at = time.monotonic() + _LOOK_S
                message = consumer.poll(_POLL_S)
                if message is not None and message.error() is None:
                    pairs: Any = message.headers() or ()
                    value = bytes(message.value() or b"").decode()
                    position = dict(pairs)[POSITION].decode()
                    self._apply(str(message.topic()), bytes(message.key() or b"").decode(), value, position)
        except KafkaException as error:
            raise SinkError(f"the demo's consumer: {error}") from None
        finally:
            consumer.close()

    def _connect(self) -> Consumer:
        return Consumer(
            {
                **client_configuration(KafkaOptions(url=self._server.url), "demo", ReportedErrors()),
                "group.id": "demo",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )

    def _topics(self, consumer: Consumer) -> list[TopicPartition]:
        topics = consumer.list_topics(timeout=_TIMEOUT_S).topics
        names = [name for name in topics if name.startswith(f"{_PREFIX}.")]
        return [TopicPartition(name, part, OFFSET_BEGINNING) for name in names for part in topics[name].partitions]
