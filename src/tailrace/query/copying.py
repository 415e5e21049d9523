"""COPY … TO STDOUT: rows as text, CSV or PostgreSQL's binary file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.query.command import Copy
from tailrace.query.encoding import Cells, cells, from_values, lines, messages
from tailrace.query.oid import NUMERIC, WireType
from tailrace.query.wire import Field, message

_BINARY_HEAD: Final = b"PGCOPY\n\xff\r\n\0" + b"\0" * 8
_BINARY_TAIL: Final = b"\xff\xff"
# Texts of these hold nothing that would have to be escaped.
_HARMLESS: Final = frozenset((16, 20, 21, 23, 26, 700, 701, NUMERIC, 1082, 1083, 1114, 1184, 1186, 2950))
_ESCAPES: Final = (
    ("\\", "\\\\"),
    ("\b", "\\b"),
    ("\f", "\\f"),
    ("\n", "\\n"),
    ("\r", "\\r"),
    ("\t", "\\t"),
    ("\v", "\\v"),
)


def head(copy: Copy, fields: Sequence[Field]) -> Iterator[bytes]:
    if copy.format == "binary":
        yield message(b"d", _BINARY_HEAD)
    elif copy.header:
        names = [
            _quoted(f.name.encode(), copy) if copy.format == "csv" else _escaped(f.name.encode(), copy) for f in fields
        ]
        yield message(b"d", copy.delimiter.encode().join(names) + b"\n")


def tail(copy: Copy) -> Iterator[bytes]:
    if copy.format == "binary":
        yield message(b"d", _BINARY_TAIL)


def pieces(copy: Copy, batch: pa.RecordBatch, types: Sequence[WireType]) -> Iterator[memoryview]:
    if copy.format == "binary":
        columns = [cells(batch.column(n), types[n], True) for n in range(batch.num_columns)]
        return messages(columns, batch.num_rows, b"d")
    columns = [_column(copy, batch.column(n), types[n]) for n in range(batch.num_columns)]
    return lines(columns, batch.num_rows, copy.delimiter.encode(), copy.null.encode())


def _column(copy: Copy, array: pa.Array, type_: WireType) -> Cells:
    found = cells(array, type_, False)
    if type_.oid in _HARMLESS and type_.element is None and copy.delimiter in "\t,;|":
        return found
    return _made_safe(copy, found) if _needs_care(copy, found) else found


def _needs_care(copy: Copy, found: Cells) -> bool:
    """Whether any letter that means something to the format is in the bytes: looked up, as most columns have none."""
    letters = (
        "".join(letter for letter, _ in _ESCAPES) if copy.format == "text" else copy.quote + "\n\r\\" + copy.null[:1]
    )
    if copy.format == "csv" and not copy.null and bool((found.length == 0).any()):
        return True
    is_special = np.zeros(256, np.bool_)
    is_special[np.frombuffer((letters + copy.delimiter).encode(), np.uint8)] = True
    used = np.maximum(found.length, 0)
    first, last = int(found.start.min(initial=0)), int((found.start + used).max(initial=0))
    return bool(is_special[found.data[first:last]].any())


def _made_safe(copy: Copy, found: Cells) -> Cells:
    make = _quoted if copy.format == "csv" else _escaped
    return from_values([None if value is None else make(value, copy) for value in found.values()])


def _quoted(value: bytes, copy: Copy) -> bytes:
    quote, delimiter = copy.quote.encode(), copy.delimiter.encode()
    needs = value in (b"\\.", copy.null.encode()) or any(c in value for c in (quote, delimiter, b"\n", b"\r"))
    return quote + value.replace(quote, quote * 2) + quote if needs else value


def _escaped(value: bytes, copy: Copy) -> bytes:
    for letter, escape in _ESCAPES:
        value = value.replace(letter.encode(), escape.encode())
    if copy.delimiter != "\t":
        value = value.replace(copy.delimiter.encode(), b"\\" + copy.delimiter.encode())
    return value
