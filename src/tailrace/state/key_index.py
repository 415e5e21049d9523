"""An index of keys: built once from many texts, it finds the number of each of other texts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


class KeyIndex:
    """Finds texts among distinct texts. Arrow's own lookup would hash all of them again at every call."""

    def __init__(self, texts: pa.Array) -> None:
        self._texts = texts.cast(pa.large_string())
        hashes = row_hashes([self._texts])
        self._order = np.argsort(hashes)
        self._hashes = hashes[self._order]
        self._is_ambiguous = bool((self._hashes[1:] == self._hashes[:-1]).any())

    def find(self, texts: pa.Array) -> I64:
        """The index of each text among the indexed ones; -1 if it is not among them."""
        texts = texts.cast(pa.large_string())
        if self._is_ambiguous:
            return self._find_slowly(texts)
        found = np.full(len(texts), -1, np.int64)
        if not len(self._hashes):
            return found
        hashes = row_hashes([texts])
        slots = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        likely = np.flatnonzero(self._hashes[slots] == hashes)
        numbers = self._order[slots[likely]]
        same = pc.equal(texts.take(pa.array(likely)), self._texts.take(pa.array(numbers)))
        is_same = same.to_numpy(zero_copy_only=False)
        found[likely[is_same]] = numbers[is_same]
        return found

    def _find_slowly(self, texts: pa.Array) -> I64:
        found = pc.index_in(texts, value_set=self._texts).fill_null(-1)
        numbers: I64 = found.to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers


# Hashing takes more than eight bytes of memory for each byte of text, so it proceeds in blocks.
_BLOCK_ROWS = 16_384
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)


def row_hashes(columns: Sequence[pa.Array]) -> U64:
    """Polynomial hashes of the rows' bytes: equal for equal rows, and very rarely for others."""
    count = len(columns[0]) if columns else 0
    blocks = [
        _block_hashes([c[start : start + _BLOCK_ROWS] for c in columns]) for start in range(0, count, _BLOCK_ROWS)
    ]
    return np.concatenate(blocks) if blocks else np.empty(0, np.uint64)


def _block_hashes(columns: Sequence[pa.Array]) -> U64:
    # No text contains NUL or the byte FF, so neither separators nor NULLs can be mistaken for values.
    values = [c.cast(pa.large_binary()) for c in columns]
    separator = pa.scalar(b"\0", pa.large_binary())
    joined = pc.binary_join_element_wise(*values, separator, null_handling="replace", null_replacement=b"\xff")
    _, offsets, data = joined.buffers()
    edges = np.frombuffer(offsets, np.int64)[joined.offset : joined.offset + len(joined) + 1]
    raw = np.frombuffer(data, np.uint8)[edges[0] : edges[-1]] if data is not None else np.empty(0, np.uint8)
    edges = edges - edges[0]
    sums = np.zeros(len(raw) + 1, np.uint64)
    np.cumsum((raw.astype(np.uint64) + np.uint64(1)) * _powers(_BASE, len(raw)), out=sums[1:])
    found: U64 = (sums[edges[1:]] - sums[edges[:-1]]) * _powers(_INVERSE, len(raw) + 1)[edges[:-1]]
    return found


def _powers(base: int, count: int) -> U64:
    factors = np.full(count, base, np.uint64)
    factors[:1] = 1
    return np.cumprod(factors)
