"""The text format of COPY: escapes, and lines from columns of text. Pure, vectorised.

`pgoutput.kernel.split` reverses the escapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

NULL: Final = "\\N"
# The ones that PostgreSQL writes. The backslash comes first, because the others contain one when escaped.
_ESCAPES: Final = (
    ("\\", "\\\\"),
    ("\t", "\\t"),
    ("\n", "\\n"),
    ("\r", "\\r"),
    ("\b", "\\b"),
    ("\f", "\\f"),
    ("\v", "\\v"),
)
ESCAPED: Final = "".join(character for character, _ in _ESCAPES)
"""The characters that are escaped."""
_ESCAPES_IN_BYTES: Final = tuple([(character.encode(), escape.encode()) for character, escape in _ESCAPES])
_ROWS: Final = 16_384
# Arrow counts the bytes of an array of strings in 32 bits.
_MAX_BYTES: Final = 1 << 29


def escape(value: bytes, delimiter: bytes = b"\t") -> bytes:
    """One value as a field of a line.

    Args:
        value: The value's text.
        delimiter: The byte that separates fields.
    """
    for character, escape in _ESCAPES_IN_BYTES:
        value = value.replace(character, escape)
    return value if delimiter == b"\t" else value.replace(delimiter, b"\\" + delimiter)


def lines(columns: Sequence[pa.Array], count: int) -> Iterator[bytes]:
    """Tab-separated lines, thousands at a time.

    Args:
        columns: The values, as strings or anything that Arrow casts to strings.
        count: The number of rows, which matters if there are no columns.
    """
    if not columns:
        yield b"\n" * count
        return
    step = _ROWS
    size = sum(column.nbytes for column in columns)
    if size > _MAX_BYTES:
        step = max(1, min(step, count * _MAX_BYTES // size))
    for start in range(0, count, step):
        yield from _lines([column.slice(start, step) for column in columns])


def _lines(columns: Sequence[pa.Array]) -> Iterator[bytes]:
    count = len(columns[0])
    if count > 1 and sum(column.nbytes for column in columns) > _MAX_BYTES:
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
    return pc.fill_null(column, NULL) if column.null_count else column


def _bounds(column: pa.Array) -> tuple[int, int]:
    offsets = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, column.buffers()[1]], offset=column.offset)
    return offsets[0].as_py(), offsets[len(column)].as_py()
