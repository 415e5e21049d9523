"""Envelopes: what a message says about a change. Each is a class in a module of its own.

An envelope turns a run of changes into messages, column by column. It does not know the transport: destinations and ids
are given. It has no state, so the same changes give the same messages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from tailrace.log.decoding import ChangePositions, Chunk, LogicalMessages, TableChanges
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.payload import ColumnValues, Field, NameLists, Record
from tailrace.sinks.messages.payload_encoding import MessageEncoding
from tailrace.sinks.messages.row_image import ColumnTexts, Mask, current_values, key_indexes


class Envelope(Protocol):
    def select(self, changes: TableChanges) -> TableChanges:
        """Return the changes that become messages; an outbox, for example, consists of inserts only."""

    def change_messages(self, changes: TableChanges, destinations: pa.Array, ids: pa.Array) -> OutgoingMessages:
        """Return the messages of a run of selected changes, in the same order. One change may make several."""

    def logical_messages(
        self, messages: LogicalMessages, destinations: pa.Array, ids: pa.Array
    ) -> OutgoingMessages | None:
        """Return the messages of logical messages; None if the envelope has no form for them."""


@runtime_checkable
class TransactionEnvelope(Protocol):
    """An envelope that also says where transactions begin and end, or which place a change has in its own."""

    def observe(self, chunk: Chunk) -> None:
        """See all of a chunk, whose changes may be in part at the destination already, before any of it is encoded."""

    def boundary_messages(
        self, run: TableChanges | LogicalMessages, ids: Callable[[], pa.Array]
    ) -> list[OutgoingMessages]:
        """Return the messages about transactions that begin or end with a change of this run. `ids` makes the ids of
        the run's messages."""


class ChangeEnvelope:
    """The base of envelopes that have no form for logical messages."""

    def logical_messages(
        self,
        messages: LogicalMessages,  # noqa: ARG002
        destinations: pa.Array,  # noqa: ARG002
        ids: pa.Array,  # noqa: ARG002
    ) -> OutgoingMessages | None:
        return None


def single_messages(
    at: ChangePositions,
    destinations: pa.Array,
    ids: pa.Array,
    values: pa.Array,
    keys: pa.Array | None = None,
    headers: dict[str, pa.Array] | None = None,
) -> OutgoingMessages:
    """Return one message for each change."""
    return OutgoingMessages(at, destinations, ids, values, np.zeros(len(at), np.int64), keys, headers or {})


def encoded_keys(changes: TableChanges, destinations: pa.Array, encoding: MessageEncoding) -> pa.Array | None:
    """Return each row's key as a record of its columns; None if the table has no key. A TRUNCATE has none."""
    if not key_indexes(changes.relation) or changes.is_truncate:
        return None
    return encoding.encode_keys(key_record(changes, current_values), destinations)


def key_record(changes: TableChanges, values: ColumnTexts, present: Mask | None = None) -> Record:
    """Return the keys of changes.

    Args:
        values: Gives the texts of a column.
        present: The messages that have the record (None: all).
    """
    columns = changes.relation.columns
    fields = [
        Field(columns[index].name, ColumnValues(values(changes, index)[0], columns[index]))
        for index in key_indexes(changes.relation)
    ]
    return Record((*changes.target, "Key"), fields, present)


def row_record(changes: TableChanges, values: ColumnTexts, present: Mask | None = None) -> Record:
    """Return rows of changes, without columns that PostgreSQL did not send. The arguments are those of `key_record`."""
    required = key_indexes(changes.relation)
    fields = []
    for index, column in enumerate(changes.relation.columns):
        texts, has_value = values(changes, index)
        fields.append(Field(column.name, ColumnValues(texts, column), has_value, is_optional=index not in required))
    return Record((*changes.target, "Row"), fields, present)


def name_lists(changes: TableChanges, name: str, columns: Sequence[tuple[int, Mask]]) -> Field:
    """Return a field with the names of the columns that are listed for each row; a row without any lacks the field."""
    items = [(changes.relation.columns[index].name, rows) for index, rows in columns]
    has_any = np.any([rows for _, rows in columns], axis=0) if columns else np.zeros(len(changes), np.bool_)
    return Field(name, NameLists(items), has_any, is_optional=True)
