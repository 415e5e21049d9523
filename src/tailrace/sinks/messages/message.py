"""Messages between a sink and its transport: as columns for a transport that sends buffers, or one by one.

A transport gets messages in the order in which they have to be published, and returns once all of them are durable at
their destinations. It adds `position_headers` in its own form, so that consumers can order and deduplicate messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Position
from tailrace.log import json_columns
from tailrace.log.decoding import ChangePositions

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

POSITION: Final = "Tailrace-Position"
XID: Final = "Tailrace-Xid"
COMMITTED_AT: Final = "Tailrace-Committed-At"
LAST: Final = "Tailrace-Last"

SCHEMA_ORDER: Final = -1
"""The `order` of a message that describes a table's columns and precedes the change at the same position."""


@dataclass(frozen=True)
class Message:
    destination: str
    """A subject, topic, stream or routing key."""
    key: bytes | None
    """Messages with the same key have to stay in order. None: the table has no key, or the transport uses none."""
    value: bytes | None
    """None: a tombstone, which tells a compacted topic that the key is gone."""
    headers: Mapping[str, str]
    position: Position


@dataclass(frozen=True)
class OutgoingMessages:
    """Messages as columns: those of one run of changes, or several runs joined."""

    at: ChangePositions
    destinations: pa.Array
    ids: pa.Array
    """Unique, and the same whenever the change is published."""
    values: pa.Array
    """Encoded; NULL: a tombstone."""
    order: I64
    """The order among the messages of one position: negative for a message that is not of the change itself."""
    keys: pa.Array | None = None
    """Encoded; NULL where a row has no key. None: no message has one."""
    headers: Mapping[str, pa.Array] = field(default_factory=dict)
    """The envelope's own headers; NULL where a message lacks one."""

    def __len__(self) -> int:
        return len(self.at)

    @property
    def is_change(self) -> Mask:
        return self.order >= 0

    def take(self, rows: I64) -> OutgoingMessages:
        indices = pa.array(rows)
        return OutgoingMessages(
            self.at.take(rows),
            self.destinations.take(indices),
            self.ids.take(indices),
            self.values.take(indices),
            self.order[rows],
            None if self.keys is None else self.keys.take(indices),
            {name: values.take(indices) for name, values in self.headers.items()},
        )

    @classmethod
    def joined(cls, parts: Sequence[OutgoingMessages]) -> OutgoingMessages:
        """Join the messages of several runs in log order."""
        joined = parts[0] if len(parts) == 1 else cls._concatenated(parts)
        order = np.lexsort((joined.order, joined.at.ordinal, joined.at.commit_lsn))
        return joined if (order[1:] > order[:-1]).all() else joined.take(order)

    @classmethod
    def _concatenated(cls, parts: Sequence[OutgoingMessages]) -> OutgoingMessages:
        names = dict.fromkeys(name for part in parts for name in part.headers)
        has_keys = any(part.keys is not None for part in parts)

        def keys(part: OutgoingMessages) -> pa.Array:
            return pa.nulls(len(part), pa.binary()) if part.keys is None else part.keys

        def header(part: OutgoingMessages, name: str) -> pa.Array:
            return part.headers[name] if name in part.headers else pa.nulls(len(part), pa.string())

        return cls(
            ChangePositions.joined([part.at for part in parts]),
            pa.concat_arrays([part.destinations for part in parts]),
            pa.concat_arrays([part.ids for part in parts]),
            pa.concat_arrays([part.values for part in parts]),
            np.concatenate([part.order for part in parts]),
            pa.concat_arrays([keys(part) for part in parts]) if has_keys else None,
            {name: pa.concat_arrays([header(part, name) for part in parts]) for name in names},
        )

    def with_position_headers(self) -> OutgoingMessages:
        """Return the messages with the headers that every message has."""
        return replace(self, headers={**position_headers(self.at), **self.headers})

    def messages(self) -> Iterator[Message]:
        """Yield the messages one by one, with all headers."""
        headers = self.with_position_headers().headers
        texts = {name: values.to_pylist() for name, values in headers.items()}
        keys = [None] * len(self) if self.keys is None else self.keys.to_pylist()
        rows = zip(self.destinations.to_pylist(), keys, self.values.to_pylist(), strict=True)
        for row, (destination, key, value) in enumerate(rows):
            own = {name: values[row] for name, values in texts.items() if values[row] is not None}
            yield Message(destination, key, value, own, self.at.position(row))


def position_headers(at: ChangePositions) -> dict[str, pa.Array]:
    """Return the headers that every message has: position, transaction, and whether it is the transaction's last."""
    return {
        POSITION: json_columns.positions(at),
        XID: pc.cast(pa.array(at.xid), pa.string()),
        COMMITTED_AT: json_columns.timestamps(at.committed_at_us),
        LAST: pc.if_else(pa.array(at.is_last), "true", "false"),
    }
