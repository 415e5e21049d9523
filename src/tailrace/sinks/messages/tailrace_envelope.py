"""The envelope `tailrace`: the fields of the PostgreSQL-to-NATS bridge, plus `schema`, `unchanged` and `old_key`.

docs/messages.md describes the fields.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log import json_columns
from tailrace.log.change_text import content_text
from tailrace.log.decoding import DELETE, LogicalMessages, TableChanges
from tailrace.sinks.messages.envelope import encoded_keys, key_record, name_lists, row_record, single_messages
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.payload import Field, Integers, NameLists, Record, Texts
from tailrace.sinks.messages.payload_encoding import MessageEncoding
from tailrace.sinks.messages.row_image import changed_keys, new_values, old_values, unknown_columns

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TailraceEnvelope:
    encoding: MessageEncoding
    has_keys: bool = True
    """Whether the transport uses keys."""

    def select(self, changes: TableChanges) -> TableChanges:
        return changes

    def change_messages(self, changes: TableChanges, destinations: pa.Array, ids: pa.Array) -> OutgoingMessages:
        schema, table = changes.target
        options = [(option, None) for option in changes.truncate_options]
        fields = [
            Field("data", _data(changes), is_optional=True),
            Field("msg_id", Texts(ids)),
            _old_key(changes),
            Field("operation", Texts(json_columns.operations(changes.operation))),
            Field("relation_id", Integers(changes.relation.oid)),
            Field("schema", Texts(schema)),
            Field("subject", Texts(destinations)),
            Field("table", Texts(table)),
            name_lists(changes, "unchanged", unknown_columns(changes)),
            Field("options", NameLists(options), np.full(len(changes), bool(options)), is_optional=True),
        ]
        values = self.encoding.encode_values(Record((*changes.target, "Change"), fields), destinations)
        keys = encoded_keys(changes, destinations, self.encoding) if self.has_keys else None
        return single_messages(changes.at, destinations, ids, values, keys)

    def logical_messages(
        self, messages: LogicalMessages, destinations: pa.Array, ids: pa.Array
    ) -> OutgoingMessages | None:
        contents = pa.array([content_text(content) for content in messages.content], pa.string())
        fields = [
            Field("content", Texts(contents)),
            Field("msg_id", Texts(ids)),
            Field("operation", Texts("MESSAGE")),
            Field("prefix", Texts(pa.array(messages.prefix, pa.string()))),
            Field("subject", Texts(destinations)),
        ]
        values = self.encoding.encode_values(Record(("Message",), fields), destinations)
        return single_messages(messages.at, destinations, ids, values)


def _data(changes: TableChanges) -> Record:
    """Return the rows after the change. A deleted row has all columns, null except those of the key."""
    is_delete = changes.operation == DELETE
    key = changes.relation.key

    def values(changes: TableChanges, index: int) -> tuple[pa.Array, Mask | None]:
        texts, present = new_values(changes, index)
        if is_delete.any():
            is_known = changes.relation.columns[index].name in key or not key
            old = changes.old.batch.column(index) if is_known else pa.scalar(None, pa.string())
            texts = pc.if_else(pa.array(is_delete), old, texts)
        return texts, present

    data = row_record(changes, values, np.zeros(len(changes), np.bool_) if changes.is_truncate else None)
    return replace(data, is_empty_if_absent=True)


def _old_key(changes: TableChanges) -> Field:
    """Return the old key of updates that change it."""
    is_changed = changed_keys(changes)
    return Field("old_key", key_record(changes, old_values, is_changed), is_changed, is_optional=True)
