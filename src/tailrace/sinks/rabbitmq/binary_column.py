"""Columns of bytes from which both protocols' messages are put together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

I64 = npt.NDArray[np.int64]
Piece = Union["pa.Array", bytes]
"""The bytes of each row, or the same ones for all rows."""


def integers(values: I64, size: int) -> pa.Array:
    """Return big-endian integers of 1, 4 or 8 bytes."""
    data = pa.py_buffer(np.ascontiguousarray(values.astype(f">u{size}")))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(values), [None, data]).cast(pa.binary())


def lengths(values: pa.Array) -> I64:
    """Return the size of each value in bytes; 0 where it is NULL."""
    found: I64 = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def join(pieces: Sequence[Piece]) -> pa.Array:
    """Concatenate the pieces of each row; NULL where one of them is NULL. At least one piece is an array."""
    merged: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    return pc.binary_join_element_wise(*merged, b"")
