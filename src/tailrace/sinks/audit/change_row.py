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
from tailrace.images import Images, record_batch
from tailrace.log import json_columns as log_json
from tailrace.log.decoding import INSERT, UPDATE, ChangePositions, TableChanges
from tailrace.log.jsonb import jsonb_texts
from tailrace.sinks.database.staged_rows import StagingField
from tailrace.state import fold
from tailrace.types import Form, mapping

I64 = npt.NDArray[np.int64]

UNCHANGED: Final = "__tailrace_unchanged"
"""In `after`, for an unknown value that PostgreSQL did not send. The column `unchanged` names it, too."""

FIELDS: Final = (
    StagingField("id", "uuid"),
    StagingField("database", "text"),
    StagingField("schema", "text"),
    StagingField("table", "text"),
    StagingField("operation", "text"),
    StagingField("before", "jsonb"),
    StagingField("after", "jsonb"),
    StagingField("context", "jsonb"),
    StagingField("primary_key", "text"),
    StagingField("committed_at", "timestamptz"),
    StagingField("position", "bigint"),
    StagingField("queued_at", "timestamptz"),
    StagingField("xid", "bigint"),
    StagingField("commit_position", "bigint"),
    StagingField("ordinal", "bigint"),
    StagingField("previous_key", "text"),
    StagingField("unchanged", "text[]"),
)
ERASED: Final = "__tailrace_erased"
"""In `before` and `after`, for a value that was erased on request."""

UNSENT: Final = StagingField("unsent", "text[]")
"""In addition, to verify a trail: columns whose values PostgreSQL did not send, whether they are known or not."""
KEY_BEFORE: Final = StagingField("key_before", "text")
"""In addition, for rows with unknown values: the key under which the row last appeared."""


@dataclass(frozen=True)
class SourceDatabase:
    """The database whose changes these are."""

    system: str
    database: str

    @property
    def seed(self) -> int:
        """32 bits that distinguish sources."""
        return int.from_bytes(hashlib.sha256(f"{self.system}/{self.database}".encode()).digest()[:4])


def ids(at: ChangePositions, source: SourceDatabase) -> pa.StringArray:
    """A UUID for each change, made from its position and source, so that it is the same whenever the change is read.

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
    """Each row's key after the change, or before a delete: the value, or several values as a JSON array."""
    return _keys(changes, pa.array(changes.new.present))


def keys_before(changes: TableChanges) -> pa.StringArray:
    """Each row's key before the change, or after an insert."""
    return _keys(changes, pa.array(~changes.old.present))


def _keys(changes: TableChanges, from_new: pa.BooleanArray) -> pa.StringArray:
    relation = changes.relation
    if not has_key(relation):
        return pa.nulls(len(changes), pa.string())
    places = fold.key_columns(relation)
    texts = [pc.if_else(from_new, fold.new_values(changes, c), changes.old.batch.column(c)) for c in places]
    return _key_texts(relation, texts)


def has_key(relation: Relation) -> bool:
    """Whether the table has a key and all of its columns are delivered."""
    return bool(relation.key) and {*relation.key} <= {column.name for column in relation.columns}


def _previous_keys(changes: TableChanges) -> pa.StringArray:
    """The old keys of rows whose key changed."""
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
    values = [log_json.json_values(text, column) for text, column in zip(texts, columns, strict=True)]
    return pc.binary_join_element_wise("[", pc.binary_join_element_wise(*values, ", "), "]", "")


@dataclass(frozen=True)
class RowFormat:
    """How rows are written."""

    source: SourceDatabase
    inserts: str
    """The operation of an insert: INSERT or CREATE."""
    queued_at: str
    has_unsent: bool = False
    """Whether rows have the field UNSENT."""


def arrays(changes: TableChanges, contexts: pa.StringArray, format: RowFormat) -> list[pa.Array]:
    """A column for each of FIELDS. Known unsent values must be filled in already."""
    relation, at, count, source = changes.relation, changes.at, len(changes), format.source
    operations = log_json.operations(changes.operation)
    if format.inserts != "INSERT":
        operations = pc.if_else(pa.array(changes.operation == INSERT), format.inserts, operations)
    return [
        ids(at, source),
        _constant(source.database, count),
        _constant(relation.schema, count),
        _constant(relation.name, count),
        operations,
        _befores(changes),
        log_json.json_objects(_with_storable_json(changes.new, relation), relation, unchanged=UNCHANGED),
        contexts,
        primary_keys(changes),
        log_json.timestamps(at.committed_at_us),
        pa.array(at.lsn),
        _constant(format.queued_at, count),
        pa.array(at.xid),
        pa.array(at.commit_lsn),
        pa.array(at.ordinal),
        _previous_keys(changes),
        unchanged_columns(changes),
    ]


def is_incomplete(changes: TableChanges) -> npt.NDArray[np.bool_]:
    """Which changes have unknown values."""
    found = np.zeros(len(changes), np.bool_)
    for unsent in changes.new.unchanged.values():
        found |= unsent
    return found


def _befores(changes: TableChanges) -> pa.StringArray:
    """The old row or its key, as PostgreSQL sends it; for an update without an old image, the unchanged key.

    NULL for a put of SlateDB, because nobody knows whether there was a row.
    """
    relation = changes.relation
    found = log_json.json_objects(
        _with_storable_json(changes.old, relation), relation, only_identity=changes.old_is_key
    )
    has_no_old = (changes.operation == UPDATE) & ~changes.old.present
    if has_no_old.any() and relation.key and not relation.is_upsert:
        found = pc.if_else(pa.array(has_no_old), log_json.keys(changes), found)
    return found


def _with_storable_json(images: Images, relation: Relation) -> Images:
    """Images with json values that jsonb does not accept converted to strings."""
    columns = list(images.batch.columns)
    for place, column in enumerate(relation.columns):
        if mapping(column).form is Form.JSON:
            columns[place] = jsonb_texts(columns[place])
    if all(a is b for a, b in zip(columns, images.batch.columns, strict=True)):
        return images
    return replace(images, batch=record_batch(columns, images.batch.schema, len(images)))


def unchanged_columns(changes: TableChanges) -> pa.StringArray:
    """The names of columns with unknown values, as PostgreSQL array literals; NULL if there are none."""
    new, relation = changes.new, changes.relation
    if not new.unchanged:
        return pa.nulls(len(new), pa.string())
    found: list[str | None] = [None] * len(new)
    for columns, rows, _ in fold.group_by_unsent(new):
        if columns:
            literal = "{" + ",".join(_quote_element(relation.columns[c].name) for c in columns) + "}"
            for row in rows:
                found[row] = literal
    return pa.array(found, pa.string())


def _quote_element(name: str) -> str:
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _constant(text: str, count: int) -> pa.StringArray:
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int64)))
