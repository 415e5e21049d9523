"""The envelope `cloudevents`: CloudEvents 1.0, structured (one JSON document) or binary (attributes as headers)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log import json_columns
from tailrace.log.change_text import content_text
from tailrace.log.decoding import ChangePositions, LogicalMessages, TableChanges
from tailrace.sinks.messages.envelope import encoded_keys, single_messages
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.payload_encoding import ENCODINGS, EncodedField, PayloadEncoding
from tailrace.sinks.messages.row_envelope import encoded_rows
from tailrace.sinks.messages.row_image import known_old, unknown_columns

Mask = npt.NDArray[np.bool_]

CONTENT_TYPE: Final = "content-type"
STRUCTURED_CONTENT_TYPE: Final = "application/cloudevents+json; charset=UTF-8"
_DATA_TYPES: Final = {"json": "application/json", "msgpack": "application/msgpack"}
_TYPE: Final = "tailrace.change."
"""The beginning of `type`, followed by the operation."""


@dataclass(frozen=True)
class CloudEventsEnvelope:
    database: str
    is_structured: bool = True
    encoding: str = "json"
    """Of the data in binary mode. A structured event is JSON."""
    header_prefix: str = "ce_"
    """The beginning of attributes in headers: `ce_` in Kafka, `ce-` in HTTP and NATS, `cloudEvents_` in AMQP."""

    def select(self, changes: TableChanges) -> TableChanges:
        return changes

    def change_messages(self, changes: TableChanges, destinations: pa.Array, ids: pa.Array) -> OutgoingMessages:
        schema, table = changes.target
        operations = pc.utf8_lower(json_columns.operations(changes.operation))
        types = pc.binary_join_element_wise(_TYPE, operations, "")
        data = self._data(changes)
        attributes = self._attributes(changes.at, ids, types, f"{schema}.{table}")
        keys = encoded_keys(changes, self._data_encoding)
        return self._messages(changes.at, destinations, ids, attributes, data, keys)

    def logical_messages(
        self, messages: LogicalMessages, destinations: pa.Array, ids: pa.Array
    ) -> OutgoingMessages | None:
        encoding = self._data_encoding
        count = len(messages)
        contents = pa.array([content_text(content) for content in messages.content], pa.string())
        fields: list[EncodedField] = [
            ("content", encoding.texts(contents), None),
            ("prefix", encoding.texts(pa.array(messages.prefix, pa.string())), None),
        ]
        types = pa.array([f"{_TYPE}message"] * count, pa.string())
        attributes = self._attributes(messages.at, ids, types, None)
        return self._messages(messages.at, destinations, ids, attributes, encoding.maps(fields, count), None)

    @property
    def _data_encoding(self) -> PayloadEncoding:
        return ENCODINGS["json" if self.is_structured else self.encoding]

    def _attributes(
        self, at: ChangePositions, ids: pa.Array, types: pa.Array, table: str | None
    ) -> dict[str, pa.Array]:
        """Return the attributes of each event. The last three are extensions, whose names have only small letters."""

        def same(text: str) -> pa.Array:
            return pa.array([text], pa.string()).take(pa.array(np.zeros(len(at), np.int64)))

        return {
            "specversion": same("1.0"),
            "id": ids,
            "source": same(f"/tailrace/{quote(self.database, safe='')}"),
            "type": types,
            **({} if table is None else {"subject": same(quote(table, safe="."))}),
            "time": json_columns.timestamps(at.committed_at_us),
            "position": json_columns.positions(at),
            "xid": pc.cast(pa.array(at.xid), pa.string()),
            "lastoftransaction": pc.if_else(pa.array(at.is_last), "true", "false"),
        }

    def _data(self, changes: TableChanges) -> pa.Array:
        """Return `before` and `after`: each null if there is no such row, or PostgreSQL did not send it."""
        encoding, count = self._data_encoding, len(changes)
        null = pa.scalar(encoding.encode(None), pa.binary())
        after = pc.if_else(pa.array(changes.new.present), encoded_rows(changes, encoding), null)
        fields: list[EncodedField] = [
            ("before", pc.if_else(pa.array(changes.old.present), self._before(changes), null), None),
            ("after", after, None),
        ]
        unknown = unknown_columns(changes)
        if unknown:
            names = [(encoding.text(changes.relation.columns[index].name), rows) for index, rows in unknown]
            has: Mask = np.any([rows for _, rows in unknown], axis=0)
            fields.append(("unchanged", encoding.arrays(names, count), has))
        return encoding.maps(fields, count)

    def _before(self, changes: TableChanges) -> pa.Array:
        encoding = self._data_encoding
        fields: list[EncodedField] = []
        for index, column in enumerate(changes.relation.columns):
            known = known_old(changes, index)
            fields.append((column.name, encoding.values(changes.old.batch.column(index), column), known))
        return encoding.maps(fields, len(changes))

    def _messages(
        self,
        at: ChangePositions,
        destinations: pa.Array,
        ids: pa.Array,
        attributes: dict[str, pa.Array],
        data: pa.Array,
        keys: pa.Array | None,
    ) -> OutgoingMessages:
        count = len(at)
        if not self.is_structured:
            headers = {f"{self.header_prefix}{name}": values for name, values in attributes.items()}
            content_type = pa.array([_DATA_TYPES[self.encoding]] * count, pa.string())
            return single_messages(at, destinations, ids, data, keys, {**headers, CONTENT_TYPE: content_type})
        encoding = self._data_encoding
        fields: list[EncodedField] = [(name, encoding.texts(values), None) for name, values in attributes.items()]
        fields += [("datacontenttype", encoding.text(_DATA_TYPES["json"]), None), ("data", data, None)]
        content_type = pa.array([STRUCTURED_CONTENT_TYPE] * count, pa.string())
        return single_messages(at, destinations, ids, encoding.maps(fields, count), keys, {CONTENT_TYPE: content_type})
