"""Stores values until their row is complete. Spills large ones to a temporary file, so that memory stays bounded."""

from __future__ import annotations

import mmap
import tempfile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

I64 = npt.NDArray[np.int64]

_IN_MEMORY_BYTES = 1 << 20
"""Arrays smaller than this stay in memory."""


class Spill:
    """Values by column and by entry, an integer below `count`. `close` deletes the file."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._arrays: dict[int, list[pa.Array]] = {}
        self._index: dict[int, I64] = {}
        self._rows: dict[int, int] = {}
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)

    def close(self) -> None:
        self._arrays.clear()
        self._file.close()

    def put(self, column: int, entries: I64, values: pa.Array) -> None:
        """Store values of a column, one for each entry."""
        if not len(entries):
            return
        index = self._index.setdefault(column, np.full(self._count, -1, np.int64))
        first = self._rows.get(column, 0)
        index[entries] = np.arange(first, first + len(entries))
        self._rows[column] = first + len(entries)
        self._arrays.setdefault(column, []).append(
            values if values.nbytes < _IN_MEMORY_BYTES else self._write_to_file(values)
        )

    def get(self, column: int, entries: I64) -> pa.Array:
        """The values of a column for these entries, which must have been stored."""
        rows, arrays = self._index[column][entries], self._arrays[column]
        bases = np.cumsum([0, *map(len, arrays)])
        order = np.argsort(rows)
        edges = np.searchsorted(rows[order], bases)
        found = [
            array.take(pa.array(rows[order][low:high] - base))
            for array, base, low, high in zip(arrays, bases[:-1], edges[:-1], edges[1:], strict=True)
        ]
        return pa.concat_arrays(found).take(pa.array(np.argsort(order)))

    def _write_to_file(self, values: pa.Array) -> pa.Array:
        start = -(-self._file.tell() // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._file.seek(start)
        batch = pa.RecordBatch.from_arrays([values], names=["values"])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        size = self._file.write(sink.getvalue())
        self._file.flush()
        mapped = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ, offset=start)
        return pa.ipc.open_stream(pa.py_buffer(mapped)).read_next_batch().column(0)
