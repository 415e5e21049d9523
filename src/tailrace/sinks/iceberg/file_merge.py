"""Merges small data files into one, without deleted rows. This runs in the driver, between two steps, where starting
a Spark job would take longer than the work.

A row that moves to another file keeps its lineage, as Iceberg's format 3 requires: from then on, separate columns hold
its row id and the sequence number of the commit that wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.lake.warehouse import Warehouse
from tailrace.sinks.iceberg import datafile
from tailrace.sinks.iceberg.datafile import DataFile
from tailrace.sinks.iceberg.iceberg_schema import IcebergField
from tailrace.sinks.iceberg.live_file import I64, LiveFile

SMALL_BYTES: Final = 16 * 1024 * 1024
"""Writing a larger file takes longer than starting a Spark job."""

_THREADS: Final = 8
"""Files that are read in parallel: each request to an object store has some latency."""

# Iceberg's reserved ids.
_ROW_ID: Final = IcebergField(2147483540, "_row_id", "long")
_SEQUENCE_NUMBER: Final = IcebergField(2147483539, "_last_updated_sequence_number", "long")


def select_small_files(files: Sequence[LiveFile], limit: int) -> list[LiveFile]:
    """Small files with at most `limit` bytes in total."""
    found, size = [], 0
    for file in files:
        if file.bytes < SMALL_BYTES and size + file.bytes <= limit:
            found.append(file)
            size += file.bytes
    return found


def merge_files(
    warehouse: Warehouse, directory: str, fields: Sequence[IcebergField], files: Sequence[LiveFile]
) -> DataFile:
    """A new data file with the rows of these, in their order."""
    columns = [*fields, _ROW_ID, _SEQUENCE_NUMBER]
    rows_of_files = [file.live_rows() for file in files]

    def read(file: LiveFile, rows: I64) -> list[pa.Array]:
        return datafile.read(warehouse, file.location, columns, rows.tolist())

    with ThreadPoolExecutor(_THREADS, "merging") as pool:
        pieces = list(pool.map(read, files, rows_of_files))
    for file, rows, arrays in zip(files, rows_of_files, pieces, strict=True):
        # A file without these columns implies them, by the row's position and the file's commit.
        if (first := file.data.firstRowId()) is not None:
            arrays[-2] = pc.coalesce(arrays[-2], pa.array(first + rows))
        arrays[-1] = arrays[-1].fill_null(file.data.dataSequenceNumber())
    return datafile.write(warehouse, directory, columns, [pa.concat_arrays(c) for c in zip(*pieces, strict=True)])
