"""A transport of the sink `kafka`, used without a log."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
from tests.contract.kafka_topics import consume
from tests.sinks.messages import runs

from tailrace.change import Lsn, Position
from tailrace.sinks.kafka.options import KafkaOptions
from tailrace.sinks.kafka.transport import KafkaTransport
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.progress import Progress


class Publisher:
    """Publishes to the topic that has the sink's name. The n-th message has the position 0/n:0."""

    def __init__(self, name: str, options: KafkaOptions) -> None:
        self.name = name
        self.options = options

    def connect(self) -> KafkaTransport:
        return KafkaTransport(self.name, self.options)

    def publish(self, made: KafkaTransport, number: int) -> None:
        position = Position(Lsn(number), 0)
        made.publish(self._messages(number), Progress("source", 0, position))

    def _messages(self, number: int) -> OutgoingMessages:
        at = replace(runs.positions(1), commit_lsn=np.array([number]), ordinal=np.array([0]))
        texts = pa.array([str(number)], pa.string())
        return OutgoingMessages(
            at,
            pa.array([self.name], pa.string()),
            texts,
            texts.cast(pa.binary()),
            np.zeros(1, np.int64),
            pa.array([b"key"], pa.binary()),
        )

    def received(self, bootstrap: str = "") -> list[int]:
        """The numbers of all messages, from another address of the server if one is given."""
        return [int(message.value or b"") for message in consume(bootstrap or self.options.bootstrap, self.name)]
