"""Row messages of one relation, a batch at a time: bytes → typed Arrow columns.

`decode` reads pgoutput's insert, update and delete messages, `decode_copy` the text format of COPY; both find the
values and then read them with the same code, so snapshot and stream agree on every value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace import types
from tailrace.change import Relation
from tailrace.errors import DecodeError
from tailrace.pgoutput import message
from tailrace.pgoutput.cells import Cells, Mask, UnreadableError, bitmap, read

if TYPE_CHECKING:
    from tailrace.pgoutput import kernel


@dataclass(frozen=True)
class Images:
    """One image of each message, row for row."""

    batch: pa.RecordBatch
    """One column for each of the relation's, of its mapped type. NULL also where there is no value to give: see
    `present`, `unchanged` and `special`."""
    present: Mask
    """Which messages carry this image."""
    unchanged: dict[int, Mask]
    """Column index → rows whose value PostgreSQL did not send, being TOASTed and untouched. Only such columns."""
    special: pa.MapArray | None
    """Column name → text, of values that the column's Arrow type cannot hold; NULL for rows that have none."""

    def __len__(self) -> int:
        return len(self.present)

    def take(self, rows: npt.NDArray[np.int64] | Mask) -> Images:
        """Those rows, by number or by mask."""
        places = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        indices = pa.array(places)
        arrays = [column.take(indices) for column in self.batch.columns]
        unchanged = {column: mask[places] for column, mask in self.unchanged.items() if mask[places].any()}
        special = None if self.special is None else self.special.take(indices)
        if special is not None and special.null_count == len(special):
            special = None
        return Images(record_batch(arrays, self.batch.schema, len(places)), self.present[places], unchanged, special)


@dataclass(frozen=True)
class Decoded:
    old: Images
    old_is_key: Mask
    """Rows whose old image has the identity's columns only; the others are NULL in it, and say nothing."""
    new: Images


def decode(relation: Relation, payloads: pa.Array, *, as_text: bool = False) -> Decoded:
    """`payloads` (binary or large binary): raw I, U and D messages, all of this version of the relation.

    With `as_text` every column is a string, PostgreSQL's own text: nothing is special, nothing is converted.
    """
    from tailrace.pgoutput import kernel  # here, because it loads the compiler: see `cells`

    count, columns = len(payloads), len(relation.columns)
    data, offsets = _buffers(payloads)
    old, new = np.empty(count, np.uint8), np.empty(count, np.uint8)
    # Cells that no image fills are never touched, so the memory for old images costs nothing where there are none.
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
        raise _malformed(relation, data[offsets[bad] : offsets[bad + 1]].tobytes())
    return Decoded(
        _rows(relation, old_cells, old != 0, as_text), old == ord("K"), _rows(relation, new_cells, new != 0, as_text)
    )


def decode_copy(relation: Relation, data: bytes | pa.Buffer) -> Images:
    """`data`: whole lines of COPY … TO STDOUT in text format, with the relation's columns in their order."""
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
    return _rows(relation, cells, np.ones(count, np.bool_))


def _buffers(payloads: pa.Array) -> tuple[kernel.Bytes, kernel.Longs]:
    if payloads.null_count:
        raise DecodeError("a row message without payload")
    _, offsets, data = payloads.buffers()
    width = np.int64 if pa.types.is_large_binary(payloads.type) else np.int32
    if not len(payloads):
        return np.empty(0, np.uint8), np.zeros(1, np.int64)
    places = np.frombuffer(offsets, width)[payloads.offset : payloads.offset + len(payloads) + 1]
    return np.frombuffer(data if data is not None else b"", np.uint8), places.astype(np.int64)


def _malformed(relation: Relation, payload: bytes) -> DecodeError:
    """The plain decoder says what is wrong with a message that the kernel refused."""
    name = relation.qualified_name
    try:
        row = message.parse(payload)
    except DecodeError as error:
        return DecodeError(f"{name}: {error}", error.hint)
    if not isinstance(row, message.Insert | message.Update | message.Delete):
        return DecodeError(f"{name}: {type(row).__name__} is not a row message")
    if row.relation_oid != relation.oid:
        return DecodeError(f"{name}: the message is of relation {row.relation_oid}, not {relation.oid}")
    return DecodeError(f"{name}: the message does not have the relation's {len(relation.columns)} columns")


def _rows(relation: Relation, cells: Cells, present: Mask, as_text: bool = False) -> Images:
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
        own = cells.column(index)
        try:
            array, special = read(own, types.TEXT if as_text else types.mapping(column))
        except UnreadableError as reason:
            raise DecodeError(f"{relation.qualified_name}, column {column.name}: {reason}") from None
        arrays.append(array)
        if (mask := own.length == kernel.UNCHANGED).any():
            unchanged[index] = mask
        specials += [(int(row), column.name, own.text(row)) for row in special]
    return Images(record_batch(arrays, schema, count), present, unchanged, _special(specials, count))


def record_batch(arrays: list[pa.Array], schema: pa.Schema, count: int) -> pa.RecordBatch:
    if not arrays:  # a batch made from no arrays would forget how many rows it has
        return pa.RecordBatch.from_struct_array(pa.array([{}] * count, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


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
