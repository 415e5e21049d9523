"""Encoding of Arrow batches as PostgreSQL messages: whole columns into cells, then cells into rows.

A cell is a value's text or binary form. Compiled loops encode numbers, dates and strings. Plain Python encodes rare
values: intervals, arrays, floats of 17 digits, decimals beyond 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.query import kernel, value_format, wire_type
from tailrace.query.wire_type import WireType

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

# Messages go to the socket in chunks of about this size, however large a batch is.
_CHUNK_BYTES: Final = 1 << 20
_DAYS_TO_2000: Final = 10_957
_US_TO_2000: Final = _DAYS_TO_2000 * 86_400_000_000
_EMPTY: Final = np.zeros(1, np.uint8)


class EncodedColumn(NamedTuple):
    data: Bytes
    start: Longs
    length: Longs
    """-1 for NULL."""

    def values(self) -> list[bytes | None]:
        raw = self.data.tobytes()
        pairs = zip(self.start.tolist(), self.length.tolist(), strict=True)
        return [None if count < 0 else raw[begin : begin + count] for begin, count in pairs]


def data_row_messages(batch: pa.RecordBatch, types: Sequence[WireType], formats: Sequence[int]) -> Iterator[memoryview]:
    """Yield a DataRow message for each row, in chunks."""
    columns = [encode_column(batch.column(n), types[n], bool(formats[n])) for n in range(len(types))]
    return row_messages(columns, batch.num_rows, b"D")


def row_messages(columns: Sequence[EncodedColumn], rows: int, letter: bytes) -> Iterator[memoryview]:
    """Yield a message for each row: the number of cells, then each cell preceded by its length.

    DataRow and a row of a binary COPY differ only in the message type, `letter`."""
    size = np.full(rows, 7 + 4 * len(columns), np.int64)
    for column in columns:
        size += np.maximum(column.length, 0)
    for first, last in _chunks(size):
        at, total = _offsets(size[first:last])
        out = np.empty(total, np.uint8)
        kernel.frame(out, at, size[first:last], letter[0], len(columns))
        for column in columns:
            kernel.place(out, at, column.data, column.start[first:last], column.length[first:last])
        yield out.data


def copy_line_messages(
    columns: Sequence[EncodedColumn], rows: int, separator: bytes, null: bytes
) -> Iterator[memoryview]:
    """Yield a CopyData message for each row of a text or CSV COPY."""
    size = np.full(rows, 5 + max(len(columns), 1), np.int64)
    for column in columns:
        size += np.where(column.length < 0, len(null), column.length)
    nothing = np.frombuffer(null, np.uint8)
    for first, last in _chunks(size):
        at, total = _offsets(size[first:last])
        out = np.empty(total, np.uint8)
        kernel.frame(out, at, size[first:last], ord("d"), -1)
        for number, column in enumerate(columns, 1):
            end = 10 if number == len(columns) else separator[0]
            kernel.place_text(out, at, column.data, column.start[first:last], column.length[first:last], nothing, end)
        yield out.data


def _chunks(size: Longs) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(size)
    first = 0
    while first < len(size):
        done = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + _CHUNK_BYTES, "right")))
        yield first, last
        first = last


def _offsets(size: Longs) -> tuple[Longs, int]:
    ends = np.cumsum(size)
    return ends - size, int(ends[-1])


def encode_column(array: pa.Array, type_: WireType, binary: bool) -> EncodedColumn:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    # DuckDB may take a NULL that it computes beforehand for an integer.
    if array.null_count == len(array):
        return EncodedColumn(_EMPTY, np.zeros(len(array), np.int64), np.full(len(array), kernel.NULL, np.int64))
    if type_.element is not None:
        return _lists(array, type_.element, binary)
    if pa.types.is_string(array.type):
        return _texts(array, type_, binary)
    encoder = (_BINARY if binary else _TEXT).get(type_.oid, _strings)
    return encoder(array, type_)


def _texts(array: pa.Array, type_: WireType, binary: bool) -> EncodedColumn:
    """Encode PostgreSQL's text of values; the binary form of some types differs."""
    encoder = _BINARY_OF_TEXT.get(type_.oid) if binary else None
    if encoder is None:
        return _strings(array, type_)
    return from_values([None if text is None else encoder(text) for text in array.to_pylist()])


def from_values(values: Sequence[bytes | None]) -> EncodedColumn:
    length = np.array([kernel.NULL if v is None else len(v) for v in values], np.int64)
    size = np.maximum(length, 0)
    data = np.frombuffer(b"".join([v or b"" for v in values]) or b"\0", np.uint8)
    return EncodedColumn(data, np.cumsum(size) - size, length)


def _valid(array: pa.Array) -> Bytes:
    if array.null_count == 0:
        return np.ones(len(array), np.uint8)
    bits = np.frombuffer(array.buffers()[0], np.uint8)
    return np.unpackbits(bits, count=array.offset + len(array), bitorder="little")[array.offset :]


def _numbers(array: pa.Array, kind: str) -> npt.NDArray[Any]:
    if len(array) == 0:
        return np.empty(0, kind)
    return np.frombuffer(array.buffers()[1], kind)[array.offset : array.offset + len(array)]


def _longs(array: pa.Array) -> Longs:
    kinds = {8: "i1", 16: "i2", 32: "i4", 64: "i8"}
    kind = kinds[array.type.bit_width]
    if pa.types.is_unsigned_integer(array.type):
        kind = kind.replace("i", "u")
    return np.ascontiguousarray(_numbers(array, kind).astype(np.int64, copy=False))


def _slots(rows: int) -> tuple[Bytes, Longs, Longs]:
    return np.empty(rows * kernel.SLOT, np.uint8), np.zeros(rows, np.int64), np.empty(rows, np.int64)


def _strings(array: pa.Array, type_: WireType) -> EncodedColumn:  # noqa: ARG001
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    length = np.diff(offsets)
    if array.null_count:
        length = np.where(_valid(array) == 0, kernel.NULL, length)
    data = array.buffers()[2]
    return EncodedColumn(
        _EMPTY if data is None or not data.size else np.frombuffer(data, np.uint8), offsets[:-1].copy(), length
    )


def _booleans(array: pa.Array, type_: WireType) -> EncodedColumn:  # noqa: ARG001
    start = 1 - _bits(array).astype(np.int64)
    return EncodedColumn(np.frombuffer(b"tf", np.uint8), start, _fixed_length(array, 1))


def _bits(array: pa.Array) -> Bytes:
    raw = np.frombuffer(array.buffers()[1], np.uint8)
    return np.unpackbits(raw, count=array.offset + len(array), bitorder="little")[array.offset :]


def _fixed_length(array: pa.Array, size: int) -> Longs:
    length = np.full(len(array), size, np.int64)
    if array.null_count:
        length[_valid(array) == 0] = kernel.NULL
    return length


def _with_kernel(loop: Callable[..., None], *arguments: Any) -> Callable[[pa.Array, WireType], EncodedColumn]:
    """An encoder that writes integers as text with a compiled loop."""

    def encode(array: pa.Array, type_: WireType) -> EncodedColumn:  # noqa: ARG001
        if pa.types.is_timestamp(array.type) and array.type.unit != "us":
            array = pc.cast(array, pa.timestamp("us"), safe=False)
        data, start, length = _slots(len(array))
        loop(_longs(array), _valid(array), *arguments, data, start, length)
        return _fill_others(
            EncodedColumn(data, start, length), array, lambda left: [str(v).encode() for v in left.to_pylist()]
        )

    return encode


def _fill_others(found: EncodedColumn, array: pa.Array, rest: Callable[[pa.Array], list[bytes]]) -> EncodedColumn:
    """Fill in the values that the compiled loop left out."""
    left = np.flatnonzero(found.length == kernel.OTHER)
    if not len(left):
        return found
    more = from_values(rest(array.take(pa.array(left))))
    found.start[left] = more.start + len(found.data)
    found.length[left] = more.length
    return EncodedColumn(np.concatenate((found.data, more.data)), found.start, found.length)


def _words(array: pa.Array) -> Longs:
    raw = np.frombuffer(array.buffers()[1], np.int64) if len(array) else np.empty(0, np.int64)
    return raw[2 * array.offset : 2 * (array.offset + len(array))]


def _decimals(array: pa.Array, type_: WireType) -> EncodedColumn:  # noqa: ARG001
    return _encode_decimals(array, kernel.decimals, value_format.decimals)


def _numerics(array: pa.Array, type_: WireType) -> EncodedColumn:  # noqa: ARG001
    return _encode_decimals(array, kernel.numerics, value_format.binary_numerics)


def _encode_decimals(
    array: pa.Array, kernel_loop: Callable[..., None], others: Callable[[pa.Array], list[bytes]]
) -> EncodedColumn:
    """Encode values of up to 64 bits with `kernel_loop` and the rest with `others`."""
    if not pa.types.is_decimal(array.type):
        array = pc.cast(array, pa.decimal128(20, 0))
    data, start, length = _slots(len(array))
    kernel_loop(_words(array), _valid(array), array.type.scale, data, start, length)
    return _fill_others(EncodedColumn(data, start, length), array, others)


def _doubles(array: pa.Array, type_: WireType) -> EncodedColumn:  # noqa: ARG001
    data, start, length = _slots(len(array))
    kernel.floats(np.ascontiguousarray(_numbers(array, "f8")), _valid(array), data, start, length)
    return _fill_others(EncodedColumn(data, start, length), array, value_format.doubles)


def _singles(array: pa.Array, type_: WireType) -> EncodedColumn:  # noqa: ARG001
    return from_values(value_format.singles(array))


def _bytea(array: pa.Array, type_: WireType) -> EncodedColumn:
    raw = _strings(array, type_)
    length = np.where(raw.length < 0, raw.length, 2 * raw.length + 2)
    size = np.maximum(length, 0)
    begin = np.cumsum(size) - size
    out = np.empty(max(int(size.sum()), 1), np.uint8)
    kernel.hexadecimal(raw.data, raw.start, raw.length, out, begin)
    return EncodedColumn(out, begin, length)


def _intervals(array: pa.Array, type_: WireType) -> EncodedColumn:  # noqa: ARG001
    return from_values([None if v is None else value_format.interval(*v).encode() for v in array.to_pylist()])


def _big_endian(
    kind: str, change: Callable[[Longs], Longs] | None = None
) -> Callable[[pa.Array, WireType], EncodedColumn]:
    """An encoder for big-endian numbers of a fixed size."""

    def encode(array: pa.Array, type_: WireType) -> EncodedColumn:  # noqa: ARG001
        if pa.types.is_timestamp(array.type) and array.type.unit != "us":
            array = pc.cast(array, pa.timestamp("us"), safe=False)
        is_float = pa.types.is_floating(array.type)
        values = _numbers(array, f"f{array.type.bit_width // 8}") if is_float else _longs(array)
        raw = (change(values) if change else values).astype(f">{kind}")
        size = raw.dtype.itemsize
        data = np.frombuffer(raw.tobytes() or b"\0", np.uint8)
        return EncodedColumn(data, np.arange(len(array), dtype=np.int64) * size, _fixed_length(array, size))

    return encode


def _since_2000(infinity: int, low: int, shift: int) -> Callable[[Longs], Longs]:
    def change(values: Longs) -> Longs:
        moved = np.where(values == infinity, infinity, values - shift)
        return np.where(values == -infinity, low, moved)

    return change


def _binary_booleans(array: pa.Array, type_: WireType) -> EncodedColumn:  # noqa: ARG001
    return EncodedColumn(np.frombuffer(b"\x00\x01", np.uint8), _bits(array).astype(np.int64), _fixed_length(array, 1))


def _binary_intervals(array: pa.Array, type_: WireType) -> EncodedColumn:  # noqa: ARG001
    return from_values([None if v is None else value_format.binary_interval(*v) for v in array.to_pylist()])


def _lists(array: pa.Array, element: WireType, binary: bool) -> EncodedColumn:
    inner = encode_column(array.flatten(), element, binary).values()
    counts = pc.list_value_length(array).to_pylist()
    found: list[bytes | None] = []
    at = 0
    for count in counts:
        if count is None:
            found.append(None)
            continue
        items = inner[at : at + count]
        at += count
        found.append(value_format.binary_array(items, element.oid) if binary else value_format.array(items))
    return from_values(found)


_TEXT: Final[dict[int, Callable[[pa.Array, WireType], EncodedColumn]]] = {
    16: _booleans,
    20: _with_kernel(kernel.integers),
    21: _with_kernel(kernel.integers),
    23: _with_kernel(kernel.integers),
    26: _with_kernel(kernel.integers),
    28: _with_kernel(kernel.integers),
    700: _singles,
    701: _doubles,
    wire_type.NUMERIC: _decimals,
    17: _bytea,
    1082: _with_kernel(kernel.dates),
    1083: _with_kernel(kernel.times),
    1114: _with_kernel(kernel.timestamps, False),
    1184: _with_kernel(kernel.timestamps, True),
    1186: _intervals,
}
_BINARY: Final[dict[int, Callable[[pa.Array, WireType], EncodedColumn]]] = {
    16: _binary_booleans,
    20: _big_endian("i8"),
    21: _big_endian("i2"),
    23: _big_endian("i4"),
    **dict.fromkeys((26, 28, 2205, 2206, 4089, 4096), _big_endian("u4")),
    700: _big_endian("f4"),
    701: _big_endian("f8"),
    wire_type.NUMERIC: _numerics,
    1082: _big_endian("i4", _since_2000(2**31 - 1, -(2**31), _DAYS_TO_2000)),
    1083: _big_endian("i8"),
    1114: _big_endian("i8", _since_2000(2**63 - 1, -(2**63), _US_TO_2000)),
    1184: _big_endian("i8", _since_2000(2**63 - 1, -(2**63), _US_TO_2000)),
    1186: _binary_intervals,
}
_BINARY_OF_TEXT: Final[dict[int, Callable[[str], bytes]]] = {
    wire_type.NUMERIC: lambda text: value_format.binary_numeric_text(text),
    2950: lambda text: bytes.fromhex(text.replace("-", "")),
    3802: lambda text: b"\x01" + text.encode(),
}
