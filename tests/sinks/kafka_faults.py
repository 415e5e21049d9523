"""Faults at chosen moments of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from confluent_kafka import Producer
from tests.contract.delivery_driver import Crash

from tailrace.sinks.kafka import transport
from tailrace.sinks.kafka.transport import KafkaTransport

_commit = KafkaTransport._commit
_COMMIT_S = 2.0


@contextmanager
def before_commit(act: Callable[[], None], at: int = 1) -> Iterator[None]:
    """Act before the `at`-th commit, once the servers have the messages of the transaction. The commit that follows
    gives up early: only that one, because a busy machine may need longer for the others."""
    left = at

    def commit(self: KafkaTransport, producer: Producer) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            assert producer.flush(30) == 0
            act()
            with patch.object(transport, "TIMEOUT_S", _COMMIT_S):
                _commit(self, producer)
        else:
            _commit(self, producer)

    with patch.object(KafkaTransport, "_commit", commit):
        yield


def crash() -> None:
    raise Crash
