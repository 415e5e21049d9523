"""Pieces of encoded messages: arrays and constants that are concatenated row by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Mask = npt.NDArray[np.bool_]

Pieces = list[pa.Array | bytes]
"""Binary arrays without nulls, and bytes that are the same in all rows."""


def join(pieces: Sequence[pa.Array | bytes], count: int, present: Mask | None = None) -> pa.Array:
    """Concatenate the pieces of each row. Constants next to each other are merged first.

    Args:
        pieces: What to concatenate.
        count: The number of rows.
        present: The rows that are wanted (None: all); the others are NULL.
    """
    joined = _join(pieces, count)
    if present is None or present.all():
        return joined
    return pc.if_else(pa.array(present), joined, pa.scalar(None, pa.binary()))


def _join(pieces: Sequence[pa.Array | bytes], count: int) -> pa.Array:
    merged: Pieces = []
    for piece in pieces:
        if isinstance(piece, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    if all(isinstance(piece, bytes) for piece in merged):
        return pa.array([b"".join(merged)] * count, pa.binary())
    return pc.binary_join_element_wise(*merged, b"")
