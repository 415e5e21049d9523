"""The sink `kafka`: publishes each change as a message to a topic per table, exactly once and in order per key.

Messages and the sink's progress are written in one transaction. A repeated step continues after the progress, whatever
failed. A process that begins to publish fences all others of this sink.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Final

from tailrace.change import Relation
from tailrace.delivery.contract import State
from tailrace.delivery.sink_settings import SinkContext
from tailrace.errors import ConfigError
from tailrace.finding import Finding
from tailrace.log import published_table
from tailrace.sinks.kafka.check import check_cluster
from tailrace.sinks.kafka.cursor_topic import cursor_topic
from tailrace.sinks.kafka.heartbeat import publish_heartbeat
from tailrace.sinks.kafka.options import KafkaOptions
from tailrace.sinks.kafka.topic import CURSOR_CONFIGURATION, Topics
from tailrace.sinks.kafka.topic_name import is_topic_name
from tailrace.sinks.kafka.transport import KafkaTransport
from tailrace.sinks.messages.debezium_envelope import DebeziumEnvelope
from tailrace.sinks.messages.debezium_transaction import TransactionCounter
from tailrace.sinks.messages.destination_registry import RegisteredTable, Standing
from tailrace.sinks.messages.encoder import MessageEncoder
from tailrace.sinks.messages.envelope import Envelope
from tailrace.sinks.messages.message_sink import MessageSink
from tailrace.sinks.messages.routing import DestinationTemplate

_HEADER_PREFIX: Final = "ce_"


class KafkaSink(MessageSink[KafkaOptions]):
    Options: ClassVar[type] = KafkaOptions
    start: ClassVar[str] = "snapshot"
    collision_hint: ClassVar[str] = (
        "Use another template in `topic`, give them different names with `route`, such as '{schema}.{schema}_{table}',"
        " or exclude one of them."
    )

    def __init__(self, name: str, options: KafkaOptions, context: SinkContext) -> None:
        super().__init__(name, options.validate(), context)
        self._beat_at = 0.0
        """When the next heartbeat is due."""

    def template(self) -> DestinationTemplate:
        return self._options.template(self._database)

    def _registered(self, relation: Relation, target: tuple[str, str], standing: Standing) -> RegisteredTable:
        table = super()._registered(relation, target, standing)
        if table.destination in (cursor_topic(self.name, self._options), *self._options.other_topics):
            raise ConfigError(
                f"{relation.qualified_name} would be published to {table.destination}, which the sink needs for its"
                " progress, or for messages that are not of a table",
                self.collision_hint,
            )
        return table

    def encoder(self) -> MessageEncoder:
        topic = self._options.logical_message_topic
        return MessageEncoder(self._envelope(), self.template(), (lambda _: topic) if topic else None)

    def _envelope(self) -> Envelope:
        options = self._options
        envelope = options.make_envelope(self.name, self._database, options.topic_prefix, _HEADER_PREFIX)
        if options.debezium_transactions and isinstance(envelope, DebeziumEnvelope):
            return replace(envelope, transactions=TransactionCounter())
        return envelope

    def maintain(self) -> None:
        super().maintain()
        interval_s = self._options.debezium_heartbeat_s
        if not interval_s or time.monotonic() < self._beat_at:
            return
        if isinstance(envelope := self._envelope(), DebeziumEnvelope):
            publish_heartbeat(self.name, self._options, envelope)
        self._beat_at = time.monotonic() + interval_s

    def connect(self) -> KafkaTransport:
        return KafkaTransport(self.name, self._options)

    def open(self) -> State:
        state = super().open()
        Topics(self.name, self._options).ensure([cursor_topic(self.name, self._options)], 1, CURSOR_CONFIGURATION)
        return state

    def check(self) -> Iterator[Finding]:
        self._load_state()
        shaping = self._shaping()
        shaped = [shaping.load(relation) for relation in published_table.load(self._store)]
        topics = [self.template().of_table(found[1]) for found in shaped if found is not None]
        yield from check_cluster(self.name, self._options, filter(is_topic_name, topics))
        yield from self._options.registry_findings()
