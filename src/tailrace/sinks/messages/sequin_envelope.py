"""The envelope `sequin`: the fields of Sequin's messages, for its users' consumers.

docs/messages.md says which of Sequin's metadata Tailrace does not have.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log import json_columns
from tailrace.log.decoding import DELETE, INSERT, SNAPSHOT, UPDATE, TableChanges
from tailrace.sinks.messages.envelope import ChangeEnvelope, encoded_keys, name_lists, row_record, single_messages
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.payload import ColumnValues, Field, Integers, Nulls, Record, Texts
from tailrace.sinks.messages.payload_encoding import MessageEncoding
from tailrace.sinks.messages.row_image import current_values, known_old, new_values

Mask = npt.NDArray[np.bool_]

_ACTIONS: Final = {INSERT: "insert", UPDATE: "update", DELETE: "delete", SNAPSHOT: "read"}
_NAMESPACE: Final = uuid.UUID("6f1c7d6e-6d0b-5c83-9a5e-0f6a3f0f3c11")
"""For the ids of consumers, which have to be UUIDs: the same for the same sink."""


@dataclass(frozen=True)
class SequinEnvelope(ChangeEnvelope):
    encoding: MessageEncoding
    sink: str
    database: str

    def select(self, changes: TableChanges) -> TableChanges:
        """Sequin has no message for a TRUNCATE."""
        return changes.take(np.zeros(len(changes), np.bool_)) if changes.is_truncate else changes

    def change_messages(self, changes: TableChanges, destinations: pa.Array, ids: pa.Array) -> OutgoingMessages:
        actions = pa.array([_ACTIONS[int(kind)] for kind in changes.operation], pa.string())
        is_update = changes.operation == UPDATE
        indexes = range(len(changes.relation.columns)) if is_update.any() else ()
        changed = [(index, is_update & self._is_changed(changes, index)) for index in indexes]
        record = row_record(changes, current_values)
        fields = [
            Field("record", record),
            Field("changes", self._changes(changes, is_update, changed), is_optional=True),
            Field("action", Texts(actions)),
            Field("metadata", self._metadata(changes, ids)),
            replace(name_lists(changes, "changed", changed), is_supplement=True),
            replace(name_lists(changes, "unsent", _unsent(record)), is_supplement=True),
        ]
        values = self.encoding.encode_values(Record((*changes.target, "Message"), fields), destinations)
        keys = encoded_keys(changes, destinations, self.encoding)
        return single_messages(changes.at, destinations, ids, values, keys)

    def _changes(self, changes: TableChanges, is_update: Mask, changed: Sequence[tuple[int, Mask]]) -> Record:
        """Return the old values of the columns that an update changed, as far as PostgreSQL sent them."""
        has = dict(changed)
        fields = [
            Field(
                column.name,
                ColumnValues(changes.old.batch.column(index), column),
                has.get(index, is_update),
                is_optional=True,
            )
            for index, column in enumerate(changes.relation.columns)
        ]
        return Record((*changes.target, "Changes"), fields, is_update)

    def _is_changed(self, changes: TableChanges, index: int) -> Mask:
        known = known_old(changes, index)
        old, new = changes.old.batch.column(index), new_values(changes, index)[0]
        same = pc.or_(pc.fill_null(pc.equal(old, new), False), pc.and_(pc.is_null(old), pc.is_null(new)))
        is_unsent = changes.new.unchanged.get(index)
        differs: Mask = known & ~same.to_numpy(zero_copy_only=False)
        return differs if is_unsent is None else differs & ~is_unsent

    def _metadata(self, changes: TableChanges, ids: pa.Array) -> Record:
        at = changes.at
        schema, table = changes.target
        keys = pa.array([base64.b64encode(text.encode()).decode() for text in ids.to_pylist()], pa.string())
        consumer = [
            Field("id", Texts(str(uuid.uuid5(_NAMESPACE, self.sink)))),
            Field("name", Texts(self.sink)),
            Field("annotations", Record(("Annotations",), [])),
        ]
        fields = [
            Field("table_schema", Texts(schema)),
            Field("table_name", Texts(table)),
            Field("idempotency_key", Texts(keys)),
            Field("commit_timestamp", Texts(json_columns.timestamps(at.committed_at_us))),
            Field("commit_lsn", Integers(pa.array(at.commit_lsn, pa.int64()))),
            Field("commit_idx", Integers(pa.array(at.ordinal, pa.int64()))),
            Field("database_name", Texts(self.database)),
            Field("transaction_annotations", Nulls(), is_optional=True),
            Field("consumer", Record(("Consumer",), consumer)),
        ]
        return Record(("Metadata",), fields)


def _unsent(record: Record) -> list[tuple[int, Mask]]:
    """Return the columns that PostgreSQL did not send, with the rows."""
    return [(index, ~field.present) for index, field in enumerate(record.fields) if field.present is not None]
