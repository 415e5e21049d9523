"""Batch reads: a range of the log, without the segments whose headers show that they have no matching changes.

The options alone determine what is read, never the conditions of a query. Spark 4.1 would push conditions down, but it
caches a Python source's plan with the DataFrame, and reuses it for the next query with other conditions. That query
would silently miss rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tailrace.change import Lsn
from tailrace.errors import CorruptError
from tailrace.log import planner
from tailrace.log.lineage import Lineage
from tailrace.log.planner import LogBatch, Slice
from tailrace.log.reader import LogReader
from tailrace.spark import reading
from tailrace.spark.options import Options
from tailrace.spark.schema import Pinned


class BatchReader(DataSourceReader):
    def __init__(self, options: Options, pinned: Pinned) -> None:
        self._options = options
        self._pinned = pinned

    @reading.with_hints
    def partitions(self) -> Sequence[InputPartition]:
        log = self._options.log()
        batch, end = batch_of_read(log, self._options, self._pinned)
        lsn = batch.start.lsn
        relation = self._pinned.relation
        if relation is None:
            batch, oids = reading.select_tables(log, batch, self._options.tables)
            return reading.parts(batch, reading.change_filter(lsn, end, oids), None, self._options.tables)
        assert self._options.table is not None
        lineage = Lineage(log, self._options.table.schema, self._options.table.name, batch.start.segment)
        batch, converter = reading.select_table(lineage, batch, self._options, relation)
        return reading.parts(batch, reading.change_filter(lsn, end, converter.chains), converter)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return reading.read(self._options, partition)


def batch_of_read(log: LogReader, options: Options, pinned: Pinned) -> tuple[LogBatch, Lsn | None]:
    """Return the slices that a read covers, and the LSN at which it ends, if any. It covers the log from `starting` to
    `ending`, or to the end that the log had when the DataFrame was created."""
    start = planner.start_offset(log, planner.resolve_lsn(log, options.starting, "starting"))
    if (pinned.end.segment, pinned.end.lsn) < (start.segment, start.lsn):
        return LogBatch((), start, start), None
    batch = planner.next_batch(log, start, planner.UNLIMITED, pinned.end.segment, across_gaps=options.across_gaps)
    if batch.end.segment < pinned.end.segment and log.header(pinned.end.segment) is None:
        raise CorruptError(
            f"the log of {log.store.url} ends before segment {pinned.end.segment}, which existed before",
            "segments were removed: restore them, or load the DataFrame again",
        )
    end = pinned.end.lsn if options.ending != "latest" else None
    slices = [s for s in batch.slices if _has_below(log, s, end) and _has_from(log, s, start.lsn)]
    return LogBatch(tuple(slices), batch.start, batch.end), end


def _has_below(log: LogReader, s: Slice, end: Lsn | None) -> bool:
    header = log.header(s.segment)
    return end is None or header is None or header.first is None or header.first.commit_lsn < end


def _has_from(log: LogReader, s: Slice, start: Lsn) -> bool:
    header = log.header(s.segment)
    return header is None or header.last is None or header.last.commit_lsn >= start
