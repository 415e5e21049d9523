"""Repairs: rows of a destination that differ from the source's, and what makes them equal.

    cursors/<sink>/repairs/<id>.arrow    the changes, and the LSN as of which the rows were compared
    cursors/<sink>/repairs/<id>.json     the outcome

A control request names a repair. The process that delivers to the sink executes it between two steps, as a step of its
own. It leaves out rows that the log has changed since they were compared: what is right for them is not known any more,
and the next comparison finds them if they still differ.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import stored_json, types
from tailrace.change import Lsn, Relation
from tailrace.errors import CorruptError, TailraceError
from tailrace.images import Images, record_batch
from tailrace.log.decoding import DELETE, INSERT, UPDATE, ChangePositions, TableChanges
from tailrace.log.retention import CURSORS
from tailrace.state import fold, log_window
from tailrace.state.retyping import to_typed
from tailrace.store import Store

MAX_ROWS: Final = 10_000
"""Of one repair: it is one step, and other changes wait for it. With more differences, the table is loaded again."""

_DIRECTORY: Final = "repairs"
_OPERATION: Final = "~operation"

Row = tuple[str | None, ...]


@dataclass(frozen=True)
class RepairOutcome:
    applied: int = 0
    """Rows that were corrected."""
    skipped: int = 0
    """Rows that changed since they were compared."""
    error: str = ""
    """Why the step failed. Nothing was corrected then."""


@dataclass(frozen=True)
class Repair:
    relation: Relation
    """As delivered."""
    target: tuple[str, str]
    position: Lsn
    """The rows were compared as of this LSN."""
    inserted: Sequence[Row] = ()
    updated: Sequence[Row] = ()
    """Rows as they should be."""
    deleted: Sequence[Row] = ()
    """Rows that should not be there. With a key, only its values matter."""
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    def __len__(self) -> int:
        return len(self.inserted) + len(self.updated) + len(self.deleted)

    def save(self, store: Store, sink: str) -> None:
        letters = "D" * len(self.deleted) + "U" * len(self.updated) + "I" * len(self.inserted)
        rows = [*self.deleted, *self.updated, *self.inserted]
        # By index: a table's column may have any name.
        arrays = [pa.array([row[n] for row in rows], pa.string()) for n in range(len(self.relation.columns))]
        names = [_OPERATION, *(str(n) for n in range(len(arrays)))]
        about = {"relation": self.relation.to_json(), "target": self.target, "position": str(self.position)}
        batch = pa.record_batch([pa.array(list(letters), pa.string()), *arrays], names=names)
        batch = batch.replace_schema_metadata({"repair": json.dumps(about)})
        stream = pa.BufferOutputStream()
        with pa.ipc.new_file(stream, batch.schema) as writer:
            writer.write_batch(batch)
        store.create(_key(sink, self.id, "arrow"), stream.getvalue().to_pybytes())

    @classmethod
    def load(cls, store: Store, sink: str, id: str) -> Repair | None:
        """None: there is no such repair."""
        key = _key(sink, id, "arrow")
        data = store.get(key)
        if data is None:
            return None
        try:
            table = pa.ipc.open_file(pa.py_buffer(data)).read_all()
            about = stored_json.parse(table.schema.metadata[b"repair"])
            relation = Relation.from_json(about["relation"])
            schema, name = about["target"]
            columns = [column.to_pylist() for column in table.columns[1:]]
            rows = list(zip(table.column(0).to_pylist(), zip(*columns, strict=True), strict=True))
            position = Lsn.parse(about["position"])
        except (pa.ArrowException, ValueError, KeyError, TypeError, AttributeError, TailraceError) as error:
            raise CorruptError(f"{key} is not a repair", "verify again") from error
        inserted, updated, deleted = ([row for letter, row in rows if letter == own] for own in "IUD")
        return cls(relation, (schema, name), position, inserted, updated, deleted, id)

    def remove(self, store: Store, sink: str) -> None:
        store.delete(_key(sink, self.id, "arrow"))
        store.delete(_key(sink, self.id, "json"))

    def changes(self, cursor: Lsn, since: Sequence[TableChanges]) -> TableChanges | None:
        """The changes that correct the rows at the cursor, as texts. None: all of them have changed since.

        Args:
            cursor: The sink's cursor.
            since: The table's changes from `position` up to the cursor, shaped.
        """
        rows = [*self.deleted, *self.updated, *self.inserted]
        operation = np.array(
            [DELETE] * len(self.deleted) + [UPDATE] * len(self.updated) + [INSERT] * len(self.inserted), np.uint8
        )
        has_key = fold.has_key(self.relation)
        schema = types.schema(self.relation, as_text=True)
        arrays = [pa.array([row[n] for row in rows], pa.string()) for n in range(len(self.relation.columns))]
        batch = record_batch(arrays, schema, len(rows))
        kept = np.ones(len(rows), np.bool_)
        if not log_window.are_of_rows(self.relation, since):
            return None
        # Without a key, it does not matter which rows have changed: as many copies are missing or extra as before.
        if since and has_key:
            changed = log_window.changed_keys(self.relation, since)
            own = fold.key_texts([batch.column(c) for c in fold.key_columns(self.relation)])
            is_changed = pc.is_in(own, value_set=fold.key_texts(changed.columns))
            kept = ~is_changed.to_numpy(zero_copy_only=False)
        if not kept.any():
            return None
        is_deleted = operation == DELETE
        none = record_batch([pa.nulls(len(rows), f.type) for f in schema], schema, len(rows))
        found = TableChanges(
            self.relation,
            _positions(cursor, len(rows)),
            operation,
            Images(_where(is_deleted, batch, none), is_deleted, {}, None),
            is_deleted & has_key,
            Images(_where(~is_deleted, batch, none), ~is_deleted, {}, None),
            target=self.target,
        )
        return found if kept.all() else found.take(kept)


def typed(changes: TableChanges) -> TableChanges:
    """Changes given as texts, in the columns' mapped types."""
    return replace(changes, old=to_typed(changes.old, changes.relation), new=to_typed(changes.new, changes.relation))


def save_outcome(store: Store, sink: str, id: str, outcome: RepairOutcome) -> None:
    store.replace(_key(sink, id, "json"), json.dumps(asdict(outcome)).encode())


def load_outcome(store: Store, sink: str, id: str) -> RepairOutcome | None:
    """None: the sink has not executed it yet."""
    key = _key(sink, id, "json")
    data = store.get(key)
    try:
        return None if data is None else stored_json.typed(RepairOutcome(**stored_json.parse(data)))
    except stored_json.ERRORS as error:
        raise CorruptError(f"{key} is not the outcome of a repair", "verify again") from error


def _positions(cursor: Lsn, count: int) -> ChangePositions:
    """Positions after all changes below the cursor and after earlier repairs, and before all changes to come."""
    lsn = np.full(count, cursor - 1, np.int64)
    now_us = time.time_ns() // 1000
    is_last = np.zeros(count, np.bool_)
    is_last[-1:] = True
    none = np.zeros(count, np.int64)
    return ChangePositions(lsn, now_us + np.arange(count), lsn, none, none + now_us, is_last)


def _where(mask: npt.NDArray[np.bool_], batch: pa.RecordBatch, other: pa.RecordBatch) -> pa.RecordBatch:
    chosen = pa.array(mask)
    arrays = [pc.if_else(chosen, a, b) for a, b in zip(batch.columns, other.columns, strict=True)]
    return record_batch(arrays, batch.schema, len(batch))


def _key(sink: str, id: str, suffix: str) -> str:
    return f"{CURSORS}/{sink}/{_DIRECTORY}/{id}.{suffix}"
