"""Messages as the protocol has them, end to end: made in Arrow, sent as they are."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Position
from tailrace.errors import PoisonError
from tailrace.log import json
from tailrace.log.decoding import At
from tailrace.log.segment import payload_buffers
from tailrace.sinks.nats.payload import Published

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Mark = tuple[Position, bool]
"""Of a message: its position, and whether it tells of a change; else of a table's new shape, which stands before it."""

POSITION: Final = "Tailrace-Position"
SINK: Final = "Tailrace-Sink"
REPLAY: Final = "Tailrace-Replay"
SCHEMA: Final = "Tailrace-Schema"
"""Only messages of a table's new shape have it."""
_EXPECTED_BYTES: Final = 48
"""Of a header that names the message before, without that one's id."""


@dataclass(frozen=True)
class Sender:
    """What every message says of who sent it."""

    sink: str
    replays: int

    @property
    def headers(self) -> str:
        return f"{SINK}: {self.sink}\r\n" + (f"{REPLAY}: {self.replays}\r\n" if self.replays else "")


@dataclass(frozen=True)
class Batch:
    """Messages in the log's order, all but their numbers in the stream."""

    at: At
    subjects: pa.Array
    ids: pa.Array
    headers: pa.Array
    payloads: pa.Array
    is_change: Mask
    """Not a table's new shape, which stands before the change at the same position."""

    def __len__(self) -> int:
        return len(self.at)

    def mark(self, row: int) -> Mark:
        return self.at.position(row), bool(self.is_change[row])

    def lacking(self, reached: Mark | None, beyond: Collection[Mark]) -> Batch:
        """What comes after a message, without those that are named."""
        lsn, ordinal = self.at.commit_lsn, self.at.ordinal
        wanted = np.ones(len(self), np.bool_)
        if reached is not None:
            (commit_lsn, place), is_change = reached
            wanted = (lsn > commit_lsn) | ((lsn == commit_lsn) & (ordinal > place))
            if not is_change:
                wanted |= (lsn == commit_lsn) & (ordinal == place) & self.is_change
        if beyond:
            wanted &= np.array([self.mark(row) not in beyond for row in range(len(self))], np.bool_)
        return self if wanted.all() else self._take(np.flatnonzero(wanted))

    def _take(self, rows: I64) -> Batch:
        indices = pa.array(rows)
        return Batch(
            self.at.take(rows),
            self.subjects.take(indices),
            self.ids.take(indices),
            self.headers.take(indices),
            self.payloads.take(indices),
            self.is_change[rows],
        )


def batch(published: Sequence[Published], sender: Sender) -> Batch | None:
    """Runs of several tables in the one order that the log has."""
    if not published:
        return None
    at = At.joined([p.at for p in published])
    subjects = pa.concat_arrays([p.subjects for p in published])
    ids = pa.concat_arrays([p.ids for p in published])
    payloads = pa.concat_arrays([p.payloads for p in published])
    headers = pc.binary_join_element_wise(
        "NATS/1.0\r\nNats-Msg-Id: ",
        ids,
        f"\r\n{POSITION}: ",
        json.positions(at),
        "\r\nTailrace-Xid: ",
        pc.cast(pa.array(at.xid), pa.string()),
        "\r\nTailrace-Committed-At: ",
        json.moments(at.committed_at_us),
        "\r\nTailrace-Last: ",
        pc.if_else(pa.array(at.is_last), "true", "false"),
        f"\r\n{sender.headers}",
        "",
    )
    is_change = np.concatenate([np.full(len(p.at), p.is_change) for p in published])
    if not is_change.all():
        marked = pc.binary_join_element_wise(headers, f"{SCHEMA}: true\r\n", "")
        headers = pc.if_else(pa.array(is_change), headers, marked)
    found = Batch(at, subjects, ids, headers, payloads, is_change)
    order = np.lexsort((is_change, at.ordinal, at.commit_lsn))
    return found if (order[1:] > order[:-1]).all() else found._take(order)


def check_sizes(found: Batch, most: int) -> None:
    """Before anything is sent: who is too large would have the connection cut."""
    expected = _EXPECTED_BYTES + pc.max(pc.binary_length(found.ids)).as_py()
    sizes = pc.add(pc.binary_length(found.headers), pc.binary_length(found.payloads)).to_numpy() + expected
    large = np.flatnonzero(sizes > most)
    if len(large):
        positions = tuple(str(found.at.position(int(row))) for row in large)
        raise PoisonError(
            f"{positions[0]} makes a message of {int(sizes[large[0]]):,} bytes, and the server takes {most:,}",
            "raise max_payload of the NATS server, or max_msg_size of the stream, or leave the column out: `columns` in"
            " the sink's settings",
            positions,
        )


def frames(found: Batch, reply: str, last: int | None) -> tuple[memoryview, I64]:
    """The protocol's bytes, and where each message ends. `last`: the number of the stream's last message, behind which
    the first of these must come, and each behind the one before: if one is not taken, none that follows is."""
    expected = pa.array([""])
    if last is not None:
        behind = pc.binary_join_element_wise(
            "Nats-Expected-Last-Msg-Id: ", found.ids.slice(0, len(found) - 1), "\r\n", ""
        )
        expected = pa.concat_arrays([pa.array([f"Nats-Expected-Last-Sequence: {last}\r\n"]), behind])
    elif len(found) > 1:
        expected = expected.take(pa.array(np.zeros(len(found), np.int64)))
    headers = pc.binary_join_element_wise(found.headers, expected, "\r\n", "")
    lengths = pc.binary_length(headers)
    total = pc.add(lengths, pc.binary_length(found.payloads))
    lines = pc.binary_join_element_wise(
        "HPUB ",
        found.subjects,
        f" {reply} ",
        pc.cast(lengths, pa.string()),
        " ",
        pc.cast(total, pa.string()),
        "\r\n",
        headers,
        "",
    ).cast(pa.binary())
    whole = pc.binary_join_element_wise(lines, found.payloads, b"\r\n", b"")
    offsets, data = payload_buffers(whole)
    return data, offsets[1:].astype(np.int64)
