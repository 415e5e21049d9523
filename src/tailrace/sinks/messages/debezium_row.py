"""The rows and keys in Debezium's events, as columns."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column
from tailrace.log.decoding import TableChanges
from tailrace.sinks.messages.connect_default import default_value
from tailrace.sinks.messages.connect_payload import ConnectColumn, ConnectStruct, Mask
from tailrace.sinks.messages.connect_type import TypeOptions, connect_type
from tailrace.sinks.messages.row_image import has_old, key_indexes, known_old


def before_rows(changes: TableChanges, options: TypeOptions, present: Mask | None = None) -> ConnectStruct:
    """Return the old rows. What PostgreSQL did not send is null or, in a NOT NULL column, its default or a zero."""
    found = []
    for index, column in enumerate(changes.relation.columns):
        type_ = connect_type(column, options)
        known = known_old(changes, index)
        missing = "null" if column.nullable else default_value(column, options) or type_.zero
        texts = changes.old.batch.column(index)
        if known.all():
            found.append((column.name, ConnectColumn(texts, column, type_)))
            continue
        texts = pc.if_else(pa.array(known), texts, pa.scalar(None, pa.string()))
        found.append((column.name, ConnectColumn(texts, column, type_, ~known, missing)))
    return ConnectStruct(found, present)


def after_rows(changes: TableChanges, options: TypeOptions, present: Mask | None = None) -> ConnectStruct:
    """Return the new rows. A large value that PostgreSQL did not send comes from the old row, or is the placeholder."""
    found = []
    for index, column in enumerate(changes.relation.columns):
        type_ = connect_type(column, options)
        texts = changes.new.batch.column(index)
        unsent = changes.new.unchanged.get(index)
        if unsent is None:
            found.append((column.name, ConnectColumn(texts, column, type_)))
            continue
        from_old = unsent & has_old(changes, index)
        texts = pc.if_else(pa.array(from_old), changes.old.batch.column(index), texts)
        unknown = unsent & ~from_old
        if unknown.any() and type_.unavailable is None:
            raise ValueError("the type has no placeholder for a value that was not sent")
        found.append((column.name, ConnectColumn(texts, column, type_, unknown, type_.unavailable or "null")))
    return ConnectStruct(found, present)


def row_keys(changes: TableChanges, options: TypeOptions, *, is_old: bool) -> ConnectStruct | None:
    """Return the old or the new keys; rows that have only one have that. None: the table has no key."""
    texts = _key_texts(changes, is_old=is_old)
    found = [(column.name, ConnectColumn(values, column, connect_type(column, options))) for column, values in texts]
    return ConnectStruct(found) if found else None


def header_keys(changes: TableChanges, options: TypeOptions, *, is_old: bool) -> pa.Array:
    """Return the old or the new keys as Connect prints them in headers, which are texts. The table has a key."""
    found = []
    for column, texts in _key_texts(changes, is_old=is_old):
        type_ = connect_type(column, options)
        found.append((column.name, (type_.header or type_.convert)(texts).fill_null("null")))
    return ConnectStruct(found).json(len(changes))


def _key_texts(changes: TableChanges, *, is_old: bool) -> list[tuple[Column, pa.Array]]:
    found = []
    for index in key_indexes(changes.relation):
        known = known_old(changes, index)
        use_old = known if is_old else known & ~changes.new.present
        unsent = changes.new.unchanged.get(index)
        use_old = use_old if unsent is None else use_old | (unsent & known)
        texts = changes.new.batch.column(index)
        if use_old.any():
            texts = pc.if_else(pa.array(use_old), changes.old.batch.column(index), texts)
        found.append((changes.relation.columns[index], texts))
    return found
