"""The formats of COPY … TO STDOUT: text, CSV and PostgreSQL's binary format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tailrace.postgres import copy_text
from tailrace.postgres.protocol import ResultField, message
from tailrace.query.command import Copy
from tailrace.query.row_encoding import EncodedColumn, copy_line_messages, encode_column, from_values, row_messages
from tailrace.query.wire_type import NUMERIC, WireType

_BINARY_HEADER: Final = b"PGCOPY\n\xff\r\n\0" + b"\0" * 8
_BINARY_TRAILER: Final = b"\xff\xff"
# OIDs of types whose text form never needs escaping.
_SAFE_TYPES: Final = frozenset((16, 20, 21, 23, 26, 700, 701, NUMERIC, 1082, 1083, 1114, 1184, 1186, 2950))


def header(copy: Copy, fields: Sequence[ResultField]) -> Iterator[bytes]:
    if copy.format == "binary":
        yield message(b"d", _BINARY_HEADER)
    elif copy.header:
        names = [
            _quote(f.name.encode(), copy) if copy.format == "csv" else _escape(f.name.encode(), copy) for f in fields
        ]
        yield message(b"d", copy.delimiter.encode().join(names) + b"\n")


def trailer(copy: Copy) -> Iterator[bytes]:
    if copy.format == "binary":
        yield message(b"d", _BINARY_TRAILER)


def data_messages(copy: Copy, batch: pa.RecordBatch, types: Sequence[WireType]) -> Iterator[memoryview]:
    if copy.format == "binary":
        columns = [encode_column(batch.column(n), types[n], True) for n in range(batch.num_columns)]
        return row_messages(columns, batch.num_rows, b"d")
    columns = [_column(copy, batch.column(n), types[n]) for n in range(batch.num_columns)]
    return copy_line_messages(columns, batch.num_rows, copy.delimiter.encode(), copy.null.encode())


def _column(copy: Copy, array: pa.Array, type_: WireType) -> EncodedColumn:
    found = encode_column(array, type_, False)
    if type_.oid in _SAFE_TYPES and type_.element is None and copy.delimiter in "\t,;|":
        return found
    return _escape_column(copy, found) if _needs_escaping(copy, found) else found


def _needs_escaping(copy: Copy, found: EncodedColumn) -> bool:
    """Whether the bytes contain any special character. Checked for whole columns, as most contain none."""
    letters = copy_text.ESCAPED if copy.format == "text" else copy.quote + "\n\r\\" + copy.null[:1]
    if copy.format == "csv" and not copy.null and bool((found.length == 0).any()):
        return True
    is_special = np.zeros(256, np.bool_)
    is_special[np.frombuffer((letters + copy.delimiter).encode(), np.uint8)] = True
    used = np.maximum(found.length, 0)
    first, last = int(found.start.min(initial=0)), int((found.start + used).max(initial=0))
    return bool(is_special[found.data[first:last]].any())


def _escape_column(copy: Copy, found: EncodedColumn) -> EncodedColumn:
    protect = _quote if copy.format == "csv" else _escape
    return from_values([None if value is None else protect(value, copy) for value in found.values()])


def _quote(value: bytes, copy: Copy) -> bytes:
    quote, delimiter = copy.quote.encode(), copy.delimiter.encode()
    needs = value in (b"\\.", copy.null.encode()) or any(c in value for c in (quote, delimiter, b"\n", b"\r"))
    return quote + value.replace(quote, quote * 2) + quote if needs else value


def _escape(value: bytes, copy: Copy) -> bytes:
    return copy_text.escape(value, copy.delimiter.encode())
