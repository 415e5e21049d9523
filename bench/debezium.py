"""Debezium as a baseline: its PostgreSQL connector in Kafka Connect drains the same backlog into Kafka."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition
from tests.fixtures.debezium import Connect, connector

from bench.ready_log import BEFORE, FINISHED, ReadyLog
from tailrace.embedded.kafka import KafkaServer
from tailrace.embedded.process import wait_until

_PREFIX = "debezium"
_TIMEOUT_S = 600.0


def drain(log: ReadyLog, server: KafkaServer, table: str = "t") -> float:
    """Return the rate at which Debezium drains a ready log's changes of one table, in changes a second.

    The clock runs from the first record to the last, as Kafka dates them, so Debezium's start does not count. It writes
    JSON without schemas, and has its own defaults otherwise.
    """
    with log.connect() as connection:
        connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", [BEFORE, _PREFIX])
    options = {"publication_name": "tailrace", "snapshot_mode": "no_data", "poll_interval_ms": 500}
    configuration = connector(log.server, log.database, _PREFIX, **options)
    for name in ("key", "value"):
        configuration |= {
            f"{name}.converter": "org.apache.kafka.connect.json.JsonConverter",
            f"{name}.converter.schemas.enable": "false",
        }
    with Connect(server, java_options=()) as connect:
        connect.create(_PREFIX, configuration)
        consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": _PREFIX})
        try:

            def has_finished() -> bool:
                connect.check(_PREFIX)
                topic = f"{_PREFIX}.public.{FINISHED}"
                return topic in consumer.list_topics(timeout=30).topics

            assert wait_until(has_finished, _TIMEOUT_S), connect.last_lines()
            place = TopicPartition(f"{_PREFIX}.public.{table}", 0)
            count = consumer.get_watermark_offsets(place, timeout=30)[1]
            first, last = _timestamp_ms(consumer, place, 0), _timestamp_ms(consumer, place, count - 1)
        finally:
            consumer.close()
    with log.connect() as connection:
        drop = (
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active"
        )
        assert wait_until(lambda: connection.execute(drop, [_PREFIX]).rowcount > 0, 60)
    return 1000 * count / (last - first)


def _timestamp_ms(consumer: Consumer, place: TopicPartition, offset: int) -> int:
    consumer.assign([TopicPartition(place.topic, place.partition, offset)])
    message = consumer.poll(30)
    assert message is not None
    assert message.error() is None, message.error()
    return int(message.timestamp()[1])
