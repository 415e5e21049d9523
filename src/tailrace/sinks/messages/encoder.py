"""Turns decoded chunks into messages: selects, routes, encodes, and names the changes that cannot be encoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import PoisonError
from tailrace.log import json_columns
from tailrace.log.decoding import SNAPSHOT, ChangePositions, Chunk, LogicalMessages, TableChanges
from tailrace.sinks.messages.envelope import Envelope, TransactionEnvelope
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.routing import DestinationTemplate

_ENCODING_ERRORS: Final = (pa.ArrowException, ValueError, OverflowError, RecursionError)


class MessageIdSource(Protocol):
    """Makes the ids of messages, in log order."""

    def of_changes(self, changes: TableChanges) -> pa.Array: ...

    def of_messages(self, messages: LogicalMessages) -> pa.Array: ...


@dataclass(frozen=True)
class PositionIds:
    """Ids that are the changes' positions: `0/1A2B3C4:17`.

    The rows of a snapshot have the snapshot's LSN, which rows of other tables and a change may have too: their ids end
    in `-snapshot-` and the table's oid. After the first rewind all ids end in `-r1`, so that no consumer takes the
    messages for duplicates.
    """

    replays: int = 0

    def of_changes(self, changes: TableChanges) -> pa.Array:
        is_snapshot = int(changes.operation[0]) == SNAPSHOT
        return self._ids(changes.at, f"-snapshot-{changes.relation.oid}" if is_snapshot else "")

    def of_messages(self, messages: LogicalMessages) -> pa.Array:
        return self._ids(messages.at, "")

    def _ids(self, at: ChangePositions, suffix: str) -> pa.Array:
        suffix += f"-r{self.replays}" if self.replays else ""
        positions = json_columns.positions(at)
        return pc.binary_join_element_wise(positions, suffix, "") if suffix else positions


@dataclass(frozen=True)
class MessageEncoder:
    """Makes messages of chunks for one sink."""

    envelope: Envelope
    template: DestinationTemplate
    message_destination: Callable[[str], str] | None = None
    """Returns the destination of logical messages with a prefix. None: they are not published."""

    def observe(self, chunk: Chunk) -> None:
        """See a chunk of the log of which only what the destination lacks will be encoded."""
        if isinstance(self.envelope, TransactionEnvelope):
            self.envelope.observe(chunk)

    def encode(self, chunk: Chunk, ids: MessageIdSource) -> list[OutgoingMessages]:
        """Return the messages of each run of a chunk, for `OutgoingMessages.joined`.

        Raises a PoisonError that names the changes that cannot be routed or encoded.
        """
        runs = [run for run in chunk if len(run)]
        found = [
            self._logical_messages(run, ids) if isinstance(run, LogicalMessages) else self._change_messages(run, ids)
            for run in runs
        ]
        boundaries = [messages for run in runs for messages in self._boundary_messages(run, ids)]
        return [messages for messages in [*found, *boundaries] if messages is not None and len(messages)]

    def _change_messages(self, run: TableChanges, ids: MessageIdSource) -> OutgoingMessages | None:
        run = self.envelope.select(run)
        if not len(run):
            return None
        poison: list[str] = []
        messages = self._encode(run, self.template.of_changes(run), ids.of_changes(run), poison)
        if poison or messages is None:
            raise PoisonError(
                f"{run.relation.qualified_name}, {poison[0]}: a value cannot be encoded",
                'Exclude the column with `columns` in the sink\'s settings, or set on_poison = "dead_letter".',
                tuple(poison),
            )
        return messages

    def _encode(
        self, run: TableChanges, destinations: pa.Array, ids: pa.Array, poison: list[str]
    ) -> OutgoingMessages | None:
        """Encode a run; if that fails, its halves: a run may be too large for one array, or have a faulty row."""
        try:
            return self.envelope.change_messages(run, destinations, ids)
        except _ENCODING_ERRORS:
            if len(run) == 1:
                poison.append(str(run.at.position(0)))
                return None
        middle = len(run) // 2
        rows = np.arange(len(run))
        halves = [
            self._encode(run.take(part), destinations.take(pa.array(part)), ids.take(pa.array(part)), poison)
            for part in (rows[:middle], rows[middle:])
        ]
        encoded = [half for half in halves if half is not None]
        return OutgoingMessages.joined(encoded) if encoded else None

    def _logical_messages(self, messages: LogicalMessages, ids: MessageIdSource) -> OutgoingMessages | None:
        if self.message_destination is None:
            return None
        by_prefix = {prefix: self.message_destination(prefix) for prefix in set(messages.prefix)}
        destinations = pa.array([by_prefix[prefix] for prefix in messages.prefix], pa.string())
        return self.envelope.logical_messages(messages, destinations, ids.of_messages(messages))

    def _boundary_messages(self, run: TableChanges | LogicalMessages, ids: MessageIdSource) -> list[OutgoingMessages]:
        """Return the messages about the begin and end of transactions, if the envelope has them."""
        if not isinstance(self.envelope, TransactionEnvelope):
            return []
        if isinstance(run, LogicalMessages):
            return self.envelope.boundary_messages(run, lambda: ids.of_messages(run))
        return self.envelope.boundary_messages(run, lambda: ids.of_changes(run))
