"""Subjects, ids and payloads of the messages for a run of changes.

The fields and their meaning are those of the NATS bridge (docs/sinks/nats.md), plus `unchanged` and `old_key`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.log import json_columns
from tailrace.log.change_text import content_text
from tailrace.log.decoding import DELETE, OPERATIONS, UPDATE, ChangePositions, LogicalMessages, TableChanges
from tailrace.log.snapshot import MARKER_PREFIX
from tailrace.sinks.nats.options import NatsOptions
from tailrace.sinks.nats.payload_encoding import EncodedField, PayloadEncoding
from tailrace.sinks.nats.subject import MESSAGES, token

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class OutgoingMessages:
    """The messages of one run of changes, in the same order."""

    at: ChangePositions
    subjects: pa.Array
    ids: pa.Array
    payloads: pa.Array
    is_change: bool = True


@dataclass(frozen=True)
class MessageFormat:
    """How changes become messages."""

    encoding: PayloadEncoding
    options: NatsOptions

    def subject_of(self, target: tuple[str, str], operation: str) -> str:
        return ".".join([self.options.subject, *map(token, self.options.names(target)), operation.lower()])


class MessageIds:
    """Makes message ids from the record's LSN, the table and the operation, as the bridge does.

    Several rows of one record share all three, and their ordinals make them unique. Such rows may be in two runs, so
    the last LSN and operation of each table are remembered. One TRUNCATE record has several tables, some of which may
    have the same name in different schemas.
    """

    def __init__(self, replays: int, *, are_dead_letters: bool = False) -> None:
        """Make ids.

        Args:
            replays: How often the sink was rewound: ids differ from those of earlier deliveries.
            are_dead_letters: The changes come without the others of their records, so each id needs the ordinal.
        """
        self._are_dead_letters = are_dead_letters
        self._suffix = f"-r{replays}" if replays else ""
        self._last: dict[tuple[str, str], tuple[int, int]] = {}
        self._single: set[str] = set()

    def for_changes(self, changes: TableChanges) -> pa.Array:
        if changes.is_truncate:
            return pa.array([self._for_single(changes, "truncate")])
        lsn, operation = changes.at.lsn, changes.operation.astype(np.int64)
        before = self._last.get(changes.target, (-1, -1))
        is_repeated = np.ones(len(changes), np.bool_)
        if not self._are_dead_letters:
            is_repeated[0] = (int(lsn[0]), int(operation[0])) == before
            is_repeated[1:] = (lsn[1:] == lsn[:-1]) & (operation[1:] == operation[:-1])
        self._last[changes.target] = int(lsn[-1]), int(operation[-1])
        names = pc.utf8_lower(json_columns.operations(changes.operation))
        ids = pc.binary_join_element_wise(_hex(lsn), token(changes.target[1]), names, "-")
        if is_repeated.any():
            ordinals = pc.cast(pa.array(changes.at.ordinal), pa.string())
            ids = pc.if_else(pa.array(is_repeated), pc.binary_join_element_wise(ids, ordinals, "-"), ids)
        return pc.binary_join_element_wise(ids, self._suffix, "") if self._suffix else ids

    def for_schema(self, changes: TableChanges) -> str:
        return self._for_single(changes, "schema")

    def for_messages(self, messages: LogicalMessages) -> pa.Array:
        return pc.binary_join_element_wise(_hex(messages.at.lsn), f"message{self._suffix}", "-")

    def _for_single(self, changes: TableChanges, operation: str) -> str:
        plain = f"{int(changes.at.lsn[0]):x}-{token(changes.target[1])}-{operation}"
        is_repeated = plain in self._single or self._are_dead_letters
        unique = f"{plain}-{int(changes.at.ordinal[0])}" if is_repeated else plain
        self._single.add(plain)
        return f"{unique}{self._suffix}"


def change_messages(changes: TableChanges, message_format: MessageFormat, ids: MessageIds) -> OutgoingMessages:
    encoding, count = message_format.encoding, len(changes)
    message_ids = ids.for_changes(changes)
    table = changes.target[1]
    kinds = [int(kind) for kind in np.unique(changes.operation)]
    subjects = _by_operation(
        changes.operation, {k: message_format.subject_of(changes.target, OPERATIONS[k]) for k in kinds}
    )
    fields: list[EncodedField] = [
        ("data", encoding.single_map([]) if changes.is_truncate else _data(changes, encoding), None),
        ("msg_id", encoding.texts(message_ids), None),
        *_old_key(changes, encoding),
        ("operation", encoding.texts(_by_operation(changes.operation, {k: OPERATIONS[k] for k in kinds})), None),
        ("relation_id", encoding.integer(changes.relation.oid), None),
        ("schema", encoding.text(changes.target[0]), None),
        ("subject", encoding.texts(subjects), None),
        ("table", encoding.text(table), None),
        *_unchanged(changes, encoding),
    ]
    if changes.truncate_options:
        fields.append(
            ("options", encoding.single_array([encoding.text(option) for option in changes.truncate_options]), None)
        )
    return OutgoingMessages(changes.at, subjects, message_ids, encoding.maps(fields, count))


def schema_message(
    changes: TableChanges, content: bytes, message_format: MessageFormat, ids: MessageIds
) -> OutgoingMessages:
    """Return the message that announces a table's new columns, which apply from these changes on."""
    at = changes.at.take(np.array([0]))
    at.is_last[:] = False
    subject = message_format.subject_of(changes.target, "schema")
    message_ids = ids.for_schema(changes)
    return OutgoingMessages(
        at, pa.array([subject]), pa.array([message_ids]), pa.array([content], pa.binary()), is_change=False
    )


def logical_messages(
    messages: LogicalMessages, message_format: MessageFormat, ids: MessageIds
) -> OutgoingMessages | None:
    """Return the logical messages, without the markers that Tailrace writes."""
    is_foreign = np.array([prefix != MARKER_PREFIX for prefix in messages.prefix], np.bool_)
    if not is_foreign.any():
        return None
    messages = messages.take(is_foreign)
    encoding = message_format.encoding
    message_ids = ids.for_messages(messages)
    subjects = pa.array(
        [f"{message_format.options.subject}.{MESSAGES}.{token(prefix) or '%'}" for prefix in messages.prefix],
        pa.string(),
    )
    fields: list[EncodedField] = [
        (
            "content",
            encoding.texts(pa.array([content_text(content) for content in messages.content], pa.string())),
            None,
        ),
        ("msg_id", encoding.texts(message_ids), None),
        ("operation", encoding.text("MESSAGE"), None),
        ("prefix", encoding.texts(pa.array(messages.prefix, pa.string())), None),
        ("subject", encoding.texts(subjects), None),
    ]
    return OutgoingMessages(messages.at, subjects, message_ids, encoding.maps(fields, len(messages)))


def _data(changes: TableChanges, encoding: PayloadEncoding) -> pa.Array:
    """Return the rows after the change. A deleted row has all columns, null except those of the key."""
    is_delete = changes.operation == DELETE
    fields: list[EncodedField] = []
    for index, column in enumerate(changes.relation.columns):
        texts, present = _new_values(changes, index)
        if is_delete.any():
            known = column.name in changes.relation.key or not changes.relation.key
            old = changes.old.batch.column(index) if known else pa.scalar(None, pa.string())
            texts = pc.if_else(pa.array(is_delete), old, texts)
        fields.append((column.name, encoding.values(texts, column), present))
    return encoding.maps(fields, len(changes))


def _new_values(changes: TableChanges, index: int) -> tuple[pa.Array, Mask | None]:
    """Return a column of the new rows, and the rows that have it.

    A value that PostgreSQL did not send is taken from the old row if that has it.
    """
    texts = changes.new.batch.column(index)
    unsent = changes.new.unchanged.get(index)
    if unsent is None:
        return texts, None
    from_old = unsent & _has_old(changes, index)
    if from_old.any():
        texts = pc.if_else(pa.array(from_old), changes.old.batch.column(index), texts)
    return texts, None if from_old[unsent].all() else ~(unsent & ~from_old)


def _has_old(changes: TableChanges, index: int) -> Mask:
    """Return the rows that have the old value of a column."""
    has = changes.old.present & ~changes.old_is_key
    unsent = changes.old.unchanged.get(index)
    return has if unsent is None else has & ~unsent


def _unchanged(changes: TableChanges, encoding: PayloadEncoding) -> list[EncodedField]:
    items = []
    for index, unsent in sorted(changes.new.unchanged.items()):
        unknown = unsent & ~_has_old(changes, index)
        if unknown.any():
            items.append((encoding.text(changes.relation.columns[index].name), unknown))
    if not items:
        return []
    has = np.any([mask for _, mask in items], axis=0)
    return [("unchanged", encoding.arrays(items, len(changes)), has)]


def _old_key(changes: TableChanges, encoding: PayloadEncoding) -> list[EncodedField]:
    """Return the old key of updates that change it."""
    has_new_key = (changes.operation == UPDATE) & changes.old.present
    names = [column.name for column in changes.relation.columns]
    indexes = [names.index(name) for name in changes.relation.key if name in names]
    if not has_new_key.any() or not indexes:
        return []
    differs = np.zeros(len(changes), np.bool_)
    for index in indexes:
        same = pc.equal(changes.old.batch.column(index), _new_values(changes, index)[0])
        differs |= ~pc.fill_null(same, False).to_numpy(zero_copy_only=False)
    has_new_key &= differs
    if not has_new_key.any():
        return []
    columns = [(changes.relation.columns[index], changes.old.batch.column(index)) for index in indexes]
    fields: list[EncodedField] = [(column.name, encoding.values(texts, column), None) for column, texts in columns]
    return [("old_key", encoding.maps(fields, len(changes)), has_new_key)]


def _by_operation(operation: npt.NDArray[np.uint8], texts: dict[int, str]) -> pa.Array:
    known = np.array(sorted(texts), np.uint8)
    return pa.array([texts[int(kind)] for kind in known]).take(pa.array(np.searchsorted(known, operation)))


def _hex(numbers: npt.NDArray[np.int64]) -> pa.Array:
    return pc.ascii_lower(json_columns.hexadecimal(numbers, 16))
