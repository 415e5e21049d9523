"""Chunks of a snapshot in zstd, with a dictionary of the table's own: small rows have more in common than one tells."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import zstandard

_LEVEL: Final = 6
"""Beyond this, chunks get a few hundredths smaller and take twice as long."""
_DICTIONARY_BYTES: Final = 16 * 1024
"""Some hundred rows: what a client fetches once, to read chunks of a few."""
_SAMPLES: Final = 2000
_FEWEST: Final = 100
"""Rows, to learn from; of fewer there is nothing to gain."""


class Compression:
    def __init__(self, dictionary: bytes) -> None:
        """As zstd has it, with its number; empty where there is none."""
        found = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        self._compressor = zstandard.ZstdCompressor(level=_LEVEL, dict_data=found)

    def compressed(self, content: bytes) -> bytes:
        return self._compressor.compress(content)


def trained(rows: pa.Array | None) -> bytes:
    """A dictionary for rows as they are encoded; empty where none can be made."""
    if rows is None or len(rows) < _FEWEST:
        return b""
    some = rows.take(pa.array(range(0, len(rows), max(1, len(rows) // _SAMPLES)))).to_pylist()
    try:
        return zstandard.train_dictionary(_DICTIONARY_BYTES, some).as_bytes()
    except zstandard.ZstdError:
        return b""  # rows that are all the same, or too little of them
