"""Integers as Base64 of what Java's BigInteger is in bytes, column by column: as few as possible, big-endian."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

I64 = npt.NDArray[np.int64]

_ALPHABET: Final = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_QUOTE, _PADDING = ord('"'), ord("=")


def quoted_integers(numbers: I64) -> pa.StringArray:
    """Return each number as a JSON string."""
    # The sign needs a bit of its own, and of the negative numbers -2^n fits into n bits beside it.
    magnitudes = np.where(numbers < 0, ~numbers, numbers)
    sizes = np.ones(len(numbers), np.int64)
    for size in range(1, 8):
        sizes += magnitudes >= 1 << (8 * size - 1)
    data = numbers.astype(">i8").view(np.uint8).reshape(len(numbers), 8)
    order = np.argsort(sizes, kind="stable")
    counts = np.bincount(sizes, minlength=9)
    parts, begin = [], 0
    for size in np.flatnonzero(counts).tolist():
        rows = order[begin : begin + counts[size]]
        parts.append(_quoted(data[rows, 8 - size :]))
        begin += int(counts[size])
    if len(parts) == 1:
        return parts[0]
    places = np.empty(len(numbers), np.int64)
    places[order] = np.arange(len(numbers))
    return pa.concat_arrays(parts or [pa.array([], pa.string())]).take(pa.array(places))


def _quoted(data: npt.NDArray[np.uint8]) -> pa.StringArray:
    """Return rows of equally many bytes as Base64 in quotes."""
    count, size = data.shape
    groups = -(-size // 3)
    padded = np.zeros((count, 3 * groups), np.uint8)
    padded[:, :size] = data
    bits = padded.reshape(count, groups, 3).astype(np.uint32)
    words = bits[:, :, 0] << 16 | bits[:, :, 1] << 8 | bits[:, :, 2]
    sextets = np.stack([words >> 18, words >> 12 & 63, words >> 6 & 63, words & 63], axis=2)
    text = np.empty((count, 4 * groups + 2), np.uint8)
    text[:, 0] = text[:, -1] = _QUOTE
    text[:, 1:-1] = _ALPHABET[sextets.reshape(count, 4 * groups)]
    if missing := 3 * groups - size:
        text[:, -1 - missing : -1] = _PADDING
    offsets = np.arange(count + 1, dtype=np.int32) * text.shape[1]
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))
