"""Payloads as Avro: the schema of a record, and the pieces that its messages consist of.

A field that a message may lack is a union of null and the field's type, and null by default. So a column can be added
and removed without breaking readers of the other version. Names of columns that Avro does not allow are escaped; the
property `postgres.name` has the name itself.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.sinks.messages import avro
from tailrace.sinks.messages.avro import NULL_FIRST, Branches
from tailrace.sinks.messages.avro_name import field_names, full_name
from tailrace.sinks.messages.avro_type import avro_type
from tailrace.sinks.messages.payload import ColumnValues, Field, Integers, NameLists, Nulls, Record, Texts, Value
from tailrace.sinks.messages.piece import Pieces, join

Mask = npt.NDArray[np.bool_]

POSTGRES_NAME: Final = "postgres.name"


def schema(record: Record, namespace: str) -> dict[str, Any]:
    """Return the schema of a record. `namespace` precedes the names of all records."""
    found: dict[str, Any] = _record_schema(record, namespace, set())
    return found


def _record_schema(record: Record, namespace: str, defined: set[str]) -> Any:
    name = full_name((namespace, *record.name))
    if name in defined:
        return name
    defined.add(name)
    names = field_names([field.name for field in record.fields], ".".join(record.name[:-1]))
    fields = [
        _field_schema(field, escaped, namespace, defined) for field, escaped in zip(record.fields, names, strict=True)
    ]
    return {"type": "record", "name": name, "fields": fields}


def _field_schema(field: Field, name: str, namespace: str, defined: set[str]) -> dict[str, Any]:
    type_ = _value_schema(field.value, namespace, defined)
    properties = {} if name == field.name else {POSTGRES_NAME: field.name}
    if not field.is_optional:
        return {"name": name, "type": type_, **properties}
    union = type_ if type_ == "null" else ["null", type_]
    return {"name": name, "type": union, "default": None, **properties}


def _value_schema(value: Value, namespace: str, defined: set[str]) -> Any:
    match value:
        case Texts():
            return "string"
        case Integers():
            return "long"
        case ColumnValues(_, column):
            return avro_type(column).schema
        case NameLists():
            return {"type": "array", "items": "string"}
        case Nulls():
            return "null"
        case Record():
            return _record_schema(value, namespace, defined)


def pieces(record: Record, count: int) -> Pieces:
    """Return the pieces of `count` messages. Those of a message that does not have the record mean nothing."""
    return _record_pieces(record, count, record.present)


def _record_pieces(record: Record, count: int, rows: Mask | None) -> Pieces:
    return [piece for field in record.fields for piece in _field_pieces(field, count, rows)]


def _field_pieces(field: Field, count: int, rows: Mask | None) -> Pieces:
    """Encode a field in the rows whose values count (None: all)."""
    branches = NULL_FIRST if field.is_optional else None
    match field.value:
        case Texts(str() as text):
            found: Pieces = [avro.text(text)]
        case Texts(texts):
            found = avro.binaries(texts)
        case Integers(int() as integer):
            found = [avro.integer(integer)]
        case Integers(integers):
            found = avro.integers(integers)
        case ColumnValues():
            return _column_pieces(field, field.value, rows, branches)
        case NameLists(items):
            found = [avro.name_lists(items, count)]
        case Nulls():
            return []
        case Record():
            return _nested_pieces(field.value, count, rows, branches)
    return _optional(found, field.present, count, branches)


def _nested_pieces(record: Record, count: int, rows: Mask | None, branches: Branches | None) -> Pieces:
    present = record.present
    if present is None:
        return _optional(_record_pieces(record, count, rows), None, count, branches)
    if branches is not None and not present.any():
        return [avro.null(branches)]
    inner = present if rows is None else present & rows
    return _optional(_record_pieces(record, count, inner), present, count, branches)


def _optional(found: Pieces, present: Mask | None, count: int, branches: Branches | None) -> Pieces:
    if branches is None:
        return found
    with_branch = [bytes([branches.value]), *found]
    if present is None or present.all():
        return with_branch
    if not present.any():
        return [avro.null(branches)]
    return [avro.if_present(present, join(with_branch, count), branches)]


def _column_pieces(field: Field, value: ColumnValues, rows: Mask | None, branches: Branches | None) -> Pieces:
    texts = value.texts
    if field.present is not None:
        texts = pc.if_else(pa.array(field.present), texts, pa.scalar(None, pa.string()))
    if branches is not None and texts.null_count == len(texts):
        return [avro.null(branches)]
    if branches is None and texts.null_count:
        lacks = pc.is_null(texts).to_numpy(zero_copy_only=False)
        if (lacks if rows is None else lacks & rows).any():
            raise ValueError("a column of the key has no value")
    return avro_type(value.column).encode(texts, branches)
