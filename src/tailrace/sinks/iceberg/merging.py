"""Small data files as one, without the rows that are gone: done here, between two steps, where a job of Spark's would
take longer than the work.

A row that moves to another file keeps its lineage, as Iceberg's format 3 wants it: its number, and the commit that
wrote it, stand in columns of their own from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.sinks.iceberg import datafile
from tailrace.sinks.iceberg.datafile import DataFile, Warehouse
from tailrace.sinks.iceberg.live import I64, Live
from tailrace.sinks.iceberg.schema import Field

SMALL_BYTES: Final = 16 * 1024 * 1024
"""A file this large has cost more to write than any job takes to begin."""

_HANDS: Final = 8
"""Files that are read at the same time: an object store takes its time for each."""

# Iceberg's reserved ids.
_ROW_ID: Final = Field(2147483540, "_row_id", "long")
_WRITTEN_BY: Final = Field(2147483539, "_last_updated_sequence_number", "long")


def chosen(files: Sequence[Live], limit: int) -> list[Live]:
    """Small ones, as many as are rewritten at once."""
    found, size = [], 0
    for live in files:
        if live.bytes < SMALL_BYTES and size + live.bytes <= limit:
            found.append(live)
            size += live.bytes
    return found


def merged(warehouse: Warehouse, directory: str, fields: Sequence[Field], files: Sequence[Live]) -> DataFile:
    """The rows that they hold, in the files' order."""
    wanted = [*fields, _ROW_ID, _WRITTEN_BY]
    kept = [live.kept() for live in files]

    def read(live: Live, rows: I64) -> list[pa.Array]:
        return datafile.read(warehouse, live.location, wanted, rows.tolist())

    with ThreadPoolExecutor(_HANDS, "merging") as hands:
        pieces = list(hands.map(read, files, kept))
    for live, rows, arrays in zip(files, kept, pieces, strict=True):
        # Where a file does not say it, it follows from the row's place and from the file's commit.
        if (first := live.data.firstRowId()) is not None:
            arrays[-2] = pc.coalesce(arrays[-2], pa.array(first + rows))
        arrays[-1] = arrays[-1].fill_null(live.data.dataSequenceNumber())
    return datafile.write(warehouse, directory, wanted, [pa.concat_arrays(c) for c in zip(*pieces, strict=True)])
