"""Finds messages that their topics can never accept, before they are sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from tailrace.errors import PoisonError
from tailrace.sinks.kafka.record import record_sizes
from tailrace.sinks.kafka.topic import TopicLimits
from tailrace.sinks.messages.message import OutgoingMessages

I64 = npt.NDArray[np.int64]


def check_destinations(messages: OutgoingMessages, is_allowed: Callable[[str], bool]) -> None:
    """Raise a PoisonError for messages whose topic, made of a row's columns, is not allowed."""
    refused = [name for name in messages.destinations.unique().to_pylist() if not is_allowed(name)]
    if refused:
        rows = np.flatnonzero(np.isin(messages.destinations.to_numpy(zero_copy_only=False), refused))
        positions = _positions(messages, rows)
        raise PoisonError(
            f"{positions[0]}: the columns in the template make a topic name that Kafka does not allow, or that is"
            " reserved",
            "Use another template in `topic`.",
            positions,
        )


def check_messages(messages: OutgoingMessages, limits: Mapping[str, TopicLimits]) -> None:
    """Raise a PoisonError for messages that are too large for their topic, or lack a key that it needs."""
    sizes = record_sizes(messages)
    has_key = np.zeros(len(messages), np.bool_)
    if messages.keys is not None:
        has_key = messages.keys.is_valid().to_numpy(zero_copy_only=False)
    largest = int(sizes.max())
    for topic, limit in limits.items():
        if largest <= limit.max_bytes and (has_key.all() or not limit.needs_keys):
            continue
        is_here = pc.equal(messages.destinations, topic).to_numpy(zero_copy_only=False)
        if (large := np.flatnonzero(is_here & (sizes > limit.max_bytes))).size:
            positions = _positions(messages, large)
            raise PoisonError(
                f"{_describe(positions)} of up to {int(sizes[large].max()):,} bytes, and topic {topic} accepts"
                f" {limit.max_bytes:,}",
                f"Raise max.message.bytes of topic {topic}, or exclude the column with `columns` in the sink's"
                " settings.",
                positions,
            )
        if limit.needs_keys and (bare := np.flatnonzero(is_here & ~has_key)).size:
            raise bare_message_error(messages, bare, topic)


def bare_message_error(messages: OutgoingMessages, rows: Iterable[Any], topic: str) -> PoisonError:
    """Return the error for messages without a key in a compacted topic."""
    positions = _positions(messages, rows)
    return PoisonError(
        f"{_describe(positions)} without a key, and topic {topic} is compacted",
        "Give the table a primary key. A TRUNCATE has no key: use a topic with cleanup.policy=delete for it.",
        positions,
    )


def _describe(positions: tuple[str, ...]) -> str:
    if len(positions) == 1:
        return f"{positions[0]} makes a message"
    return f"{len(positions):,} changes from {positions[0]} on make messages"


def _positions(messages: OutgoingMessages, rows: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(messages.at.position(int(row))) for row in rows))
