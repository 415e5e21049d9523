"""Changes as JSON, a column of texts at a time: the same texts that `rendering` gives one by one.

Works on text images (`decoding.chunk(..., as_text=True)`). A result is one Arrow string array and so holds at most
2 GiB: who has wide rows gives fewer of them at a time.
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
from tailrace.log.decoding import OPERATIONS, At, Mask, Messages, TableChanges
from tailrace.log.rendering import content_text
from tailrace.pgoutput.columns import Images
from tailrace.types import Form, mapping

I64 = npt.NDArray[np.int64]

_NOT_FINITE: Final = pa.array(["NaN", "Infinity", "-Infinity"])
_QUOTE, _BACKSLASH, _BLANK = 0x22, 0x5C, 0x20


def records(part: TableChanges | Messages) -> pa.StringArray:
    """Whole changes: the fields that `rendering.to_json` gives, and whether each is its transaction's last."""
    names, at = _names(part), part.at
    fields: dict[str, pa.StringArray | str] = {
        "position": _concatenated('"', positions(at), '"'),
        "commit_lsn": _concatenated('"', lsns(at.commit_lsn), '"'),
        "ordinal": pc.cast(pa.array(at.ordinal), pa.string()),
        "lsn": _concatenated('"', lsns(at.lsn), '"'),
        "xid": pc.cast(pa.array(at.xid), pa.string()),
        "committed_at": _concatenated('"', moments(at.committed_at_us), '"'),
        **names,
        **(_message_fields(part) if isinstance(part, Messages) else _row_fields(part)),
        "is_last": pc.if_else(pa.array(at.is_last), "true", "false"),
    }
    pieces: list[pa.StringArray | str] = []
    for index, (name, texts) in enumerate(fields.items()):
        pieces += [("{" if index == 0 else ", ") + f'"{name}": ', texts]
    return _concatenated(*pieces, "}")


def _names(part: TableChanges | Messages) -> dict[str, pa.StringArray | str]:
    if isinstance(part, Messages):
        return {"operation": '"MESSAGE"', "schema": "null", "table": "null", "relation_id": "null"}
    return {
        "operation": _concatenated('"', operations(part.operation), '"'),
        "schema": quoted_text(part.relation.schema),
        "table": quoted_text(part.relation.name),
        "relation_id": str(part.relation.oid),
    }


def _row_fields(changes: TableChanges) -> dict[str, pa.StringArray | str]:
    options = " ".join(changes.truncate_options)
    return {
        "key": keys(changes).fill_null("null"),
        "before": befores(changes).fill_null("null"),
        "after": afters(changes).fill_null("null"),
        "unchanged": unchanged(changes),
        "message_prefix": "null",
        "message": quoted_text(options) if options else "null",
    }


def _message_fields(messages: Messages) -> dict[str, pa.StringArray | str]:
    return {
        "key": "null",
        "before": "null",
        "after": "null",
        "unchanged": "[]",
        "message_prefix": pa.array([quoted_text(prefix) for prefix in messages.prefix], pa.string()),
        "message": pa.array([quoted_text(content_text(content)) for content in messages.content], pa.string()),
    }


def befores(changes: TableChanges) -> pa.StringArray:
    """The rows that were there, or their identities where no more was sent; NULL where nothing was."""
    return json_objects(changes.old, changes.relation, only_identity=changes.old_is_key)


def afters(changes: TableChanges) -> pa.StringArray:
    """The rows that are there now, without what is `unchanged`; NULL where there is none."""
    return json_objects(changes.new, changes.relation)


def keys(changes: TableChanges) -> pa.StringArray:
    """What identified each row before the change; for an insert, what identifies it now. NULL without a key."""
    relation, count = changes.relation, len(changes)
    names = [column.name for column in relation.columns]
    if not relation.key or any(name not in names for name in relation.key):
        return pa.nulls(count, pa.string())
    places = [names.index(name) for name in relation.key]
    in_old = changes.old.present & ~_any_unchanged(changes.old, places)
    if not all(relation.columns[place].is_identity for place in places):
        in_old &= ~changes.old_is_key
    in_new = changes.new.present & ~_any_unchanged(changes.new, places)
    found = pa.nulls(count, pa.string())
    for images, rows in ((changes.new, in_new), (changes.old, in_old)):
        if rows.any():
            objects = _join(_fragments(images, relation, places), count)
            found = objects if rows.all() else pc.if_else(pa.array(rows), objects, found)
    return found


def unchanged(changes: TableChanges) -> pa.StringArray:
    """Arrays of the names of columns whose values were not sent."""
    if not changes.new.unchanged:
        return pa.array(["[]"], pa.string()).take(pa.array(np.zeros(len(changes), np.int64)))
    names = [
        pc.if_else(pa.array(rows), f", {quoted_text(changes.relation.columns[index].name)}", "")
        for index, rows in sorted(changes.new.unchanged.items())
    ]
    return _concatenated("[", _listed(names), "]")


def json_objects(
    images: Images, relation: Relation, only_identity: Mask | None = None, unchanged: str | None = None
) -> pa.StringArray:
    """One object for each image, NULL where there is none; `only_identity` rows with the identity's columns alone.

    Values that were not sent are left out, or `unchanged` stands for them.
    """
    count = len(images)
    if not images.present.any():
        return pa.nulls(count, pa.string())
    fragments = _fragments(images, relation, range(len(relation.columns)), only_identity)
    if unchanged is not None:
        fragments = [
            (name, found if unsent is None else pc.if_else(pa.array(unsent), quoted_text(unchanged), found), None)
            for name, found, unsent in fragments
        ]
    objects = _join(fragments, count)
    return objects if images.present.all() else pc.if_else(pa.array(images.present), objects, None)


def positions(at: At) -> pa.StringArray:
    """As `Position` prints: 0/1A2B3C4:17."""
    return _concatenated(lsns(at.commit_lsn), ":", pc.cast(pa.array(at.ordinal), pa.string()))


def lsns(values: I64) -> pa.StringArray:
    """As `Lsn` prints: 0/1A2B3C4."""
    return _concatenated(hexadecimal(values >> 32, 8), "/", hexadecimal(values & 0xFFFFFFFF, 8))


def moments(microseconds: I64) -> pa.StringArray:
    """As `rendering.iso` prints: 2024-02-29T12:00:00.000000Z."""
    blank = pc.cast(pa.array(microseconds, pa.timestamp("us")), pa.string())
    return _concatenated(pc.replace_substring(blank, " ", "T"), "Z")


def operations(letters: npt.NDArray[np.uint8]) -> pa.StringArray:
    """INSERT, UPDATE, … for the letters of `TableChanges.operation`."""
    known = np.array(list(OPERATIONS), np.uint8)
    order = np.argsort(known)
    names = pa.array([OPERATIONS[int(letter)] for letter in known[order]])
    return names.take(pa.array(np.searchsorted(known[order], letters)))


def quoted(texts: pa.StringArray) -> pa.StringArray:
    """Each text as a JSON string; NULL stays NULL."""
    return _concatenated('"', _escaped(texts), '"')


def quoted_text(text: str) -> str:
    """One text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


Fragment = tuple[str, pa.StringArray, Mask | None]
"""A column's name with its colon, its values as JSON, and the rows that leave it out."""


def _fragments(
    images: Images, relation: Relation, places: Sequence[int], only_identity: Mask | None = None
) -> list[Fragment]:
    some_only = only_identity is not None and bool(only_identity.any())
    found: list[Fragment] = []
    for place in places:
        column = relation.columns[place]
        left_out = images.unchanged.get(place)
        if some_only and not column.is_identity:
            assert only_identity is not None
            if only_identity.all():
                continue
            left_out = only_identity if left_out is None else left_out | only_identity
        found.append((f"{quoted_text(column.name)}: ", values(images.batch.column(place), column), left_out))
    return found


def _join(fragments: list[Fragment], count: int) -> pa.StringArray:
    if not fragments:
        return pa.array(["{}"]).take(pa.array(np.zeros(count, np.int64)))
    if all(left_out is None for _, _, left_out in fragments):
        pieces: list[pa.StringArray | str] = []
        for index, (name, texts, _) in enumerate(fragments):
            pieces += [("{" if index == 0 else ", ") + name, texts]
        return _concatenated(*pieces, "}")
    pairs = []
    for name, texts, left_out in fragments:
        pair = _concatenated(f", {name}", texts)
        pairs.append(pair if left_out is None else pc.if_else(pa.array(left_out), "", pair))
    return _concatenated("{", _listed(pairs), "}")


def _listed(texts: list[pa.StringArray]) -> pa.StringArray:
    """Texts that each begin with ", " or are empty. (Arrow's own way to skip NULLs loses rows of nothing else.)"""
    return pc.utf8_slice_codeunits(_concatenated(*texts), start=2)


def values(texts: pa.StringArray, column: Column) -> pa.StringArray:
    """PostgreSQL's texts as JSON values: numbers keep their digits, json and jsonb are nested as they are."""
    match mapping(column).form:
        case Form.BOOLEAN:
            found = pc.if_else(pc.equal(texts, "t"), "true", "false")
        case Form.INTEGER:
            found = texts
        case Form.FLOAT | Form.DECIMAL | Form.NUMERIC:
            is_word = pc.is_in(texts, _NOT_FINITE)
            found = pc.if_else(is_word, _concatenated('"', texts, '"'), texts) if pc.any(is_word).as_py() else texts
        case Form.JSON:
            # JSON allows raw line ends only between tokens, so this changes no string.
            found = texts
            for line_end in "\r\n":
                found = pc.replace_substring(found, line_end, " ")
        case _:
            found = quoted(texts)
    return found.fill_null("null") if found.null_count else found


def _escaped(texts: pa.StringArray) -> pa.StringArray:
    """Only the characters that are there cost anything, and most columns have none."""
    _, offsets, data = texts.buffers()
    if data is None:
        return texts
    ends = np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]]
    view = np.frombuffer(data, np.uint8)[ends[0] : ends[1]]
    there = np.unique(view[(view < _BLANK) | (view == _QUOTE) | (view == _BACKSLASH)])
    for byte in sorted((int(b) for b in there), key=lambda b: b != _BACKSLASH):
        texts = pc.replace_substring(texts, chr(byte), quoted_text(chr(byte))[1:-1])
    return texts


def _any_unchanged(images: Images, places: Sequence[int]) -> Mask:
    found = np.zeros(len(images), np.bool_)
    for place in places:
        if place in images.unchanged:
            found |= images.unchanged[place]
    return found


def hexadecimal(numbers: I64, width: int) -> pa.StringArray:
    """In upper case, without leading zeros, of numbers that have at most so many digits."""
    nibbles = (numbers[:, None] >> np.arange(4 * width - 4, -1, -4)) & 15
    digits = np.frombuffer(b"0123456789ABCDEF", np.uint8)[nibbles]
    offsets = np.arange(0, width * len(numbers) + width, width, dtype=np.int32)
    padded = pa.Array.from_buffers(
        pa.string(), len(numbers), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits))]
    )
    bare = pc.ascii_ltrim(padded, characters="0")
    return pc.if_else(pc.equal(bare, ""), "0", bare)


def _concatenated(*pieces: pa.StringArray | str) -> pa.StringArray:
    return pc.binary_join_element_wise(*pieces, "")
