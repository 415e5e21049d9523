"""What the decoder's compiled loops share, and the loops that locate values in the bytes.

Only this module imports numba. Cells are two arrays, `start` and `length`, that point into one buffer; a negative
length is NULL, UNCHANGED or ABSENT. No loop reads outside its input, whatever the bytes contain. Each returns the first
row that it could not read, or -1. Loops that read values also write `state`: VALUE, SPECIAL (well formed, but the Arrow
type cannot hold it), or 0 for no value. Tests hold them to `tailrace.text`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from numba import types

NULL, UNCHANGED, ABSENT = -1, -2, -3
VALUE, SPECIAL = 1, 2

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Function = TypeVar("Function", bound=Callable[..., Any])

# Any, because mypy would type casts as numpy scalars, which do not mix with the ints that they are once compiled.
LONG: Any = types.int64
WORD: Any = types.uint64
FLAG: Any = types.boolean
BYTES: Any = types.Array(types.uint8, 1, "C", readonly=True)
OUT: Any = types.uint8[::1]
INTS: Any = types.int32[::1]
LONGS: Any = types.int64[::1]
WORDS: Any = types.uint64[:, ::1]
PAIR: Any = types.Tuple((types.int64, types.int64))  # type: ignore[no-untyped-call]
WORD_PAIR: Any = types.Tuple((types.uint64, types.uint64))  # type: ignore[no-untyped-call]
_GRID: Any = types.int64[:, ::1]


def compiled(signature: Any) -> Callable[[Function], Function]:
    """Compile a function for exactly one signature, so that each loop is compiled only once."""

    def compile_(function: Function) -> Function:
        try:
            return numba.njit(signature, cache=True, nogil=True)(function)  # type: ignore[no-any-return]
        except (RuntimeError, OSError):  # numba found no writable directory for its cache
            return numba.njit(signature, nogil=True)(function)  # type: ignore[no-any-return]

    return compile_


@compiled(FLAG(BYTES, LONG, LONG, BYTES))
def ends_with(data: Bytes, at: int, end: int, word: Bytes) -> bool:
    """Whether the text from `at` to `end` ends with `word`."""
    begin = end - len(word)
    if begin < at:
        return False
    for k in range(len(word)):  # noqa: SIM110  (numba has no generator expressions)
        if data[begin + k] != word[k]:
            return False
    return True


@compiled(LONG(BYTES, LONG, LONG, BYTES))
def signed_word(data: Bytes, at: int, end: int, word: Bytes) -> int:
    """1 if the text is `word`, -1 if it is `word` after a minus sign, else 0."""
    if not ends_with(data, at, end, word):
        return 0
    before = end - at - len(word)
    if before == 0:
        return 1
    return -1 if before == 1 and data[at] == 45 else 0


@compiled(LONG(BYTES, LONG, LONG, LONG, LONG, _GRID, _GRID))
def _tuple(data: Bytes, at: int, end: int, row: int, columns: int, start: Longs, length: Longs) -> int:
    """Record where the values of one row image are. Return the place after the image, or -1."""
    if end - at < 2 or (LONG(data[at]) << 8 | LONG(data[at + 1])) != columns:
        return -1
    at += 2
    for column in range(columns):
        if at >= end:
            return -1
        letter = data[at]
        at += 1
        start[column, row] = at
        if letter == 116:  # t
            if end - at < 4:
                return -1
            size = LONG(0)
            for k in range(4):
                size = size << 8 | LONG(data[at + k])
            at += 4
            if size > end - at or size > 0x7FFFFFFF:
                return -1
            start[column, row] = at
            length[column, row] = size
            at += size
        elif letter == 110:  # n
            length[column, row] = NULL
        elif letter == 117:  # u
            length[column, row] = UNCHANGED
        else:
            return -1
    return at


@compiled(LONG(BYTES, LONGS, LONG, LONG, OUT, OUT, _GRID, _GRID, _GRID, _GRID))
def walk(
    data: Bytes,
    offsets: Longs,
    oid: int,
    columns: int,
    old: Bytes,
    new: Bytes,
    old_start: Longs,
    old_length: Longs,
    new_start: Longs,
    new_length: Longs,
) -> int:
    """Locate the cells of insert, update and delete messages.

    `old` and `new` receive the letter of each message's old and new image, or 0 if it has none.
    """
    for row in range(len(offsets) - 1):
        at, end = offsets[row], offsets[row + 1]
        old[row] = 0
        new[row] = 0
        if end - at < 6:
            return row
        letter, image = data[at], data[at + 5]
        named = LONG(0)
        for k in range(1, 5):
            named = named << 8 | LONG(data[at + k])
        if named != oid:
            return row
        at += 6
        if (letter == 85 or letter == 68) and (image == 75 or image == 79):  # U, D; K, O
            old[row] = image
            at = _tuple(data, at, end, row, columns, old_start, old_length)
            if at < 0:
                return row
            if letter == 85:
                if at >= end:
                    return row
                image = data[at]
                at += 1
        elif letter != 85 and letter != 73:
            return row
        if letter != 68:
            if image != 78:  # N
                return row
            new[row] = image
            at = _tuple(data, at, end, row, columns, new_start, new_length)
        if at != end:
            return row
    return -1


@compiled(LONG(BYTES, LONG, LONG, OUT, _GRID, _GRID))
def split(data: Bytes, rows: int, columns: int, out: Bytes, start: Longs, length: Longs) -> int:
    """Split COPY's text format into cells over `out`, which is as long as `data` and receives the unescaped values."""
    at, to, size = 0, 0, len(data)
    for row in range(rows):
        for column in range(columns):
            start[column, row] = to
            null = False
            while at < size and data[at] != 9 and data[at] != 10:
                byte = data[at]
                at += 1
                if byte == 92:
                    if at >= size or null:
                        return row
                    byte = data[at]
                    at += 1
                    if byte == 98:  # b
                        byte = np.uint8(8)
                    elif byte == 102:  # f
                        byte = np.uint8(12)
                    elif byte == 110:  # n
                        byte = np.uint8(10)
                    elif byte == 114:  # r
                        byte = np.uint8(13)
                    elif byte == 116:  # t
                        byte = np.uint8(9)
                    elif byte == 118:  # v
                        byte = np.uint8(11)
                    elif byte == 78 and to == start[column, row]:  # N
                        null = True
                        continue
                    elif byte != 92:
                        return row
                elif null:
                    return row
                out[to] = byte
                to += 1
            length[column, row] = NULL if null else to - start[column, row]
            if column < columns - 1:
                if at >= size or data[at] != 9:
                    return row
                at += 1
        if at >= size or data[at] != 10:
            return row
        at += 1
    return -1 if at == size else rows


@compiled(types.void(BYTES, LONGS, LONGS, INTS, OUT))
def gather(data: Bytes, start: Longs, length: Longs, offsets: npt.NDArray[np.int32], out: Bytes) -> None:
    """Concatenate the bytes of the cells, as in Arrow's string arrays."""
    to = 0
    for row in range(len(start)):
        offsets[row] = to
        begin = start[row]
        for k in range(length[row]):
            out[to + k] = data[begin + k]
        to += max(length[row], 0)
    offsets[len(start)] = to


@compiled(LONG(BYTES, LONGS, LONGS, INTS, OUT))
def unhex(data: Bytes, start: Longs, length: Longs, offsets: npt.NDArray[np.int32], out: Bytes) -> int:
    """Convert bytea's hex text to bytes."""
    to = 0
    for row in range(len(start)):
        offsets[row] = to
        if length[row] < 0:
            continue
        at, end = start[row], start[row] + length[row]
        if length[row] < 2 or length[row] & 1 or data[at] != 92 or data[at + 1] != 120:
            return row
        for k in range(at + 2, end, 2):
            both = 0
            for digit in (LONG(data[k]), LONG(data[k + 1])):
                if 48 <= digit <= 57:
                    both = both << 4 | (digit - 48)
                elif 97 <= digit <= 102 or 65 <= digit <= 70:
                    both = both << 4 | ((digit | 32) - 87)
                else:
                    return row
            out[to] = both
            to += 1
    offsets[len(start)] = to
    return -1
