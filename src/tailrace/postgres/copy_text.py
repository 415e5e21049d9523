"""The text format of COPY: escapes, and lines from columns of text. Pure, vectorised.

`pgoutput.kernel.split` reverses the escapes. LOAD DATA of MySQL reads the same format with fewer escapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

NULL: Final = "\\N"
Escapes = Sequence[tuple[str, str]]
"""Characters, and what is written for them."""
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


def lines(columns: Sequence[pa.Array], count: int, escapes: Escapes = _ESCAPES) -> Iterator[bytes]:
    """Tab-separated lines, thousands at a time.

    Args:
        columns: The values, as strings, bytes, or anything that Arrow casts to strings.
        count: The number of rows, which matters if there are no columns.
        escapes: The characters to escape.
    """
    if not columns:
        yield b"\n" * count
        return
    step = _ROWS
    size = sum(column.nbytes for column in columns)
    if size > _MAX_BYTES:
        step = max(1, min(step, count * _MAX_BYTES // size))
    for start in range(0, count, step):
        yield from _lines([column.slice(start, step) for column in columns], escapes)


def _lines(columns: Sequence[pa.Array], escapes: Escapes) -> Iterator[bytes]:
    count = len(columns[0])
    if count > 1 and sum(column.nbytes for column in columns) > _MAX_BYTES:
        half = count // 2
        yield from _lines([column.slice(0, half) for column in columns], escapes)
        yield from _lines([column.slice(half) for column in columns], escapes)
        return
    fields = [_field(column, escapes) for column in columns]
    joined = fields[0] if len(fields) == 1 else pc.binary_join_element_wise(*fields, b"\t")
    whole = pc.binary_join(pa.ListArray.from_arrays(pa.array([0, len(joined)], pa.int32()), joined), b"\n")
    yield whole[0].as_buffer().to_pybytes() + b"\n"


def _field(column: pa.Array, escapes: Escapes) -> pa.Array:
    field = escaped(column, escapes)
    return pc.fill_null(field, NULL.encode()) if field.null_count else field


def escaped(column: pa.Array, escapes: Escapes) -> pa.Array:
    """The values with characters escaped, as bytes.

    Args:
        column: The values, as strings, bytes, or anything that Arrow casts to strings.
        escapes: The characters to escape. One that occurs in the escapes of others comes first.
    """
    if not (pa.types.is_string(column.type) or pa.types.is_binary(column.type)):
        column = column.cast(pa.string())
    column = column.cast(pa.binary())
    data = column.buffers()[2]
    if data is not None:
        first, last = _bounds(column)
        content = data.slice(first, last - first).to_pybytes()
        for character, escape in escapes:
            if character.encode() in content:
                column = pc.replace_substring(column, character, escape)
    return column


def _bounds(column: pa.Array) -> tuple[int, int]:
    offsets = pa.Array.from_buffers(pa.int32(), len(column) + 1, [None, column.buffers()[1]], offset=column.offset)
    return offsets[0].as_py(), offsets[len(column)].as_py()
