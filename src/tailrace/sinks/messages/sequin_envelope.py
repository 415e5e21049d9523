"""The envelope `sequin`: the fields of Sequin's messages, for its users' consumers.

docs/messages.md says which of Sequin's metadata Tailrace does not have.
"""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log import json_columns
from tailrace.log.decoding import DELETE, INSERT, SNAPSHOT, UPDATE, TableChanges
from tailrace.sinks.messages.envelope import ChangeEnvelope, encoded_keys, single_messages
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.payload_encoding import EncodedField, PayloadEncoding
from tailrace.sinks.messages.row_image import current_values, known_old, new_values

Mask = npt.NDArray[np.bool_]

_ACTIONS: Final = {INSERT: "insert", UPDATE: "update", DELETE: "delete", SNAPSHOT: "read"}
_NAMESPACE: Final = uuid.UUID("6f1c7d6e-6d0b-5c83-9a5e-0f6a3f0f3c11")
"""For the ids of consumers, which have to be UUIDs: the same for the same sink."""


@dataclass(frozen=True)
class SequinEnvelope(ChangeEnvelope):
    encoding: PayloadEncoding
    sink: str
    database: str

    def select(self, changes: TableChanges) -> TableChanges:
        """Sequin has no message for a TRUNCATE."""
        return changes.take(np.zeros(len(changes), np.bool_)) if changes.is_truncate else changes

    def change_messages(self, changes: TableChanges, destinations: pa.Array, ids: pa.Array) -> OutgoingMessages:
        encoding = self.encoding
        actions = pa.array([_ACTIONS[int(kind)] for kind in changes.operation], pa.string())
        fields: list[EncodedField] = [
            ("record", self._record(changes), None),
            ("changes", self._changes(changes), None),
            ("action", encoding.texts(actions), None),
            ("metadata", self._metadata(changes), None),
        ]
        return single_messages(
            changes.at, destinations, ids, encoding.maps(fields, len(changes)), encoded_keys(changes, encoding)
        )

    def _record(self, changes: TableChanges) -> pa.Array:
        """Return the rows; of deleted ones, what PostgreSQL sent."""
        fields: list[EncodedField] = []
        for index, column in enumerate(changes.relation.columns):
            texts, present = current_values(changes, index)
            fields.append((column.name, self.encoding.values(texts, column), present))
        return self.encoding.maps(fields, len(changes))

    def _changes(self, changes: TableChanges) -> pa.Array:
        """Return the old values of the columns that an update changed, as far as PostgreSQL sent them."""
        is_update = changes.operation == UPDATE
        null = pa.scalar(self.encoding.encode(None), pa.binary())
        if not is_update.any():
            return pa.array([null.as_py()] * len(changes), pa.binary())
        fields: list[EncodedField] = [
            (
                column.name,
                self.encoding.values(changes.old.batch.column(index), column),
                is_update & self._is_changed(changes, index),
            )
            for index, column in enumerate(changes.relation.columns)
        ]
        return pc.if_else(pa.array(is_update), self.encoding.maps(fields, len(changes)), null)

    def _is_changed(self, changes: TableChanges, index: int) -> Mask:
        known = known_old(changes, index)
        old, new = changes.old.batch.column(index), new_values(changes, index)[0]
        same = pc.or_(pc.fill_null(pc.equal(old, new), False), pc.and_(pc.is_null(old), pc.is_null(new)))
        is_unsent = changes.new.unchanged.get(index)
        differs: Mask = known & ~same.to_numpy(zero_copy_only=False)
        return differs if is_unsent is None else differs & ~is_unsent

    def _metadata(self, changes: TableChanges) -> pa.Array:
        encoding, at = self.encoding, changes.at
        schema, table = changes.target
        consumer = {"id": str(uuid.uuid5(_NAMESPACE, self.sink)), "name": self.sink, "annotations": {}}
        positions = json_columns.positions(at).to_pylist()
        keys = pa.array([base64.b64encode(text.encode()).decode() for text in positions], pa.string())
        fields: list[EncodedField] = [
            ("table_schema", encoding.text(schema), None),
            ("table_name", encoding.text(table), None),
            ("idempotency_key", encoding.texts(keys), None),
            ("commit_timestamp", encoding.texts(json_columns.timestamps(at.committed_at_us)), None),
            ("commit_lsn", encoding.integers(pa.array(at.commit_lsn, pa.int64())), None),
            ("commit_idx", encoding.integers(pa.array(at.ordinal, pa.int64())), None),
            ("database_name", encoding.text(self.database), None),
            ("transaction_annotations", encoding.encode(None), None),
            ("consumer", encoding.encode(consumer), None),
        ]
        return encoding.maps(fields, len(changes))
