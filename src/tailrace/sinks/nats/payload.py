"""What is published of changes: subjects, ids and payloads, a run of changes at a time.

The fields and their meaning are those that consumers of a NATS bridge know (docs/sinks/nats.md), plus `unchanged` and
`old_key` where a change has them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log import json
from tailrace.log.decoding import DELETE, OPERATIONS, UPDATE, At, Messages, TableChanges
from tailrace.log.rendering import content_text
from tailrace.log.snapshot import MARKER_PREFIX
from tailrace.sinks.nats.encoding import Encoding, Field
from tailrace.sinks.nats.options import NatsOptions

Mask = npt.NDArray[np.bool_]

MESSAGES: Final = "_message"
"""The token in place of a table's for logical messages; no table's is like it, because theirs are percent-encoded."""


@dataclass(frozen=True)
class Published:
    """Messages to be, in the order of the changes that they tell of."""

    at: At
    subjects: pa.Array
    ids: pa.Array
    payloads: pa.Array
    is_change: bool = True


@dataclass(frozen=True)
class Manner:
    """How changes are told."""

    encoding: Encoding
    options: NatsOptions

    def subject_of(self, target: tuple[str, str], operation: str) -> str:
        return ".".join([self.options.subject, *map(token, self.options.names(target)), operation.lower()])


def token(name: str) -> str:
    """A name as one token of a subject: blanks, dots, wildcards and control characters are percent-encoded."""
    coded = re.sub(r"[\s.*>%\x00-\x20\x7f]", lambda m: "".join(f"%{byte:02X}" for byte in m[0].encode()), name)
    return f"%5F{coded[1:]}" if coded == MESSAGES else coded


class Ids:
    """Ids of changes: the record's LSN, the table, the operation, as the bridge has them; rows of one record, which
    share all three, are told apart by their ordinals. Such rows may come in two runs: the last is kept in mind. One
    record of a TRUNCATE has several tables, of which some may have one name in several schemas."""

    def __init__(self, replays: int) -> None:
        self._suffix = f"-r{replays}" if replays else ""
        self._last: dict[tuple[str, str], tuple[int, int]] = {}
        self._single: set[str] = set()

    def of(self, changes: TableChanges) -> pa.Array:
        if changes.is_truncate:
            return pa.array([self._of_single(changes, "truncate")])
        lsn, operation = changes.at.lsn, changes.operation.astype(np.int64)
        before = self._last.get(changes.target, (-1, -1))
        is_same = np.empty(len(changes), np.bool_)
        is_same[0] = (int(lsn[0]), int(operation[0])) == before
        is_same[1:] = (lsn[1:] == lsn[:-1]) & (operation[1:] == operation[:-1])
        self._last[changes.target] = int(lsn[-1]), int(operation[-1])
        names = pc.utf8_lower(json.operations(changes.operation))
        ids = pc.binary_join_element_wise(_hex(lsn), token(changes.target[1]), names, "-")
        if is_same.any():
            ordinals = pc.cast(pa.array(changes.at.ordinal), pa.string())
            ids = pc.if_else(pa.array(is_same), pc.binary_join_element_wise(ids, ordinals, "-"), ids)
        return pc.binary_join_element_wise(ids, self._suffix, "") if self._suffix else ids

    def of_schema(self, changes: TableChanges) -> str:
        return self._of_single(changes, "schema")

    def of_messages(self, messages: Messages) -> pa.Array:
        return pc.binary_join_element_wise(_hex(messages.at.lsn), f"message{self._suffix}", "-")

    def _of_single(self, changes: TableChanges, operation: str) -> str:
        plain = f"{int(changes.at.lsn[0]):x}-{token(changes.target[1])}-{operation}"
        own = f"{plain}-{int(changes.at.ordinal[0])}" if plain in self._single else plain
        self._single.add(plain)
        return f"{own}{self._suffix}"


def changes(some: TableChanges, manner: Manner, ids: Ids) -> Published:
    encoding, count = manner.encoding, len(some)
    own = ids.of(some)
    table = some.target[1]
    kinds = [int(kind) for kind in np.unique(some.operation)]
    subjects = _chosen(some.operation, {k: manner.subject_of(some.target, OPERATIONS[k]) for k in kinds})
    fields: list[Field] = [
        ("data", encoding.map_of([]) if some.is_truncate else _data(some, encoding), None),
        ("msg_id", encoding.texts(own), None),
        *_old_keys(some, encoding),
        ("operation", encoding.texts(_chosen(some.operation, {k: OPERATIONS[k] for k in kinds})), None),
        ("relation_id", encoding.integer(some.relation.oid), None),
        ("subject", encoding.texts(subjects), None),
        ("table", encoding.text(table), None),
        *_unchanged(some, encoding),
    ]
    if some.truncate_options:
        fields.append(("options", encoding.array_of([encoding.text(option) for option in some.truncate_options]), None))
    return Published(some.at, subjects, own, encoding.maps(fields, count))


def schema(some: TableChanges, content: bytes, manner: Manner, ids: Ids) -> Published:
    """That a table has another shape from these changes on."""
    at = some.at.take(np.array([0]))
    at.is_last[:] = False
    subject = manner.subject_of(some.target, "schema")
    own = ids.of_schema(some)
    return Published(at, pa.array([subject]), pa.array([own]), pa.array([content], pa.binary()), is_change=False)


def messages(some: Messages, manner: Manner, ids: Ids) -> Published | None:
    """Logical messages; not those that are Tailrace's own."""
    keep = np.array([prefix != MARKER_PREFIX for prefix in some.prefix], np.bool_)
    if not keep.any():
        return None
    some = some.take(keep)
    encoding = manner.encoding
    own = ids.of_messages(some)
    subjects = pa.array(
        [f"{manner.options.subject}.{MESSAGES}.{token(prefix) or '%'}" for prefix in some.prefix], pa.string()
    )
    fields: list[Field] = [
        ("content", encoding.texts(pa.array([content_text(content) for content in some.content], pa.string())), None),
        ("msg_id", encoding.texts(own), None),
        ("operation", encoding.text("MESSAGE"), None),
        ("prefix", encoding.texts(pa.array(some.prefix, pa.string())), None),
        ("subject", encoding.texts(subjects), None),
    ]
    return Published(some.at, subjects, own, encoding.maps(fields, len(some)))


def _data(some: TableChanges, encoding: Encoding) -> pa.Array:
    """The row after the change; of a deleted one every column, null except the key's."""
    is_delete = some.operation == DELETE
    fields: list[Field] = []
    for place, column in enumerate(some.relation.columns):
        texts, there = _after(some, place)
        if is_delete.any():
            known = column.name in some.relation.key or not some.relation.key
            old = some.old.batch.column(place) if known else pa.scalar(None, pa.string())
            texts = pc.if_else(pa.array(is_delete), old, texts)
        fields.append((column.name, encoding.values(texts, column), there))
    return encoding.maps(fields, len(some))


def _after(some: TableChanges, place: int) -> tuple[pa.Array, Mask | None]:
    """A column of the new rows, and who has it: a value that was not sent is the old one, where that was."""
    texts = some.new.batch.column(place)
    unsent = some.new.unchanged.get(place)
    if unsent is None:
        return texts, None
    from_old = unsent & _has_old(some, place)
    if from_old.any():
        texts = pc.if_else(pa.array(from_old), some.old.batch.column(place), texts)
    return texts, None if from_old[unsent].all() else ~(unsent & ~from_old)


def _has_old(some: TableChanges, place: int) -> Mask:
    """Who has the old value of a column."""
    has = some.old.present & ~some.old_is_key
    unsent = some.old.unchanged.get(place)
    return has if unsent is None else has & ~unsent


def _unchanged(some: TableChanges, encoding: Encoding) -> list[Field]:
    items = []
    for place, unsent in sorted(some.new.unchanged.items()):
        unknown = unsent & ~_has_old(some, place)
        if unknown.any():
            items.append((encoding.text(some.relation.columns[place].name), unknown))
    if not items:
        return []
    has = np.any([mask for _, mask in items], axis=0)
    return [("unchanged", encoding.lists(items, len(some)), has)]


def _old_keys(some: TableChanges, encoding: Encoding) -> list[Field]:
    """Of updates that change the key: what it was."""
    is_moved = (some.operation == UPDATE) & some.old.present
    names = [column.name for column in some.relation.columns]
    places = [names.index(name) for name in some.relation.key if name in names]
    if not is_moved.any() or not places:
        return []
    differs = np.zeros(len(some), np.bool_)
    for place in places:
        same = pc.equal(some.old.batch.column(place), _after(some, place)[0])
        differs |= ~pc.fill_null(same, False).to_numpy(zero_copy_only=False)
    is_moved &= differs
    if not is_moved.any():
        return []
    columns = [(some.relation.columns[place], some.old.batch.column(place)) for place in places]
    fields: list[Field] = [(column.name, encoding.values(texts, column), None) for column, texts in columns]
    return [("old_key", encoding.maps(fields, len(some)), is_moved)]


def _chosen(operation: npt.NDArray[np.uint8], texts: dict[int, str]) -> pa.Array:
    known = np.array(sorted(texts), np.uint8)
    return pa.array([texts[int(kind)] for kind in known]).take(pa.array(np.searchsorted(known, operation)))


def _hex(numbers: npt.NDArray[np.int64]) -> pa.Array:
    return pc.ascii_lower(json.hexadecimal(numbers, 16))
