"""Publishes to an exchange, at least once: after a crash, messages are published again with the same message id.

AMQP 0-9-1 has no way to ask a queue what it holds, so the progress is in the store, after each confirmed batch.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from tailrace.errors import PoisonError, SinkError, TailraceError
from tailrace.sinks.messages import stored_progress
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.progress import Progress
from tailrace.sinks.rabbitmq import destination_name, exchange_client, exchange_message
from tailrace.sinks.rabbitmq.binary_column import lengths
from tailrace.sinks.rabbitmq.exchange_client import ChannelClosed, ExchangeClient
from tailrace.sinks.rabbitmq.message_header import MessageFormat
from tailrace.sinks.rabbitmq.options import RabbitMqOptions
from tailrace.store import Store

I64 = npt.NDArray[np.int64]

_PAUSES_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""How long to wait before each further attempt for messages that the broker returned or rejected. A queue that is being
bound again, or is full for a moment, accepts them in this time."""
_TOO_LARGE: Final = re.compile(r"message size \d+ is larger than (?:configured )?max size (\d+)")


class ExchangeTransport:
    def __init__(
        self, name: str, options: RabbitMqOptions, message_format: MessageFormat, store: Callable[[], Store]
    ) -> None:
        assert options.exchange is not None
        self._name = name
        self._options = options
        self._exchange = options.exchange
        self._format = message_format
        self._store = store
        self._client = self._connect()

    def _connect(self) -> ExchangeClient:
        client = ExchangeClient(self._options, self._name)
        try:
            client.check_exchange(self._exchange)
        except BaseException:
            client.close()
            raise
        return client

    def progress(self) -> Progress | None:
        """Return the stored progress. Renews a connection that the broker closed since."""
        try:
            self._client.keep_alive()
        except (SinkError, ChannelClosed):
            self._client.close()
            self._client = self._connect()
        return stored_progress.load(self._store(), self._name)

    def close(self) -> None:
        self._client.close()

    def publish(self, messages: OutgoingMessages, after: Progress) -> None:
        destination_name.check(messages)
        rows = np.arange(len(messages))
        for pause_s in (*_PAUSES_S, None):
            failures = self._attempt(messages.take(rows))
            if not failures:
                break
            if pause_s is None:
                raise _poison(messages.take(rows), failures)
            time.sleep(pause_s)
            rows = rows[_repetition(messages.take(rows), failures)]
        stored_progress.save(self._store(), self._name, after)

    def _attempt(self, messages: OutgoingMessages) -> dict[int, str]:
        """Publish messages. Returns the rows that the broker returned or rejected, each with the reason."""
        data, ends = exchange_message.encode(messages, self._exchange, self._format, self._client.max_frame_bytes)
        try:
            rejected = self._client.publish(data, ends)
        except ChannelClosed as closed:
            raise _channel_error(closed, messages) from None
        failures = dict.fromkeys(np.flatnonzero(rejected).tolist(), "the broker rejected it")
        if returned := self._client.returned:
            ids = messages.ids.to_pylist()
            failures |= {row: returned[id] for row, id in enumerate(ids) if id in returned}
        return failures


def _repetition(messages: OutgoingMessages, failures: dict[int, str]) -> I64:
    """Return the rows to publish again: from the first failure on, all messages with the same routing key. A later
    message must not stay before an earlier one of the same key."""
    codes = messages.destinations.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    firsts: dict[int, int] = {}
    for row in sorted(failures):
        firsts.setdefault(int(codes[row]), row)
    return np.array([row for row, code in enumerate(codes) if row >= firsts.get(int(code), len(codes))], np.int64)


def _poison(messages: OutgoingMessages, failures: dict[int, str]) -> PoisonError:
    rows = sorted(failures)
    positions = tuple(dict.fromkeys(str(messages.at.position(row)) for row in rows))
    where = messages.destinations[rows[0]].as_py()
    return PoisonError(
        f"{positions[0]}, routing key {where}: {failures[rows[0]]}, {1 + len(_PAUSES_S)} times"
        + (f"; {len(positions):,} changes like it" if len(positions) > 1 else ""),
        "Bind a queue for the routing key. A full queue rejects messages too.",
        positions,
    )


def _channel_error(closed: ChannelClosed, messages: OutgoingMessages) -> TailraceError:
    if (match := _TOO_LARGE.search(closed.reason)) is None:
        return exchange_client.error_of(closed)
    sizes = lengths(messages.values)
    large = np.flatnonzero(sizes > int(match[1]))
    positions = tuple(dict.fromkeys(str(messages.at.position(int(row))) for row in large))
    return PoisonError(
        f"{positions[0]} makes a message of {int(sizes[large[0]]):,} bytes, and the broker accepts {int(match[1]):,}",
        "Raise max_message_size of the broker, or exclude the column with `columns` in the sink's settings.",
        positions,
    )
