"""Decodes the row messages of one relation, a batch at a time, to typed Arrow columns.

`decode` reads pgoutput's insert, update and delete messages, `decode_copy` the text format of COPY. Both locate the
values and then read them with the same code, so snapshot and stream agree on every value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tailrace import types
from tailrace.change import Relation
from tailrace.errors import DecodeError
from tailrace.images import Images, Mask, record_batch
from tailrace.pgoutput import message
from tailrace.pgoutput.cell import Cells, UnreadableError, bitmap, read

if TYPE_CHECKING:
    from tailrace.pgoutput import kernel


@dataclass(frozen=True)
class DecodedImages:
    old: Images
    old_is_key: Mask
    """Rows whose old image has only the replica identity's columns; the others are NULL and carry no information."""
    new: Images


def decode(relation: Relation, payloads: pa.Array, *, as_text: bool = False) -> DecodedImages:
    """Decode raw insert, update and delete messages.

    `payloads` is a binary or large binary array of messages, all of this version of the relation. With `as_text`, every
    column is a string with PostgreSQL's own text: no value is special or converted.
    """
    from tailrace.pgoutput import kernel  # imported here, because it loads the compiler: see `cell`

    count, columns = len(payloads), len(relation.columns)
    data, offsets = _buffers(payloads)
    old, new = np.empty(count, np.uint8), np.empty(count, np.uint8)
    # Cells without an image are never written, so a batch without old images uses no memory for them.
    old_cells, new_cells = Cells.empty(data, columns, count), Cells.empty(data, columns, count)
    bad = kernel.walk(
        data,
        offsets,
        relation.oid,
        columns,
        old,
        new,
        old_cells.start,
        old_cells.length,
        new_cells.start,
        new_cells.length,
    )
    if bad >= 0:
        raise _malformed_error(relation, data[offsets[bad] : offsets[bad + 1]].tobytes())
    return DecodedImages(
        _images(relation, old_cells, old != 0, as_text),
        old == ord("K"),
        _images(relation, new_cells, new != 0, as_text),
    )


def decode_copy(relation: Relation, data: bytes | pa.Buffer) -> Images:
    """Decode rows of COPY.

    `data` holds whole lines of COPY … TO STDOUT in text format, with the relation's columns in order.
    """
    from tailrace.pgoutput import kernel

    text = np.frombuffer(data, np.uint8)
    columns = len(relation.columns)
    count = int(np.count_nonzero(text == ord("\n")))
    unescaped = np.empty(len(text), np.uint8)
    cells = Cells.empty(unescaped, columns, count)
    bad = kernel.split(text, count, columns, unescaped, cells.start, cells.length)
    if bad >= 0:
        raise DecodeError(
            f"{relation.qualified_name}: row {bad} of COPY's data does not have {columns} well-formed columns"
        )
    return _images(relation, cells, np.ones(count, np.bool_))


def _buffers(payloads: pa.Array) -> tuple[kernel.Bytes, kernel.Longs]:
    if payloads.null_count:
        raise DecodeError("a row message without payload")
    _, offsets, data = payloads.buffers()
    width = np.int64 if pa.types.is_large_binary(payloads.type) else np.int32
    if not len(payloads):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    places = np.frombuffer(offsets, width)[payloads.offset : payloads.offset + len(payloads) + 1]
    return np.frombuffer(data if data is not None else b"", np.uint8), places.astype(np.int64)


def _malformed_error(relation: Relation, payload: bytes) -> DecodeError:
    """The reason why the kernel rejected a message, found by the plain decoder."""
    name = relation.qualified_name
    try:
        row = message.parse(payload)
    except DecodeError as error:
        return DecodeError(f"{name}: {error}", error.hint)
    if not isinstance(row, message.Insert | message.Update | message.Delete):
        return DecodeError(f"{name}: {type(row).__name__} is not a row message")
    if row.relation_oid != relation.oid:
        return DecodeError(f"{name}: the message belongs to relation {row.relation_oid}, not {relation.oid}")
    return DecodeError(f"{name}: the message does not have the relation's {len(relation.columns)} columns")


def _images(relation: Relation, cells: Cells, present: Mask, as_text: bool = False) -> Images:
    from tailrace.pgoutput import kernel

    schema = types.schema(relation, as_text)
    count = len(present)
    if not present.any():
        arrays = [pa.nulls(count, field.type) for field in schema]
        return Images(record_batch(arrays, schema, count), present, {}, None)
    if not present.all():
        cells.length[:, ~present] = kernel.ABSENT
    arrays, unchanged, specials = [], {}, []
    for index, column in enumerate(relation.columns):
        column_cells = cells.column(index)
        try:
            array, special = read(column_cells, types.TEXT if as_text else types.mapping(column))
        except UnreadableError as reason:
            raise DecodeError(f"{relation.qualified_name}, column {column.name}: {reason}") from None
        arrays.append(array)
        if (mask := column_cells.length == kernel.UNCHANGED).any():
            unchanged[index] = mask
        specials += [(int(row), column.name, column_cells.text(row)) for row in special]
    return Images(record_batch(arrays, schema, count), present, unchanged, _special(specials, count))


def _special(specials: list[tuple[int, str, bytes]], count: int) -> pa.MapArray | None:
    if not specials:
        return None
    specials.sort(key=lambda entry: entry[0])
    per_row = np.bincount([row for row, _, _ in specials], minlength=count)
    offsets = np.concatenate([[0], np.cumsum(per_row)]).astype(np.int32)
    entries = pa.StructArray.from_arrays(
        [pa.array([name for _, name, _ in specials]), pa.array([text.decode() for _, _, text in specials])],
        fields=[types.SPECIALS.key_field, types.SPECIALS.item_field],
    )
    buffers = [bitmap(per_row > 0), pa.py_buffer(offsets)]
    return pa.Array.from_buffers(types.SPECIALS, count, buffers, children=[entries])
