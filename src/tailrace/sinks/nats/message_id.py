"""Ids of NATS messages, as the PostgreSQL-to-NATS bridge makes them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log import json_columns
from tailrace.log.decoding import LogicalMessages, TableChanges
from tailrace.sinks.nats.subject import token


class MessageIds:
    """Makes message ids from the record's LSN, the table and the operation.

    Several rows of one record share all three, and their ordinals make them unique. Such rows may be in two runs, so
    the last LSN and operation of each table are remembered. One TRUNCATE record has several tables, some of which may
    have the same name in different schemas.
    """

    def __init__(self, replays: int, *, are_dead_letters: bool = False) -> None:
        """Make ids.

        Args:
            replays: How often the sink was rewound: ids differ from those of earlier deliveries.
            are_dead_letters: The changes come without the others of their records, so each id needs the ordinal.
        """
        self._are_dead_letters = are_dead_letters
        self._suffix = f"-r{replays}" if replays else ""
        self._last: dict[tuple[str, str], tuple[int, int]] = {}
        self._single: set[str] = set()

    def of_changes(self, changes: TableChanges) -> pa.Array:
        if changes.is_truncate:
            return pa.array([self._of_single(changes, "truncate")])
        lsn, operation = changes.at.lsn, changes.operation.astype(np.int64)
        before = self._last.get(changes.target, (-1, -1))
        is_repeated = np.ones(len(changes), np.bool_)
        if not self._are_dead_letters:
            is_repeated[0] = (int(lsn[0]), int(operation[0])) == before
            is_repeated[1:] = (lsn[1:] == lsn[:-1]) & (operation[1:] == operation[:-1])
            if changes.relation.is_upsert:  # a batch has one LSN, and its operations alternate
                is_repeated = changes.at.ordinal > 0
        self._last[changes.target] = int(lsn[-1]), int(operation[-1])
        names = pc.utf8_lower(json_columns.operations(changes.operation))
        ids = pc.binary_join_element_wise(_hex(lsn), token(changes.target[1]), names, "-")
        if is_repeated.any():
            ordinals = pc.cast(pa.array(changes.at.ordinal), pa.string())
            ids = pc.if_else(pa.array(is_repeated), pc.binary_join_element_wise(ids, ordinals, "-"), ids)
        return pc.binary_join_element_wise(ids, self._suffix, "") if self._suffix else ids

    def of_schema(self, changes: TableChanges) -> str:
        """Return the id of the message that announces the columns of these changes."""
        return self._of_single(changes, "schema")

    def of_messages(self, messages: LogicalMessages) -> pa.Array:
        return pc.binary_join_element_wise(_hex(messages.at.lsn), f"message{self._suffix}", "-")

    def _of_single(self, changes: TableChanges, operation: str) -> str:
        plain = f"{int(changes.at.lsn[0]):x}-{token(changes.target[1])}-{operation}"
        is_repeated = plain in self._single or self._are_dead_letters
        unique = f"{plain}-{int(changes.at.ordinal[0])}" if is_repeated else plain
        self._single.add(plain)
        return f"{unique}{self._suffix}"


def _hex(numbers: npt.NDArray[np.int64]) -> pa.Array:
    return pc.ascii_lower(json_columns.hexadecimal(numbers, 16))
