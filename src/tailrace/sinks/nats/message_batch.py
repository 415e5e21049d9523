"""Batches of messages, encoded in Arrow as one buffer of protocol frames that is sent as it is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Position
from tailrace.errors import PoisonError, SinkRefused
from tailrace.log.decoding import ChangePositions
from tailrace.log.segment import payload_buffers
from tailrace.sinks.messages.message import OutgoingMessages, position_headers

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
MessagePosition = tuple[Position, bool]
"""A message's position, and whether it is a change. A schema message precedes the change at the same position."""

ID: Final = "Nats-Msg-Id"
SINK: Final = "Tailrace-Sink"
REPLAY: Final = "Tailrace-Replay"
SCHEMA: Final = "Tailrace-Schema"
"""Present only on schema messages."""
SINGLE: Final = "Tailrace-Single"
"""Present only on messages published without an expected predecessor: there may be gaps before them."""
_EXPECTED_BYTES: Final = 72
"""The size of the header that names the expected predecessor, without the predecessor's id."""


@dataclass(frozen=True)
class Sender:
    """Identifies the sink in the headers of every message."""

    sink: str
    replays: int

    @property
    def headers(self) -> str:
        return f"{SINK}: {self.sink}\r\n" + (f"{REPLAY}: {self.replays}\r\n" if self.replays else "")


@dataclass(frozen=True)
class MessageBatch:
    """Messages in log order, complete except for the headers that name the expected predecessor."""

    outgoing: OutgoingMessages
    headers: pa.Array
    """As NATS encodes them, without the end."""

    def __len__(self) -> int:
        return len(self.outgoing)

    @property
    def at(self) -> ChangePositions:
        return self.outgoing.at

    @property
    def subjects(self) -> pa.Array:
        return self.outgoing.destinations

    @property
    def ids(self) -> pa.Array:
        return self.outgoing.ids

    @property
    def payloads(self) -> pa.Array:
        return self.outgoing.values

    @property
    def is_change(self) -> Mask:
        """False for a schema message, which precedes the change at the same position."""
        return self.outgoing.is_change

    def message_position(self, row: int) -> MessagePosition:
        return self.at.position(row), bool(self.is_change[row])

    def select_missing(
        self, complete_to: MessagePosition | None, beyond_gaps: Collection[MessagePosition]
    ) -> MessageBatch:
        """Return the messages after `complete_to` that are not in `beyond_gaps`."""
        lsn, ordinal = self.at.commit_lsn, self.at.ordinal
        is_missing = np.ones(len(self), np.bool_)
        if complete_to is not None:
            (last_lsn, last_ordinal), is_change = complete_to
            is_missing = (lsn > last_lsn) | ((lsn == last_lsn) & (ordinal > last_ordinal))
            if not is_change:
                is_missing |= (lsn == last_lsn) & (ordinal == last_ordinal) & self.is_change
        if beyond_gaps:
            is_missing &= np.array(
                [self.message_position(row) not in beyond_gaps for row in range(len(self))], np.bool_
            )
        if is_missing.all():
            return self
        rows = np.flatnonzero(is_missing)
        return MessageBatch(self.outgoing.take(rows), self.headers.take(pa.array(rows)))


def merge(outgoing: Sequence[OutgoingMessages], sender: Sender) -> MessageBatch | None:
    """Merge the messages of several tables into one batch in log order; None if there are no messages."""
    if not outgoing:
        return None
    joined = OutgoingMessages.joined(outgoing)
    texts: list[pa.Array | str] = [f"NATS/1.0\r\n{ID}: ", joined.ids]
    for name, values in position_headers(joined.at).items():
        texts += [f"\r\n{name}: ", values]
    headers = pc.binary_join_element_wise(*texts, f"\r\n{sender.headers}", "")
    if not joined.is_change.all():
        schema_headers = pc.binary_join_element_wise(headers, f"{SCHEMA}: true\r\n", "")
        headers = pc.if_else(pa.array(joined.is_change), headers, schema_headers)
    return MessageBatch(joined, headers)


def check_sizes(batch: MessageBatch, max_bytes: int) -> None:
    """Raise a PoisonError for messages above `max_bytes`: the server closes the connection when it receives one."""
    expected = _EXPECTED_BYTES + pc.max(pc.binary_length(batch.ids)).as_py()
    sizes = pc.add(pc.binary_length(batch.headers), pc.binary_length(batch.payloads)).to_numpy() + expected
    large = np.flatnonzero(sizes > max_bytes)
    if not len(large):
        return
    accepted = f"and the server accepts {max_bytes:,}"
    hint = "Raise max_payload of the NATS server or max_msg_size of the stream, or exclude "
    schemas = large[~batch.is_change[large]]
    if len(schemas):
        raise SinkRefused(
            f"the columns before {batch.at.position(int(schemas[0]))} make a message of {int(sizes[schemas[0]]):,}"
            f" bytes, {accepted}",
            f"{hint}the table.",
        )
    positions = tuple(str(batch.at.position(int(row))) for row in large)
    largest = f"{int(sizes[large].max()):,}"
    raise PoisonError(
        f"{positions[0]} makes a message of {largest} bytes, {accepted}"
        if len(large) == 1
        else f"{len(large):,} changes from {positions[0]} on make messages of up to {largest} bytes, {accepted}",
        f"{hint}the column with `columns` in the sink's settings.",
        positions,
    )


def encode_frames(
    batch: MessageBatch, reply: str, last_sequence: int | None, *, has_gaps: bool = False
) -> tuple[memoryview, I64]:
    """Return the batch as protocol frames, and the offset at which each frame ends.

    Args:
        reply: The subject that the acknowledgements go to.
        last_sequence: The stream accepts the first message only directly after this sequence, and each other message
            only directly after its predecessor: after a rejected message it accepts none. None: not required.
        has_gaps: The stream already holds some of the sink's later messages.
    """
    single = f"{SINGLE}: true\r\n" if has_gaps or last_sequence is None else ""
    if last_sequence is None:
        expected = pa.array([single]).take(pa.array(np.zeros(len(batch), np.int64)))
    else:
        after_previous = pc.binary_join_element_wise(
            f"{single}Nats-Expected-Last-Msg-Id: ", batch.ids.slice(0, len(batch) - 1), "\r\n", ""
        )
        after_last = pa.array([f"{single}Nats-Expected-Last-Sequence: {last_sequence}\r\n"])
        expected = pa.concat_arrays([after_last, after_previous])
    headers = pc.binary_join_element_wise(batch.headers, expected, "\r\n", "")
    lengths = pc.binary_length(headers)
    total = pc.add(lengths, pc.binary_length(batch.payloads))
    lines = pc.binary_join_element_wise(
        "HPUB ",
        batch.subjects,
        f" {reply} ",
        pc.cast(lengths, pa.string()),
        " ",
        pc.cast(total, pa.string()),
        "\r\n",
        headers,
        "",
    ).cast(pa.binary())
    frames = pc.binary_join_element_wise(lines, batch.payloads, b"\r\n", b"")
    offsets, data = payload_buffers(frames)
    return data, offsets[1:].astype(np.int64)
