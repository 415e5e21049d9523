"""The envelope `outbox`: each row inserted into an outbox table is an event that the application wrote itself.

The columns say what the event is: its id, the kind and the id of the aggregate, its type and its payload. The template
of destinations routes by column, such as `outbox.event.{aggregatetype}`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import ConfigError
from tailrace.log.decoding import INSERT, SNAPSHOT, TableChanges
from tailrace.sinks.messages.envelope import ChangeEnvelope, single_messages
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.types import Form, mapping

ID: Final = "id"
EVENT_TYPE: Final = "eventType"
_HEX: Final = 2
"""The length of `\\x`, with which the text of a bytea begins."""


@dataclass(frozen=True)
class OutboxColumns:
    """The names of an outbox table's columns. The defaults are those of Debezium's event router. The kind of the
    aggregate, `aggregatetype`, is in the template of destinations."""

    id: str = "id"
    aggregate_id: str = "aggregateid"
    type: str = "type"
    payload: str = "payload"


@dataclass(frozen=True)
class OutboxEnvelope(ChangeEnvelope):
    columns: OutboxColumns = field(default_factory=OutboxColumns)

    def select(self, changes: TableChanges) -> TableChanges:
        """Only inserts are events. The application may update and delete rows as it likes."""
        is_event = (changes.operation == INSERT) | (changes.operation == SNAPSHOT)
        return changes if is_event.all() else changes.take(is_event)

    def change_messages(self, changes: TableChanges, destinations: pa.Array, ids: pa.Array) -> OutgoingMessages:
        headers = {ID: self._texts(changes, self.columns.id), EVENT_TYPE: self._texts(changes, self.columns.type)}
        keys = self._texts(changes, self.columns.aggregate_id).cast(pa.binary())
        return single_messages(changes.at, destinations, ids, self._payloads(changes), keys, headers)

    def _texts(self, changes: TableChanges, name: str) -> pa.Array:
        return changes.new.batch.column(self._index(changes, name))

    def _payloads(self, changes: TableChanges) -> pa.Array:
        """Return the payload as the application wrote it: JSON and text as they are, bytea as bytes."""
        index = self._index(changes, self.columns.payload)
        texts = changes.new.batch.column(index)
        if mapping(changes.relation.columns[index]).form is not Form.BINARY:
            return texts.cast(pa.binary())
        digits = pc.utf8_slice_codeunits(texts, start=_HEX).to_pylist()
        return pa.array([None if text is None else bytes.fromhex(text) for text in digits], pa.binary())

    def _index(self, changes: TableChanges, name: str) -> int:
        names = np.array([column.name for column in changes.relation.columns])
        found = np.flatnonzero(names == name)
        if not len(found):
            raise ConfigError(
                f"{changes.relation.qualified_name} has no column {name}, so it is not an outbox table",
                "Name the outbox table in `tables`, and its columns in the sink's settings.",
            )
        return int(found[0])
