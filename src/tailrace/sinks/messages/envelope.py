"""Envelopes: what a message says about a change. Each is a class in a module of its own.

An envelope turns a run of changes into messages, column by column. It does not know the transport: destinations and ids
are given. It has no state, so the same changes give the same messages.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import pyarrow as pa

from tailrace.log.decoding import ChangePositions, LogicalMessages, TableChanges
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.payload_encoding import EncodedField, PayloadEncoding
from tailrace.sinks.messages.row_image import current_values, key_indexes


class Envelope(Protocol):
    def select(self, changes: TableChanges) -> TableChanges:
        """Return the changes that become messages; an outbox, for example, consists of inserts only."""

    def change_messages(self, changes: TableChanges, destinations: pa.Array, ids: pa.Array) -> OutgoingMessages:
        """Return the messages of a run of selected changes, in the same order. One change may make several."""

    def logical_messages(
        self, messages: LogicalMessages, destinations: pa.Array, ids: pa.Array
    ) -> OutgoingMessages | None:
        """Return the messages of logical messages; None if the envelope has no form for them."""


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


def encoded_keys(changes: TableChanges, encoding: PayloadEncoding) -> pa.Array | None:
    """Return each row's key as a map of its columns; None if the table has no key. A TRUNCATE has none."""
    indexes = key_indexes(changes.relation)
    if not indexes or changes.is_truncate:
        return None
    columns = changes.relation.columns
    fields: list[EncodedField] = [
        (columns[index].name, encoding.values(current_values(changes, index)[0], columns[index]), None)
        for index in indexes
    ]
    return encoding.maps(fields, len(changes))
