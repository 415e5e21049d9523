"""The compiled loops of `fingerprint`: they mix a row's values into two 64-bit words."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba import types

from tailrace.pgoutput.kernel import BYTES, LONGS, WORDS, compiled

Words = npt.NDArray[np.uint64]

_WORD: Any = types.uint64
_ONE, _TWO = np.uint64(0x87C37B91114253D5), np.uint64(0x4CF5AD432745937F)
_MORE, _MOST = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)
_NULL = np.uint64(0x9E3779B97F4A7C15)
_VALUES: Any = types.Array(types.int64, 1, "C", readonly=True)
_VALID: Any = types.Array(types.boolean, 1, "C", readonly=True)


@numba.njit(inline="always")
def _rotate(word: Any, bits: int) -> Any:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@numba.njit(inline="always")
def _finalize(word: Any) -> Any:
    word = (word ^ (word >> np.uint64(33))) * _MORE
    word = (word ^ (word >> np.uint64(33))) * _MOST
    return word ^ (word >> np.uint64(33))


@numba.njit(inline="always")
def _mix(prints: Any, row: int, word: Any) -> None:
    one = prints[row, 0] ^ (_rotate(word * _ONE, 31) * _TWO)
    two = prints[row, 1] ^ (_rotate(word * _TWO, 33) * _ONE)
    one = (_rotate(one, 27) + prints[row, 1]) * np.uint64(5) + np.uint64(0x52DCE729)
    two = (_rotate(two, 31) + one) * np.uint64(5) + np.uint64(0x38495AB5)
    prints[row, 0], prints[row, 1] = one, two


@compiled(types.void(WORDS, _VALUES, _VALID))
def mix_words(prints: Words, values: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_]) -> None:
    for row in range(len(values)):
        _mix(prints, row, np.uint64(values[row]) if valid[row] else _NULL)
        _mix(prints, row, np.uint64(valid[row]))


@compiled(types.void(WORDS, LONGS, BYTES, _VALID))
def mix_bytes(
    prints: Words, offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8], valid: npt.NDArray[np.bool_]
) -> None:
    for row in range(len(offsets) - 1):
        if not valid[row]:
            _mix(prints, row, _NULL)
            _mix(prints, row, np.uint64(0))
            continue
        begin, end = offsets[row], offsets[row + 1]
        for at in range(begin, end, 8):
            word = np.uint64(0)
            for k in range(min(8, end - at)):
                word |= np.uint64(data[at + k]) << np.uint64(8 * k)
            _mix(prints, row, word)
        _mix(prints, row, np.uint64(end - begin + 1))


@compiled(types.void(WORDS))
def finish(prints: Words) -> None:
    for row in range(len(prints)):
        one = _finalize(prints[row, 0])
        two = _finalize(prints[row, 1] + one)
        prints[row, 0], prints[row, 1] = one + two, two
