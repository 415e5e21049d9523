"""Publishes to streams, exactly once, whichever process is killed at whatever time.

The broker drops messages whose publishing id is not above the publisher's last one. That alone is not enough: ids that
count messages would mean others once the sink's settings are changed. So the stream itself tells how far the sink is:
the last message of the sink's publisher carries a position, and what is at or before it is not sent again. Publishing
ids only cover what the broker still had to read from a connection whose process died: the same change has the same id.

A sink has a publisher for the log, one for each snapshot that it loads, and one for each dead letter that it publishes
again. All names contain the source and how often the sink was rewound.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.errors import SinkError, SinkRefused
from tailrace.log.decoding import ChangePositions
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.progress import Progress
from tailrace.sinks.rabbitmq import destination_name, stream_message, stream_tail
from tailrace.sinks.rabbitmq.message_header import MessageFormat
from tailrace.sinks.rabbitmq.options import RabbitMqOptions
from tailrace.sinks.rabbitmq.stream_client import MAX_PUBLISHERS, EntryFrame, StreamClient
from tailrace.sinks.rabbitmq.stream_frame import PUBLISH_HEAD_BYTES
from tailrace.sinks.rabbitmq.stream_tail import PublisherTail

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_FRAME_BYTES: Final = 1 << 20
"""The size of frames if the broker allows larger ones."""
_LSN_BITS, _ORDINAL_BITS = 10, 2
_ROW_BITS: Final = 8


@dataclass
class _Publisher:
    stream: str
    reference: str
    tail: PublisherTail
    number: int | None = None
    """The publisher's number in the connection."""


@dataclass(frozen=True)
class _Selection:
    """What one publisher gets of a batch."""

    publisher: _Publisher
    rows: I64
    publishing_ids: I64


class StreamTransport:
    def __init__(self, name: str, options: RabbitMqOptions, message_format: MessageFormat) -> None:
        self._name = name
        self._options = options
        self._format = message_format
        self._publishers: dict[tuple[str, str], _Publisher] = {}
        self._client = StreamClient(options, name)

    def progress(self) -> Progress | None:
        """Renew a connection that the broker closed since. How far the sink is depends on the stream."""
        try:
            self._client.keep_alive()
        except SinkError:
            self.close()
            self._client = StreamClient(self._options, self._name)
            for publisher in self._publishers.values():
                publisher.number = None
        return None

    def close(self) -> None:
        self._client.close()

    def publish(self, messages: OutgoingMessages, after: Progress) -> None:
        destination_name.check(messages)
        reference = reference_of(self._name, after)
        if after.dead_letters:
            for position, letter in _by_position(messages):
                self._publish(letter, f"{reference}/{position}", is_numbered=True)
            return
        snapshots = [snapshot for snapshot, load in after.loads.items() if load.row is not None]
        if snapshots:
            # A part of a load has rows of one snapshot and nothing else.
            self._publish(messages, f"{reference}/{snapshots[0]}", is_numbered=True)
        else:
            self._publish(messages, reference, is_numbered=False)

    def _publish(self, messages: OutgoingMessages, reference: str, *, is_numbered: bool) -> None:
        """Publish what the streams lack.

        Args:
            messages: In the order of the log.
            reference: The publisher's name.
            is_numbered: The messages are numbered by their rows, so the last publishing id tells how far the publisher
                is.
        """
        heads = stream_message.encode(messages, reference, self._format)
        stream_message.check_sizes(messages, heads, self._client.max_frame_bytes)
        selections = [
            self._select(stream, rows, messages, reference, is_numbered=is_numbered)
            for stream, rows in _by_stream(messages)
        ]
        for first in range(0, len(selections), MAX_PUBLISHERS):
            group = [selection for selection in selections[first : first + MAX_PUBLISHERS] if len(selection.rows)]
            if group:
                self._send(group, messages, heads)

    def _select(
        self, stream: str, rows: I64, messages: OutgoingMessages, reference: str, *, is_numbered: bool
    ) -> _Selection:
        publisher = self._publisher(stream, reference, is_numbered=is_numbered)
        at, order = messages.at.take(rows), messages.order[rows]
        if is_numbered:
            ids = (at.ordinal << _ROW_BITS) + order + 1
            missing = ids > publisher.tail.sequence
            return _Selection(publisher, rows[missing], ids[missing])
        rows = rows[_is_missing(at, order, publisher.tail)]
        ids = _publishing_ids(messages.at.take(rows), messages.order[rows], publisher.tail.sequence)
        return _Selection(publisher, rows, ids)

    def _send(self, selections: list[_Selection], messages: OutgoingMessages, heads: pa.Array) -> None:
        rows = np.concatenate([selection.rows for selection in selections])
        ids = np.concatenate([selection.publishing_ids for selection in selections])
        is_all = len(rows) == len(messages) and bool((np.diff(rows) == 1).all())
        chosen = messages if is_all else messages.take(rows)
        data, ends = stream_message.entries(heads if is_all else heads.take(pa.array(rows)), chosen, ids)
        self._number([selection.publisher for selection in selections])
        frames: list[EntryFrame] = []
        first = 0
        for selection in selections:
            assert selection.publisher.number is not None
            end = first + len(selection.rows)
            frames += self._cut(selection.publisher.number, data, ends, first, end)
            first = end
        self._client.publish(frames)
        for selection in selections:
            row = int(selection.rows[-1])
            last = messages.at.position(row), int(messages.order[row])
            selection.publisher.tail = PublisherTail(int(selection.publishing_ids[-1]), last)

    def _cut(self, number: int, data: memoryview, ends: I64, first: int, end: int) -> Iterator[EntryFrame]:
        """Divide entries into frames that the broker accepts."""
        most = min(self._client.max_frame_bytes or _FRAME_BYTES, _FRAME_BYTES) - PUBLISH_HEAD_BYTES
        while first < end:
            start = int(ends[first - 1]) if first else 0
            # An entry that is larger than `most` is alone: the broker allows larger frames than ours.
            after = max(int(np.searchsorted(ends[:end], start + most, "right")), first + 1)
            yield EntryFrame(number, data[start : int(ends[after - 1])], after - first)
            first = after

    def _publisher(self, stream: str, reference: str, *, is_numbered: bool) -> _Publisher:
        known = self._publishers.get((stream, reference))
        if known is None:
            self._ensure(stream)
            if is_numbered:
                tail = PublisherTail(self._client.sequence(reference, stream))
            else:
                tail = stream_tail.find(self._client, stream, reference)
            known = self._publishers[stream, reference] = _Publisher(stream, reference, tail)
        return known

    def _ensure(self, stream: str) -> None:
        """Check that a stream exists; create it if the settings allow that."""
        if self._client.existing([stream])[stream]:
            return
        if not self._options.create:
            raise missing_stream(stream)
        self._client.create(stream, self._options.retention)

    def _number(self, publishers: list[_Publisher]) -> None:
        """Declare publishers, and delete others if there would be too many in the connection."""
        new = [publisher for publisher in publishers if publisher.number is None]
        declared = [publisher for publisher in self._publishers.values() if publisher.number is not None]
        used = {id(publisher) for publisher in publishers}
        idle = [publisher for publisher in declared if id(publisher) not in used]
        for publisher in idle[: max(len(declared) + len(new) - MAX_PUBLISHERS, 0)]:
            assert publisher.number is not None
            self._client.delete_publisher(publisher.number)
            publisher.number = None
        for publisher in new:
            publisher.number = self._client.declare_publisher(publisher.reference, publisher.stream)


def reference_of(name: str, progress: Progress) -> str:
    """Return the name of the sink's publisher for the log."""
    return destination_name.shorten(f"tailrace/{name}/{progress.source}/{progress.replays}", 200)


def missing_stream(stream: str) -> SinkRefused:
    return SinkRefused(
        f"stream {stream} does not exist",
        f"Create it: {destination_name.creation(stream)} - or set create = true.",
    )


def _by_stream(messages: OutgoingMessages) -> Iterator[tuple[str, I64]]:
    """Yield each stream with its rows, in their order."""
    encoded = messages.destinations.dictionary_encode()
    streams = encoded.dictionary.to_pylist()
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    if len(streams) == 1:
        yield streams[0], np.arange(len(messages))
        return
    rows = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(streams)))
    yield from zip(streams, np.split(rows, ends[:-1]), strict=True)


def _by_position(messages: OutgoingMessages) -> Iterator[tuple[str, OutgoingMessages]]:
    positions = [str(messages.at.position(row)) for row in range(len(messages))]
    for position in dict.fromkeys(positions):
        yield position, messages.take(np.flatnonzero(np.array(positions) == position))


def _is_missing(at: ChangePositions, order: I64, tail: PublisherTail) -> Mask:
    if tail.last is None:
        return np.ones(len(at), np.bool_)
    (lsn, ordinal), last_order = tail.last
    is_same = at.commit_lsn == lsn
    is_later = is_same & ((at.ordinal > ordinal) | ((at.ordinal == ordinal) & (order > last_order)))
    missing: Mask = (at.commit_lsn > lsn) | is_later
    return missing


def _publishing_ids(at: ChangePositions, order: I64, sequence: int) -> I64:
    """Return rising ids above `sequence`.

    An id follows from the position, so that the same change has the same id after a restart, even with other settings.
    Positions need more than 64 bits: after a large transaction ids are ahead of their positions for a while.
    """
    wanted = (at.commit_lsn << _LSN_BITS) + (at.ordinal << _ORDINAL_BITS) + order
    count = np.arange(len(wanted))
    rising = np.maximum.accumulate(np.maximum(wanted - count, sequence + 1))
    ids: I64 = rising + count
    return ids
