"""Values that wait for the row they belong to: large ones in a file, so that memory does not grow with them."""

from __future__ import annotations

import mmap
import tempfile

import numpy as np
import numpy.typing as npt
import pyarrow as pa

I64 = npt.NDArray[np.int64]

_IN_MEMORY_BYTES = 1 << 20
"""Put here at once: less is worth no file."""


class Shelf:
    """By column and by entry, a number below `count`. The file is nobody else's, and goes with the shelf."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pieces: dict[int, list[pa.Array]] = {}
        self._place: dict[int, I64] = {}
        self._rows: dict[int, int] = {}
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)

    def close(self) -> None:
        self._pieces.clear()
        self._file.close()

    def put(self, column: int, entries: I64, values: pa.Array) -> None:
        if not len(entries):
            return
        place = self._place.setdefault(column, np.full(self._count, -1, np.int64))
        first = self._rows.get(column, 0)
        place[entries] = np.arange(first, first + len(entries))
        self._rows[column] = first + len(entries)
        self._pieces.setdefault(column, []).append(values if values.nbytes < _IN_MEMORY_BYTES else self._filed(values))

    def get(self, column: int, entries: I64) -> pa.Array:
        rows, pieces = self._place[column][entries], self._pieces[column]
        bases = np.cumsum([0, *map(len, pieces)])
        order = np.argsort(rows)
        edges = np.searchsorted(rows[order], bases)
        found = [
            piece.take(pa.array(rows[order][low:high] - base))
            for piece, base, low, high in zip(pieces, bases[:-1], edges[:-1], edges[1:], strict=True)
        ]
        return pa.concat_arrays(found).take(pa.array(np.argsort(order)))

    def _filed(self, values: pa.Array) -> pa.Array:
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
