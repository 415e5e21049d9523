"""Converts the cells of one column to an Arrow array of the column's mapped type.

The compiled loops are imported where they are called: numba takes half a second of processor time to load, and most of
the processes that Spark starts for a source never read a value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.images import Mask
from tailrace.types import Form, TypeMapping

if TYPE_CHECKING:
    from tailrace.pgoutput import kernel

_LARGEST_COLUMN: Final = 2**31 - 1


@dataclass(frozen=True)
class Cells:
    """The places of values in a buffer, by column and row; see `kernel`."""

    data: kernel.Bytes
    start: kernel.Longs
    length: kernel.Longs

    @classmethod
    def empty(cls, data: kernel.Bytes, columns: int, count: int) -> Cells:
        return cls(data, np.empty((columns, count), np.int64), np.empty((columns, count), np.int64))

    @classmethod
    def of(cls, texts: pa.StringArray) -> Cells:
        """The cells of one column that was already read as text."""
        from tailrace.pgoutput import kernel

        _, offsets, data = texts.buffers()
        places = np.frombuffer(offsets, np.int32)[texts.offset : texts.offset + len(texts) + 1].astype(np.int64)
        valid = texts.is_valid().to_numpy(zero_copy_only=False)
        length = np.where(valid, np.diff(places), kernel.NULL)
        return cls(np.frombuffer(data if data is not None else b"", np.uint8), places[:-1].copy(), length)

    def column(self, index: int) -> Cells:
        return Cells(self.data, self.start[index], self.length[index])

    def text(self, row: int) -> bytes:
        begin = self.start[row]
        return self.data[begin : begin + self.length[row]].tobytes()


class UnreadableError(Exception):
    """A value's text does not follow PostgreSQL's format. The message omits the value; `decoder` adds the column."""


_Column = tuple[pa.Array, npt.NDArray[np.intp]]
_NONE: Final = np.empty(0, np.intp)


def read(cells: Cells, mapping: TypeMapping) -> tuple[pa.Array, npt.NDArray[np.intp]]:
    """Return the column's array and the rows with special values, which are NULL in the array though they have text."""
    return _READERS[mapping.form](cells, mapping)


def bitmap(valid: Mask) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _check(bad: int) -> None:
    if bad >= 0:
        raise UnreadableError(f"the value in row {bad} does not have PostgreSQL's text format for this type")


def _finish(type_: pa.DataType, values: npt.NDArray[Any], state: kernel.Bytes) -> _Column:
    from tailrace.pgoutput import kernel

    valid = state == kernel.VALUE
    array = pa.Array.from_buffers(type_, len(state), [bitmap(valid), pa.py_buffer(values)])
    return array, np.flatnonzero(state == kernel.SPECIAL)


def _concatenate(cells: Cells, type_: pa.DataType, unhex: bool = False) -> pa.Array:
    from tailrace.pgoutput import kernel

    total = int(np.maximum(cells.length, 0).sum())
    if total > _LARGEST_COLUMN:
        raise UnreadableError(f"{total} bytes are too many for one batch; decode fewer rows at a time")
    count = len(cells.start)
    offsets, out = np.empty(count + 1, np.int32), np.empty(total // 2 if unhex else total, np.uint8)
    if unhex:
        _check(kernel.unhex(cells.data, cells.start, cells.length, offsets, out))
    else:
        kernel.gather(cells.data, cells.start, cells.length, offsets, out)
    buffers = [bitmap(cells.length >= 0), pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(type_, count, buffers)


def _text(cells: Cells, mapping: TypeMapping) -> _Column:
    array = _concatenate(cells, mapping.arrow)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise UnreadableError("a value is not valid UTF-8") from None
    return array, _NONE


def _binary(cells: Cells, mapping: TypeMapping) -> _Column:
    return _concatenate(cells, mapping.arrow, unhex=True), _NONE


def _float(cells: Cells, mapping: TypeMapping) -> _Column:
    # Arrow rounds once, to the requested width, and parses PostgreSQL's NaN and Infinity.
    try:
        return pc.cast(_concatenate(cells, pa.string()), mapping.arrow), _NONE
    except pa.ArrowInvalid:
        raise UnreadableError("a value is not a float") from None


def _boolean(cells: Cells, mapping: TypeMapping) -> _Column:
    valid = cells.length >= 0
    letters = np.zeros(len(valid), np.uint8)
    if (cells.length[valid] != 1).any():
        raise UnreadableError("a value is not a boolean")
    letters[valid] = cells.data[cells.start[valid]]
    true = letters == ord("t")
    if (valid & ~true & (letters != ord("f"))).any():
        raise UnreadableError("a value is not a boolean")
    return pa.array(true, mapping.arrow, mask=~valid), _NONE


def _integer(cells: Cells, mapping: TypeMapping) -> _Column:
    from tailrace.pgoutput import kernel_number

    out, state = _outputs(cells)
    dtype = mapping.arrow.to_pandas_dtype()
    limits = np.iinfo(dtype)
    _check(kernel_number.integers(cells.data, cells.start, cells.length, limits.min, limits.max, out, state))
    return _finish(mapping.arrow, out.astype(dtype, copy=False), state)


def _outputs(cells: Cells) -> tuple[kernel.Longs, kernel.Bytes]:
    count = len(cells.start)
    return np.empty(count, np.int64), np.empty(count, np.uint8)


def _decimal(cells: Cells, mapping: TypeMapping) -> _Column:
    from tailrace.pgoutput import kernel_number

    state = np.empty(len(cells.start), np.uint8)
    words = np.empty((len(state), 2), np.uint64)
    precision, scale, money = mapping.arrow.precision, mapping.arrow.scale, mapping.form is Form.MONEY
    _check(kernel_number.decimals(cells.data, cells.start, cells.length, precision, scale, money, words, state))
    return _finish(mapping.arrow, words, state)


def _temporal(cells: Cells, mapping: TypeMapping) -> _Column:
    from tailrace.pgoutput import kernel_time

    out, state = _outputs(cells)
    kind = {
        Form.DATE: kernel_time.DATE,
        Form.TIMESTAMP: kernel_time.TIMESTAMP,
        Form.TIMESTAMPTZ: kernel_time.TIMESTAMPTZ,
        Form.TIME: kernel_time.TIME,
    }[mapping.form]
    _check(kernel_time.temporals(cells.data, cells.start, cells.length, kind, out, state))
    return _finish(mapping.arrow, out.astype(np.int32) if mapping.form is Form.DATE else out, state)


def _interval(cells: Cells, mapping: TypeMapping) -> _Column:
    from tailrace.pgoutput import kernel, kernel_time

    microseconds, state = _outputs(cells)
    months, days = np.empty(len(state), np.int32), np.empty(len(state), np.int32)
    _check(kernel_time.intervals(cells.data, cells.start, cells.length, months, days, microseconds, state))
    children = [pa.array(values) for values in (months, days, microseconds)]
    valid = state == kernel.VALUE
    array = pa.Array.from_buffers(mapping.arrow, len(state), [bitmap(valid)], children=children)
    return array, np.flatnonzero(state == kernel.SPECIAL)


_READERS: Final[dict[Form, Callable[[Cells, TypeMapping], _Column]]] = {
    Form.BOOLEAN: _boolean,
    Form.INTEGER: _integer,
    Form.FLOAT: _float,
    Form.DECIMAL: _decimal,
    Form.MONEY: _decimal,
    Form.TEXT: _text,
    Form.NUMERIC: _text,
    Form.JSON: _text,
    Form.BINARY: _binary,
    Form.DATE: _temporal,
    Form.TIMESTAMP: _temporal,
    Form.TIMESTAMPTZ: _temporal,
    Form.TIME: _temporal,
    Form.INTERVAL: _interval,
}
