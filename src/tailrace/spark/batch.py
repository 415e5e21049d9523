"""A batch read: a range of the log, less what headers show to be of no interest.

What is read depends on the options alone, never on the conditions of a query. Spark (4.1) would push those down, but
keeps what a Python source planned for one query with the DataFrame, and uses it for the next one with other conditions:
rows would be missing from it, without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tailrace.change import Lsn
from tailrace.errors import CorruptError
from tailrace.log import plan
from tailrace.log.lineage import Lineage
from tailrace.log.plan import Batch, Slice
from tailrace.log.reader import LogReader
from tailrace.spark import reading
from tailrace.spark.options import Options
from tailrace.spark.schema import Pinned


class BatchReader(DataSourceReader):
    def __init__(self, options: Options, pinned: Pinned) -> None:
        self._options = options
        self._pinned = pinned

    @reading.told
    def partitions(self) -> Sequence[InputPartition]:
        log = self._options.log()
        batch, end = covered(log, self._options, self._pinned)
        lsn = batch.start.lsn
        relation = self._pinned.relation
        if relation is None:
            batch, oids = reading.chosen(log, batch, self._options.tables)
            return reading.parts(batch, reading.admission(lsn, end, oids), None, self._options.tables)
        assert self._options.table is not None
        lineage = Lineage(log, self._options.table.schema, self._options.table.name, batch.start.segment)
        batch, shape = reading.shaped(lineage, batch, self._options, relation)
        return reading.parts(batch, reading.admission(lsn, end, shape.chains), shape)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return reading.read(self._options, partition)


def covered(log: LogReader, options: Options, pinned: Pinned) -> tuple[Batch, Lsn | None]:
    """What a read covers: from `starting` on, to where the log ended when the DataFrame was made, or to `ending`."""
    start = plan.begin(log, plan.parse_place(log, options.starting, "starting"))
    if (pinned.end.segment, pinned.end.lsn) < (start.segment, start.lsn):
        return Batch((), start, start), None
    batch = plan.following(log, start, plan.UNLIMITED, pinned.end.segment, across_gaps=options.across_gaps)
    if batch.end.segment < pinned.end.segment and log.awaited_header(pinned.end.segment) is None:
        raise CorruptError(
            f"the log of {log.store.url} ends before segment {pinned.end.segment}, which was there before",
            "segments are gone: restore them, or load the DataFrame anew",
        )
    end = pinned.end.lsn if options.ending != "latest" else None
    slices = [s for s in batch.slices if _has_below(log, s, end) and _has_from(log, s, start.lsn)]
    return Batch(tuple(slices), batch.start, batch.end), end


def _has_below(log: LogReader, s: Slice, end: Lsn | None) -> bool:
    header = log.awaited_header(s.segment)
    return end is None or header is None or header.first is None or header.first.commit_lsn < end


def _has_from(log: LogReader, s: Slice, start: Lsn) -> bool:
    header = log.awaited_header(s.segment)
    return header is None or header.last is None or header.last.commit_lsn >= start
