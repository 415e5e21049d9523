"""Columns of texts → lines of COPY's text format. Pure, vectorised."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

# A backslash first: the others become one and a letter.
_ESCAPES: Final = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))
_ROWS: Final = 16_384
# Arrow counts the bytes of an array of strings in 32 bits.
_MOST_BYTES: Final = 1 << 29


def lines(columns: Sequence[pa.Array], count: int) -> Iterator[bytes]:
    """Whole lines, some at a time."""
    if not columns:
        yield b"\n" * count
        return
    step = _ROWS
    size = sum(column.nbytes for column in columns)
    if size > _MOST_BYTES:
        step = max(1, min(step, count * _MOST_BYTES // size))
    for start in range(0, count, step):
        yield from _lines([column.slice(start, step) for column in columns])


def _lines(columns: Sequence[pa.Array]) -> Iterator[bytes]:
    count = len(columns[0])
    if count > 1 and sum(column.nbytes for column in columns) > _MOST_BYTES:
        half = count // 2
        yield from _lines([column.slice(0, half) for column in columns])
        yield from _lines([column.slice(half) for column in columns])
        return
    fields = [_field(column) for column in columns]
    joined = fields[0] if len(fields) == 1 else pc.binary_join_element_wise(*fields, "\t")
    whole = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(joined)], pa.int32()), joined), "\n")
    yield whole[0].as_buffer().to_pybytes() + b"\n"


def _field(column: pa.Array) -> pa.Array:
    if not pa.types.is_string(column.type):
        column = column.cast(pa.string())
    data = column.buffers()[2]
    if data is not None:
        first, last = _bounds(column)
        text = data.slice(first, last - first).to_pybytes()
        for character, escape in _ESCAPES:
            if character.encode() in text:
                column = pc.replace_substring(column, character, escape)
    return pc.fill_null(column, "\\N") if column.null_count else column


def _bounds(column: pa.Array) -> tuple[int, int]:
    offsets = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, column.buffers()[1]], offset=column.offset)
    return offsets[0].as_py(), offsets[len(column)].as_py()
