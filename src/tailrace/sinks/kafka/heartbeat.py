"""Publishes Debezium's heartbeats, outside of transactions: they belong to no change."""

from __future__ import annotations

from confluent_kafka import KafkaError, Message, Producer

from tailrace.sinks.kafka.client_configuration import TIMEOUT_S, client_configuration, make_client
from tailrace.sinks.kafka.kafka_error import ReportedErrors, as_sink_error
from tailrace.sinks.kafka.options import KafkaOptions
from tailrace.sinks.kafka.topic import Topics
from tailrace.sinks.messages.debezium_envelope import DebeziumEnvelope


def publish_heartbeat(name: str, options: KafkaOptions, envelope: DebeziumEnvelope) -> None:
    """Publish a heartbeat of a sink. The producer is made for it: heartbeats are seldom."""
    topic, key, value = envelope.heartbeat()
    Topics(name, options).ensure([topic], 1, {})
    failures: list[KafkaError] = []

    def note(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    reported = ReportedErrors()
    configuration = {**client_configuration(options, name, reported), "enable.idempotence": True}
    producer: Producer = make_client(Producer, configuration)
    producer.produce(topic, value, key, on_delivery=note)
    if producer.flush(TIMEOUT_S):
        raise reported.explain(None, f"heartbeat to topic {topic}")
    if failures:
        raise as_sink_error(failures[0], f"heartbeat to topic {topic}")
