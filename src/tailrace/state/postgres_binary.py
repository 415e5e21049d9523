"""Typed columns as rows of COPY's binary format, which a server reads faster than text.

It is for ordinary values of common types only. Whatever else there is goes through text: see `postgres_text`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import types
from tailrace.change import Column
from tailrace.text import DATE_INFINITY, DAY_US, TIMESTAMP_INFINITY

HEADER: Final = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER: Final = b"\xff\xff"

_EPOCH_DAYS: Final = 10_957
"""From 1970-01-01 to 2000-01-01, where PostgreSQL's binary dates begin."""
_DIGIT_GROUP: Final = 4
"""Decimal digits in one digit of a binary numeric."""
_MOST_DIGITS: Final = 18
"""Of a numeric that fits into 64 bits."""
_ROWS: Final = 16_384
# Arrow counts the bytes of an array of strings in 32 bits.
_MAX_BYTES: Final = 1 << 29
_NULL: Final = b"\xff\xff\xff\xff"

Values = npt.NDArray[Any]
_TEXTS: Final = frozenset({"text", "varchar", "bpchar", "json"})


def is_supported(column: Column) -> bool:
    """Whether ordinary values of the column can be written."""
    return _fixed(column) is not None or _variable(column) is not None


def rows(arrays: Sequence[pa.Array], columns: Sequence[Column]) -> bytes | None:
    """Rows without header and trailer; None if they would be too large for one array.

    Args:
        arrays: The values, at least one column.
        columns: Their columns, all of them supported.
    """
    count = len(arrays[0])
    if sum(array.nbytes for array in arrays) > _MAX_BYTES:
        return None
    return b"".join(_rows([array.slice(start, _ROWS) for array in arrays], columns) for start in range(0, count, _ROWS))


def _rows(arrays: Sequence[pa.Array], columns: Sequence[Column]) -> bytes:
    """Neighbouring values of a fixed size become one piece, which ends with the size of what follows."""
    count = len(arrays[0])
    pieces: list[pa.Array] = []
    fixed: list[Values] = [np.full(count, len(columns), ">i2")]

    def end_piece() -> None:
        if fixed:
            pieces.append(_binary(_packed(fixed)))
            fixed.clear()

    for array, column in zip(arrays, columns, strict=True):
        encode = _fixed(column)
        if encode is not None:
            values = encode(_without_nulls(array))
            sized = [np.full(count, sum(each.dtype.itemsize for each in values), ">i4"), *values]
            if array.null_count:
                end_piece()
                whole = _binary(_packed(sized))
                pieces.append(pc.if_else(array.is_valid(), whole, pa.scalar(_NULL, pa.binary())))
            else:
                fixed += sized
            continue
        convert = _variable(column)
        assert convert is not None
        content = convert(array)
        sizes = pc.binary_length(content).fill_null(-1).to_numpy(zero_copy_only=False)
        fixed.append(sizes.astype(">i4"))
        end_piece()
        pieces.append(content.fill_null(b"") if content.null_count else content)
    end_piece()
    joined = pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, b"")
    offsets = np.frombuffer(joined.buffers()[1], np.int32)[joined.offset : joined.offset + count + 1]
    return bytes(joined.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0])))


def _packed(fields: Sequence[Values]) -> Values:
    packed = np.empty(len(fields[0]), [(f"f{number}", each.dtype) for number, each in enumerate(fields)])
    for number, each in enumerate(fields):
        packed[f"f{number}"] = each
    return packed


def _binary(packed: Values) -> pa.Array:
    width = packed.dtype.itemsize
    offsets = np.arange(0, (len(packed) + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.binary(), len(packed), [None, pa.py_buffer(offsets), pa.py_buffer(packed)])


def _without_nulls(array: pa.Array) -> pa.Array:
    """The array with any value where it is NULL."""
    if not array.null_count:
        return array
    if pa.types.is_string(array.type):
        return array.fill_null("0" * 32)  # a UUID
    return pa.Array.from_buffers(array.type, len(array), [None, array.buffers()[1]], offset=array.offset)


def _fixed(column: Column) -> Callable[[pa.Array], list[Values]] | None:
    """Converts values that all have the same size."""
    if column.type.schema != "pg_catalog":
        return None
    if column.type.name == "numeric":
        return _numeric(types.mapping(column).arrow)
    return _FIXED.get(column.type.name)


def _variable(column: Column) -> Callable[[pa.Array], pa.Array] | None:
    if column.type.kind == "e":
        return _text
    if column.type.schema != "pg_catalog":
        return None
    if column.type.name in _TEXTS:
        return _text
    return {"bytea": _text, "jsonb": _jsonb}.get(column.type.name)


def _text(array: pa.Array) -> pa.Array:
    return array.cast(pa.binary())


def _jsonb(array: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(b"\x01", array.cast(pa.binary()), b"")


def _number(type_: str) -> Callable[[pa.Array], list[Values]]:
    return lambda array: [array.to_numpy(zero_copy_only=False).astype(type_)]


def _date(array: pa.Array) -> list[Values]:
    days = array.view(pa.int32()).to_numpy(zero_copy_only=False)
    sent = (days.astype(np.int64) - _EPOCH_DAYS).astype(">i4")
    sent[days == DATE_INFINITY] = 2**31 - 1
    sent[days == -DATE_INFINITY] = -(2**31)
    return [sent]


def _timestamp(array: pa.Array) -> list[Values]:
    microseconds = array.view(pa.int64()).to_numpy(zero_copy_only=False)
    sent = (microseconds - _EPOCH_DAYS * DAY_US).astype(">i8")
    sent[microseconds == TIMESTAMP_INFINITY] = 2**63 - 1
    sent[microseconds == -TIMESTAMP_INFINITY] = -(2**63)
    return [sent]


def _time(array: pa.Array) -> list[Values]:
    return [array.view(pa.int64()).to_numpy(zero_copy_only=False).astype(">i8")]


def _uuid(array: pa.Array) -> list[Values]:
    digits = pc.binary_join(
        pa.ListArray.from_arrays(
            pa.array([0, len(array)], pa.int32()), pc.replace_substring(array, pattern="-", replacement="")
        ),
        "",
    )
    return [np.frombuffer(bytes.fromhex(digits[0].as_py()), "V16")]


def _numeric(type_: pa.DataType) -> Callable[[pa.Array], list[Values]] | None:
    """Numerics of up to 64 bits, with a fixed number of digits: PostgreSQL drops leading and trailing zeros itself."""
    if not pa.types.is_decimal(type_):
        return None
    padding = -type_.scale % _DIGIT_GROUP
    if type_.precision + padding > _MOST_DIGITS:
        return None
    groups = -(-(type_.precision + padding) // _DIGIT_GROUP)
    weight = groups - (type_.scale + padding) // _DIGIT_GROUP - 1

    def encode(array: pa.Array) -> list[Values]:
        words = np.frombuffer(array.buffers()[1], np.int64)  # two for each value, the lower one first
        values = words[2 * array.offset : 2 * (array.offset + len(array)) : 2]
        header = np.empty((len(array), 4), ">i2")
        header[:] = (groups, weight, 0, type_.scale)
        header[values < 0, 2] = 0x4000
        digits = np.empty((len(array), groups), ">i2")
        rest = np.abs(values) * 10**padding
        for place in range(groups - 1, -1, -1):
            rest, digits[:, place] = np.divmod(rest, 10**_DIGIT_GROUP)
        return [_opaque(header), _opaque(digits)]

    return encode


def _opaque(matrix: Values) -> Values:
    """Each row of a matrix as one value."""
    return np.ascontiguousarray(matrix).view(f"V{matrix.shape[1] * matrix.dtype.itemsize}").reshape(-1)


_FIXED: Final[dict[str, Callable[[pa.Array], list[Values]]]] = {
    "bool": _number("i1"),
    "int2": _number(">i2"),
    "int4": _number(">i4"),
    "int8": _number(">i8"),
    "float4": _number(">f4"),
    "float8": _number(">f8"),
    "date": _date,
    "timestamp": _timestamp,
    "timestamptz": _timestamp,
    "time": _time,
    "uuid": _uuid,
}
