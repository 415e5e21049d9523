"""File formats: encode changes as JSON Lines or Parquet."""

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

from tailrace.log import json_columns
from tailrace.log.decoding import LogicalMessages, TableChanges
from tailrace.log.typed_columns import to_record_batch

MIB: Final = 1024 * 1024

_FRAGMENT_BYTES: Final = 64 * MIB
"""Estimated JSON per fragment. An Arrow array of texts holds 2 GiB, and escaping may make the text six times as large
as estimated."""
_METADATA_BYTES: Final = 600
"""The approximate size of a JSON record without its rows."""


@dataclass(frozen=True)
class FileFragment:
    """A part of a file."""

    group: str
    """Only fragments of the same group may share a file."""
    content: Any
    size: int


class FileFormat(Protocol):
    @property
    def suffix(self) -> str: ...

    def encode(self, run: TableChanges | LogicalMessages) -> Iterator[FileFragment]:
        """Encode a run of changes as one or more fragments."""

    def file(self, fragments: Sequence[FileFragment]) -> bytes:
        """Return the content of a file."""


@dataclass(frozen=True)
class JsonLinesFormat:
    compression: str = "none"

    @property
    def suffix(self) -> str:
        return ".jsonl" + {"none": "", "gzip": ".gz", "zstd": ".zst"}[self.compression]

    def encode(self, run: TableChanges | LogicalMessages) -> Iterator[FileFragment]:
        for changes in _split(run):
            lines = pc.binary_join_element_wise(json_columns.records(changes), "\n", "")
            _, offsets, data = lines.buffers()
            first, last = np.frombuffer(offsets, np.int32)[[lines.offset, lines.offset + len(lines)]]
            yield FileFragment("", memoryview(data)[first:last], int(last - first))

    def file(self, fragments: Sequence[FileFragment]) -> bytes:
        data = b"".join(fragment.content for fragment in fragments)
        match self.compression:
            case "gzip":
                return gzip.compress(data, mtime=0)  # a repeated step writes the same bytes
            case "zstd":
                return pa.Codec("zstd").compress(data, asbytes=True)  # type: ignore[no-any-return]
        return data


@dataclass(frozen=True)
class ParquetFormat:
    compression: str = "zstd"

    @property
    def suffix(self) -> str:
        return ".parquet"

    def encode(self, run: TableChanges | LogicalMessages) -> Iterator[FileFragment]:
        batch = to_record_batch(run)
        group = "" if isinstance(run, LogicalMessages) else run.relation.digest
        yield FileFragment(group, batch, batch.nbytes)

    def file(self, fragments: Sequence[FileFragment]) -> bytes:
        sink = pa.BufferOutputStream()
        table = pa.Table.from_batches([fragment.content for fragment in fragments])
        pq.write_table(table, sink, compression=self.compression)
        return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _split(run: TableChanges | LogicalMessages) -> Iterator[TableChanges | LogicalMessages]:
    """Split a run so that the JSON of each piece has about `_FRAGMENT_BYTES`."""
    count = len(run)
    size = count * _METADATA_BYTES
    if isinstance(run, TableChanges):
        names = sum(len(column.name.encode()) + 8 for column in run.relation.columns)
        size += run.old.batch.nbytes + run.new.batch.nbytes + 2 * count * names
    else:
        size += sum(map(len, run.content))
    pieces = min(-(-size // _FRAGMENT_BYTES), count)
    if pieces <= 1:
        yield run
        return
    for low, high in pairwise(np.linspace(0, count, pieces + 1, dtype=np.int64)):
        yield run.take(np.arange(low, high))
