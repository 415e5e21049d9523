"""Kafka: a ready log drained into a topic in transactions, compared with a bare producer of equal bytes.

The bare producer is idempotent and sends the records that the sink would send, without transactions. They are made
before its clock starts, so the difference is the cost of reading, decoding, encoding and of transactions.
"""

from __future__ import annotations

import tempfile
import threading
import time
from functools import partial

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from bench import debezium
from bench.message_sink import EVENTS, Drain, chunks, measure_latency
from bench.ready_log import ReadyLog, make
from bench.replica import INSERTS
from bench.report import Report
from bench.throughput import TABLE
from tailrace.embedded.kafka import KafkaServer
from tailrace.embedded.postgres import Postgres
from tailrace.sinks.kafka.client_configuration import client_configuration
from tailrace.sinks.kafka.kafka_error import ReportedErrors
from tailrace.sinks.kafka.options import KafkaOptions
from tailrace.sinks.kafka.record import records
from tailrace.sinks.kafka.topic import Topics
from tailrace.sinks.kafka.transport import produce
from tailrace.sinks.messages.encoder import MessageEncoder, PositionIds
from tailrace.sinks.messages.message import OutgoingMessages

_TIMEOUT_S = 30.0


def run(report: Report) -> None:
    report.title("Kafka: a ready log drained into a topic, in transactions")
    with (
        tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name,
        Postgres(max_wal_size="8GB", checkpoint_timeout="1h") as server,
    ):
        log = make(server, "inserts", f"{name}/log", [TABLE.format(name="t")], [INSERTS])
        for envelope in ("tailrace", "debezium"):
            report.section(f"1M inserts, 1,000 a transaction, envelope {envelope}; median of three after a first")
            drain = Drain(envelope, KafkaServer, partial(_sink, envelope), partial(_publish, log, envelope), _check)
            rate = drain.run(report, log)
        with KafkaServer() as kafka:
            theirs = debezium.drain(log, kafka)
        report.line(
            "Debezium, the same backlog", f"{theirs:,.0f} events/s", f"ours is {rate / theirs:.1f} times as fast"
        )
    with KafkaServer() as server:
        measure_latency(report, "Kafka", _sink("tailrace", server), partial(_watch, server.bootstrap))


def _sink(envelope: str, server: KafkaServer) -> dict[str, str]:
    return {"type": "kafka", "url": server.url, "envelope": envelope, "topic_prefix": "bench", "start": "earliest"}


def _publish(log: ReadyLog, envelope: str, server: KafkaServer) -> float:
    """Make the records, then start the clock."""
    options = KafkaOptions(url=server.url, envelope=envelope, topic_prefix="bench")
    made_envelope = options.make_envelope("bench", "inserts", "bench", "ce_")
    encoder = MessageEncoder(made_envelope, options.template("inserts"))
    made = []
    for chunk in chunks(log):
        if encoded := encoder.encode(chunk, PositionIds()):
            made += list(records(OutgoingMessages.joined(encoded).with_position_headers()))
    Topics("bench", options).limits(sorted({topic for topic, *_ in made}))
    producer = Producer(
        {
            **client_configuration(options, "bench", ReportedErrors()),
            "enable.idempotence": True,
            "compression.type": options.compression,
            "delivery.report.only.error": True,
            "on_delivery": _fail,
        }
    )
    began = time.monotonic()
    for record in made:
        produce(producer, record)
    assert producer.flush(_TIMEOUT_S) == 0
    return time.monotonic() - began


def _fail(error: KafkaError | None, message: object) -> None:
    raise AssertionError(f"{error}: {message}")


def _check(server: KafkaServer) -> None:
    """Check that a consumer of committed messages gets each once."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    positions: set[bytes] = set()
    count = 0
    try:
        topics = consumer.list_topics(timeout=_TIMEOUT_S).topics
        partitions = [TopicPartition(t, p, 0) for t in topics if t.startswith("bench.") for p in topics[t].partitions]
        consumer.assign(partitions)
        waiting = len(partitions)
        while waiting:
            for message in consumer.consume(10_000, 1.0):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    waiting -= 1
                    continue
                count += 1
                headers = message.headers()
                assert isinstance(headers, list)
                positions.add(bytes(headers[0][1]))  # type: ignore[arg-type]
    finally:
        consumer.close()
    assert count == len(positions) == EVENTS, f"{count} messages, {len(positions)} positions"


def _watch(bootstrap: str, seen: list[float], finished: threading.Event) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 5,
        }
    )
    try:
        consumer.assign([TopicPartition("bench.public.t", 0, 0)])
        while not finished.is_set():
            message = consumer.poll(0.05)
            if message is not None and message.error() is None:
                seen.append(time.time())
    finally:
        consumer.close()
