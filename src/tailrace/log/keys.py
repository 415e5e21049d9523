"""Keys by number: which of many known ones each of some others is. Built once, asked often. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


class Keys:
    """Texts, all different. Arrow's own lookup would hash them all again at every question."""

    def __init__(self, texts: pa.Array) -> None:
        self._texts = texts.cast(pa.large_string())
        hashes = row_hashes([self._texts])
        self._order = np.argsort(hashes)
        self._hashes = hashes[self._order]
        self._is_ambiguous = bool((self._hashes[1:] == self._hashes[:-1]).any())

    def find(self, texts: pa.Array) -> I64:
        """The number of each, -1 for one that is not among them."""
        texts = texts.cast(pa.large_string())
        if self._is_ambiguous:
            return self._find_slowly(texts)
        found = np.full(len(texts), -1, np.int64)
        if not len(self._hashes):
            return found
        hashes = row_hashes([texts])
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        likely = np.flatnonzero(self._hashes[places] == hashes)
        numbers = self._order[places[likely]]
        same = pc.equal(texts.take(pa.array(likely)), self._texts.take(pa.array(numbers)))
        is_same = same.to_numpy(zero_copy_only=False)
        found[likely[is_same]] = numbers[is_same]
        return found

    def _find_slowly(self, texts: pa.Array) -> I64:
        found = pc.index_in(texts, value_set=self._texts).fill_null(-1)
        numbers: I64 = found.to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers


# Eight bytes of memory and more for each byte of text.
_BLOCK_ROWS = 16_384
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 1 << 64)


def row_hashes(columns: Sequence[pa.Array]) -> U64:
    """Polynomials of the rows' bytes: equal for equal rows, and hardly ever otherwise."""
    count = len(columns[0]) if columns else 0
    blocks = [_block([c[start : start + _BLOCK_ROWS] for c in columns]) for start in range(0, count, _BLOCK_ROWS)]
    return np.concatenate(blocks) if blocks else np.empty(0, np.uint64)


def _block(columns: Sequence[pa.Array]) -> U64:
    # No text holds a NUL, and none the byte FF, so neither what separates values nor a NULL is mistaken for a value.
    values = [c.cast(pa.large_binary()) for c in columns]
    between = pa.scalar(b"\0", pa.large_binary())
    joined = pc.binary_join_element_wise(*values, between, null_handling="replace", null_replacement=b"\xff")
    _, offsets, data = joined.buffers()
    places = np.frombuffer(offsets, np.int64)[joined.offset : joined.offset + len(joined) + 1]
    raw = np.frombuffer(data, np.uint8)[places[0] : places[-1]] if data is not None else np.empty(0, np.uint8)
    places = places - places[0]
    sums = np.zeros(len(raw) + 1, np.uint64)
    np.cumsum((raw.astype(np.uint64) + np.uint64(1)) * _powers(_BASE, len(raw)), out=sums[1:])
    found: U64 = (sums[places[1:]] - sums[places[:-1]]) * _powers(_INVERSE, len(raw) + 1)[places[:-1]]
    return found


def _powers(base: int, count: int) -> U64:
    factors = np.full(count, base, np.uint64)
    factors[:1] = 1
    return np.cumprod(factors)
