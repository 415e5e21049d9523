"""Reads messages with the kernels and with the plain decoder, in comparable form."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from tailrace import types
from tailrace.change import UNCHANGED, Image, Relation, Unchanged
from tailrace.errors import DecodeError
from tailrace.images import Images
from tailrace.pgoutput import message
from tailrace.pgoutput.decoder import DecodedImages
from tailrace.text import SPECIAL

Row = tuple[list[Any], dict[str, str]] | None
"""Values and special values of an image; None if the message has no such image."""


def plain_image(relation: Relation, values: Image | None) -> Row:
    if values is None:
        return None
    if len(values) != len(relation.columns):
        raise DecodeError("other columns")
    row: list[Any] = []
    special = {}
    for column, value in zip(relation.columns, values, strict=True):
        if isinstance(value, Unchanged):
            row.append(value)
            continue
        read = types.mapping(column).arrow_value(value)
        if read is SPECIAL:
            assert value is not None
            special[column.name], read = value.decode(), None
        row.append(_comparable(read))
    return row, special


def parse_row(relation: Relation, payload: bytes) -> tuple[Row, bool, Row]:
    row = message.parse(payload)
    if not isinstance(row, message.Insert | message.Update | message.Delete) or row.relation_oid != relation.oid:
        raise DecodeError("not a row of this relation")
    old, is_key = (None, False) if isinstance(row, message.Insert) else (row.old, row.old_is_key)
    new = None if isinstance(row, message.Delete) else row.new
    return plain_image(relation, old), is_key, plain_image(relation, new)


def decoded_rows(decoded: DecodedImages) -> list[tuple[Row, bool, Row]]:
    is_key = [bool(key) for key in decoded.old_is_key]
    return list(zip(image_rows(decoded.old), is_key, image_rows(decoded.new), strict=True))


def image_rows(rows: Images) -> list[Row]:
    rows.batch.validate(full=True)
    columns = [column_values(array) for array in rows.batch.columns]
    result: list[Row] = []
    for index, present in enumerate(rows.present):
        values = [column[index] for column in columns]
        special = {} if rows.special is None else dict(rows.special[index].as_py() or [])
        if not present:
            assert values == [None] * len(values)
            assert not special
            result.append(None)
            continue
        for column, mask in rows.unchanged.items():
            if mask[index]:
                assert values[column] is None
                values[column] = UNCHANGED
        result.append((values, special))
    return result


def column_values(array: pa.Array) -> list[Any]:
    """Values as `TypeMapping.arrow_value` returns them, as Python has no dates before year 1 or after 9999."""
    if pa.types.is_date(array.type):
        array = array.view(pa.int32())
    elif pa.types.is_temporal(array.type):
        array = array.view(pa.int64())
    return [_comparable(value) for value in array.to_pylist()]


def _comparable(value: Any) -> Any:
    return struct.pack(">d", value) if isinstance(value, float) else value
