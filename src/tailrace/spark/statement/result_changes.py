"""A statement's rows → changes, staged in the same task that evaluated them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import types
from tailrace.change import Column, Relation
from tailrace.delivery.contract import Part
from tailrace.delivery.task import ChangeCounter, StageTask, TaskResult
from tailrace.delivery.transforms.row_filter import old_image_hint
from tailrace.errors import ConfigError, TailraceError
from tailrace.images import Images, record_batch
from tailrace.log import decoding
from tailrace.log.decoding import DELETE, INSERT, TRUNCATE, UPDATE, ChangePositions, Chunk, Mask, TableChanges
from tailrace.pgoutput import cell
from tailrace.spark.statement.derivation import HIDDEN, Derivation
from tailrace.spark.statement.image_rows import RowKind
from tailrace.state import postgres_text
from tailrace.state.evolution import special_map
from tailrace.types import Form

I64 = npt.NDArray[np.int64]

RESULT: Final = pa.schema([("result", pa.binary())])


@dataclass(frozen=True)
class RowStager:
    """Runs in executors, behind the statement: stages each part and yields its pickled result."""

    derivation: Derivation
    target: tuple[str, str]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = _ResultRows(batches)
        while (pickled := rows.next_task()) is not None:
            result = self._result(pickle.loads(pickled), rows)  # noqa: S301 (the driver pickled it)
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], schema=RESULT)
            if isinstance(result, TailraceError):
                return  # what comes after a failure must not become visible before it

    def _result(self, task: StageTask, rows: _ResultRows) -> TaskResult | TailraceError:
        try:
            counter = ChangeCounter()
            chunks = self.chunks(task, rows.of_task())
            part = Part(task.step, task.number, counter.over(chunks), task.rows.load if task.rows else None)
            receipt = task.sink.stage(part)
            for _ in part.chunks:
                pass
            return TaskResult(receipt, counter.changes)
        except TailraceError as error:
            return error

    def chunks(self, task: StageTask, batches: Iterable[pa.RecordBatch]) -> Iterator[Chunk]:
        """The changes that a part's rows make."""
        as_text = task.sink.values == "text"
        found = (list(self._changes(batch, as_text)) for batch in whole_changes(batches))
        yield from found if task.rows is not None else decoding.with_last_of(found)

    def _changes(self, batch: pa.RecordBatch, as_text: bool) -> Iterator[TableChanges]:
        """Runs of changes: of one table each, a TRUNCATE alone."""
        hidden = batch.column(HIDDEN)
        kinds, oids = _numbers(hidden, "kind"), _numbers(hidden, "relation_id")
        is_truncate = kinds == RowKind.TRUNCATE
        cuts = np.flatnonzero((oids[1:] != oids[:-1]) | is_truncate[1:] | is_truncate[:-1]) + 1
        edges = [0, *cuts.tolist(), len(batch)]
        for low, high in pairwise(edges):
            if low == high:
                continue
            rows = batch.slice(low, high - low)
            # With the table's own oid: a table of the same name may have been dropped and created again.
            relation = replace(self.derivation.result, oid=int(oids[low]))
            if is_truncate[low]:
                yield self._truncate(rows, relation, as_text)
            else:
                yield self._run(rows, relation, as_text)

    def _truncate(self, rows: pa.RecordBatch, relation: Relation, as_text: bool) -> TableChanges:
        hidden = rows.column(HIDDEN)
        none = decoding.no_images(relation, 1, as_text)
        options = pickle.loads(hidden.field("payload")[0].as_py())  # noqa: S301 (`RowReader` pickled it)
        letters = np.array([TRUNCATE], np.uint8)
        no = np.zeros(1, np.bool_)
        return TableChanges(relation, _positions(hidden, np.arange(1)), letters, none, no, none, options, self.target)

    def _run(self, rows: pa.RecordBatch, relation: Relation, as_text: bool) -> TableChanges:
        hidden = rows.column(HIDDEN)
        kinds, operations = _numbers(hidden, "kind"), _numbers(hidden, "operation").astype(np.uint8)
        is_old = kinds == RowKind.OLD
        starts = np.flatnonzero(_is_start(hidden))
        ends = np.append(starts[1:], len(rows))
        self._require_single(hidden, kinds, starts, ends)
        has_old, has_new = is_old[starts], ~is_old[ends - 1]
        old = np.where(has_old, starts, -1)
        new = np.where(has_new, ends - 1, -1)
        letters = operations[starts].copy()
        is_alone = _flags(hidden, "is_alone")[starts]
        arrives = (letters == UPDATE) & ~has_old & ~is_alone
        letters[arrives] = INSERT
        letters[(letters == UPDATE) & ~has_new] = DELETE
        images = self._images(rows, relation)
        changes = TableChanges(
            relation,
            _positions(hidden, starts),
            letters,
            _take(images, old),
            _flags(hidden, "is_key")[starts] & has_old,
            _take(images, new),
            target=self.target,
        )
        self._require_whole(changes, arrives)
        if not as_text:
            return changes
        old_texts = postgres_text.image_texts(changes.old, relation)
        return replace(changes, old=old_texts, new=postgres_text.image_texts(changes.new, relation))

    def _require_single(self, hidden: pa.StructArray, kinds: I64, starts: I64, ends: I64) -> None:
        """A change is at most one old row and one new one."""
        two = (ends - starts == 2) & (kinds[starts] == RowKind.OLD) & (kinds[ends - 1] == RowKind.NEW)
        wrong = (ends - starts > 1) & ~two
        if wrong.any():
            where = _positions(hidden, starts).position(int(np.flatnonzero(wrong)[0]))
            raise ConfigError(
                f"{self.derivation.where} makes several rows of the change at {where}",
                "join only over columns that are unique in the other table",
            )

    def _require_whole(self, changes: TableChanges, arrives: Mask) -> None:
        for place, unsent in changes.new.unchanged.items():
            if (lost := unsent & arrives).any():
                where = changes.at.position(int(np.flatnonzero(lost)[0]))
                raise ConfigError(
                    f"{where}: UPDATE of {changes.relation.qualified_name} makes a row match, but PostgreSQL did not "
                    f"send column {changes.relation.columns[place].name}, which did not change",
                    old_image_hint(self.derivation.source),
                )

    def _images(self, rows: pa.RecordBatch, relation: Relation) -> Images:
        """One image of each row, typed as the result's relation says."""
        hidden = rows.column(HIDDEN)
        arrays = []
        special: dict[str, dict[int, str]] = {}
        for column, array in zip(relation.columns, rows.columns, strict=False):
            values, odd = typed_column(array, column)
            arrays.append(values)
            if odd:
                special[column.name] = odd
        names = {c.source: c.name for c in self.derivation.columns if c.source is not None}
        for row, entries in _entries_by_row(hidden.field("special")):
            for name, text in entries:
                if name in names:
                    special.setdefault(names[name], {})[row] = text
        unchanged: dict[int, Mask] = {}
        for row, unsent in _entries_by_row(hidden.field("unchanged")):
            for place, result in enumerate(self.derivation.columns):
                if result.source in unsent:
                    unchanged.setdefault(place, np.zeros(len(rows), np.bool_))[row] = True
        batch = record_batch(arrays, types.schema(relation), len(rows))
        return Images(batch, np.ones(len(rows), np.bool_), unchanged, special_map(special, len(rows)))


def stage_nothing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Stages the tasks of a step without changes of the statement's table."""
    for batch in batches:
        for pickled in batch.column(0).to_pylist():
            task: StageTask = pickle.loads(pickled)  # noqa: S301 (the driver pickled it)
            result: TaskResult | TailraceError
            try:
                receipt = task.sink.stage(Part(task.step, task.number, iter(()), None))
                result = TaskResult(receipt, 0)
            except TailraceError as error:
                result = error
            yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(result)], pa.binary())], schema=RESULT)
            if isinstance(result, TailraceError):
                return


@dataclass
class _ResultRows:
    """A statement's rows, divided at the control rows."""

    batches: Iterable[pa.RecordBatch]
    _found: Iterator[pa.RecordBatch] | None = None
    _left: list[pa.RecordBatch] = field(default_factory=list)

    def next_task(self) -> bytes | None:
        """Go to where the next part begins; None after the last."""
        while (batch := self._next()) is not None:
            hidden = batch.column(HIDDEN)
            begins = np.flatnonzero(_numbers(hidden, "kind") == RowKind.BEGIN)
            if len(begins):
                self._give_back(batch, int(begins[0]) + 1)
                return bytes(hidden.field("payload")[int(begins[0])].as_py())
        return None

    def of_task(self) -> Iterator[pa.RecordBatch]:
        """Rows up to the next part."""
        while (batch := self._next()) is not None:
            kinds = _numbers(batch.column(HIDDEN), "kind")
            stops = np.flatnonzero((kinds == RowKind.BEGIN) | (kinds == RowKind.ERROR))
            stop = int(stops[0]) if len(stops) else len(batch)
            if stop:
                yield batch.slice(0, stop)
            if len(stops):
                if kinds[stop] == RowKind.ERROR:
                    raise pickle.loads(batch.column(HIDDEN).field("payload")[stop].as_py())  # noqa: S301 (as above)
                self._give_back(batch, stop)
                return

    def _next(self) -> pa.RecordBatch | None:
        if self._left:
            return self._left.pop()
        if self._found is None:
            self._found = iter(self.batches)
        return next((batch for batch in self._found if len(batch)), None)

    def _give_back(self, batch: pa.RecordBatch, start: int) -> None:
        if start < len(batch):
            self._left.append(batch.slice(start))


def whole_changes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows, so that no change is divided: its old row and its new one are in the same batch."""
    held: pa.RecordBatch | None = None
    for batch in batches:
        both = batch if held is None else pa.concat_batches([held, batch])
        last = int(np.flatnonzero(_is_start(both.column(HIDDEN)))[-1])
        if last:
            yield both.slice(0, last)
        held = both.slice(last)
    if held is not None:
        yield held


def _is_start(hidden: pa.StructArray) -> Mask:
    """Rows whose change is another than that of the row before."""
    at = [_numbers(hidden, name) for name in ("commit_lsn", "ordinal", "relation_id")]
    differs = np.zeros(max(len(hidden) - 1, 0), np.bool_)
    for numbers in at:
        differs |= numbers[1:] != numbers[:-1]
    return np.append(True, differs)[: len(hidden)]


def _positions(hidden: pa.StructArray, rows: I64) -> ChangePositions:
    names = ("commit_lsn", "ordinal", "lsn", "xid", "committed_at_us")
    commit_lsn, ordinal, lsn, xid, committed_at_us = (_numbers(hidden, name)[rows] for name in names)
    return ChangePositions(commit_lsn, ordinal, lsn, xid, committed_at_us, np.zeros(len(rows), np.bool_))


def _take(images: Images, rows: I64) -> Images:
    """Those rows; none where the number is -1."""
    absent = rows < 0
    if not absent.any():
        return images.take(rows)
    found = images.take(np.where(absent, 0, rows))
    keep = pa.array(np.arange(len(rows)), mask=absent)
    arrays = [array.take(keep) for array in found.batch.columns]
    unchanged = {place: mask & ~absent for place, mask in found.unchanged.items()}
    special = None if found.special is None else found.special.take(keep)
    return Images(
        record_batch(arrays, found.batch.schema, len(rows)),
        ~absent,
        {place: mask for place, mask in unchanged.items() if mask.any()},
        None if special is None or special.null_count == len(special) else special,
    )


def typed_column(array: pa.Array, column: Column) -> tuple[pa.Array, dict[int, str]]:
    """A result's column as its mapped type has it. Times of day are texts in Spark."""
    mapping = types.mapping(column)
    if mapping.form is Form.TIME:
        values, odd = cell.read(cell.Cells.of(array), mapping)
        return values, {int(row): array[int(row)].as_py() for row in odd}
    return (array if array.type == mapping.arrow else pc.cast(array, mapping.arrow)), {}


def _numbers(hidden: pa.StructArray, name: str) -> I64:
    return np.asarray(pc.fill_null(hidden.field(name), 0).to_numpy(zero_copy_only=False), np.int64)


def _flags(hidden: pa.StructArray, name: str) -> Mask:
    return np.asarray(pc.fill_null(hidden.field(name), False).to_numpy(zero_copy_only=False), np.bool_)


def _entries_by_row(array: pa.Array) -> Iterator[tuple[int, Any]]:
    """Rows that have entries, and these."""
    lengths = pc.fill_null(pc.list_value_length(array), 0) if pa.types.is_list(array.type) else array.is_valid()
    for row in np.flatnonzero(lengths.to_numpy(zero_copy_only=False)):
        yield int(row), array[int(row)].as_py()
