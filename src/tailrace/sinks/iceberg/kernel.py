"""The compiled loops of `fingerprint`: SipHash-2-4 with 128 bits over the words of each row, column by column."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from tailrace.pgoutput.kernel import BYTES, LONGS, WORDS, compiled

Words = npt.NDArray[np.uint64]

_VALUES: Any = types.Array(types.int64, 1, "C", readonly=True)
_VALID: Any = types.Array(types.boolean, 1, "C", readonly=True)
_KEY: Any = types.uint64[::1]
_ZERO = np.uint64(0)


@numba.njit(inline="always")
def _rotate(word: Any, bits: int) -> Any:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@numba.njit(inline="always")
def _round(a: Any, b: Any, c: Any, d: Any) -> Any:
    a += b
    b = _rotate(b, 13) ^ a
    a = _rotate(a, 32)
    c += d
    d = _rotate(d, 16) ^ c
    a += d
    d = _rotate(d, 21) ^ a
    c += b
    b = _rotate(b, 17) ^ c
    c = _rotate(c, 32)
    return a, b, c, d


@numba.njit(inline="always")
def _mix(states: Any, row: int, word: Any) -> None:
    a, b, c, d = states[row, 0], states[row, 1], states[row, 2], states[row, 3] ^ word
    a, b, c, d = _round(a, b, c, d)
    a, b, c, d = _round(a, b, c, d)
    states[row, 0], states[row, 1], states[row, 2], states[row, 3] = a ^ word, b, c, d
    states[row, 4] += np.uint64(8)


@compiled(types.void(WORDS, _KEY))
def begin(states: Words, key: Words) -> None:
    """Four words of state for each row, and the number of bytes that were mixed in."""
    for row in range(len(states)):
        states[row, 0] = key[0] ^ np.uint64(0x736F6D6570736575)
        states[row, 1] = key[1] ^ np.uint64(0x646F72616E646F6D ^ 0xEE)
        states[row, 2] = key[0] ^ np.uint64(0x6C7967656E657261)
        states[row, 3] = key[1] ^ np.uint64(0x7465646279746573)
        states[row, 4] = _ZERO


@compiled(types.void(WORDS, _VALUES, _VALID))
def mix_words(states: Words, values: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_]) -> None:
    """Two words for each value: the value, and whether there is one."""
    for row in range(len(values)):
        _mix(states, row, np.uint64(values[row]) if valid[row] else _ZERO)
        _mix(states, row, np.uint64(valid[row]))


@compiled(types.void(WORDS, LONGS, BYTES, _VALID))
def mix_bytes(
    states: Words, offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8], valid: npt.NDArray[np.bool_]
) -> None:
    """The words of each value, padded with zeros, and then its length plus one; 0 for NULL."""
    for row in range(len(offsets) - 1):
        if not valid[row]:
            _mix(states, row, _ZERO)
            continue
        first, end = offsets[row], offsets[row + 1]
        for at in range(first, end, 8):
            word = _ZERO
            for k in range(min(8, end - at)):
                word |= np.uint64(data[at + k]) << np.uint64(8 * k)
            _mix(states, row, word)
        _mix(states, row, np.uint64(end - first + 1))


@compiled(types.void(WORDS, WORDS))
def finish(states: Words, prints: Words) -> None:
    for row in range(len(states)):
        _mix(states, row, states[row, 4] << np.uint64(56))
        a, b, c, d = states[row, 0], states[row, 1], states[row, 2] ^ np.uint64(0xEE), states[row, 3]
        for _ in range(4):
            a, b, c, d = _round(a, b, c, d)
        prints[row, 0] = a ^ b ^ c ^ d
        b ^= np.uint64(0xDD)
        for _ in range(4):
            a, b, c, d = _round(a, b, c, d)
        prints[row, 1] = a ^ b ^ c ^ d
