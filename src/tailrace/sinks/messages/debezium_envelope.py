"""The envelope `debezium`: the events of Debezium's PostgreSQL connector, as Kafka Connect's converters write them.

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

from tailrace.log.decoding import (
    DELETE,
    INSERT,
    SNAPSHOT,
    TRUNCATE,
    UPDATE,
    ChangePositions,
    Chunk,
    LogicalMessages,
    TableChanges,
)
from tailrace.sinks.messages.connect_payload import ConnectEncoding, ConnectPayload, ConnectStruct, ConnectValue
from tailrace.sinks.messages.connect_type import TypeOptions
from tailrace.sinks.messages.debezium_heartbeat import heartbeat_destination, heartbeat_payloads
from tailrace.sinks.messages.debezium_row import after_rows, before_rows, header_keys, row_keys
from tailrace.sinks.messages.debezium_schema import MESSAGE_KEY_SCHEMA, MESSAGE_SCHEMA, envelope_schema, key_schema
from tailrace.sinks.messages.debezium_transaction import (
    BEGIN_ORDER,
    END_ORDER,
    MESSAGES,
    CountedRun,
    TransactionCounter,
    transaction_destination,
)
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.payload import Integers, Texts
from tailrace.sinks.messages.row_image import changed_keys, key_indexes

Mask = npt.NDArray[np.bool_]

NEW_KEY: Final = "__debezium.newkey"
OLD_KEY: Final = "__debezium.oldkey"
_OPERATIONS: Final = {INSERT: "c", UPDATE: "u", DELETE: "d", TRUNCATE: "t", SNAPSHOT: "r"}
_LETTERS: Final = np.array([_OPERATIONS.get(kind, "") for kind in range(256)])
"""The same as an array, by pgoutput's letters."""
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
    encoding: ConnectEncoding | None = None
    """For messages that are not plain JSON, but what Confluent's converters with a schema registry write."""
    now_us: Callable[[], int] = _now_us
    """The time of processing, for `ts_ms`."""
    transactions: TransactionCounter | None = None
    """Counts for `provide.transaction.metadata`. None: events say nothing about their transactions."""

    def select(self, changes: TableChanges) -> TableChanges:
        if changes.is_truncate and not self.has_truncates:
            return changes.take(np.zeros(len(changes), np.bool_))
        return changes

    def observe(self, chunk: Chunk) -> None:
        """Count the events of a chunk, of which only a part may be encoded."""
        if self.transactions is not None:
            self.transactions.count([self._counted(run) for run in map(_transactional, chunk) if len(run)])

    def change_messages(self, changes: TableChanges, destinations: pa.Array, ids: pa.Array) -> OutgoingMessages:
        is_moved = changed_keys(changes)
        is_delete = changes.operation == DELETE
        parts = [self._current(changes, destinations, ids, is_moved)]
        if is_moved.any():
            parts.append(self._deletes(changes, destinations, ids, is_moved))
        is_gone = is_moved | is_delete
        if self.has_tombstones and is_gone.any() and key_indexes(changes.relation):
            parts.append(self._tombstones(changes, destinations, ids, is_gone, is_moved))
        return OutgoingMessages.joined(parts)

    def logical_messages(
        self, messages: LogicalMessages, destinations: pa.Array, ids: pa.Array
    ) -> OutgoingMessages | None:
        prefixes = Texts(pa.array(messages.prefix, pa.string()))
        contents = pa.array([f'"{base64.b64encode(content).decode()}"' for content in messages.content], pa.string())
        is_transactional = np.asarray(messages.transactional)
        counter = self._counter
        fields = [
            ("op", Texts("m")),
            ("ts_ms", Integers(self.now_us() // 1000)),
            ("source", self._source(messages.at, "", "", has_xid=is_transactional)),
            ("transaction", counter.message_blocks(messages.at, is_transactional) if counter else "null"),
            ("message", ConnectStruct([("prefix", prefixes), ("content", contents)])),
        ]
        keys = ConnectPayload(MESSAGE_KEY_SCHEMA, ConnectStruct([("prefix", prefixes)]))
        return OutgoingMessages(
            messages.at,
            destinations,
            ids,
            self._encoded(ConnectPayload(MESSAGE_SCHEMA, ConnectStruct(fields)), destinations),
            np.zeros(len(messages), np.int64),
            self._encoded(keys, destinations, is_key=True),
        )

    def boundary_messages(
        self, run: TableChanges | LogicalMessages, ids: Callable[[], pa.Array]
    ) -> list[OutgoingMessages]:
        """Return the messages about transactions that begin or end with a change of this run."""
        counter = self._counter
        if counter is None:
            return []
        is_counted = run.transactional if isinstance(run, LogicalMessages) else np.ones(len(run), np.bool_)
        begins, ends = is_counted.copy(), is_counted & run.at.is_last
        begins[is_counted] = counter.is_first(run.at.take(is_counted))
        found = []
        for rows, order, suffix in ((begins, BEGIN_ORDER, "begin"), (ends, END_ORDER, "end")):
            if not rows.any():
                continue
            at = run.at.take(rows)
            destinations = pa.array([transaction_destination(self.prefix)] * len(at), pa.string())
            keys, values = counter.boundaries(at, is_end=order == END_ORDER)
            found.append(
                OutgoingMessages(
                    at,
                    destinations,
                    pc.binary_join_element_wise(ids().filter(pa.array(rows)), suffix, "-"),
                    self._encoded(values, destinations),
                    np.full(len(at), order),
                    self._encoded(keys, destinations, is_key=True),
                )
            )
        return found

    def heartbeat(self) -> tuple[str, bytes, bytes]:
        """Return the destination, the key and the value of a heartbeat."""
        destinations = pa.array([heartbeat_destination(self.prefix)], pa.string())
        key, value = heartbeat_payloads(self.prefix, self.now_us() // 1000)
        encoded = self._encoded(key, destinations, is_key=True), self._encoded(value, destinations)
        return destinations[0].as_py(), encoded[0][0].as_py(), encoded[1][0].as_py()

    @property
    def _counter(self) -> TransactionCounter | None:
        """None also for changes without the rest of their transactions: those of loads, and dead letters."""
        return self.transactions if self.transactions is not None and self.transactions.has_counted else None

    def _counted(self, run: TableChanges | LogicalMessages) -> CountedRun:
        if isinstance(run, LogicalMessages):
            return CountedRun(run.at, np.ones(len(run), np.int64), MESSAGES)
        events = np.full(len(run), 0 if run.is_truncate and not self.has_truncates else 1)
        return CountedRun(run.at, events + changed_keys(run), ".".join(run.target))

    def _current(
        self, changes: TableChanges, destinations: pa.Array, ids: pa.Array, is_moved: Mask
    ) -> OutgoingMessages:
        """Return the events of all changes; of those that change the key, the creation under the new key."""
        operations = _LETTERS[changes.operation]
        operations[is_moved] = _CREATE
        is_delete = changes.operation == DELETE
        has_before = changes.old.present & ~is_moved & (is_delete | ~changes.old_is_key)
        before = before_rows(changes, self.types, has_before) if has_before.any() else "null"
        after = after_rows(changes, self.types, changes.new.present) if changes.new.present.any() else "null"
        values = self._values(changes, destinations, before, after, operations, is_moved)
        keys = None if changes.is_truncate else self._keys(changes, destinations, is_old=False)
        headers = {}
        if is_moved.any():
            old_keys = header_keys(changes, self.types, is_old=True)
            headers[OLD_KEY] = pc.if_else(pa.array(is_moved), old_keys, pa.scalar(None, pa.string()))
            ids = pc.if_else(pa.array(is_moved), pc.binary_join_element_wise(ids, "new", "-"), ids)
        # A change of the key is the delete, its tombstone, and then the create.
        order = np.where(is_moved, 2, 0)
        return OutgoingMessages(changes.at, destinations, ids, values, order.astype(np.int64), keys, headers)

    def _deletes(
        self, changes: TableChanges, destinations: pa.Array, ids: pa.Array, is_moved: Mask
    ) -> OutgoingMessages:
        """Return the deletes of rows whose key changed."""
        moved, rows = changes.take(is_moved), pa.array(is_moved)
        destinations = destinations.filter(rows)
        before = before_rows(moved, self.types)
        is_second = np.zeros(len(moved), np.bool_)
        return OutgoingMessages(
            moved.at,
            destinations,
            ids.filter(rows),
            self._values(moved, destinations, before, "null", np.full(len(moved), _DELETE), is_second),
            np.zeros(len(moved), np.int64),
            self._keys(moved, destinations, is_old=True),
            {NEW_KEY: header_keys(moved, self.types, is_old=False)},
        )

    def _tombstones(
        self, changes: TableChanges, destinations: pa.Array, ids: pa.Array, is_gone: Mask, is_moved: Mask
    ) -> OutgoingMessages:
        gone, rows = changes.take(is_gone), pa.array(is_gone)
        destinations = destinations.filter(rows)
        headers = {}
        if is_moved.any():
            new_keys = header_keys(gone, self.types, is_old=False)
            headers[NEW_KEY] = pc.if_else(pa.array(is_moved[is_gone]), new_keys, pa.scalar(None, pa.string()))
        return OutgoingMessages(
            gone.at,
            destinations,
            pc.binary_join_element_wise(ids.filter(rows), "tombstone", "-"),
            pa.nulls(len(gone), pa.binary()),
            np.ones(len(gone), np.int64),
            self._keys(gone, destinations, is_old=True),
            headers,
        )

    def _values(
        self,
        changes: TableChanges,
        destinations: pa.Array,
        before: ConnectStruct | str,
        after: ConnectStruct | str,
        operations: npt.NDArray[np.str_],
        is_second: Mask,
    ) -> pa.Array:
        """Return the events. `is_second`: those that are the second of their change."""
        is_snapshot = int(changes.operation[0]) == SNAPSHOT
        counter = None if is_snapshot else self._counter
        fields = [
            ("before", before),
            ("after", after),
            ("source", self._source(changes.at, *changes.target, is_snapshot=is_snapshot)),
            ("transaction", counter.blocks(changes.at, is_second) if counter else "null"),
            ("op", Texts(_letters(operations))),
            *self._times(),
        ]
        schema = envelope_schema(changes.relation, changes.target, self.prefix, self.types)
        return self._encoded(ConnectPayload(schema, ConnectStruct(fields)), destinations)

    def _times(self) -> list[tuple[str, Integers]]:
        now = self.now_us()
        return [("ts_ms", Integers(now // 1000)), ("ts_us", Integers(now)), ("ts_ns", Integers(now * 1000))]

    def _source(
        self,
        at: ChangePositions,
        schema: str,
        table: str,
        *,
        is_snapshot: bool = False,
        has_xid: Mask | None = None,
    ) -> ConnectStruct:
        lsn = pa.array(at.lsn, pa.int64())
        commit = join('\\"', pc.cast(pa.array(at.commit_lsn, pa.int64()), pa.string()), '\\"')
        xid: ConnectValue = Integers(pa.array(at.xid, pa.int64(), mask=None if has_xid is None else ~has_xid))
        if is_snapshot:  # there is no commit before it, and PostgreSQL does not tell its transaction
            commit, xid = "null", "null"
        us = at.committed_at_us
        return ConnectStruct(
            [
                ("version", Texts(self.version)),
                ("connector", Texts("postgresql")),
                ("name", Texts(self.prefix)),
                ("ts_ms", Integers(pa.array(us // 1000, pa.int64()))),
                ("snapshot", Texts("true" if is_snapshot else "false")),
                ("db", Texts(self.database)),
                ("sequence", join('"[', commit, ',\\"', pc.cast(lsn, pa.string()), '\\"]"')),
                ("ts_us", Integers(pa.array(us, pa.int64()))),
                ("ts_ns", Integers(pa.array(us * 1000, pa.int64()))),
                ("schema", Texts(schema)),
                ("table", Texts(table)),
                ("txId", xid),
                ("lsn", Integers(lsn)),
                ("xmin", "null"),
                ("origin", "null"),
                ("origin_lsn", "null"),
            ]
        )

    def _keys(self, changes: TableChanges, destinations: pa.Array, *, is_old: bool) -> pa.Array | None:
        keys = row_keys(changes, self.types, is_old=is_old)
        schema = key_schema(changes.relation, changes.target, self.prefix, self.types)
        return None if keys is None else self._encoded(ConnectPayload(schema, keys), destinations, is_key=True)

    def _encoded(self, payload: ConnectPayload, destinations: pa.Array, *, is_key: bool = False) -> pa.Array:
        if self.encoding is None:
            return self._json(payload, len(destinations)).cast(pa.binary())
        encode = self.encoding.encode_keys if is_key else self.encoding.encode_values
        return encode(payload, destinations)

    def _json(self, payload: ConnectPayload, count: int) -> pa.Array:
        text = payload.value.json(count)
        return join(f'{{"schema":{payload.schema},"payload":', text, "}") if self.has_schemas else text


def _transactional(run: TableChanges | LogicalMessages) -> TableChanges | LogicalMessages:
    """Return what belongs to transactions."""
    return run.take(run.transactional) if isinstance(run, LogicalMessages) else run


def _letters(operations: npt.NDArray[np.str_]) -> pa.Array | str:
    is_same = bool((operations == operations[0]).all())
    return str(operations[0]) if is_same else pa.array(operations, pa.string())


def join(*pieces: pa.Array | str) -> pa.Array | str:
    """Concatenate the pieces of each row."""
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(pieces)
    return pc.binary_join_element_wise(*pieces, "")
