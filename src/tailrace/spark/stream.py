"""A stream: batches that follow each other through the log, bounded, each once.

Spark's Python sources have no admission control, and `latestOffset` is not told where the query stands. The reader
knows it all the same: a new query asks for `initialOffset` or what is latest before anything else, and one that goes on
from a checkpoint calls `partitions(o, o)` first, with the last offset it wrote down.

An offset names, beside its place, the link of its segment in the log's chain: a log that is another one, or was changed
behind the reader's back, has another.
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
from tailrace.log import plan
from tailrace.log.lineage import Lineage
from tailrace.log.plan import Batch, Offset
from tailrace.log.reader import LogReader
from tailrace.spark import reading
from tailrace.spark.options import Options
from tailrace.spark.schema import Pinned

IDLE_SEGMENTS: Final = 64
"""Passed without a batch while they hold nothing of interest: a batch for each would cost more than all of them."""

_OTHER: Final = "is it another log than the one read so far? remove the checkpoint to start again"


class StreamReader(DataSourceStreamReader):
    def __init__(self, options: Options, pinned: Pinned) -> None:
        self._options = options
        self._pinned = pinned
        self._opened: LogReader | None = None
        self._lineage: Lineage | None = None
        self._stands: Offset | None = None
        self._quiet_until = 0.0

    def __getstate__(self) -> dict[str, Any]:
        # Tasks need the options alone; connections do not travel.
        return {"_options": self._options, "_pinned": self._pinned}

    @reading.told
    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        self._stands = self._initial()
        return self._to_json(self._stands)

    @reading.told
    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        if self._stands is None:
            # A new query: it asks for what is latest before it asks where to begin.
            self._stands = self._initial()
        if time.monotonic() >= self._quiet_until:
            batch = self._following(self._stands)
            if batch.end == self._stands:
                self._quiet_until = time.monotonic() + self._options.poll_interval_ms / 1000
            self._stands = batch.end
        return self._to_json(self._stands)

    @reading.told
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = self._checked(start), self._checked(end)
        self._stands = last
        if first == last:
            return []
        batch = plan.between(self._log, first, last, across_gaps=self._options.across_gaps)
        if self._pinned.relation is None:
            batch, oids = reading.chosen(self._log, batch, self._options.tables)
            return reading.parts(batch, reading.admission(first.lsn, None, oids), None, self._options.tables)
        batch, shape = reading.shaped(self._lineage_from(first), batch, self._options, self._pinned.relation)
        return reading.parts(batch, reading.admission(first.lsn, None, shape.chains), shape)

    def stop(self) -> None:
        """Called when the query has ended, too: Spark hangs up, then ends this process, which would complain of the
        one if the other comes late."""
        if isinstance(sys.exception(), EOFError | ConnectionError):
            os._exit(0)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return reading.read(self._options, partition)

    @property
    def _log(self) -> LogReader:
        self._opened = self._opened or self._options.log()
        return self._opened

    def _initial(self) -> Offset:
        return plan.begin(self._log, plan.parse_place(self._log, self._options.starting, "starting"))

    def _following(self, start: Offset) -> Batch:
        """What comes next, or nothing while it is not worth a batch."""
        limits = self._options.limits
        batch = plan.following(self._log, start, limits, across_gaps=self._options.across_gaps)
        if batch.end != start:
            self._check_chain(start)
        passed = batch.end.segment - start.segment
        if self._has_wanted(batch) or passed >= min(limits.segments, IDLE_SEGMENTS) or batch.bytes >= limits.bytes:
            return batch
        return Batch((), start, start)

    def _has_wanted(self, batch: Batch) -> bool:
        if not batch.slices:
            return False
        if self._pinned.relation is None:
            return bool(reading.chosen(self._log, batch, self._options.tables)[0].slices)
        lineage = self._lineage_from(batch.start)
        return bool(reading.shaped(lineage, batch, self._options, self._pinned.relation)[0].slices)

    def _lineage_from(self, start: Offset) -> Lineage:
        assert self._options.table is not None
        if self._lineage is None or self._lineage.first > start.segment:
            table = self._options.table
            self._lineage = Lineage(self._log, table.schema, table.name, start.segment)
        return self._lineage

    def _to_json(self, offset: Offset) -> dict[str, Any]:
        return {**offset.to_json(), "link": self._link(offset.segment)}

    def _checked(self, raw: Mapping[str, Any]) -> Offset:
        offset = Offset.from_json(raw)
        link = raw.get("link", "")
        if link and link != self._link(offset.segment):
            raise CorruptError(
                f"segment {offset.segment} of {self._log.store.url} is not the one that was read so far", _OTHER
            )
        return offset

    def _check_chain(self, start: Offset) -> None:
        following = self._log.awaited_header(start.segment + 1)
        if start.segment and following is not None and following.previous != self._link(start.segment):
            raise CorruptError(
                f"segment {following.id} of {self._log.store.url} does not continue what was read so far", _OTHER
            )

    def _link(self, segment: int) -> str:
        """What the next segment calls this one; nothing where the log has neither."""
        if not segment:
            return ""
        try:
            header = self._log.awaited_header(segment)
        except GapError:  # removed by retention, which leaves the next
            header = None
        if header is not None:
            return header.link
        following = self._log.awaited_header(segment + 1)
        return following.previous if following is not None else ""
