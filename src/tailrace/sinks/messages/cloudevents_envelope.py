"""The envelope `cloudevents`: CloudEvents 1.0, structured (one JSON document) or binary (attributes as headers)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log import json_columns
from tailrace.log.change_text import content_text
from tailrace.log.decoding import ChangePositions, LogicalMessages, TableChanges
from tailrace.sinks.messages.envelope import encoded_keys, name_lists, row_record, single_messages
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.payload import Field, Record, Texts
from tailrace.sinks.messages.payload_encoding import ENCODINGS, MessageEncoding
from tailrace.sinks.messages.row_image import known_old, new_values, old_values, unknown_columns

CONTENT_TYPE: Final = "content-type"
STRUCTURED_CONTENT_TYPE: Final = "application/cloudevents+json; charset=UTF-8"
_TYPE: Final = "tailrace.change."
"""The beginning of `type`, followed by the operation."""


@dataclass(frozen=True)
class CloudEventsEnvelope:
    database: str
    is_structured: bool = True
    encoding: MessageEncoding = ENCODINGS["json"]
    """Of the data in binary mode. A structured event is JSON."""
    header_prefix: str = "ce_"
    """The beginning of attributes in headers: `ce_` in Kafka, `ce-` in HTTP and NATS, `cloudEvents_` in AMQP."""

    def select(self, changes: TableChanges) -> TableChanges:
        return changes

    def change_messages(self, changes: TableChanges, destinations: pa.Array, ids: pa.Array) -> OutgoingMessages:
        schema, table = changes.target
        operations = pc.utf8_lower(json_columns.operations(changes.operation))
        types = pc.binary_join_element_wise(_TYPE, operations, "")
        attributes = self._attributes(changes.at, ids, types, f"{schema}.{table}")
        keys = encoded_keys(changes, destinations, self._encoding)
        return self._messages(changes.at, destinations, ids, attributes, _data(changes), keys)

    def logical_messages(
        self, messages: LogicalMessages, destinations: pa.Array, ids: pa.Array
    ) -> OutgoingMessages | None:
        contents = pa.array([content_text(content) for content in messages.content], pa.string())
        fields = [
            Field("content", Texts(contents)),
            Field("prefix", Texts(pa.array(messages.prefix, pa.string()))),
        ]
        types = pa.array([f"{_TYPE}message"] * len(messages), pa.string())
        attributes = self._attributes(messages.at, ids, types, None)
        return self._messages(messages.at, destinations, ids, attributes, Record(("Message",), fields), None)

    @property
    def _encoding(self) -> MessageEncoding:
        return ENCODINGS["json"] if self.is_structured else self.encoding

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

    def _messages(
        self,
        at: ChangePositions,
        destinations: pa.Array,
        ids: pa.Array,
        attributes: dict[str, pa.Array],
        data: Record,
        keys: pa.Array | None,
    ) -> OutgoingMessages:
        encoding = self._encoding
        if self.is_structured:
            fields = [Field(name, Texts(values)) for name, values in attributes.items()]
            fields += [Field("datacontenttype", Texts(encoding.content_type)), Field("data", data)]
            values = encoding.encode_values(Record(("Event",), fields), destinations)
            headers = {CONTENT_TYPE: pa.array([STRUCTURED_CONTENT_TYPE] * len(at), pa.string())}
        else:
            values = encoding.encode_values(data, destinations)
            headers = {f"{self.header_prefix}{name}": values for name, values in attributes.items()}
            headers[CONTENT_TYPE] = pa.array([encoding.content_type] * len(at), pa.string())
        return single_messages(at, destinations, ids, values, keys, headers)


def _data(changes: TableChanges) -> Record:
    """Return `before` and `after`: each null if there is no such row, or PostgreSQL did not send it."""
    before = row_record(changes, old_values, changes.old.present)
    unsent = [
        (index, changes.old.present & ~known_old(changes, index)) for index in range(len(changes.relation.columns))
    ]
    fields = [
        Field("before", before, is_optional=True),
        Field("after", row_record(changes, new_values, changes.new.present), is_optional=True),
        name_lists(changes, "unchanged", unknown_columns(changes)),
        replace(name_lists(changes, "before_unsent", unsent), is_supplement=True),
    ]
    return Record((*changes.target, "Event"), fields)
