"""What a WAL file holds: entries, as objects and as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

import pyarrow as pa


class EntryKind(Enum):
    """What was written: a value, the deletion of a key, or an operand for the database's merge operator."""

    PUT = "put"
    DELETE = "delete"
    MERGE = "merge"


SCHEMA = pa.schema(
    [
        pa.field("kind", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("key", pa.large_binary(), nullable=False),
        pa.field("value", pa.large_binary()),
        pa.field("seq", pa.uint64(), nullable=False),
        pa.field("create_ts", pa.int64()),
        pa.field("expire_ts", pa.int64()),
    ]
)
"""The columns of `WalFile.rows`. Offsets have 64 bits, because the values of one file may exceed 2 GiB."""

# Python objects are made for this many rows at a time, so that a large file's entries are not all in memory twice.
_ROWS = 4096


class RowEntry(NamedTuple):
    """One entry of a WAL file. `value` is None for a delete.

    Entries with the same `seq` were written in one batch or transaction. `create_ts` and `expire_ts` are what the
    database's clock said, milliseconds since 1970 by default; None if they were not stored.
    """

    kind: EntryKind
    key: bytes
    value: bytes | None
    seq: int
    create_ts: int | None
    expire_ts: int | None

    @staticmethod
    def all(rows: pa.RecordBatch) -> Iterator[RowEntry]:
        """The rows of a batch with the columns of SCHEMA."""
        for start in range(0, rows.num_rows, _ROWS):
            kind, *others = rows.slice(start, _ROWS).columns
            kinds = [EntryKind(name) for name in kind.dictionary.to_pylist()]
            columns = (column.to_pylist() for column in others)
            yield from map(RowEntry, map(kinds.__getitem__, kind.indices.to_pylist()), *columns)
