"""Compares one table: checksums of its ranges first, then the rows of the ranges that differ."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Lsn, Relation
from tailrace.delivery.row_reader import DeliveredTable, RowReader
from tailrace.delivery.transforms import Shaping, TableShaping
from tailrace.images import Images
from tailrace.log.decoding import TableChanges
from tailrace.sinks.database.postgresql.table_query import HashesRows, RangeSum, RangeSums, RowHash, TableQuery
from tailrace.state import fold, log_window
from tailrace.verify import row_scan
from tailrace.verify.cancellation import Cancelling, until_cancelled
from tailrace.verify.column_match import ColumnMatch
from tailrace.verify.difference import differences
from tailrace.verify.range_hash import U64, RangeHash, columns_of, range_count
from tailrace.verify.report import TableReport
from tailrace.verify.row_form import RowForm
from tailrace.verify.row_scan import LocalScan, RowScan, ScansWithSpark, SparkOnDemand
from tailrace.verify.source_snapshot import SourceSnapshot

MAX_DIFFERENCES: Final = 10_000
"""Of one table. More are a case for loading the table again."""
_MAX_ROWS: Final = 200_000
"""Rows of either side that are compared at a time."""
_MAX_CHANGED_KEYS: Final = 100_000
"""More rows that changed meanwhile are not looked up one by one: the table is read instead."""

RowPair = tuple[list[pa.RecordBatch], list[pa.RecordBatch]]
"""The rows that the destination should have, and those that it has."""


@dataclass
class TableComparison:
    """One table at one position."""

    source: SourceSnapshot
    reader: RowReader
    oid: int
    shaping: Shaping
    changes: Sequence[TableChanges]
    """The table's changes between the source's snapshot and the position."""
    position: Lsn
    spark: SparkOnDemand | None = None
    """For large tables; None if this process must not use Spark."""
    is_cancelled: Callable[[], bool] = lambda: False
    report: TableReport = field(init=False)

    def __post_init__(self) -> None:
        self.report = TableReport(self.then.qualified_name, self.oid, self.position)
        self.report.stored, self.report.can_repair = self.stored, self.reader.can_repair

    def run(self) -> TableReport:
        delivered = self.shaping.load(self.changes[-1].relation if self.changes else self.then)
        assert delivered is not None
        match = ColumnMatch.of(delivered[0], self.stored.relation)
        self.report.notes += match.notes
        if not match.names:
            self.report.notes.append("there is no column to compare")
            return self.report
        with Cancelling(self.is_cancelled, self._cancel):
            self.compare(match)
        return self.report

    def _cancel(self) -> None:
        self.source.cancel()
        if isinstance(self.reader, HashesRows):
            self.reader.cancel()
        if self.spark is not None:
            self.spark.cancel()

    def compare(self, match: ColumnMatch) -> None:
        """Compare the rows of both sides."""
        if (keys := self._keys_to_look_up(match)) is not None:
            assert isinstance(self.reader, HashesRows)
            self._compare_on_servers(match, keys, self.reader)
        else:
            self._compare_here(match)

    @property
    def then(self) -> Relation:
        return self.source.relation(self.oid)

    @property
    def stored(self) -> DeliveredTable:
        return self.reader.tables[self.oid]

    # Between two PostgreSQL servers.

    def _keys_to_look_up(self, match: ColumnMatch) -> pa.RecordBatch | None:
        """The keys of rows that changed meanwhile, if the servers can compare the others. None: they cannot, because
        the table has no key, is masked or filtered, or was emptied or altered meanwhile."""
        shape = self.shaping.shape(self.then)
        if not isinstance(self.reader, HashesRows) or shape is None or shape.masks or shape.condition is not None:
            return None
        if not (match.has_key and fold.has_key(self.then)) or self._source_key(match, shape) != self.then.key:
            return None
        if not log_window.are_of_rows(self.then, self.changes):
            return None
        keys = log_window.changed_keys(self.then, self.changes)
        return keys if len(keys) <= _MAX_CHANGED_KEYS else None

    def _source_key(self, match: ColumnMatch, shape: TableShaping) -> tuple[str, ...]:
        """The source's names of the columns that are the key at the destination."""
        return tuple([shape.relation.columns[match.source[index]].name for index in match.key])

    def _compare_on_servers(self, match: ColumnMatch, keys: pa.RecordBatch, reader: HashesRows) -> None:
        shape = self.shaping.shape(self.then)
        assert shape is not None
        ranges, seed = range_count(self.source.tables[self.oid].estimated_rows), secrets.randbits(62)
        names = tuple([shape.relation.columns[index].name for index in match.source])
        ours = RowHash(names, self.then.key, ranges, seed)
        theirs = RowHash(match.names, self.stored.relation.key, ranges, seed)
        places = _places(self.then, names)
        with self.source.query(self.oid) as source, reader.query(self.oid) as stored, ThreadPoolExecutor(2) as pool:
            sums = pool.submit(source.sums, ours), pool.submit(stored.sums, theirs)
            expected, found = sums[0].result(), sums[1].result()
            self.count(found, ranges)
            if len(keys):
                before = [*source.find(keys, self.source.key_types(self.oid), ours)]
                after = [*stored.find(keys, reader.key_types(self.oid), theirs, as_text=True)]
                expected, found = _without(expected, [s for _, s in before]), _without(found, [s for _, s in after])
                now = log_window.rows_after(self.then, (images for images, _ in before), self.changes)
                # The definition is the same before and after the changes.
                self.find_differences(
                    match,
                    [columns_of(images.batch, places, match.names) for _, images in now],
                    [columns_of(images.batch, match.stored, match.names) for images, _ in after],
                )
            unchanged = UnchangedRows(keys, match.key)

            def read(wanted: Collection[int]) -> RowPair:
                ours_now = source.range_texts(ours, wanted)
                theirs_now = stored.range_texts(theirs, wanted)
                return (
                    [unchanged.of(columns_of(batch, places, match.names)) for batch in ours_now],
                    [unchanged.of(columns_of(batch, match.stored, match.names)) for batch in theirs_now],
                )

            self.drill_down(match, expected, found, read)

    # With any other destination, and with tables that servers cannot compare.

    def _compare_here(self, match: ColumnMatch) -> None:
        ranges = range_count(self.source.tables[self.oid].estimated_rows)
        hash_ = RangeHash(match.key, ranges, secrets.randbits(63))
        ours, theirs = self._scans(match)
        found = theirs.sums(hash_)
        self.count(found, ranges)
        self.drill_down(
            match, ours.sums(hash_), found, lambda wanted: (ours.select(hash_, wanted), theirs.select(hash_, wanted))
        )

    def _scans(self, match: ColumnMatch) -> tuple[RowScan, RowScan]:
        """The rows that the destination should have, and those that it has."""
        if self.spark is None or not isinstance(self.reader, ScansWithSpark) or not self._has_large_parts():
            return LocalScan(lambda: self.expected_rows(match)), LocalScan(lambda: self.stored_rows(match))
        from tailrace.verify.spark_scan import MAX_PARTS, SourceScan  # Spark may not be installed

        session = self.spark.session(self.reader.packages)
        source = self.source
        form = RowForm(self.shaping, self.stored.relation, match)
        parts = source.parts(self.oid, MAX_PARTS)
        expected = SourceScan(session, source.settings, source.export(), parts, self.changes, form)
        return expected, self.reader.scan(session, self.oid, match)

    def _has_large_parts(self) -> bool:
        """Whether the source's table is large, and its parts can be read one by one."""
        plan = self.source.tables[self.oid]
        is_large = bool(plan.parts) and plan.estimated_rows >= row_scan.SPARK_ROWS
        return is_large and (not self.changes or log_window.are_of_keys(self.then, self.changes))

    def expected_rows(self, match: ColumnMatch) -> Iterator[pa.RecordBatch]:
        """The rows that the destination should have, read from the source."""
        with self.source.query(self.oid) as query:
            yield from until_cancelled(self.as_stored(match, self._rows_now(query)), self.is_cancelled)

    def _rows_now(self, query: TableQuery) -> Iterator[tuple[Relation, Images]]:
        if self.changes:
            yield from log_window.rows_after(self.then, query.images(), self.changes)
        else:
            yield from ((self.then, images) for images in query.images(as_text=True))

    def as_stored(self, match: ColumnMatch, rows: Iterator[tuple[Relation, Images]]) -> Iterator[pa.RecordBatch]:
        """Rows of the source, shaped as delivery shapes them, in the form in which the destination holds them."""
        form = RowForm(self.shaping, self.stored.relation, match)
        return form.of(rows, lambda batch: self.reader.comparable(self.oid, batch))

    def stored_rows(self, match: ColumnMatch) -> Iterator[pa.RecordBatch]:
        for batch in until_cancelled(self.reader.rows(self.oid), self.is_cancelled):
            yield columns_of(batch, match.stored, match.names)

    # With both.

    def count(self, found: RangeSums, ranges: int) -> None:
        self.report.ranges = ranges
        self.report.rows = sum(of_range.count for of_range in found.values())

    def drill_down(
        self,
        match: ColumnMatch,
        expected: Mapping[int, RangeSum],
        found: Mapping[int, RangeSum],
        read: Callable[[Collection[int]], RowPair],
    ) -> None:
        """Compare the rows of the ranges whose checksums differ."""
        none = RangeSum()
        differing = sorted(n for n in expected.keys() | found.keys() if expected.get(n, none) != found.get(n, none))
        self.report.ranges_differing = len(differing)
        sizes = {n: max(expected.get(n, none).count, found.get(n, none).count) for n in differing}
        for group in _groups(differing, sizes):
            if len(self.report.differences) >= MAX_DIFFERENCES:
                self.report.ranges_unread += len(group)
                continue
            self.find_differences(match, *read(group))

    def find_differences(
        self, match: ColumnMatch, expected: Sequence[pa.RecordBatch], found: Sequence[pa.RecordBatch]
    ) -> None:
        self.report.differences += differences(expected, found, match.names, match.key)


class UnchangedRows:
    """Leaves out the rows that changed meanwhile: those are compared by themselves."""

    def __init__(self, changed: pa.RecordBatch | None, key: Sequence[int]) -> None:
        """Leave out rows.

        Args:
            changed: The keys of the rows that changed.
            key: The indexes of the key's columns in the rows to select from.
        """
        self._key = key
        self._changed = changed if changed is not None and len(changed) else None

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.invert(self.is_changed(batch))) if self._changed is not None else batch

    def is_changed(self, batch: pa.RecordBatch) -> pa.Array:
        if self._changed is None:
            return pa.array([False] * len(batch), pa.bool_())
        keys = fold.key_texts([batch.column(index) for index in self._key])
        return pc.is_in(keys, value_set=fold.key_texts(self._changed.columns))

    def hashes(self, hash_: RangeHash) -> U64:
        """The hashes of the keys to leave out."""
        return np.empty(0, np.uint64) if self._changed is None else hash_.key_hashes(self._changed.columns)


def _without(sums: RangeSums, removed: Sequence[RangeSums]) -> RangeSums:
    found = dict(sums)
    for part in removed:
        for number, own in part.items():
            found[number] = found[number].without(own)
    return found


def _groups(differing: Sequence[int], sizes: Mapping[int, int]) -> Iterator[list[int]]:
    """The ranges in groups of a number of rows that fits into memory."""
    group: list[int] = []
    rows = 0
    for number in differing:
        if group and rows + sizes[number] > _MAX_ROWS:
            yield group
            group, rows = [], 0
        group.append(number)
        rows += sizes[number]
    if group:
        yield group


def _places(relation: Relation, names: Sequence[str]) -> list[int]:
    indexes = {column.name: index for index, column in enumerate(relation.columns)}
    return [indexes[name] for name in names]
