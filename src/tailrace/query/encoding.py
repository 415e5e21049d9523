"""Arrow batches into PostgreSQL's messages: columns into cells, whole columns at a time, cells into rows.

A cell is a value's text or binary form. Numbers, dates and strings are made by compiled loops; what is rare (intervals,
arrays, floats of 17 digits, decimals beyond 64 bits) is made in plain Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.query import kernel, oid, text_form
from tailrace.query.oid import WireType
from tailrace.query.shape import NUMERIC

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]

# Messages are handed to the socket in pieces of about this size, however large a batch is.
_PIECE: Final = 1 << 20
_DAYS_TO_2000: Final = 10_957
_US_TO_2000: Final = _DAYS_TO_2000 * 86_400_000_000
_EMPTY: Final = np.zeros(1, np.uint8)


class Cells(NamedTuple):
    data: Bytes
    start: Longs
    length: Longs
    """-1 for NULL."""

    def values(self) -> list[bytes | None]:
        raw = self.data.tobytes()
        pairs = zip(self.start.tolist(), self.length.tolist(), strict=True)
        return [None if count < 0 else raw[begin : begin + count] for begin, count in pairs]


def data_rows(batch: pa.RecordBatch, types: Sequence[WireType], formats: Sequence[int]) -> Iterator[memoryview]:
    """A DataRow for each row."""
    columns = [cells(batch.column(n), types[n], bool(formats[n])) for n in range(batch.num_columns)]
    return messages(columns, batch.num_rows, b"D")


def messages(columns: Sequence[Cells], rows: int, letter: bytes) -> Iterator[memoryview]:
    """A message for each row: the number of cells, then each with its length before it. A row of a binary COPY is one
    with another letter."""
    size = np.full(rows, 7 + 4 * len(columns), np.int64)
    for column in columns:
        size += np.maximum(column.length, 0)
    for first, last in _pieces(size):
        at, total = _places(size[first:last])
        out = np.empty(total, np.uint8)
        kernel.frame(out, at, size[first:last], letter[0], len(columns))
        for column in columns:
            kernel.place(out, at, column.data, column.start[first:last], column.length[first:last])
        yield out.data


def lines(columns: Sequence[Cells], rows: int, separator: bytes, null: bytes) -> Iterator[memoryview]:
    """A CopyData for each row of a text COPY."""
    size = np.full(rows, 5 + max(len(columns), 1), np.int64)
    for column in columns:
        size += np.where(column.length < 0, len(null), column.length)
    nothing = np.frombuffer(null, np.uint8)
    for first, last in _pieces(size):
        at, total = _places(size[first:last])
        out = np.empty(total, np.uint8)
        kernel.frame(out, at, size[first:last], ord("d"), -1)
        for number, column in enumerate(columns, 1):
            end = 10 if number == len(columns) else separator[0]
            kernel.place_text(out, at, column.data, column.start[first:last], column.length[first:last], nothing, end)
        yield out.data


def _pieces(size: Longs) -> Iterator[tuple[int, int]]:
    ends = np.cumsum(size)
    first = 0
    while first < len(size):
        done = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, done + _PIECE, "right")))
        yield first, last
        first = last


def _places(size: Longs) -> tuple[Longs, int]:
    ends = np.cumsum(size)
    return ends - size, int(ends[-1])


def cells(array: pa.Array, type_: WireType, binary: bool) -> Cells:
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return Cells(_EMPTY, np.zeros(len(array), np.int64), np.full(len(array), kernel.NULL, np.int64))
    if type_.element is not None:
        return _lists(array, type_.element, binary)
    if type_.oid == oid.BPCHAR and type_.modifier > 4:
        array = pc.utf8_rpad(array, type_.modifier - 4)
    maker = (_BINARY if binary else _TEXT).get(type_.oid, _strings)
    return maker(array, type_)


def from_values(values: Sequence[bytes | None]) -> Cells:
    length = np.array([kernel.NULL if v is None else len(v) for v in values], np.int64)
    size = np.maximum(length, 0)
    data = np.frombuffer(b"".join([v or b"" for v in values]) or b"\0", np.uint8)
    return Cells(data, np.cumsum(size) - size, length)


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


def _strings(array: pa.Array, type_: WireType) -> Cells:  # noqa: ARG001
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1].astype(np.int64)
    length = np.diff(offsets)
    if array.null_count:
        length = np.where(_valid(array) == 0, kernel.NULL, length)
    data = array.buffers()[2]
    return Cells(
        _EMPTY if data is None or not data.size else np.frombuffer(data, np.uint8), offsets[:-1].copy(), length
    )


def _booleans(array: pa.Array, type_: WireType) -> Cells:  # noqa: ARG001
    start = 1 - _bits(array).astype(np.int64)
    return Cells(np.frombuffer(b"tf", np.uint8), start, _fixed_length(array, 1))


def _bits(array: pa.Array) -> Bytes:
    raw = np.frombuffer(array.buffers()[1], np.uint8)
    return np.unpackbits(raw, count=array.offset + len(array), bitorder="little")[array.offset :]


def _fixed_length(array: pa.Array, size: int) -> Longs:
    length = np.full(len(array), size, np.int64)
    if array.null_count:
        length[_valid(array) == 0] = kernel.NULL
    return length


def _by(loop: Callable[..., None], *arguments: Any) -> Callable[[pa.Array, WireType], Cells]:
    """Whole numbers through a loop that writes texts."""

    def make(array: pa.Array, type_: WireType) -> Cells:  # noqa: ARG001
        if pa.types.is_timestamp(array.type) and array.type.unit != "us":
            array = pc.cast(array, pa.timestamp("us"), safe=False)
        data, start, length = _slots(len(array))
        loop(_longs(array), _valid(array), *arguments, data, start, length)
        return _completed(Cells(data, start, length), array, lambda left: [str(v).encode() for v in left.to_pylist()])

    return make


def _completed(found: Cells, array: pa.Array, rest: Callable[[pa.Array], list[bytes]]) -> Cells:
    """With what the loop left to others."""
    left = np.flatnonzero(found.length == kernel.OTHER)
    if not len(left):
        return found
    more = from_values(rest(array.take(pa.array(left))))
    found.start[left] = more.start + len(found.data)
    found.length[left] = more.length
    return Cells(np.concatenate((found.data, more.data)), found.start, found.length)


def _words(array: pa.Array) -> Longs:
    raw = np.frombuffer(array.buffers()[1], np.int64) if len(array) else np.empty(0, np.int64)
    return raw[2 * array.offset : 2 * (array.offset + len(array))]


def _decimals(array: pa.Array, type_: WireType) -> Cells:
    return _exact(array, type_, kernel.decimals, text_form.decimals)


def _numerics(array: pa.Array, type_: WireType) -> Cells:
    return _exact(array, type_, kernel.numerics, text_form.binary_numerics)


def _exact(
    array: pa.Array, type_: WireType, written: Callable[..., None], others: Callable[[pa.Array, bool], list[bytes]]
) -> Cells:
    """`written` writes those that fit 64 bits, `others` the rest."""
    if not pa.types.is_decimal(array.type):
        array = pc.cast(array, pa.decimal128(20, 0))
    trim = _is_trimmed(array)
    data, start, length = _slots(len(array))
    written(_words(array), _valid(array), type_.scale or 0, trim, data, start, length)
    return _completed(Cells(data, start, length), array, lambda left: others(left, trim))


def _is_trimmed(array: pa.Array) -> bool:
    """A numeric without a precision: zeros at its end say nothing."""
    return (array.type.precision, array.type.scale) == NUMERIC


def _doubles(array: pa.Array, type_: WireType) -> Cells:  # noqa: ARG001
    data, start, length = _slots(len(array))
    kernel.floats(np.ascontiguousarray(_numbers(array, "f8")), _valid(array), data, start, length)
    return _completed(Cells(data, start, length), array, text_form.doubles)


def _singles(array: pa.Array, type_: WireType) -> Cells:  # noqa: ARG001
    return from_values(text_form.singles(array))


def _bytea(array: pa.Array, type_: WireType) -> Cells:
    raw = _strings(array, type_)
    length = np.where(raw.length < 0, raw.length, 2 * raw.length + 2)
    size = np.maximum(length, 0)
    begin = np.cumsum(size) - size
    out = np.empty(max(int(size.sum()), 1), np.uint8)
    kernel.hexadecimal(raw.data, raw.start, raw.length, out, begin)
    return Cells(out, begin, length)


def _intervals(array: pa.Array, type_: WireType) -> Cells:  # noqa: ARG001
    return from_values([None if v is None else text_form.interval(*v).encode() for v in array.to_pylist()])


def _fixed(kind: str, change: Callable[[Longs], Longs] | None = None) -> Callable[[pa.Array, WireType], Cells]:
    """Numbers of one size, highest byte first."""

    def make(array: pa.Array, type_: WireType) -> Cells:  # noqa: ARG001
        if pa.types.is_timestamp(array.type) and array.type.unit != "us":
            array = pc.cast(array, pa.timestamp("us"), safe=False)
        is_float = pa.types.is_floating(array.type)
        values = _numbers(array, f"f{array.type.bit_width // 8}") if is_float else _longs(array)
        raw = (change(values) if change else values).astype(f">{kind}")
        size = raw.dtype.itemsize
        data = np.frombuffer(raw.tobytes() or b"\0", np.uint8)
        return Cells(data, np.arange(len(array), dtype=np.int64) * size, _fixed_length(array, size))

    return make


def _since_2000(infinity: int, low: int, shift: int) -> Callable[[Longs], Longs]:
    def change(values: Longs) -> Longs:
        moved = np.where(values == infinity, infinity, values - shift)
        return np.where(values == -infinity, low, moved)

    return change


def _binary_booleans(array: pa.Array, type_: WireType) -> Cells:  # noqa: ARG001
    return Cells(np.frombuffer(b"\x00\x01", np.uint8), _bits(array).astype(np.int64), _fixed_length(array, 1))


def _binary_uuids(array: pa.Array, type_: WireType) -> Cells:  # noqa: ARG001
    return from_values([None if v is None else bytes.fromhex(v.replace("-", "")) for v in array.to_pylist()])


def _binary_intervals(array: pa.Array, type_: WireType) -> Cells:  # noqa: ARG001
    return from_values([None if v is None else text_form.binary_interval(*v) for v in array.to_pylist()])


def _lists(array: pa.Array, element: WireType, binary: bool) -> Cells:
    inner = cells(array.flatten(), element, binary).values()
    counts = pc.list_value_length(array).to_pylist()
    found: list[bytes | None] = []
    at = 0
    for count in counts:
        if count is None:
            found.append(None)
            continue
        items = inner[at : at + count]
        at += count
        found.append(text_form.binary_array(items, element.oid) if binary else text_form.array(items))
    return from_values(found)


_TEXT: Final[dict[int, Callable[[pa.Array, WireType], Cells]]] = {
    16: _booleans,
    20: _by(kernel.integers),
    21: _by(kernel.integers),
    23: _by(kernel.integers),
    700: _singles,
    701: _doubles,
    oid.NUMERIC: _decimals,
    17: _bytea,
    1082: _by(kernel.dates),
    1083: _by(kernel.times),
    1114: _by(kernel.timestamps, False),
    1184: _by(kernel.timestamps, True),
    1186: _intervals,
}
_BINARY: Final[dict[int, Callable[[pa.Array, WireType], Cells]]] = {
    16: _binary_booleans,
    20: _fixed("i8"),
    21: _fixed("i2"),
    23: _fixed("i4"),
    700: _fixed("f4"),
    701: _fixed("f8"),
    oid.NUMERIC: _numerics,
    2950: _binary_uuids,
    1082: _fixed("i4", _since_2000(2**31 - 1, -(2**31), _DAYS_TO_2000)),
    1083: _fixed("i8"),
    1114: _fixed("i8", _since_2000(2**63 - 1, -(2**63), _US_TO_2000)),
    1184: _fixed("i8", _since_2000(2**63 - 1, -(2**63), _US_TO_2000)),
    1186: _binary_intervals,
}
