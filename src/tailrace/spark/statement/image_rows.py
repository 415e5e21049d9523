"""Changes → rows that a statement can be evaluated on: the row before and the row after each change.

A statement's condition decides for both. So an UPDATE that makes a row match is delivered as an INSERT, and one that
makes it no longer match as a DELETE. `HIDDEN` tells the rows apart and says what else is needed to make changes of them
again. Control rows go the same way: where a part begins, a TRUNCATE, a marker, an error.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tailrace import types
from tailrace.change import Relation
from tailrace.delivery.context import Contexts
from tailrace.delivery.task import StageTask, log_reader
from tailrace.delivery.transforms.row_filter import filled_from_old, old_image_hint
from tailrace.errors import ConfigError, TailraceError
from tailrace.images import Images
from tailrace.log import json_columns
from tailrace.log.decoding import DELETE, INSERT, UPDATE, LogicalMessages, Mask, TableChanges
from tailrace.spark import schema
from tailrace.spark.changes import batch as changes_batch
from tailrace.spark.changes import names_where, position_columns
from tailrace.spark.rows import RowConverter, fit_to_spark
from tailrace.spark.statement.derivation import CHANGES, CONTROL, HIDDEN, PARTIAL, Derivation

BATCH_ROWS: Final = 65_536


class RowKind(IntEnum):
    BEGIN = 0
    """A part begins: `payload` is its pickled task."""
    ERROR = 1
    """Reading failed: `payload` is the pickled error."""
    TRUNCATE = 2
    OLD = 3
    NEW = 4


HIDDEN_TYPE: Final = pa.struct(
    [
        ("kind", pa.int8()),
        ("commit_lsn", pa.int64()),
        ("ordinal", pa.int64()),
        ("lsn", pa.int64()),
        ("xid", pa.int64()),
        ("committed_at_us", pa.int64()),
        ("relation_id", pa.int64()),
        ("operation", pa.int16()),
        ("is_key", pa.bool_()),
        ("is_alone", pa.bool_()),
        ("unchanged", pa.list_(pa.string())),
        ("special", types.SPECIALS),
        ("payload", pa.binary()),
    ]
)
"""`is_key`: an old row of which only the key is known. `is_alone`: the new row of an UPDATE whose old row was not sent,
because its key is the same. `payload` also carries a TRUNCATE's options, pickled."""

_HIDDEN_FIELDS: Final = (
    pa.field(HIDDEN, HIDDEN_TYPE),
    pa.field(CONTROL, pa.bool_()),
    pa.field(PARTIAL, pa.bool_()),
)


def row_schema(relation: Relation) -> pa.Schema:
    """The table's columns, the columns about the change, and the hidden ones; for `CHANGES`, those of the stream."""
    if relation == CHANGES:
        return pa.schema([*schema.CHANGES, *_HIDDEN_FIELDS])
    own = [pa.field(column.name, schema.own_type(column)) for column in relation.columns]
    return pa.schema([*own, *schema.about_columns(relation), *_HIDDEN_FIELDS])


@dataclass(frozen=True)
class RowReader:
    """Runs in executors: gets pickled tasks and yields their rows."""

    derivation: Derivation
    chains: Mapping[int, Sequence[Relation]]
    """The relations of the table in the step, in order, by oid: rows are brought to the derivation's."""
    is_load: bool
    """Whether it reads the tasks of loads, or those of the log."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for pickled in batch.column(0).to_pylist():
                task = pickle.loads(pickled)  # noqa: S301 (the driver pickled it)
                if (task.rows is not None) != self.is_load:
                    continue
                yield self._control(RowKind.BEGIN, pickled)
                try:
                    yield from self._rows(task)
                except TailraceError as error:
                    yield self._control(RowKind.ERROR, pickle.dumps(error))
                    return

    def _rows(self, task: StageTask) -> Iterator[pa.RecordBatch]:
        if self.derivation.source == CHANGES:
            yield from self._stream_rows(task)
            return
        for chunk in task.chunks(as_text=False):
            for run in chunk:
                if isinstance(run, LogicalMessages):
                    continue
                if run.is_truncate:
                    yield self._control(RowKind.TRUNCATE, pickle.dumps(run.truncate_options), run)
                else:
                    yield from image_rows(self._project(run), self.derivation)

    def _stream_rows(self, task: StageTask) -> Iterator[pa.RecordBatch]:
        contexts = Contexts.in_slices(log_reader(task.store), task.slices)
        for chunk in task.chunks(as_text=True):
            rows = changes_batch(chunk, contexts)
            if rows is not None:
                yield _with_hidden(rows)

    def _project(self, run: TableChanges) -> TableChanges:
        target = self.derivation.source
        converter = RowConverter(target, target.oid, (target.schema, target.name), self.chains)
        new, old = converter.project(run, run.new), converter.project(run, run.old, ~run.old_is_key)
        return replace(run, new=new, old=old)

    def _control(self, kind: RowKind, payload: bytes | None = None, run: TableChanges | None = None) -> pa.RecordBatch:
        hidden: dict[str, Any] = {"kind": int(kind), "payload": payload}
        if run is not None:
            at = run.at
            hidden |= {name: int(getattr(at, name)[0]) for name in ("commit_lsn", "ordinal", "lsn", "xid")}
            hidden |= {"committed_at_us": int(at.committed_at_us[0]), "relation_id": run.relation.oid}
            hidden |= {"operation": int(run.operation[0])}
        given = {HIDDEN: pa.array([hidden], HIDDEN_TYPE), CONTROL: pa.array([True]), PARTIAL: pa.array([True])}
        wanted = row_schema(self.derivation.source)
        return pa.RecordBatch.from_arrays([given.get(f.name, pa.nulls(1, f.type)) for f in wanted], schema=wanted)


def _with_hidden(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of the change stream: each is a row of its own, whatever it says of another."""
    count = len(rows)
    given = {name: rows.column(name) for name in ("commit_lsn", "ordinal", "lsn", "xid")}
    given |= {
        "kind": pa.array(np.full(count, int(RowKind.NEW), np.int8)),
        "committed_at_us": rows.column("committed_at").cast(pa.int64()),
        "relation_id": pa.array(np.zeros(count, np.int64)),
        "operation": pa.array(np.full(count, INSERT, np.int16)),
    }
    fields = [given.get(field.name, pa.nulls(count, field.type)) for field in HIDDEN_TYPE]
    hidden = pa.StructArray.from_arrays(fields, fields=list(HIDDEN_TYPE))
    no = pa.array(np.zeros(count, np.bool_))
    return pa.RecordBatch.from_arrays([*rows.columns, hidden, no, no], schema=row_schema(CHANGES))


def image_rows(changes: TableChanges, derivation: Derivation) -> Iterator[pa.RecordBatch]:
    """Rows of changes whose images are those of the derivation's source; `changes.relation` is what they were made
    under."""
    is_update, is_delete = changes.operation == UPDATE, changes.operation == DELETE
    whole = changes.old.present & ~changes.old_is_key
    _require_old(changes, (is_update | is_delete) & ~whole, derivation)
    named = replace(changes, relation=derivation.source)
    changes = replace(changes, new=filled_from_old(named, is_update & whole))
    _require_values(changes, derivation)
    gives_old, gives_new = (is_update | is_delete) & changes.old.present, ~is_delete
    order = [np.flatnonzero(gives_old) * 2, np.flatnonzero(gives_new) * 2 + 1]
    is_alone = is_update & ~gives_old
    batches = [_batch(changes, changes.new, RowKind.NEW, gives_new, is_alone, derivation.source)]
    if gives_old.any():
        batches.insert(0, _batch(changes, changes.old, RowKind.OLD, gives_old, is_alone, derivation.source))
        rows = pa.concat_batches(batches).take(pa.array(np.argsort(np.concatenate(order))))
    else:
        rows = batches[0]
    for start in range(0, len(rows), BATCH_ROWS):
        yield rows.slice(start, BATCH_ROWS)


def _batch(
    changes: TableChanges, images: Images, kind: RowKind, given: Mask, is_alone: Mask, relation: Relation
) -> pa.RecordBatch:
    own, special = fit_to_spark(images, relation)
    count = len(changes)
    at = changes.at
    is_key = changes.old_is_key if kind is RowKind.OLD else np.zeros(count, np.bool_)
    fields = {
        "kind": np.full(count, int(kind), np.int8),
        "commit_lsn": at.commit_lsn,
        "ordinal": at.ordinal,
        "lsn": at.lsn,
        "xid": at.xid,
        "committed_at_us": at.committed_at_us,
        "relation_id": np.full(count, changes.relation.oid, np.int64),
        "operation": changes.operation.astype(np.int16),
        "is_key": is_key,
        "is_alone": is_alone,
    }
    arrays = [pa.array(values, HIDDEN_TYPE.field(name).type) for name, values in fields.items()]
    names = [column.name for column in relation.columns]
    unchanged = names_where(images.unchanged, names, count)
    hidden = pa.StructArray.from_arrays(
        [*arrays, unchanged, special, pa.nulls(count, pa.binary())], fields=list(HIDDEN_TYPE)
    )
    position, *numbers, times = position_columns(at)
    about = [json_columns.operations(changes.operation), position, *numbers, times, arrays[6]]
    flags = [pa.array(np.zeros(count, np.bool_)), pa.array(is_key)]
    rows = pa.RecordBatch.from_arrays([*own, *about, hidden, *flags], schema=row_schema(relation))
    return rows if given.all() else rows.take(pa.array(np.flatnonzero(given)))


def _require_old(changes: TableChanges, lacking: Mask, derivation: Derivation) -> None:
    """A condition over columns that are not part of the key needs the whole row before."""
    known = {column.name for column in derivation.source.columns if column.is_identity}
    unknown = sorted(derivation.condition - known) if changes.relation.identity != "f" else []
    if unknown and lacking.any():
        row = int(np.flatnonzero(lacking)[0])
        kind = "UPDATE" if changes.operation[row] == UPDATE else "DELETE"
        raise ConfigError(
            f"{derivation.where} uses {', '.join(unknown)}, but {kind} at {changes.at.position(row)} lacks the old "
            "values: PostgreSQL sent only the key",
            old_image_hint(changes.relation),
        )


def _require_values(changes: TableChanges, derivation: Derivation) -> None:
    """What is computed from a value that was not sent cannot be known."""
    for place, unsent in changes.new.unchanged.items():
        name = derivation.source.columns[place].name
        if name in derivation.computed_from and unsent.any():
            where = changes.at.position(int(np.flatnonzero(unsent)[0]))
            raise ConfigError(
                f"{derivation.where} uses {name}, but UPDATE at {where} lacks it: PostgreSQL does not send "
                "large values that did not change",
                old_image_hint(changes.relation),
            )
