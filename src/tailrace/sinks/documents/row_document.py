"""Rows as JSON objects, a column at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column, Relation
from tailrace.images import Images
from tailrace.log.json_columns import quote_text
from tailrace.sinks.documents.document_value import document_values
from tailrace.sinks.messages.piece import Pieces, join

Mask = npt.NDArray[np.bool_]
JsonField = tuple[bytes, "pa.Array | bytes", Mask | None]
"""What precedes a value, such as `"name":`; each row's value or the same one for all; the rows that have it (None:
all)."""


def row_documents(
    images: Images,
    relation: Relation,
    field_name: Callable[[str], str] = str,
    values: Callable[[pa.Array, Column], pa.Array] = document_values,
) -> pa.Array:
    """Return each row as a JSON object, in bytes. Values that PostgreSQL did not send are left out.

    Args:
        images: The rows, as PostgreSQL's texts.
        relation: Their table.
        field_name: Returns a column's name in the document.
        values: Returns a column's values as JSON; NULL for those to leave out.
    """
    fields: list[JsonField] = []
    for index, column in enumerate(relation.columns):
        unsent = images.unchanged.get(index)
        present = None if unsent is None else ~unsent
        encoded = values(images.batch.column(index), column)
        if encoded.null_count:
            is_valid = encoded.is_valid().to_numpy(zero_copy_only=False)
            present = is_valid if present is None else present & is_valid
            encoded = encoded.fill_null(b"")
        fields.append((f"{quote_text(field_name(column.name))}:".encode(), encoded, present))
    return enclose(b"{", fields, b"}", len(images))


def enclose(begin: bytes, fields: Sequence[JsonField], end: bytes, count: int) -> pa.Array:
    """Return the fields that each of `count` rows has, with commas between them."""
    pieces: Pieces = [begin]
    is_first = np.ones(count, np.bool_)
    always = True
    for number, (name, value, present) in enumerate(fields):
        always &= present is None
        if always:
            pieces += [(b"," if number else b"") + name, value]
            is_first[:] = False
            continue
        has = np.ones(count, np.bool_) if present is None else present
        comma = pc.if_else(pa.array(is_first | ~has), pa.scalar(b""), pa.scalar(b","))
        pair = pc.binary_join_element_wise(name, value, b"") if isinstance(value, pa.Array) else pa.scalar(name + value)
        pieces += [comma, pc.if_else(pa.array(has), pair, pa.scalar(b""))]
        is_first &= ~has
    return join([*pieces, end], count)
