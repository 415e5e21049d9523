"""The envelope `tailrace`: the fields of the PostgreSQL-to-NATS bridge, plus `schema`, `unchanged` and `old_key`.

docs/messages.md describes the fields.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log import json_columns
from tailrace.log.change_text import content_text
from tailrace.log.decoding import DELETE, LogicalMessages, TableChanges
from tailrace.sinks.messages.envelope import encoded_keys, single_messages
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.payload_encoding import EncodedField, PayloadEncoding
from tailrace.sinks.messages.row_image import changed_keys, key_indexes, new_values, unknown_columns


@dataclass(frozen=True)
class TailraceEnvelope:
    encoding: PayloadEncoding
    has_keys: bool = True
    """Whether the transport uses keys."""

    def select(self, changes: TableChanges) -> TableChanges:
        return changes

    def change_messages(self, changes: TableChanges, destinations: pa.Array, ids: pa.Array) -> OutgoingMessages:
        encoding = self.encoding
        schema, table = changes.target
        fields: list[EncodedField] = [
            ("data", encoding.single_map([]) if changes.is_truncate else _data(changes, encoding), None),
            ("msg_id", encoding.texts(ids), None),
            *_old_key(changes, encoding),
            ("operation", encoding.texts(json_columns.operations(changes.operation)), None),
            ("relation_id", encoding.integer(changes.relation.oid), None),
            ("schema", encoding.text(schema), None),
            ("subject", encoding.texts(destinations), None),
            ("table", encoding.text(table), None),
            *_unchanged(changes, encoding),
        ]
        if changes.truncate_options:
            options = encoding.single_array([encoding.text(option) for option in changes.truncate_options])
            fields.append(("options", options, None))
        keys = encoded_keys(changes, encoding) if self.has_keys else None
        return single_messages(changes.at, destinations, ids, encoding.maps(fields, len(changes)), keys)

    def logical_messages(
        self, messages: LogicalMessages, destinations: pa.Array, ids: pa.Array
    ) -> OutgoingMessages | None:
        encoding = self.encoding
        contents = pa.array([content_text(content) for content in messages.content], pa.string())
        fields: list[EncodedField] = [
            ("content", encoding.texts(contents), None),
            ("msg_id", encoding.texts(ids), None),
            ("operation", encoding.text("MESSAGE"), None),
            ("prefix", encoding.texts(pa.array(messages.prefix, pa.string())), None),
            ("subject", encoding.texts(destinations), None),
        ]
        return single_messages(messages.at, destinations, ids, encoding.maps(fields, len(messages)))


def _data(changes: TableChanges, encoding: PayloadEncoding) -> pa.Array:
    """Return the rows after the change. A deleted row has all columns, null except those of the key."""
    is_delete = changes.operation == DELETE
    fields: list[EncodedField] = []
    for index, column in enumerate(changes.relation.columns):
        texts, present = new_values(changes, index)
        if is_delete.any():
            known = column.name in changes.relation.key or not changes.relation.key
            old = changes.old.batch.column(index) if known else pa.scalar(None, pa.string())
            texts = pc.if_else(pa.array(is_delete), old, texts)
        fields.append((column.name, encoding.values(texts, column), present))
    return encoding.maps(fields, len(changes))


def _unchanged(changes: TableChanges, encoding: PayloadEncoding) -> list[EncodedField]:
    columns = changes.relation.columns
    items = [(encoding.text(columns[index].name), unknown) for index, unknown in unknown_columns(changes)]
    if not items:
        return []
    has = np.any([mask for _, mask in items], axis=0)
    return [("unchanged", encoding.arrays(items, len(changes)), has)]


def _old_key(changes: TableChanges, encoding: PayloadEncoding) -> list[EncodedField]:
    """Return the old key of updates that change it."""
    is_changed = changed_keys(changes)
    if not is_changed.any():
        return []
    columns = [(changes.relation.columns[i], changes.old.batch.column(i)) for i in key_indexes(changes.relation)]
    fields: list[EncodedField] = [(column.name, encoding.values(texts, column), None) for column, texts in columns]
    return [("old_key", encoding.maps(fields, len(changes)), is_changed)]
