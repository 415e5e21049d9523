"""The envelope `debezium`: the events of Debezium's PostgreSQL connector, as its JSON converter writes them.

A change of the key is a delete and a create. A tombstone follows each delete. docs/messages.md lists the remaining
differences from Debezium.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log import json_columns
from tailrace.log.decoding import (
    DELETE,
    INSERT,
    SNAPSHOT,
    TRUNCATE,
    UPDATE,
    ChangePositions,
    LogicalMessages,
    TableChanges,
)
from tailrace.sinks.messages.connect_type import TypeOptions
from tailrace.sinks.messages.debezium_row import after_rows, before_rows, constant, join, row_keys
from tailrace.sinks.messages.debezium_schema import envelope_schema, key_schema, message_schema
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.row_image import changed_keys, key_indexes

Mask = npt.NDArray[np.bool_]

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
_OPERATIONS: Final = {INSERT: "c", UPDATE: "u", DELETE: "d", TRUNCATE: "t", SNAPSHOT: "r"}
_CREATE: Final = "c"
_DELETE: Final = "d"


def _now_us() -> int:
    return time.time_ns() // 1000


@dataclass(frozen=True)
class DebeziumEnvelope:
    prefix: str
    """`topic.prefix`: the source's name in events and the beginning of the names of schemas."""
    database: str
    version: str = "tailrace"
    """`source.version`."""
    has_schemas: bool = False
    """Whether messages carry their schemas, as `schemas.enable` of Connect's JSON converter says."""
    has_tombstones: bool = True
    """`tombstones.on.delete`."""
    has_truncates: bool = False
    """Whether a TRUNCATE is an event. Debezium skips it unless `skipped.operations` says otherwise."""
    types: TypeOptions = field(default_factory=TypeOptions)
    now_us: Callable[[], int] = _now_us
    """The time of processing, for `ts_ms`."""

    def select(self, changes: TableChanges) -> TableChanges:
        if changes.is_truncate and not self.has_truncates:
            return changes.take(np.zeros(len(changes), np.bool_))
        return changes

    def change_messages(self, changes: TableChanges, destinations: pa.Array, ids: pa.Array) -> OutgoingMessages:
        is_moved = changed_keys(changes)
        is_delete = changes.operation == DELETE
        parts = [self._current(changes, destinations, ids, is_moved)]
        if is_moved.any():
            parts.append(self._deletes(changes, destinations, ids, is_moved))
        is_gone = is_moved | is_delete
        if self.has_tombstones and is_gone.any() and key_indexes(changes.relation):
            parts.append(self._tombstones(changes, destinations, ids, is_gone))
        return OutgoingMessages.joined(parts)

    def logical_messages(
        self, messages: LogicalMessages, destinations: pa.Array, ids: pa.Array
    ) -> OutgoingMessages | None:
        count = len(messages)
        prefixes = json_columns.quote(pa.array(messages.prefix, pa.string()))
        contents = pa.array([f'"{base64.b64encode(content).decode()}"' for content in messages.content], pa.string())
        message = join('{"prefix":', prefixes, ',"content":', contents, "}")
        transactions = np.asarray(messages.transactional)
        source = self._source(messages.at, "", "", "false", has_xid=transactions)
        payloads = join('{"op":"m",', self._times(), ',"source":', source, ',"message":', message, "}")
        keys = join('{"prefix":', prefixes, "}")
        schemas = message_schema() if self.has_schemas else (None, None)
        return OutgoingMessages(
            messages.at,
            destinations,
            ids,
            self._with_schema(payloads, schemas[1]),
            np.zeros(count, np.int64),
            self._with_schema(keys, schemas[0]),
        )

    def _current(
        self, changes: TableChanges, destinations: pa.Array, ids: pa.Array, is_moved: Mask
    ) -> OutgoingMessages:
        """Return the events of all changes; of those that change the key, the creation under the new key."""
        operations = np.array([_OPERATIONS[int(kind)] for kind in changes.operation])
        operations[is_moved] = _CREATE
        is_delete = changes.operation == DELETE
        has_before = changes.old.present & ~is_moved & (is_delete | ~changes.old_is_key)
        before = _null_unless(has_before, before_rows(changes, self.types))
        after = _null_unless(changes.new.present, after_rows(changes, self.types))
        values = self._values(changes, before, after, operations)
        new_keys = self._keys(changes, is_old=False)
        old_keys = self._keys(changes, is_old=True)
        keys = None
        headers = {}
        if new_keys is not None and old_keys is not None and not changes.is_truncate:
            keys = pc.if_else(pa.array(is_delete), old_keys, new_keys)
            if is_moved.any():
                headers[OLD_KEY] = pc.if_else(
                    pa.array(is_moved), old_keys.cast(pa.string()), pa.scalar(None, pa.string())
                )
        # A change of the key is the delete, its tombstone, and then the create.
        order = np.where(is_moved, 2, 0)
        ids_ = pc.if_else(pa.array(is_moved), pc.binary_join_element_wise(ids, "new", "-"), ids)
        return OutgoingMessages(changes.at, destinations, ids_, values, order.astype(np.int64), keys, headers)

    def _deletes(
        self, changes: TableChanges, destinations: pa.Array, ids: pa.Array, is_moved: Mask
    ) -> OutgoingMessages:
        """Return the deletes of rows whose key changed."""
        operations = np.full(len(changes), _DELETE)
        values = self._values(changes, before_rows(changes, self.types), constant("null", len(changes)), operations)
        new_keys = self._keys(changes, is_old=False)
        headers = {} if new_keys is None else {NEW_KEY: new_keys.cast(pa.string())}
        found = OutgoingMessages(
            changes.at,
            destinations,
            ids,
            values,
            np.zeros(len(changes), np.int64),
            self._keys(changes, is_old=True),
            headers,
        )
        return found.take(np.flatnonzero(is_moved))

    def _tombstones(
        self, changes: TableChanges, destinations: pa.Array, ids: pa.Array, is_gone: Mask
    ) -> OutgoingMessages:
        found = OutgoingMessages(
            changes.at,
            destinations,
            pc.binary_join_element_wise(ids, "tombstone", "-"),
            pa.nulls(len(changes), pa.binary()),
            np.ones(len(changes), np.int64),
            self._keys(changes, is_old=True),
        )
        return found.take(np.flatnonzero(is_gone))

    def _values(
        self, changes: TableChanges, before: pa.Array, after: pa.Array, operations: npt.NDArray[np.str_]
    ) -> pa.Array:
        is_snapshot = changes.operation == SNAPSHOT
        snapshot = pc.if_else(pa.array(is_snapshot), "true", "false")
        source = self._source(changes.at, *changes.target, snapshot)
        payloads = join(
            *('{"before":', before, ',"after":', after, ',"source":', source, ',"transaction":null,"op":"'),
            *(pa.array(operations.tolist(), pa.string()), '",', self._times(), "}"),
        )
        names = changes.relation, changes.target, self.prefix
        schema = envelope_schema(*names, self.types) if self.has_schemas else None
        return self._with_schema(payloads, schema)

    def _times(self) -> str:
        now = self.now_us()
        return f'"ts_ms":{now // 1000},"ts_us":{now},"ts_ns":{now * 1000}'

    def _source(
        self, at: ChangePositions, schema: str, table: str, snapshot: pa.Array | str, has_xid: Mask | None = None
    ) -> pa.Array:
        commit = pa.array(at.committed_at_us, pa.int64())
        us = pc.cast(commit, pa.string())
        ms = pc.cast(pa.array(at.committed_at_us // 1000, pa.int64()), pa.string())
        lsn = pc.cast(pa.array(at.lsn, pa.int64()), pa.string())
        commit_lsn = pc.cast(pa.array(at.commit_lsn, pa.int64()), pa.string())
        xid = pc.cast(pa.array(at.xid, pa.int64()), pa.string())
        if has_xid is not None:
            xid = pc.if_else(pa.array(has_xid), xid, "null")
        quoted = json_columns.quote_text
        head = f'{{"version":{quoted(self.version)},"connector":"postgresql","name":{quoted(self.prefix)},"ts_ms":'
        return join(
            *(head, ms, ',"snapshot":"', snapshot, f'","db":{quoted(self.database)},"sequence":"[\\"', commit_lsn),
            *('\\",\\"', lsn, '\\"]","ts_us":', us, ',"ts_ns":', us, f'000,"schema":{quoted(schema)},"table":'),
            *(f'{quoted(table)},"txId":', xid, ',"lsn":', lsn, ',"xmin":null}'),
        )

    def _keys(self, changes: TableChanges, *, is_old: bool) -> pa.Array | None:
        keys = row_keys(changes, self.types, is_old=is_old)
        schema = key_schema(changes.relation, changes.target, self.prefix, self.types) if self.has_schemas else None
        return None if keys is None else self._with_schema(keys, schema)

    def _with_schema(self, payloads: pa.Array, schema: str | None) -> pa.Array:
        if schema is None:
            return payloads.cast(pa.binary())
        return join(f'{{"schema":{schema},"payload":', payloads, "}").cast(pa.binary())


def _null_unless(is_present: Mask, objects: pa.Array) -> pa.Array:
    return objects if is_present.all() else pc.if_else(pa.array(is_present), objects, "null")
