"""The envelope `row`: the row alone, as a compacted topic or a cache wants it. A deleted row is a tombstone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import PoisonError
from tailrace.log import json_columns
from tailrace.log.decoding import DELETE, TableChanges
from tailrace.sinks.messages.envelope import ChangeEnvelope, encoded_keys, key_record, row_record
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.payload_encoding import ENCODINGS, MessageEncoding
from tailrace.sinks.messages.row_image import changed_keys, key_indexes, new_values, old_values, unknown_columns

Mask = npt.NDArray[np.bool_]

OPERATION: Final = "Tailrace-Operation"
UNCHANGED: Final = "Tailrace-Unchanged"
"""The columns that PostgreSQL did not send and that the row lacks, as a JSON array."""


@dataclass(frozen=True)
class RowEnvelope(ChangeEnvelope):
    encoding: MessageEncoding

    def select(self, changes: TableChanges) -> TableChanges:
        """A TRUNCATE has no row and no key."""
        return changes.take(np.zeros(len(changes), np.bool_)) if changes.is_truncate else changes

    def change_messages(self, changes: TableChanges, destinations: pa.Array, ids: pa.Array) -> OutgoingMessages:
        is_delete = changes.operation == DELETE
        if is_delete.any() and not key_indexes(changes.relation):
            positions = tuple(str(changes.at.position(int(row))) for row in np.flatnonzero(is_delete))
            raise PoisonError(
                f"{changes.relation.qualified_name}, {positions[0]}: the table has no key, so a deleted row cannot be"
                " a tombstone",
                "Give the table a primary key, or use another envelope.",
                positions,
            )
        operations = pc.utf8_lower(json_columns.operations(changes.operation))
        headers = {OPERATION: operations}
        if unknown := unknown_columns(changes):
            headers[UNCHANGED] = _column_names(changes, unknown)
        current = OutgoingMessages(
            changes.at,
            destinations,
            ids,
            self.encoding.encode_values(row_record(changes, new_values, ~is_delete), destinations),
            np.ones(len(changes), np.int64),
            encoded_keys(changes, destinations, self.encoding),
            headers,
        )
        is_moved = changed_keys(changes)
        if not is_moved.any():
            return current
        return OutgoingMessages.joined([self._removed(changes, destinations, ids, is_moved), current])

    def _removed(
        self, changes: TableChanges, destinations: pa.Array, ids: pa.Array, is_moved: Mask
    ) -> OutgoingMessages:
        """Return a tombstone for the old key of each row that has a new key."""
        found = OutgoingMessages(
            changes.at,
            destinations,
            pc.binary_join_element_wise(ids, "old", "-"),
            pa.nulls(len(changes), pa.binary()),
            np.zeros(len(changes), np.int64),
            self.encoding.encode_keys(key_record(changes, old_values, is_moved), destinations),
            {OPERATION: pa.array(["delete"] * len(changes), pa.string())},
        )
        return found.take(np.flatnonzero(is_moved))


def _column_names(changes: TableChanges, columns: Sequence[tuple[int, Mask]]) -> pa.Array:
    """Return the names of the columns that each row has, as a JSON array; NULL for a row that has none."""
    json = ENCODINGS["json"]
    items = [(json.text(changes.relation.columns[index].name), rows) for index, rows in columns]
    names = json.arrays(items, len(changes)).cast(pa.string())
    has_any: Mask = np.any([rows for _, rows in columns], axis=0)
    return pc.if_else(pa.array(has_any), names, pa.scalar(None, pa.string()))
