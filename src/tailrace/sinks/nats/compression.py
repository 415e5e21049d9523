"""Chunks of a snapshot in zstd, with a dictionary of the table's own: small rows have more in common than one tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
import zstandard

_LEVEL: Final = 6
"""Beyond this, chunks get a few hundredths smaller and take twice as long."""
_DICTIONARY_BYTES: Final = 16 * 1024
"""Some hundred rows: what a client fetches once, to read chunks of a few."""
_SAMPLES: Final = 2000
_FEWEST: Final = 100
"""Rows, to learn from; of fewer there is nothing to gain."""


@dataclass(frozen=True)
class Compression:
    compressor: zstandard.ZstdCompressor
    dictionary: bytes
    """As zstd has it, with its number; empty where none could be trained."""

    @classmethod
    def trained(cls, rows: pa.Array) -> Self:
        """On rows as they are encoded."""
        found = None
        if len(rows) >= _FEWEST:
            found = _dictionary(rows.take(pa.array(range(0, len(rows), max(1, len(rows) // _SAMPLES)))).to_pylist())
        compressor = zstandard.ZstdCompressor(level=_LEVEL, dict_data=found)
        return cls(compressor, b"" if found is None else found.as_bytes())

    def compressed(self, content: bytes) -> bytes:
        return self.compressor.compress(content)


def _dictionary(rows: list[Any]) -> zstandard.ZstdCompressionDict | None:
    try:
        return zstandard.train_dictionary(_DICTIONARY_BYTES, rows)
    except zstandard.ZstdError:
        return None  # rows that are all the same, or too little of them
