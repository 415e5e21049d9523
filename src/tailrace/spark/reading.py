"""Parts of the log → record batches: what the tasks of a read do, and how their work is cut.

A part has everything that a task needs beside the store. The task reads one segment at a time and gives rows in the
log's order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tailrace.change import Lsn, Relation
from tailrace.errors import CorruptError, TailraceError
from tailrace.log import segment
from tailrace.log.decoding import Admission, TableChanges, chunk
from tailrace.log.lineage import Lineage
from tailrace.log.plan import MIB, Batch, Slice
from tailrace.log.reader import LogReader
from tailrace.log.segment import Content
from tailrace.settings.pattern import TablePattern
from tailrace.spark import changes
from tailrace.spark.changes import Contexts
from tailrace.spark.options import Options
from tailrace.spark.rows import Shape

BATCH_ROWS: Final = 65_536
"""Of a record batch: large enough that what each costs does not show, small enough to hold a few in memory."""
PART_BYTES: Final = 16 * MIB
"""Of payloads, for one task: some tenths of a second's work, so that what a task costs does not show."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class Part(InputPartition):
    """What one task reads."""

    slices: tuple[Slice, ...]
    admission: Admission
    shape: Shape | None
    """None for the change stream."""
    tables: tuple[TablePattern, ...] = ()


def told(function: Callable[P, T]) -> Callable[P, T]:
    """Spark shows an error's text alone, under its own: so it says what to do, and not where in the code it arose."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except TailraceError as error:
            raise with_hint(error) from None

    return wrapped


def with_hint(error: TailraceError) -> TailraceError:
    return type(error)(f"{error.message} ({error.hint})" if error.hint else error.message, error.hint)


def parts(
    batch: Batch, admission: Admission, shape: Shape | None, tables: tuple[TablePattern, ...] = ()
) -> list[InputPartition]:
    """The batch for tasks: of a transaction that spans segments the change stream needs all in one, for `context`."""
    wanted = -(-batch.bytes // PART_BYTES)
    return [
        Part(slices, admission, shape, tables)
        for slices in batch.parts(max(wanted, 1), whole_transactions=shape is None)
    ]


def read(options: Options, part: Any) -> Iterator[pa.RecordBatch]:
    """What Spark calls in a task; without a part where there is nothing to read."""
    if not isinstance(part, Part):
        return
    try:
        yield from batches(options.log(), part)
    except TailraceError as error:
        raise with_hint(error) from None


def batches(reader: LogReader, part: Part) -> Iterator[pa.RecordBatch]:
    """The part's rows."""
    contents = _Contents(reader)
    if part.shape is not None:
        for s in part.slices:
            yield from _rows(contents.get(s.segment), s, part.admission, part.shape)
        return
    for group in together(part.slices):
        told = Contexts.of((contents.get(s.segment), s.start, s.stop) for s in group)
        for s in group:
            for low, high in _windows(s):
                found = chunk(contents.get(s.segment), low, high, part.admission, as_text=True)
                if part.tables:
                    found = [
                        run for run in found if isinstance(run, TableChanges) and _match(part.tables, run.relation)
                    ]
                if (batch := changes.batch(found, told)) is not None:
                    yield batch


def _rows(content: Content, s: Slice, admission: Admission, shape: Shape) -> Iterator[pa.RecordBatch]:
    for low, high in _windows(s):
        for run in chunk(content, low, high, admission):
            if isinstance(run, TableChanges) and shape.admits(run.relation):
                yield shape.batch(run)


def _windows(s: Slice) -> Iterable[tuple[int, int]]:
    return ((low, min(low + BATCH_ROWS, s.stop)) for low in range(s.start, s.stop, BATCH_ROWS))


class _Contents:
    """Segments by id. Most have objects of their own, so a listing is asked for only when one has not."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._last: Content | None = None
        self._is_listed = False

    def get(self, id: int) -> Content:
        if self._last is None or self._last.header.id != id:
            self._last = self._alone(id) or self._reader.awaited_content(id)
        if self._last is None:
            raise CorruptError(
                f"segment {id} of {self._reader.store.url} went away while it was read",
                "did retention remove it? start from where the log begins now",
            )
        return self._last

    def _alone(self, id: int) -> Content | None:
        if self._is_listed:
            return None
        name = segment.key(id)
        data = self._reader.store.get(name)
        self._is_listed = data is None
        return segment.unpack(data, name)[0] if data is not None else None


def shaped(lineage: Lineage, batch: Batch, options: Options, target: Relation) -> tuple[Batch, Shape]:
    """What of a batch a read of one table needs, and how its rows are brought to the target."""
    assert options.table is not None
    names = options.table.schema, options.table.name
    end = batch.end.segment
    table = lineage.table(end) or target.oid
    chains = {oid: lineage.chain(oid, target) for oid in {table, *lineage.bearers(end)}}
    shape = Shape(target, table, names, chains)
    kept = tuple(s for s in batch.slices if any(r.oid in chains for r in lineage.relations(s.segment)))
    return Batch(kept, batch.start, batch.end), shape


def admission(start: Lsn, end: Lsn | None, oids: Iterable[int] | None) -> Admission:
    """What commits between two LSNs, of some tables or of all."""
    if oids is None:
        return Admission(start, end=end)
    return Admission(start, dict.fromkeys(oids, start), others=False, end=end)


def chosen(log: LogReader, batch: Batch, tables: tuple[TablePattern, ...]) -> tuple[Batch, set[int] | None]:
    """What of a batch of the change stream is needed for some tables, and their oids; all of it without patterns."""
    if not tables:
        return batch, None
    of = {
        s.segment: {relation.oid for _, relation in log.relations(s.segment) if _match(tables, relation)}
        for s in batch.slices
    }
    # Of transactions that span segments all is needed, or nothing: what is told in them may stand anywhere.
    kept = [s for group in together(batch.slices) if any(of[s.segment] for s in group) for s in group]
    return Batch(tuple(kept), batch.start, batch.end), set().union(*of.values())


def _match(tables: tuple[TablePattern, ...], relation: Relation) -> bool:
    return any(pattern.matches(relation.schema, relation.name) for pattern in tables)


def together(slices: Sequence[Slice]) -> list[tuple[Slice, ...]]:
    """Slices that share transactions, in groups."""
    groups: list[list[Slice]] = [[]]
    for s in slices:
        groups[-1].append(s)
        if not s.goes_on:
            groups.append([])
    return [tuple(group) for group in groups if group]
