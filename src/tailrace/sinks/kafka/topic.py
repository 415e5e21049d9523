"""Topics: created as declared if they are missing and may be created, otherwise checked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

from tailrace.errors import SinkError, SinkRefused, TailraceError
from tailrace.sinks.kafka.administrator import Administrator
from tailrace.sinks.kafka.client_configuration import TIMEOUT_S
from tailrace.sinks.kafka.kafka_error import as_sink_error
from tailrace.sinks.kafka.options import COMPACTED, KafkaOptions
from tailrace.sinks.kafka.topic_name import is_topic_name

_DEFAULT_MAX_BYTES: Final = 1_048_588
"""The servers' own default of the largest message, assumed if a topic's configuration may not be read."""
_POLL_S: Final = 0.01
_CLEANUP: Final = "cleanup.policy"
CURSOR_CONFIGURATION: Final = {
    **COMPACTED,
    # Each transaction adds a record. Old ones are soon removed, so that the topic stays small.
    "segment.bytes": str(16 * 1024 * 1024),
    "min.cleanable.dirty.ratio": "0.1",
}


@dataclass(frozen=True)
class TopicLimits:
    """What a topic accepts."""

    max_bytes: int = _DEFAULT_MAX_BYTES
    """Of a batch of messages, and so of one message."""
    needs_keys: bool = False
    is_known: bool = True
    """Whether the topic's configuration may be read."""

    @classmethod
    def of(cls, configuration: Mapping[str, str]) -> TopicLimits:
        if not configuration:
            return cls(is_known=False)
        return cls(int(configuration["max.message.bytes"]), COMPACTED[_CLEANUP] in configuration[_CLEANUP])


class Topics:
    """The topics that a sink publishes to."""

    def __init__(self, name: str, options: KafkaOptions) -> None:
        self._options = options
        self.administrator = Administrator(name, options)
        self._limits: dict[str, TopicLimits] = {}

    def limits(self, names: Sequence[str], *, again: bool = False) -> dict[str, TopicLimits]:
        """Return what each topic accepts. New topics are created or checked first.

        Args:
            names: The topics.
            again: Whether to ask the servers for what is known already.
        """
        new = [name for name in names if again or name not in self._limits]
        for declared in (COMPACTED, {}):
            chosen = [name for name in new if self._options.declared(name) == declared]
            for name, found in self.ensure(chosen, self._options.partitions, declared).items():
                self._limits[name] = TopicLimits.of(found)
        return {name: self._limits[name] for name in names}

    def ensure(
        self, names: Sequence[str], partitions: int, declared: Mapping[str, str]
    ) -> Mapping[str, Mapping[str, str]]:
        """Create topics that are missing, if they may be created, and check the others.

        Args:
            names: The topics.
            partitions: The number of partitions; 0: any number.
            declared: Properties to create them with. Topics that exist are checked for `cleanup.policy` only.

        Returns:
            The configuration of each topic; empty if it may not be read.
        """
        if not names:
            return {}
        for name in names:
            if not is_topic_name(name):
                raise SinkRefused(
                    f"{name!r} is not a topic name: it is too long or has characters that Kafka does not allow",
                    "Use another template in `topic`, or give the table another name with `route`.",
                )
        counts = self.partitions(names)
        for name, count in counts.items():
            if count is not None and partitions and count != partitions:
                raise SinkRefused(
                    f"topic {name} has {count} partitions, and the settings say {partitions}",
                    "Correct `partitions`. To add partitions to a topic changes which of them a key is in.",
                )
        self._create([name for name, count in counts.items() if count is None], partitions, declared)
        configurations = self._configurations(names)
        for name, found in configurations.items():
            wanted = declared.get(_CLEANUP)
            if found and wanted and wanted not in found[_CLEANUP]:
                raise SinkRefused(
                    f"topic {name} has {_CLEANUP} {found[_CLEANUP]}, and has to have {wanted}",
                    f"kafka-configs.sh --alter --entity-type topics --entity-name {name} --add-config"
                    f" {_CLEANUP}={wanted}",
                )
        return configurations

    def partitions(self, names: Sequence[str]) -> Mapping[str, int | None]:
        """Return the number of partitions of each topic; None if it does not exist."""
        futures = self.administrator.client.describe_topics(TopicCollection(list(names)), request_timeout=TIMEOUT_S)
        found: dict[str, int | None] = {}
        for name, future in futures.items():
            action = f"topic {name} cannot be described"
            try:
                found[name] = len(self.administrator.answer(future, action).partitions)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise as_sink_error(error.args[0], action) from None
                found[name] = None
        return found

    def check_creation(self, name: str, partitions: int, declared: Mapping[str, str]) -> TailraceError | None:
        """Return what would keep a topic from being created. Nothing is created."""
        try:
            self._request([name], partitions, declared, validate_only=True)
        except TailraceError as error:
            return error
        return None

    def _configurations(self, names: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        resources = {name: ConfigResource(ResourceType.TOPIC, name) for name in names}
        futures = self.administrator.client.describe_configs(list(resources.values()), request_timeout=TIMEOUT_S)
        found: dict[str, Mapping[str, str]] = {}
        for name, resource in resources.items():
            action = f"the configuration of topic {name} cannot be read"
            try:
                entries = self.administrator.answer(futures[resource], action)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    raise as_sink_error(error.args[0], action) from None
                entries = {}
            found[name] = {key: entry.value for key, entry in entries.items() if entry.value is not None}
        return found

    def _create(self, names: Sequence[str], partitions: int, declared: Mapping[str, str]) -> None:
        if not names:
            return
        if not self._options.create_topics:
            raise SinkRefused(f"topic {names[0]} does not exist", create_hint(names[0], partitions, declared))
        self._request(names, partitions, declared)
        self._wait_for(names)

    def _request(
        self, names: Sequence[str], partitions: int, declared: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        replication = self._options.replication or -1
        topics = [NewTopic(name, partitions or -1, replication, config=dict(declared)) for name in names]
        futures = self.administrator.client.create_topics(
            topics, request_timeout=TIMEOUT_S, validate_only=validate_only
        )
        for name, future in futures.items():
            action = f"topic {name} cannot be created"
            try:
                self.administrator.answer(future, action)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                if code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED):
                    raise SinkRefused(
                        f"topic {name} does not exist, and this user may not create it",
                        create_hint(name, partitions, declared),
                    ) from None
                raise as_sink_error(error.args[0], action) from None

    def _wait_for(self, names: Sequence[str]) -> None:
        """Wait until the server that is asked knows topics that were created: the news takes a moment."""
        give_up_at = time.monotonic() + TIMEOUT_S
        while None in self.partitions(names).values():
            if time.monotonic() > give_up_at:
                raise SinkError("topics were created, and are not known yet", "Retrying until the servers know them.")
            time.sleep(_POLL_S)


def create_hint(name: str, partitions: int, configuration: Mapping[str, str]) -> str:
    """Return the command that creates a topic."""
    arguments = [f"--partitions {partitions}"] if partitions else []
    arguments += [f"--config {key}={value}" for key, value in configuration.items()]
    return " ".join(["kafka-topics.sh --create --topic", name, *arguments])
