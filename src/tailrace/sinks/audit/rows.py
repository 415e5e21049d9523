"""Changes as rows of the table `changes`. Pure, vectorised."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Relation
from tailrace.log import fold
from tailrace.log import json as log_json
from tailrace.log.decoding import INSERT, UPDATE, At, TableChanges
from tailrace.pgoutput.columns import Images, record_batch
from tailrace.sinks.audit.exact import jsonb_texts
from tailrace.sinks.database.rows import Field
from tailrace.types import Form, mapping

I64 = npt.NDArray[np.int64]

UNCHANGED: Final = "__tailrace_unchanged"
"""In `after`, for a value that PostgreSQL did not send, and that nobody knows: the column `unchanged` names it too."""

FIELDS: Final = (
    Field("id", "uuid"),
    Field("database", "text"),
    Field("schema", "text"),
    Field("table", "text"),
    Field("operation", "text"),
    Field("before", "jsonb"),
    Field("after", "jsonb"),
    Field("context", "jsonb"),
    Field("primary_key", "text"),
    Field("committed_at", "timestamptz"),
    Field("position", "bigint"),
    Field("queued_at", "timestamptz"),
    Field("xid", "bigint"),
    Field("commit_position", "bigint"),
    Field("ordinal", "bigint"),
    Field("previous_key", "text"),
    Field("unchanged", "text[]"),
)
ERASED: Final = "__tailrace_erased"
"""In `before` and `after`, for a value that somebody wanted forgotten."""

UNSENT: Final = Field("unsent", "text[]")
"""Beside the others, for a proof: columns whose values PostgreSQL did not send, whether they are known or not."""
KEY_BEFORE: Final = Field("key_before", "text")
"""Beside the others, for rows that lack values: under which key the row was last heard of."""


@dataclass(frozen=True)
class Source:
    """Whose changes these are."""

    system: str
    database: str

    @property
    def seed(self) -> int:
        """32 bits that tell sources apart."""
        return int.from_bytes(hashlib.sha256(f"{self.system}/{self.database}".encode()).digest()[:4])


def ids(at: At, source: Source) -> pa.StringArray:
    """A UUID for each change: its position and its source, so that a change has the same one at every reading.

    Version 8: 48 + 8 bits of the commit's LSN, the source, the ordinal. They ascend as the log does.
    """
    lsn, ordinal = at.commit_lsn.astype(np.uint64), at.ordinal.astype(np.uint64)
    high = (lsn >> np.uint64(8)) << np.uint64(16) | np.uint64(0x8000) | (lsn & np.uint64(0xFF)) << np.uint64(4)
    high |= ordinal >> np.uint64(30) & np.uint64(0xF)
    low = np.uint64(0x8000_0000_0000_0000 | source.seed) | (ordinal & np.uint64(0x3FFF_FFFF)) << np.uint64(32)
    digits = np.stack([high, low], axis=1)
    nibbles = (digits[:, :, None] >> np.arange(60, -1, -4, dtype=np.uint64)) & np.uint64(15)
    text = np.frombuffer(b"0123456789abcdef", np.uint8)[nibbles.astype(np.int64)].reshape(-1)
    offsets = np.arange(0, 32 * len(at) + 32, 32, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(at), [None, pa.py_buffer(offsets), pa.py_buffer(text.copy())])


def primary_keys(changes: TableChanges) -> pa.StringArray:
    """What identifies each row after the change, before it for a delete: the value, or several as a JSON array."""
    return _keys(changes, pa.array(changes.new.present))


def keys_before(changes: TableChanges) -> pa.StringArray:
    """What identified each row before the change, after it for an insert."""
    return _keys(changes, pa.array(~changes.old.present))


def _keys(changes: TableChanges, from_new: pa.BooleanArray) -> pa.StringArray:
    relation = changes.relation
    if not has_key(relation):
        return pa.nulls(len(changes), pa.string())
    places = fold.key_columns(relation)
    texts = [pc.if_else(from_new, fold.value(changes, c), changes.old.batch.column(c)) for c in places]
    return _key_texts(relation, texts)


def has_key(relation: Relation) -> bool:
    """And all of it is delivered."""
    return bool(relation.key) and {*relation.key} <= {column.name for column in relation.columns}


def _previous_keys(changes: TableChanges) -> pa.StringArray:
    """The keys of rows that have another now."""
    found = changes.old.present & changes.new.present
    if not found.any() or not has_key(changes.relation):
        return pa.nulls(len(changes), pa.string())
    before = keys_before(changes)
    is_other = pc.and_(pa.array(found), pc.not_equal(before, primary_keys(changes)))
    return pc.if_else(is_other.fill_null(False), before, None)


def _key_texts(relation: Relation, texts: Sequence[pa.Array]) -> pa.StringArray:
    if len(texts) == 1:
        return texts[0]
    columns = [relation.columns[c] for c in fold.key_columns(relation)]
    values = [log_json.values(text, column) for text, column in zip(texts, columns, strict=True)]
    return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*values, ", "), "]", "")


@dataclass(frozen=True)
class Manner:
    """How rows are written."""

    source: Source
    inserts: str
    """What an insert is called: INSERT or CREATE."""
    queued_at: str
    is_proof: bool = False
    """With UNSENT beside each row."""


def arrays(changes: TableChanges, contexts: pa.StringArray, manner: Manner) -> list[pa.Array]:
    """A column for each of FIELDS. `changes` with what can be known of unsent values filled in."""
    relation, at, count, source = changes.relation, changes.at, len(changes), manner.source
    operations = log_json.operations(changes.operation)
    if manner.inserts != "INSERT":
        operations = pc.if_else(pa.array(changes.operation == INSERT), manner.inserts, operations)
    return [
        ids(at, source),
        _constant(source.database, count),
        _constant(relation.schema, count),
        _constant(relation.name, count),
        operations,
        _befores(changes),
        log_json.json_objects(_storable(changes.new, relation), relation, unchanged=UNCHANGED),
        contexts,
        primary_keys(changes),
        log_json.moments(at.committed_at_us),
        pa.array(at.lsn),
        _constant(manner.queued_at, count),
        pa.array(at.xid),
        pa.array(at.commit_lsn),
        pa.array(at.ordinal),
        _previous_keys(changes),
        unchanged(changes),
    ]


def lacking(changes: TableChanges) -> npt.NDArray[np.bool_]:
    """Changes with a value that was not sent and that is not known."""
    found = np.zeros(len(changes), np.bool_)
    for unsent in changes.new.unchanged.values():
        found |= unsent
    return found


def _befores(changes: TableChanges) -> pa.StringArray:
    """What was there: the whole row or its key as PostgreSQL sends it; of an update that sends nothing of it, the key,
    which is then the same as after it."""
    relation = changes.relation
    found = log_json.json_objects(_storable(changes.old, relation), relation, only_identity=changes.old_is_key)
    silent = (changes.operation == UPDATE) & ~changes.old.present
    if silent.any() and relation.key:
        found = pc.if_else(pa.array(silent), log_json.keys(changes), found)
    return found


def _storable(images: Images, relation: Relation) -> Images:
    """With json values that jsonb does not take as texts."""
    columns = list(images.batch.columns)
    for place, column in enumerate(relation.columns):
        if mapping(column).form is Form.JSON:
            columns[place] = jsonb_texts(columns[place])
    if all(a is b for a, b in zip(columns, images.batch.columns, strict=True)):
        return images
    return replace(images, batch=record_batch(columns, images.batch.schema, len(images)))


def unchanged(changes: TableChanges) -> pa.StringArray:
    """The names of columns whose values are missing, as PostgreSQL writes an array; NULL where there are none."""
    new, relation = changes.new, changes.relation
    if not new.unchanged:
        return pa.nulls(len(new), pa.string())
    found: list[str | None] = [None] * len(new)
    for columns, some, _ in fold.by_unsent(new):
        if columns:
            literal = "{" + ",".join(_quoted(relation.columns[c].name) for c in columns) + "}"
            for row in some:
                found[row] = literal
    return pa.array(found, pa.string())


def _quoted(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _constant(text: str, count: int) -> pa.StringArray:
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int64)))
