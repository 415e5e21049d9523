"""A batch read: a range of the log, less what headers show to be of no interest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tailrace.change import Lsn
from tailrace.errors import CorruptError
from tailrace.log import plan
from tailrace.log.lineage import Lineage
from tailrace.log.plan import Batch, Slice
from tailrace.log.reader import LogReader
from tailrace.spark import reading
from tailrace.spark.filters import Wanted
from tailrace.spark.options import Options
from tailrace.spark.schema import Pinned


class BatchReader(DataSourceReader):
    def __init__(self, options: Options, pinned: Pinned) -> None:
        self._options = options
        self._pinned = pinned
        self._wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 (Spark's name)
        prefix = "_" if self._options.table else ""
        for filter in filters:
            self._wanted = self._wanted.narrowed(filter, prefix)
        return filters

    @reading.told
    def partitions(self) -> Sequence[InputPartition]:
        log = self._options.log()
        batch, end = covered(log, self._options, self._pinned)
        lsn = batch.start.lsn
        relation = self._pinned.relation
        if relation is None:
            batch, oids = self._pruned(log, batch)
            return reading.parts(batch, reading.admission(lsn, end, oids), None)
        assert self._options.table is not None
        lineage = Lineage(log, self._options.table.schema, self._options.table.name, batch.start.segment)
        batch, shape = reading.shaped(lineage, batch, self._options, relation)
        batch, _ = self._pruned(log, batch)
        return reading.parts(batch, reading.admission(lsn, end, shape.chains), shape)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return reading.read(self._options, partition)

    def _pruned(self, log: LogReader, batch: Batch) -> tuple[Batch, set[int] | None]:
        """The slices that may have what is wanted, and if it is of some tables their oids."""
        wanted = self._wanted
        oids: set[int] | None = set() if wanted.is_of_tables else None

        def may_have(s: Slice) -> bool:
            header = log.awaited_header(s.segment)
            if header is None or not wanted.may_have(header):
                return header is None
            if oids is None:
                return True
            named = {relation.oid for _, relation in log.relations(s.segment) if wanted.names(relation)}
            oids.update(named)
            return bool(named)

        # Of transactions that span segments all is needed, or nothing: what is told in them may stand anywhere.
        groups = reading.together(batch.slices)
        found = [[may_have(s) for s in group] for group in groups]
        kept = [group for group, any_has in zip(groups, found, strict=True) if any(any_has)]
        return Batch(tuple(s for group in kept for s in group), batch.start, batch.end), oids


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
