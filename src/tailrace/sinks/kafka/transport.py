"""Publishes batches of messages, each in one transaction with the progress that it leads to."""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tailrace.errors import SinkError, SinkRefused, TailraceError
from tailrace.sinks.kafka.client_configuration import TIMEOUT_S, client_configuration, make_client
from tailrace.sinks.kafka.cursor_topic import PREFIX, cursor_topic, read_progress
from tailrace.sinks.kafka.kafka_error import ReportedErrors, as_sink_error, is_fenced
from tailrace.sinks.kafka.message_check import bare_message_error, check_destinations, check_messages
from tailrace.sinks.kafka.options import KafkaOptions
from tailrace.sinks.kafka.record import Record, records
from tailrace.sinks.kafka.topic import CURSOR_CONFIGURATION, Topics
from tailrace.sinks.kafka.topic_name import is_topic_name
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.progress import Progress

_MAX_BATCH_BYTES: Final = 1_000_000
_ABORT_S: Final = 1.0
_CONSEQUENCES: Final = frozenset(
    {KafkaError._PURGE_INFLIGHT, KafkaError._PURGE_QUEUE, KafkaError._INVALID_DIFFERENT_RECORD}
)
"""Errors of messages that are not sent, or refused, because something else failed."""
_QUEUE_MESSAGES: Final = 200_000
"""More than a batch usually has, so that encoding the next batch is what a full queue waits for, not the reverse."""


class KafkaTransport:
    def __init__(self, name: str, options: KafkaOptions) -> None:
        self._name = name
        self._options = options
        self._topics = Topics(name, options)
        self._cursor_topic = cursor_topic(name, options)
        self._topics.ensure([self._cursor_topic], 1, CURSOR_CONFIGURATION)
        self._uses_columns = bool(options.template("").columns)
        self._batch_bytes = _MAX_BATCH_BYTES
        self._failures: list[tuple[KafkaError, Message]] = []
        self._errors = ReportedErrors()
        self._producer: Producer | None = None
        self._connect()
        self._progress = read_progress(self._name, self._options, self._topics.administrator)

    def progress(self) -> Progress | None:
        return self._progress

    def publish(self, messages: OutgoingMessages, after: Progress) -> None:
        messages = messages.with_position_headers()
        self._check(messages)
        try:
            self._publish(messages, after)
        except KafkaException as error:
            raise self._explain(error, messages) from None
        self._progress = after

    def close(self) -> None:
        """Drop the producer. `Producer.close` would wait forever for a server that does not answer. If the transaction
        cannot be aborted, the next producer does it, or its timeout."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            with suppress(KafkaException):  # raised again by each call, if it is fatal
                producer.flush(0)  # reports what was purged: while the producer is destroyed it is too late for that
                producer.abort_transaction(_ABORT_S)

    def _connect(self) -> None:
        """Make a producer. From then on no other producer of this sink can publish."""
        self.close()
        configuration: dict[str, Any] = {
            **client_configuration(self._options, self._name, self._errors),
            "compression.type": self._options.compression,
            "queue.buffering.max.messages": _QUEUE_MESSAGES,
            # A transaction ends with a flush: to wait for more messages helps nobody.
            "linger.ms": 1,
            **self._options.producer,
            "batch.size": self._batch_bytes,
            "message.max.bytes": 1_000_000_000,  # the topics' own limits are checked
            "delivery.report.only.error": True,
            "on_delivery": self._on_delivery,
            "enable.idempotence": True,
            # The placement of Java's clients, Kafka Connect's among them.
            "partitioner": "murmur2_random",
            "transactional.id": f"tailrace-{self._name}",
        }
        producer: Producer = make_client(Producer, configuration)
        try:
            producer.init_transactions(TIMEOUT_S)
        except KafkaException as error:
            with suppress(KafkaException):
                producer.poll(0)  # has errors reported
            raise self._errors.explain(error, "cannot begin transactions") from None
        self._producer = producer

    def _check(self, messages: OutgoingMessages) -> None:
        """Create or check the topics, and refuse messages that they can never accept."""
        if self._uses_columns:
            check_destinations(messages, self._is_allowed)
        names = messages.destinations.unique().to_pylist()
        limits = self._topics.limits(names)
        try:
            check_messages(messages, limits)
        except TailraceError:
            # An operator may have raised the limit since it was read.
            limits = self._topics.limits(names, again=True)
            check_messages(messages, limits)
        smallest = min(limit.max_bytes for limit in limits.values())
        if smallest < self._batch_bytes:
            # The server applies a topic's limit to whole batches.
            self._batch_bytes = smallest
            self._reconnect()

    def _is_allowed(self, topic: str) -> bool:
        """Whether a row may decide to be published to a topic. With records in a cursor's topic it could skip others.
        Topics that begin with two underscores are Kafka's own."""
        return is_topic_name(topic) and topic != self._cursor_topic and not topic.startswith((PREFIX, "__"))

    def _reconnect(self) -> None:
        self._connect()
        if read_progress(self._name, self._options, self._topics.administrator) != self._progress:
            raise SinkError(
                f"sink {self._name}: another process has published for this sink",
                "Continuing after its messages. Is another deliver running with a sink of this name?",
            )

    def _publish(self, messages: OutgoingMessages, after: Progress) -> None:
        assert self._producer is not None, "the transport is open"
        self._failures = []
        self._producer.begin_transaction()
        cursor: Record = self._cursor_topic, after.to_json().encode(), self._name.encode(), []
        for record in chain(records(messages), [cursor]):
            produce(self._producer, record)
        self._commit(self._producer)

    def _commit(self, producer: Producer) -> None:
        # If it times out, only the cursor topic tells whether it was committed: the step is planned again.
        producer.commit_transaction(TIMEOUT_S)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failures.append((error, message))

    def _explain(self, error: KafkaException, messages: OutgoingMessages) -> TailraceError:
        """Return the reason: that of the first message that failed, if one did."""
        assert self._producer is not None, "the transport is open"
        with suppress(KafkaException):  # which is the same error again, if it is fatal
            self._producer.poll(0)  # has errors reported
        for failure, message in self._failures:
            topic = message.topic() or ""
            match failure.code():
                case KafkaError.MSG_SIZE_TOO_LARGE if topic != self._cursor_topic:
                    return self._explain_size(topic, messages)
                case KafkaError.INVALID_RECORD if topic != self._cursor_topic:
                    return _explain_record(failure, topic, messages)
        causes = [(failure, message) for failure, message in self._failures if failure.code() not in _CONSEQUENCES]
        if causes and not is_fenced(error.args[0]):
            failure, message = causes[0]
            return as_sink_error(failure, f"topic {message.topic()}")
        return self._errors.explain(error, "the transaction failed")

    def _explain_size(self, topic: str, messages: OutgoingMessages) -> TailraceError:
        """A batch was refused: one of its messages is too large, or the limit was lowered below the batch's size."""
        if not self._topics.limits([topic], again=True)[topic].is_known:
            return SinkRefused(
                f"topic {topic} refuses messages as too large, and this user may not read its limit",
                f"kafka-acls.sh --add --allow-principal User:… --operation DescribeConfigs --topic {topic}",
            )
        try:
            check_messages(messages, self._topics.limits([topic]))
        except TailraceError as error:
            return error
        return SinkError(f"topic {topic}: max.message.bytes was lowered", "Continuing with smaller batches.")


def _explain_record(error: KafkaError, topic: str, messages: OutgoingMessages) -> TailraceError:
    is_here = pc.equal(messages.destinations, topic).to_numpy(zero_copy_only=False)
    has_key = False if messages.keys is None else messages.keys.is_valid().to_numpy(zero_copy_only=False)
    bare = np.flatnonzero(is_here & ~np.asarray(has_key))
    if bare.size:
        return bare_message_error(messages, bare, topic)
    return SinkRefused(f"topic {topic} refuses messages: {error.str()}", "Look into the server's log for the reason.")


def produce(producer: Producer, record: Record) -> None:
    """Hand a record to the producer; waits while its queue is full."""
    topic, value, key, headers = record
    while True:
        try:
            producer.produce(topic, value, key, headers=headers)
            return
        except BufferError:
            producer.poll(1.0)
