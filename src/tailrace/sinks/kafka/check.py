"""Checks a cluster: that clients can log in, and have the rights that the sink needs on its topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import AclOperation

from tailrace.errors import TailraceError
from tailrace.finding import Finding, Severity
from tailrace.sinks.kafka.client_configuration import TIMEOUT_S, client_configuration, make_client
from tailrace.sinks.kafka.cursor_topic import cursor_topic
from tailrace.sinks.kafka.kafka_error import ReportedErrors, as_sink_error
from tailrace.sinks.kafka.options import KafkaOptions
from tailrace.sinks.kafka.topic import CURSOR_CONFIGURATION, Topics, create_hint


def check_cluster(name: str, options: KafkaOptions, topics: Iterable[str]) -> Iterator[Finding]:
    """Yield what keeps a sink from publishing.

    Args:
        name: The sink.
        options: Its options.
        topics: The topics of the tables that are known already.
    """
    check = _Check(name, options)
    check.log_in()
    yield from check.topic(cursor_topic(name, options), 1, CURSOR_CONFIGURATION, is_cursor=True)
    for topic in sorted(set(topics)):
        yield from check.topic(topic, options.partitions, options.declared(topic))
    yield from check.transactions()


class _Check:
    def __init__(self, name: str, options: KafkaOptions) -> None:
        self._name = name
        self._options = options
        self._topics = Topics(name, options)
        self._administrator = self._topics.administrator

    def log_in(self) -> None:
        """Raise a SinkError or SinkRefused if that is not possible."""
        action = f"{self._options.url} does not answer"
        future = self._administrator.client.describe_cluster(request_timeout=TIMEOUT_S)
        try:
            self._administrator.answer(future, action)
        except KafkaException as error:
            raise as_sink_error(error.args[0], action) from None

    def topic(
        self, topic: str, partitions: int, declared: Mapping[str, str], *, is_cursor: bool = False
    ) -> Iterator[Finding]:
        subject = f"topic {topic}"
        try:
            allowed = self._allowed(topic)
            if allowed is None:
                yield self._missing(topic, partitions, declared)
                return
            self._topics.ensure([topic], partitions, declared)
        except TailraceError as error:
            yield Finding(Severity.ERROR, subject, f"cannot be used: {error}", error.hint)
            return
        for operation in (AclOperation.WRITE, *([AclOperation.READ] if is_cursor else [])):
            # A cluster without access control lists allows everything, and may list nothing.
            if allowed and not {operation, AclOperation.ALL} & allowed:
                right = operation.name.capitalize()
                yield Finding(
                    Severity.ERROR, subject, f"cannot be used: the right {right} is missing", _grant(right, topic)
                )

    def _allowed(self, topic: str) -> set[AclOperation] | None:
        """Return what this user may do with a topic; None if it does not exist."""
        futures = self._administrator.client.describe_topics(
            TopicCollection([topic]), include_authorized_operations=True, request_timeout=TIMEOUT_S
        )
        action = "it cannot be described"
        try:
            return set(self._administrator.answer(futures[topic], action).authorized_operations or ())
        except KafkaException as error:
            code = error.args[0].code()
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            wrapped = as_sink_error(error.args[0], action)
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                wrapped.hint = _grant("Write", topic)  # which implies the right to describe it
            raise wrapped from None

    def _missing(self, topic: str, partitions: int, declared: Mapping[str, str]) -> Finding:
        subject, command = f"topic {topic}", create_hint(topic, partitions, declared)
        if not self._options.create_topics:
            return Finding(Severity.ERROR, subject, "does not exist, and create_topics is false", command)
        if (error := self._topics.check_creation(topic, partitions, declared)) is not None:
            return Finding(Severity.ERROR, subject, f"cannot be created: {error}", error.hint)
        return Finding(Severity.NOTE, subject, "does not exist yet: the sink creates it", command)

    def transactions(self) -> Iterator[Finding]:
        """Try a transactional id beside the sink's own, which may be in use."""
        errors = ReportedErrors()
        id = f"tailrace-{self._name}-check"
        configuration = {**client_configuration(self._options, self._name, errors), "transactional.id": id}
        producer: Producer = make_client(Producer, configuration)
        try:
            producer.init_transactions(TIMEOUT_S)
        except KafkaException as error:
            with suppress(KafkaException):  # which is the same error again, if it is fatal
                producer.poll(0)  # has errors reported
            yield Finding(
                Severity.WARNING,
                f"transactional id {id}",
                f"cannot be used: {errors.explain(error, 'the cluster answers')}. The sink uses tailrace-{self._name}",
                "kafka-acls.sh --add --allow-principal User:… --operation Write --operation Describe"
                " --transactional-id tailrace- --resource-pattern-type prefixed",
            )


def _grant(right: str, topic: str) -> str:
    return f"kafka-acls.sh --add --allow-principal User:… --operation {right} --topic {topic}"
