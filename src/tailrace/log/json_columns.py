"""Changes as columns of JSON text: the same text that `change_text` produces for one change.

Works on text images (`decoding.chunk(..., as_text=True)`). A result is one Arrow string array and holds at most 2 GiB,
so pass fewer rows at a time if they are wide.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column, Relation
from tailrace.images import Images
from tailrace.log.change_text import content_text
from tailrace.log.decoding import OPERATIONS, ChangePositions, LogicalMessages, Mask, TableChanges
from tailrace.types import Form, mapping

I64 = npt.NDArray[np.int64]

_NOT_FINITE: Final = pa.array(["NaN", "Infinity", "-Infinity"])
_QUOTE, _BACKSLASH, _BLANK = 0x22, 0x5C, 0x20


def records(part: TableChanges | LogicalMessages) -> pa.StringArray:
    """One JSON object for each change: the fields of `change_text.to_json`, and `is_last`."""
    names, at = _table_fields(part), part.at
    fields: dict[str, pa.StringArray | str] = {
        "position": _concat('"', positions(at), '"'),
        "commit_lsn": _concat('"', lsns(at.commit_lsn), '"'),
        "ordinal": pc.cast(pa.array(at.ordinal), pa.string()),
        "lsn": _concat('"', lsns(at.lsn), '"'),
        "xid": pc.cast(pa.array(at.xid), pa.string()),
        "committed_at": _concat('"', timestamps(at.committed_at_us), '"'),
        **names,
        **(_message_fields(part) if isinstance(part, LogicalMessages) else _row_fields(part)),
        "is_last": pc.if_else(pa.array(at.is_last), "true", "false"),
    }
    pieces: list[pa.StringArray | str] = []
    for index, (name, texts) in enumerate(fields.items()):
        pieces += [("{" if index == 0 else ", ") + f'"{name}": ', texts]
    return _concat(*pieces, "}")


def _table_fields(part: TableChanges | LogicalMessages) -> dict[str, pa.StringArray | str]:
    if isinstance(part, LogicalMessages):
        return {"operation": '"MESSAGE"', "schema": "null", "table": "null", "relation_id": "null"}
    return {
        "operation": _concat('"', operations(part.operation), '"'),
        "schema": quote_text(part.relation.schema),
        "table": quote_text(part.relation.name),
        "relation_id": str(part.relation.oid),
    }


def _row_fields(changes: TableChanges) -> dict[str, pa.StringArray | str]:
    options = " ".join(changes.truncate_options)
    return {
        "key": keys(changes).fill_null("null"),
        "before": befores(changes).fill_null("null"),
        "after": afters(changes).fill_null("null"),
        "unchanged": unchanged_columns(changes),
        "message_prefix": "null",
        "message": quote_text(options) if options else "null",
    }


def _message_fields(messages: LogicalMessages) -> dict[str, pa.StringArray | str]:
    return {
        "key": "null",
        "before": "null",
        "after": "null",
        "unchanged": "[]",
        "message_prefix": pa.array([quote_text(prefix) for prefix in messages.prefix], pa.string()),
        "message": pa.array([quote_text(content_text(content)) for content in messages.content], pa.string()),
    }


def befores(changes: TableChanges) -> pa.StringArray:
    """The old rows, or their identity columns if only those were sent; NULL if nothing was sent."""
    return json_objects(changes.old, changes.relation, only_identity=changes.old_is_key)


def afters(changes: TableChanges) -> pa.StringArray:
    """The new rows without `unchanged` columns; NULL for a change without a new row."""
    return json_objects(changes.new, changes.relation)


def keys(changes: TableChanges) -> pa.StringArray:
    """The key of each row before the change, for an insert the key after it; NULL without a key."""
    relation, count = changes.relation, len(changes)
    names = [column.name for column in relation.columns]
    if not relation.key or any(name not in names for name in relation.key):
        return pa.nulls(count, pa.string())
    indexes = [names.index(name) for name in relation.key]
    in_old = changes.old.present & ~_any_unchanged(changes.old, indexes)
    if not all(relation.columns[index].is_identity for index in indexes):
        in_old &= ~changes.old_is_key
    in_new = changes.new.present & ~_any_unchanged(changes.new, indexes)
    found = pa.nulls(count, pa.string())
    for images, rows in ((changes.new, in_new), (changes.old, in_old)):
        if rows.any():
            objects = _join_objects(_fragments(images, relation, indexes), count)
            found = objects if rows.all() else pc.if_else(pa.array(rows), objects, found)
    return found


def unchanged_columns(changes: TableChanges) -> pa.StringArray:
    """JSON arrays of the names of columns whose values were not sent."""
    if not changes.new.unchanged:
        return pa.array(["[]"], pa.string()).take(pa.array(np.zeros(len(changes), np.int64)))
    names = [
        pc.if_else(pa.array(rows), f", {quote_text(changes.relation.columns[index].name)}", "")
        for index, rows in sorted(changes.new.unchanged.items())
    ]
    return _concat("[", _join_list(names), "]")


def json_objects(
    images: Images, relation: Relation, only_identity: Mask | None = None, unchanged: str | None = None
) -> pa.StringArray:
    """One JSON object for each image; NULL where there is none.

    Rows in `only_identity` have only the identity's columns. Values that were not sent are left out or, if `unchanged`
    is given, replaced by that text.
    """
    count = len(images)
    if not images.present.any():
        return pa.nulls(count, pa.string())
    fragments = _fragments(images, relation, range(len(relation.columns)), only_identity)
    if unchanged is not None:
        fragments = [
            (name, found if unsent is None else pc.if_else(pa.array(unsent), quote_text(unchanged), found), None)
            for name, found, unsent in fragments
        ]
    objects = _join_objects(fragments, count)
    return objects if images.present.all() else pc.if_else(pa.array(images.present), objects, None)


def positions(at: ChangePositions) -> pa.StringArray:
    """Positions in the form of `str(Position)`: 0/1A2B3C4:17."""
    return _concat(lsns(at.commit_lsn), ":", pc.cast(pa.array(at.ordinal), pa.string()))


def lsns(values: I64) -> pa.StringArray:
    """LSNs in the form of `str(Lsn)`: 0/1A2B3C4."""
    return _concat(hexadecimal(values >> 32, 8), "/", hexadecimal(values & 0xFFFFFFFF, 8))


def timestamps(microseconds: I64) -> pa.StringArray:
    """Timestamps in the form of `format_timestamp`: 2024-02-29T12:00:00.000000Z."""
    with_blank = pc.cast(pa.array(microseconds, pa.timestamp("us")), pa.string())
    return _concat(pc.replace_substring(with_blank, " ", "T"), "Z")


def operations(letters: npt.NDArray[np.uint8]) -> pa.StringArray:
    """Names (INSERT, UPDATE, …) of the letters in `TableChanges.operation`."""
    known = np.array(list(OPERATIONS), np.uint8)
    order = np.argsort(known)
    names = pa.array([OPERATIONS[int(letter)] for letter in known[order]])
    return names.take(pa.array(np.searchsorted(known[order], letters)))


def quote(texts: pa.StringArray) -> pa.StringArray:
    """Each text as a JSON string; NULL stays NULL."""
    return _concat('"', _escape(texts), '"')


def quote_text(text: str) -> str:
    """One text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


Fragment = tuple[str, pa.StringArray, Mask | None]
"""A column's name with its colon, its values as JSON, and a mask of the rows that leave it out."""


def _fragments(
    images: Images, relation: Relation, indexes: Sequence[int], only_identity: Mask | None = None
) -> list[Fragment]:
    some_only = only_identity is not None and bool(only_identity.any())
    found: list[Fragment] = []
    for index in indexes:
        column = relation.columns[index]
        left_out = images.unchanged.get(index)
        if some_only and not column.is_identity:
            assert only_identity is not None
            if only_identity.all():
                continue
            left_out = only_identity if left_out is None else left_out | only_identity
        found.append((f"{quote_text(column.name)}: ", json_values(images.batch.column(index), column), left_out))
    return found


def _join_objects(fragments: list[Fragment], count: int) -> pa.StringArray:
    if not fragments:
        return pa.array(["{}"]).take(pa.array(np.zeros(count, np.int64)))
    if all(left_out is None for _, _, left_out in fragments):
        pieces: list[pa.StringArray | str] = []
        for index, (name, texts, _) in enumerate(fragments):
            pieces += [("{" if index == 0 else ", ") + name, texts]
        return _concat(*pieces, "}")
    pairs = []
    for name, texts, left_out in fragments:
        pair = _concat(f", {name}", texts)
        pairs.append(pair if left_out is None else pc.if_else(pa.array(left_out), "", pair))
    return _concat("{", _join_list(pairs), "}")


def _join_list(texts: list[pa.StringArray]) -> pa.StringArray:
    """Join texts that each begin with ", " or are empty. (Arrow's skipping join loses rows of which all are NULL.)"""
    return pc.utf8_slice_codeunits(_concat(*texts), start=2)


def json_values(texts: pa.StringArray, column: Column) -> pa.StringArray:
    """JSON values from PostgreSQL's texts: numbers keep their digits, json and jsonb are nested unchanged."""
    match mapping(column).form:
        case Form.BOOLEAN:
            found = pc.if_else(pc.equal(texts, "t"), "true", "false")
        case Form.INTEGER:
            found = texts
        case Form.FLOAT | Form.DECIMAL | Form.NUMERIC:
            is_word = pc.is_in(texts, _NOT_FINITE)
            found = pc.if_else(is_word, _concat('"', texts, '"'), texts) if pc.any(is_word).as_py() else texts
        case Form.JSON:
            # JSON allows raw line ends only between tokens, so strings stay the same.
            found = texts
            for line_end in "\r\n":
                found = pc.replace_substring(found, line_end, " ")
        case _:
            found = quote(texts)
    return found.fill_null("null") if found.null_count else found


def _escape(texts: pa.StringArray) -> pa.StringArray:
    """Escape for JSON. Costs one pass for each distinct special character present, and most columns have none."""
    _, offsets, data = texts.buffers()
    if data is None:
        return texts
    ends = np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]]
    view = np.frombuffer(data, np.uint8)[ends[0] : ends[1]]
    special = np.unique(view[(view < _BLANK) | (view == _QUOTE) | (view == _BACKSLASH)])
    for byte in sorted((int(b) for b in special), key=lambda b: b != _BACKSLASH):
        texts = pc.replace_substring(texts, chr(byte), quote_text(chr(byte))[1:-1])
    return texts


def _any_unchanged(images: Images, indexes: Sequence[int]) -> Mask:
    found = np.zeros(len(images), np.bool_)
    for index in indexes:
        if index in images.unchanged:
            found |= images.unchanged[index]
    return found


def hexadecimal(numbers: I64, width: int) -> pa.StringArray:
    """Upper-case hexadecimal without leading zeros. `width` is the largest number of digits."""
    nibbles = (numbers[:, None] >> np.arange(4 * width - 4, -1, -4)) & 15
    digits = np.frombuffer(b"0123456789ABCDEF", np.uint8)[nibbles]
    offsets = np.arange(0, width * len(numbers) + width, width, dtype=np.int32)
    padded = pa.Array.from_buffers(
        pa.string(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits))]
    )
    bare = pc.ascii_ltrim(padded, characters="0")
    return pc.if_else(pc.equal(bare, ""), "0", bare)


def _concat(*pieces: pa.StringArray | str) -> pa.StringArray:
    return pc.binary_join_element_wise(*pieces, "")
