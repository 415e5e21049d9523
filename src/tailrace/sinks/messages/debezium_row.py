"""The rows and keys in Debezium's events, as columns of JSON."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column
from tailrace.log import json_columns
from tailrace.log.decoding import TableChanges
from tailrace.sinks.messages.connect_type import TypeOptions, connect_type
from tailrace.sinks.messages.row_image import has_old, key_indexes, known_old


def before_rows(changes: TableChanges, options: TypeOptions) -> pa.Array:
    """Return the old rows. What PostgreSQL did not send is null or, in a NOT NULL column, the type's zero."""
    found = []
    for index, column in enumerate(changes.relation.columns):
        type_ = connect_type(column, options)
        known = known_old(changes, index)
        texts = pc.if_else(pa.array(known), changes.old.batch.column(index), pa.scalar(None, pa.string()))
        missing = "null" if column.nullable else type_.zero
        found.append((column, pc.if_else(pa.array(known), type_.convert(texts).fill_null("null"), missing)))
    return _objects(found, len(changes))


def after_rows(changes: TableChanges, options: TypeOptions) -> pa.Array:
    """Return the new rows. A large value that PostgreSQL did not send comes from the old row, or is the placeholder."""
    found = []
    for index, column in enumerate(changes.relation.columns):
        type_ = connect_type(column, options)
        texts = changes.new.batch.column(index)
        unsent = changes.new.unchanged.get(index)
        if unsent is None:
            found.append((column, type_.convert(texts).fill_null("null")))
            continue
        from_old = unsent & has_old(changes, index)
        texts = pc.if_else(pa.array(from_old), changes.old.batch.column(index), texts)
        unknown = unsent & ~from_old
        if unknown.any() and type_.unavailable is None:
            raise ValueError("the type has no placeholder for a value that was not sent")
        placeholder = type_.unavailable or "null"
        found.append((column, pc.if_else(pa.array(unknown), placeholder, type_.convert(texts).fill_null("null"))))
    return _objects(found, len(changes))


def row_keys(changes: TableChanges, options: TypeOptions, *, is_old: bool) -> pa.Array | None:
    """Return the old or the new keys; rows that have only one have that. None: the table has no key."""
    indexes = key_indexes(changes.relation)
    if not indexes:
        return None
    found = []
    for index in indexes:
        column = changes.relation.columns[index]
        known = known_old(changes, index)
        use_old = known if is_old else known & ~changes.new.present
        unsent = changes.new.unchanged.get(index)
        use_old = use_old if unsent is None else use_old | (unsent & known)
        texts = pc.if_else(pa.array(use_old), changes.old.batch.column(index), changes.new.batch.column(index))
        found.append((column, connect_type(column, options).convert(texts).fill_null("null")))
    return _objects(found, len(changes))


def _objects(fields: Sequence[tuple[Column, pa.Array]], count: int) -> pa.Array:
    if not fields:
        return constant("{}", count)
    pieces: list[pa.Array | str] = []
    for number, (column, values) in enumerate(fields):
        pieces += [("{" if number == 0 else ",") + json_columns.quote_text(column.name) + ":", values]
    return join(*pieces, "}")


def constant(text: str, count: int) -> pa.Array:
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int64)))


def join(*pieces: pa.Array | str) -> pa.Array:
    """Concatenate the pieces of each row."""
    return pc.binary_join_element_wise(*pieces, "")
