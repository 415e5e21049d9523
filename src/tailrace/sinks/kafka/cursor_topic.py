"""The compacted topic that holds a sink's progress: one partition, written in the transactions of its messages."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from tailrace.errors import SinkError, SinkRefused
from tailrace.sinks.kafka.administrator import NO_LEADER, Administrator
from tailrace.sinks.kafka.client_configuration import TIMEOUT_S, client_configuration, make_client
from tailrace.sinks.kafka.kafka_error import ReportedErrors, as_sink_error
from tailrace.sinks.kafka.options import KafkaOptions
from tailrace.sinks.messages.progress import Progress

PREFIX: Final = "tailrace-cursor-"
_LEADER_POLL_S: Final = 0.05
_FIRST_LOOK: Final = 16
"""How many of the topic's last offsets to read first. Markers of transactions take offsets too."""


def cursor_topic(name: str, options: KafkaOptions) -> str:
    return options.cursor_topic or f"{PREFIX}{name}"


def read_progress(name: str, options: KafkaOptions, administrator: Administrator) -> Progress | None:
    """Return the last progress that a committed transaction wrote; None if there is none.

    Only the end of the topic is read, however large it is.
    """
    topic = cursor_topic(name, options)
    action = f"topic {topic} cannot be read"
    low, high = _offsets(administrator, TopicPartition(topic, 0), action)
    errors = ReportedErrors()
    configuration = {
        **client_configuration(options, name, errors),
        "group.id": f"tailrace-{name}",  # required, and not used
        "auto.offset.reset": "error",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": 10,
    }
    consumer: Consumer = make_client(Consumer, configuration)
    try:
        count = _FIRST_LOOK
        while low < high:
            start = max(low, high - count)
            found = _last_record(consumer, topic, start, high, name.encode())
            if found is not None or start == low:
                return None if found is None else _parse(found, topic)
            count *= 16
        return None
    except KafkaException as error:
        raise errors.explain(error, action) from None
    finally:
        consumer.close()


def _offsets(administrator: Administrator, partition: TopicPartition, action: str) -> tuple[int, int]:
    """Return the first and the end offset. The latter is beyond transactions that are not finished."""
    first, end = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]
    give_up_at = time.monotonic() + TIMEOUT_S
    while True:
        try:
            low = _offset(administrator, partition, first, action)
            return low, _offset(administrator, partition, end, action)
        except KafkaException as error:
            if error.args[0].code() != NO_LEADER or time.monotonic() > give_up_at:
                raise as_sink_error(error.args[0], action) from None
        time.sleep(_LEADER_POLL_S)


def _offset(administrator: Administrator, partition: TopicPartition, which: OffsetSpec, action: str) -> int:
    futures = administrator.client.list_offsets(
        {partition: which}, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=TIMEOUT_S
    )
    found: int = administrator.answer(futures[partition], action).offset
    return found


def _last_record(consumer: Consumer, topic: str, start: int, end: int, key: bytes) -> bytes | None:
    """Return the value of the last committed record with a key between two offsets.

    If another sink that shares the topic has a transaction open, what this sink committed since is not readable before
    that transaction ends.
    """
    consumer.assign([TopicPartition(topic, 0, start)])
    found: bytes | None = None
    while True:
        message = consumer.poll(TIMEOUT_S)
        if message is None:
            raise SinkError(
                f"topic {topic} cannot be read to its end: no answer, or a transaction that is not finished",
                "Retrying until the servers answer.",
            )
        error = message.error()
        if error is None:
            found = message.value() if message.key() == key else found
        elif error.code() == KafkaError._PARTITION_EOF:
            if (message.offset() or 0) >= end:
                return found
        elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # the group is not used
            raise as_sink_error(error, f"topic {topic} cannot be read")


def _parse(record: bytes, topic: str) -> Progress:
    try:
        return Progress.from_json(record)
    except ValueError:
        raise SinkRefused(
            f"topic {topic} holds something else than the progress of a sink", "Choose another cursor_topic."
        ) from None
