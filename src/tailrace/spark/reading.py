"""Divides a read into tasks, and converts each task's part of the log to record batches.

A part contains everything that a task needs except the store. The task reads one segment at a time and returns rows in
log order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from tailrace.change import Lsn, Relation
from tailrace.delivery.context import Contexts
from tailrace.errors import CorruptError, TailraceError
from tailrace.log import segment
from tailrace.log.decoding import ChangeFilter, LogicalMessages, TableChanges, chunk
from tailrace.log.lineage import Lineage
from tailrace.log.planner import MIB, LogBatch, Slice
from tailrace.log.reader import LogReader
from tailrace.log.segment import SegmentContent
from tailrace.settings.pattern import TablePattern
from tailrace.spark import changes
from tailrace.spark.options import Options
from tailrace.spark.rows import RowConverter

BATCH_ROWS: Final = 65_536
"""Rows of a record batch: enough to make the cost per batch negligible, few enough to hold several in memory."""
PART_BYTES: Final = 16 * MIB
"""Payload bytes for one task: some tenths of a second of work, which makes the cost per task negligible."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass
class LogPartition(InputPartition):
    """The part of the log that one task reads."""

    slices: tuple[Slice, ...]
    change_filter: ChangeFilter
    converter: RowConverter | None
    """None for the change stream."""
    tables: tuple[TablePattern, ...] = ()


def with_hints(function: Callable[P, T]) -> Callable[P, T]:
    """Add an error's hint to its text, because Spark shows only the text, and drop the traceback."""

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
    batch: LogBatch, change_filter: ChangeFilter, converter: RowConverter | None, tables: tuple[TablePattern, ...] = ()
) -> list[InputPartition]:
    """Divide a batch into tasks. For the change stream, one task gets all segments of a transaction, because `context`
    can come from any of them."""
    wanted = -(-batch.bytes // PART_BYTES)
    return [
        LogPartition(slices, change_filter, converter, tables)
        for slices in batch.split(max(wanted, 1), whole_transactions=converter is None)
    ]


def read(options: Options, part: Any) -> Iterator[pa.RecordBatch]:
    """Read a part in a task. Spark passes another object if there is nothing to read."""
    if not isinstance(part, LogPartition):
        return
    try:
        yield from batches(options.log(), part)
    except TailraceError as error:
        raise with_hint(error) from None


def batches(reader: LogReader, part: LogPartition) -> Iterator[pa.RecordBatch]:
    """Return the part's rows."""
    contents = _Contents(reader)
    if part.converter is not None:
        for s in part.slices:
            yield from _rows(contents.get(s.segment), s, part.change_filter, part.converter)
        return
    for group in by_transaction(part.slices):
        contexts = Contexts.of(_messages(contents, group))
        for s in group:
            for low, high in _windows(s):
                found = chunk(contents.get(s.segment), low, high, part.change_filter, as_text=True)
                if part.tables:
                    found = [
                        run for run in found if isinstance(run, TableChanges) and _match(part.tables, run.relation)
                    ]
                if (batch := changes.batch(found, contexts)) is not None:
                    yield batch


def _messages(contents: _Contents, slices: Iterable[Slice]) -> Iterator[LogicalMessages]:
    """Return all logical messages, without decoding changes."""
    for s in slices:
        found = chunk(contents.get(s.segment), s.start, s.stop, ChangeFilter(others=False), as_text=True)
        yield from (part for part in found if isinstance(part, LogicalMessages))


def _rows(
    content: SegmentContent, s: Slice, change_filter: ChangeFilter, converter: RowConverter
) -> Iterator[pa.RecordBatch]:
    for low, high in _windows(s):
        for run in chunk(content, low, high, change_filter):
            if isinstance(run, TableChanges) and converter.accepts(run.relation):
                yield converter.to_batch(run)


def _windows(s: Slice) -> Iterable[tuple[int, int]]:
    return ((low, min(low + BATCH_ROWS, s.stop)) for low in range(s.start, s.stop, BATCH_ROWS))


class _Contents:
    """Segments by id. Most have their own objects, so the log is listed only if one is missing."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._last: SegmentContent | None = None
        self._is_listed = False

    def get(self, id: int) -> SegmentContent:
        if self._last is None or self._last.header.id != id:
            self._last = self._alone(id) or self._reader.content(id)
        if self._last is None:
            raise CorruptError(
                f"segment {id} of {self._reader.store.url} was removed while it was being read",
                "did retention remove it? start from the current beginning of the log",
            )
        return self._last

    def _alone(self, id: int) -> SegmentContent | None:
        if self._is_listed:
            return None
        name = segment.key(id)
        data = self._reader.store.get(name)
        self._is_listed = data is None
        return segment.unpack(data, name)[0] if data is not None else None


def select_table(
    lineage: Lineage, batch: LogBatch, options: Options, target: Relation
) -> tuple[LogBatch, RowConverter]:
    """Return the slices of a batch that a read of one table needs, and the converter of its rows."""
    assert options.table is not None
    names = options.table.schema, options.table.name
    end = batch.end.segment
    table = lineage.table(end) or target.oid
    chains = {oid: lineage.chain(oid, target) for oid in {table, *lineage.tables_named(end)}}
    converter = RowConverter(target, table, names, chains)
    selected = tuple(s for s in batch.slices if any(r.oid in chains for r in lineage.relations(s.segment)))
    return LogBatch(selected, batch.start, batch.end), converter


def change_filter(start: Lsn, end: Lsn | None, oids: Iterable[int] | None) -> ChangeFilter:
    """Return a filter for the commits between two LSNs, of some tables or of all."""
    if oids is None:
        return ChangeFilter(start, end=end)
    return ChangeFilter(start, dict.fromkeys(oids, start), others=False, end=end)


def select_tables(
    log: LogReader, batch: LogBatch, tables: tuple[TablePattern, ...]
) -> tuple[LogBatch, set[int] | None]:
    """Return the slices of a batch with changes of some tables, and the tables' oids. Without patterns: all slices."""
    if not tables:
        return batch, None
    of = {
        s.segment: {relation.oid for _, relation in log.relations(s.segment) if _match(tables, relation)}
        for s in batch.slices
    }
    # A transaction that spans segments is read whole or not at all: its context messages may be in any segment.
    selected = [s for group in by_transaction(batch.slices) if any(of[s.segment] for s in group) for s in group]
    return LogBatch(tuple(selected), batch.start, batch.end), set().union(*of.values())


def _match(tables: tuple[TablePattern, ...], relation: Relation) -> bool:
    return any(pattern.matches(relation.schema, relation.name) for pattern in tables)


def by_transaction(slices: Sequence[Slice]) -> list[tuple[Slice, ...]]:
    """Group slices that share transactions."""
    groups: list[list[Slice]] = [[]]
    for s in slices:
        groups[-1].append(s)
        if not s.continues:
            groups.append([])
    return [tuple(group) for group in groups if group]
