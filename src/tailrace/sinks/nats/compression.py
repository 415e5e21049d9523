"""Compresses snapshot chunks with zstd and a dictionary per table: small rows have much in common with each other."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import zstandard

_LEVEL: Final = 6
"""Higher levels make chunks a few per cent smaller and take twice as long."""
_DICTIONARY_BYTES: Final = 16 * 1024
"""The size of a few hundred rows. A client fetches the dictionary once, perhaps for chunks of a few rows."""
_SAMPLES: Final = 2000
_MIN_ROWS: Final = 100
"""A dictionary trained on fewer rows gains nothing."""


class ChunkCompressor:
    def __init__(self, dictionary: bytes) -> None:
        """`dictionary` is a zstd dictionary with its header; empty: compress without one."""
        dict_data = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, dict_data=dict_data)

    def compress(self, content: bytes) -> bytes:
        return self._compressor.compress(content)


def train_dictionary(rows: pa.Array | None) -> bytes:
    """Return a dictionary for encoded rows; empty if none can be trained."""
    if rows is None or len(rows) < _MIN_ROWS:
        return b""
    samples = rows.take(pa.array(range(0, len(rows), max(1, len(rows) // _SAMPLES)))).to_pylist()
    try:
        return zstandard.train_dictionary(_DICTIONARY_BYTES, samples).as_bytes()
    except zstandard.ZstdError:
        return b""  # the rows are all the same, or too short
