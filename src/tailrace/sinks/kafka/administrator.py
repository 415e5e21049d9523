"""Asks a cluster, and waits for its answers."""

from __future__ import annotations

import time
from concurrent.futures import Future
from typing import Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from tailrace.sinks.kafka import client_configuration
from tailrace.sinks.kafka.client_configuration import make_client
from tailrace.sinks.kafka.kafka_error import ReportedErrors
from tailrace.sinks.kafka.options import KafkaOptions

NO_LEADER: Final = KafkaError._NOENT
"""The client's error for a topic that was just created: no server leads its partitions yet."""

_POLL_S: Final = 0.05
_REFUSED_S: Final = 2.0
"""How long a refusal has to last. One server may not know yet what the others know."""

Answer = TypeVar("Answer")


class Administrator:
    def __init__(self, name: str, options: KafkaOptions) -> None:
        self._errors = ReportedErrors()
        configuration = client_configuration.client_configuration(options, name, self._errors)
        self.client: AdminClient = make_client(AdminClient, configuration)

    def answer(self, future: Future[Answer], action: str) -> Answer:
        """Return the answer to a request of the client.

        Raises a KafkaException if the cluster answers with an error, and a SinkError or a SinkRefused, which begin with
        the action, if there is no answer.
        """
        give_up_at = time.monotonic() + client_configuration.TIMEOUT_S
        while True:
            try:
                return future.result(_POLL_S)
            except TimeoutError:
                self.client.poll(0)  # has errors reported
            except KafkaException as error:
                wrapped = self._errors.explain(error, action)
                if error.args[0].code() < 0 and error.args[0].code() != NO_LEADER:  # the client's own
                    raise wrapped from None
                raise
            now, refused_at = time.monotonic(), self._errors.refused_at
            if now >= give_up_at or (refused_at is not None and now >= refused_at + _REFUSED_S):
                raise self._errors.explain(None, action)
