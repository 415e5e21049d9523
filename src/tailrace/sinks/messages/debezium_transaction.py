"""Debezium's transaction metadata: the place of each event in its transaction, and where transactions begin and end.

The events of a transaction are counted in log order. A step that continues after a failure counts again what it does
not publish, so the places stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log.decoding import ChangePositions
from tailrace.sinks.messages.connect_payload import ConnectPayload, ConnectStruct, ConnectValue
from tailrace.sinks.messages.connect_schema import ordered_schema, struct_schema
from tailrace.sinks.messages.debezium_schema import dump
from tailrace.sinks.messages.payload import Integers, Texts

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

MESSAGES: Final = "message"
"""Stands for logical messages among the tables."""
BEGIN_ORDER: Final = -2
END_ORDER: Final = 9
"""A transaction begins before the first messages of its first change, and ends after the last of its last change."""
_ORDINAL_BITS: Final = 40


def transaction_destination(prefix: str) -> str:
    return f"{prefix}.transaction"


@dataclass(frozen=True)
class CountedRun:
    """What a run of changes, or logical messages, adds to its transactions."""

    at: ChangePositions
    events: I64
    """How many events each change is."""
    collection: str
    """The table."""


@dataclass
class _Transaction:
    """What is counted of the transaction that the last chunk ended in."""

    commit_lsn: int = -1
    total: int = 0
    by_collection: Mapping[str, int] = field(default_factory=dict)


class TransactionCounter:
    """Counts the events of a part, chunk by chunk, and answers for the changes of the last chunk."""

    def __init__(self) -> None:
        self.has_counted = False
        self._current = _Transaction()
        self._lsns: I64 = np.empty(0, np.int64)
        self._keys: I64 = np.empty(0, np.int64)
        self._total: I64 = np.empty(0, np.int64)
        self._in_collection: I64 = np.empty(0, np.int64)
        self._is_first: Mask = np.empty(0, np.bool_)
        self._ends: dict[int, tuple[int, Mapping[str, int]]] = {}

    def count(self, runs: Sequence[CountedRun]) -> None:
        """Count the next chunk."""
        if not runs:
            return
        self.has_counted = True
        before = self._current
        lsn = np.concatenate([run.at.commit_lsn for run in runs])
        ordinal = np.concatenate([run.at.ordinal for run in runs])
        events = np.concatenate([run.events for run in runs])
        names = list(dict.fromkeys(run.collection for run in runs))
        code = np.concatenate([np.full(len(run.at), names.index(run.collection)) for run in runs])
        order = np.lexsort((ordinal, lsn))
        lsn, ordinal, events, code = lsn[order], ordinal[order], events[order], code[order]
        self._lsns = np.unique(lsn)
        transaction = np.searchsorted(self._lsns, lsn)
        self._keys = (transaction << _ORDINAL_BITS) | ordinal
        continues = int(lsn[0]) == before.commit_lsn
        carried = [before.by_collection.get(name, 0) if continues else 0 for name in names]
        is_first = np.append(True, lsn[1:] != lsn[:-1])
        self._total = _counted(events, is_first) + np.where(transaction == 0, before.total if continues else 0, 0)
        by_table = np.lexsort((np.arange(len(lsn)), code, transaction))
        same = (transaction[by_table][1:] == transaction[by_table][:-1]) & (code[by_table][1:] == code[by_table][:-1])
        in_collection = np.empty_like(events)
        in_collection[by_table] = _counted(events[by_table], np.append(True, ~same))
        self._in_collection = in_collection + np.where(transaction == 0, np.array(carried)[code], 0)
        is_first[0] = not continues
        self._is_first = is_first
        last_of_table = by_table[np.append(~same, True)]
        self._note_ends(
            transaction[last_of_table], code[last_of_table], (self._in_collection + events)[last_of_table], names
        )
        if continues:
            self._add_carried(before, names)
        total, by_collection = self._ends[int(lsn[-1])]
        self._current = _Transaction(int(lsn[-1]), total, by_collection)

    def _note_ends(self, transactions: I64, codes: I64, counts: I64, names: Sequence[str]) -> None:
        """Note how many events each transaction has, by table."""
        found: dict[int, dict[str, int]] = {lsn: {} for lsn in self._lsns.tolist()}
        lsns = self._lsns[transactions].tolist()
        for lsn, code, count in zip(lsns, codes.tolist(), counts.tolist(), strict=True):
            if count:
                found[lsn][names[code]] = count
        self._ends = {lsn: (sum(by_table.values()), by_table) for lsn, by_table in found.items()}

    def _add_carried(self, before: _Transaction, names: Sequence[str]) -> None:
        """Add the tables of the first transaction that only earlier chunks have."""
        _, here = self._ends[before.commit_lsn]
        others = {name: count for name, count in before.by_collection.items() if name not in names}
        by_table = {**others, **here}
        self._ends[before.commit_lsn] = sum(by_table.values()), by_table

    def _rows(self, at: ChangePositions) -> I64:
        transaction = np.searchsorted(self._lsns, at.commit_lsn)
        return np.searchsorted(self._keys, (transaction << _ORDINAL_BITS) | at.ordinal)

    def is_first(self, at: ChangePositions) -> Mask:
        """Return which changes begin a transaction."""
        return self._is_first[self._rows(at)]

    def blocks(self, at: ChangePositions, is_second: Mask) -> ConnectStruct:
        """Return the field `transaction` of events. `is_second`: those that are the second of their change."""
        rows = self._rows(at)
        return _block(at, self._total[rows] + is_second, self._in_collection[rows] + is_second)

    def message_blocks(self, at: ChangePositions, is_transactional: Mask) -> ConnectStruct:
        """Return the field `transaction` of logical messages."""
        total = np.zeros(len(at), np.int64)
        total[is_transactional] = self._total[self._rows(at.take(is_transactional))]
        # Debezium takes each message for a table of its own.
        return _block(at, total, np.zeros(len(at), np.int64), is_transactional)

    def boundaries(self, at: ChangePositions, *, is_end: bool) -> tuple[ConnectPayload, ConnectPayload]:
        """Return the keys and values of the messages about transactions that begin or end with these changes."""
        counts: pa.Array | str = "null"
        tables: pa.Array | str = "null"
        if is_end:
            ends = [self._ends[lsn] for lsn in at.commit_lsn.tolist()]
            counts = pa.array([str(total) for total, _ in ends], pa.string())
            tables = pa.array([_collections(by_table) for _, by_table in ends], pa.string())
        ids = Texts(_ids(at))
        fields: list[tuple[str, ConnectValue]] = [
            ("status", Texts("END" if is_end else "BEGIN")),
            ("id", ids),
            ("event_count", counts),
            ("data_collections", tables),
            ("ts_ms", Integers(pa.array(at.committed_at_us // 1000, pa.int64()))),
        ]
        keys = ConnectPayload(_KEY_SCHEMA, ConnectStruct([("id", ids)]))
        return keys, ConnectPayload(_SCHEMA, ConnectStruct(fields))


def _counted(events: I64, is_begin: Mask) -> I64:
    """Return the number of events before each row, since the last row that begins something."""
    before = np.cumsum(events) - events
    begins = np.maximum.accumulate(np.where(is_begin, np.arange(len(events)), 0))
    counted: I64 = before - before[begins]
    return counted


def _ids(at: ChangePositions) -> pa.Array:
    """Return Debezium's ids: the transaction's, and the LSN of the event itself."""
    xid, lsn = (pc.cast(pa.array(values, pa.int64()), pa.string()) for values in (at.xid, at.lsn))
    return pc.binary_join_element_wise(xid, lsn, ":")


def _block(at: ChangePositions, total: I64, in_collection: I64, present: Mask | None = None) -> ConnectStruct:
    """Return the field `transaction` of events, given how many of their transaction and table precede each."""
    fields = [
        ("id", Texts(_ids(at))),
        ("total_order", Integers(pa.array(total + 1, pa.int64()))),
        ("data_collection_order", Integers(pa.array(in_collection + 1, pa.int64()))),
    ]
    return ConnectStruct(fields, present)


def _collections(by_table: Mapping[str, int]) -> str:
    return dump([{"data_collection": name, "event_count": count} for name, count in by_table.items()])


_ID: Final = {"type": "string", "optional": False, "field": "id"}
_COUNT: Final = {"type": "int64", "optional": True, "field": "event_count"}
_COLLECTION: Final = struct_schema(
    "event.collection",
    [{"type": "string", "optional": False, "field": "data_collection"}, {**_COUNT, "optional": False}],
    is_optional=True,
)
_KEY_SCHEMA: Final = dump(struct_schema("io.debezium.connector.common.TransactionMetadataKey", [_ID]))
_SCHEMA: Final = dump(
    struct_schema(
        "io.debezium.connector.common.TransactionMetadataValue",
        [
            {"type": "string", "optional": False, "field": "status"},
            _ID,
            _COUNT,
            ordered_schema({"type": "array", "items": _COLLECTION}, is_optional=True, field="data_collections"),
            {"type": "int64", "optional": False, "field": "ts_ms"},
        ],
    )
)
