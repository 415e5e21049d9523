"""Changes as the content of files: JSON Lines or Parquet."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tailrace.log import json
from tailrace.log.decoding import Messages, TableChanges
from tailrace.log.typed import batch_of

MIB: Final = 1024 * 1024

_PIECE_BYTES: Final = 64 * MIB
"""Of JSON made at once: an Arrow array of texts holds 2 GiB, and what is estimated here may be six times as large once
it is escaped."""
_FIELD_BYTES: Final = 600
"""About what a record has beside its rows."""


@dataclass(frozen=True)
class Piece:
    """A part of a file."""

    group: str
    """Pieces of one group may stand in one file."""
    content: Any
    size: int


class Encoding(Protocol):
    @property
    def suffix(self) -> str: ...

    def pieces(self, part: TableChanges | Messages) -> Iterator[Piece]: ...

    def file(self, pieces: Sequence[Piece]) -> bytes: ...


@dataclass(frozen=True)
class JsonLines:
    compression: str = "none"

    @property
    def suffix(self) -> str:
        return ".jsonl" + {"none": "", "gzip": ".gz", "zstd": ".zst"}[self.compression]

    def pieces(self, part: TableChanges | Messages) -> Iterator[Piece]:
        for some in _shares(part):
            lines = pc.binary_join_element_wise(json.records(some), "\n", "")
            _, offsets, data = lines.buffers()
            first, last = np.frombuffer(offsets, np.int32)[[lines.offset, lines.offset + len(lines)]]
            yield Piece("", memoryview(data)[first:last], int(last - first))

    def file(self, pieces: Sequence[Piece]) -> bytes:
        data = b"".join(piece.content for piece in pieces)
        match self.compression:
            case "gzip":
                return gzip.compress(data, mtime=0)  # the same bytes at every repetition
            case "zstd":
                return pa.Codec("zstd").compress(data, asbytes=True)  # type: ignore[no-any-return]
        return data


@dataclass(frozen=True)
class Parquet:
    compression: str = "zstd"

    @property
    def suffix(self) -> str:
        return ".parquet"

    def pieces(self, part: TableChanges | Messages) -> Iterator[Piece]:
        batch = batch_of(part)
        group = "" if isinstance(part, Messages) else part.relation.digest
        yield Piece(group, batch, batch.nbytes)

    def file(self, pieces: Sequence[Piece]) -> bytes:
        sink = pa.BufferOutputStream()
        table = pa.Table.from_batches([piece.content for piece in pieces])
        pq.write_table(table, sink, compression=self.compression)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _shares(part: TableChanges | Messages) -> Iterator[TableChanges | Messages]:
    """Rows whose JSON is about as large as is made at once."""
    count = len(part)
    size = count * _FIELD_BYTES
    if isinstance(part, TableChanges):
        names = sum(len(column.name.encode()) + 8 for column in part.relation.columns)
        size += part.old.batch.nbytes + part.new.batch.nbytes + 2 * count * names
    else:
        size += sum(map(len, part.content))
    shares = min(-(-size // _PIECE_BYTES), count)
    if shares <= 1:
        yield part
        return
    for low, high in pairwise(np.linspace(0, count, shares + 1, dtype=np.int64)):
        yield part.take(np.arange(low, high))
