"""The stream of a user's query, which reads the log in bounded batches, each change once.

Spark's Python sources have no admission control, and `latestOffset` does not get the query's offset. The reader still
learns it: a new query calls `initialOffset` or `latestOffset` before anything else, and a query that continues
from a checkpoint first calls `partitions(o, o)` with its last offset.

An offset also holds the hash-chain link of its segment. It differs if this is another log or a modified one.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tailrace.errors import CorruptError, GapError
from tailrace.log import planner
from tailrace.log.lineage import Lineage
from tailrace.log.planner import LogBatch, Offset
from tailrace.log.reader import LogReader
from tailrace.spark import reading
from tailrace.spark.options import Options
from tailrace.spark.schema import Pinned

IDLE_SEGMENTS: Final = 64
"""How many segments without matching changes are skipped before a batch records the progress."""

_OTHER: Final = "this may be another log than the one read so far; remove the checkpoint to start over"


class StreamReader(DataSourceStreamReader):
    def __init__(self, options: Options, pinned: Pinned) -> None:
        self._options = options
        self._pinned = pinned
        self._opened: LogReader | None = None
        self._lineage: Lineage | None = None
        self._offset: Offset | None = None
        self._quiet_until = 0.0

    def __getstate__(self) -> dict[str, Any]:
        # Tasks need only the options. Connections cannot be pickled.
        return {"_options": self._options, "_pinned": self._pinned}

    @reading.with_hints
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        self._offset = self._initial()
        return self._to_json(self._offset)

    @reading.with_hints
    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        if self._offset is None:
            # A new query calls latestOffset before initialOffset.
            self._offset = self._initial()
        if time.monotonic() >= self._quiet_until:
            batch = self._following(self._offset)
            if batch.end == self._offset:
                self._quiet_until = time.monotonic() + self._options.poll_interval_ms / 1000
            self._offset = batch.end
        return self._to_json(self._offset)

    @reading.with_hints
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = self._parse_offset(start), self._parse_offset(end)
        self._offset = last
        if first == last:
            return []
        batch = planner.batch_between(self._log, first, last, across_gaps=self._options.across_gaps)
        if self._pinned.relation is None:
            batch, oids = reading.select_tables(self._log, batch, self._options.tables)
            return reading.parts(batch, reading.change_filter(first.lsn, None, oids), None, self._options.tables)
        batch, converter = reading.select_table(self._lineage_from(first), batch, self._options, self._pinned.relation)
        return reading.parts(batch, reading.change_filter(first.lsn, None, converter.chains), converter)

    def stop(self) -> None:
        """Exit silently if the query has ended. Spark closes the connection and then ends this process, which would
        print a traceback if it noticed the first before the second."""
        if isinstance(sys.exception(), EOFError | ConnectionError):
            os._exit(0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return reading.read(self._options, partition)

    @property
    def _log(self) -> LogReader:
        self._opened = self._opened or self._options.log()
        return self._opened

    def _initial(self) -> Offset:
        return planner.start_offset(self._log, planner.resolve_lsn(self._log, self._options.starting, "starting"))

    def _following(self, start: Offset) -> LogBatch:
        """Return the next batch. It is empty as long as there is too little to make one."""
        limits = self._options.limits
        batch = planner.next_batch(self._log, start, limits, across_gaps=self._options.across_gaps)
        if batch.end != start:
            self._check_chain(start)
        passed = batch.end.segment - start.segment
        if self._has_wanted(batch) or passed >= min(limits.segments, IDLE_SEGMENTS) or batch.bytes >= limits.bytes:
            return batch
        return LogBatch((), start, start)

    def _has_wanted(self, batch: LogBatch) -> bool:
        if not batch.slices:
            return False
        if self._pinned.relation is None:
            return bool(reading.select_tables(self._log, batch, self._options.tables)[0].slices)
        lineage = self._lineage_from(batch.start)
        return bool(reading.select_table(lineage, batch, self._options, self._pinned.relation)[0].slices)

    def _lineage_from(self, start: Offset) -> Lineage:
        assert self._options.table is not None
        if self._lineage is None or self._lineage.first > start.segment:
            table = self._options.table
            self._lineage = Lineage(self._log, table.schema, table.name, start.segment)
        return self._lineage

    def _to_json(self, offset: Offset) -> dict[str, Any]:
        return {**offset.to_json(), "link": self._link(offset.segment)}

    def _parse_offset(self, raw: Mapping[str, Any]) -> Offset:
        offset = Offset.from_json(raw)
        link = raw.get("link", "")
        if link and link != self._link(offset.segment):
            raise CorruptError(
                f"segment {offset.segment} of {self._log.store.url} is not the one that was read before", _OTHER
            )
        return offset

    def _check_chain(self, start: Offset) -> None:
        following = self._log.header(start.segment + 1)
        if start.segment and following is not None and following.previous != self._link(start.segment):
            raise CorruptError(
                f"segment {following.id} of {self._log.store.url} does not continue the segments read before", _OTHER
            )

    def _link(self, segment: int) -> str:
        """Return the link that the next segment has to this one, or "" if the log has neither of them."""
        if not segment:
            return ""
        try:
            header = self._log.header(segment)
        except GapError:  # removed by retention, which retains the next one
            header = None
        if header is not None:
            return header.link
        following = self._log.header(segment + 1)
        return following.previous if following is not None else ""
