"""Reads a table's rows with Spark, for COPY: for tables that are too large for one process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from tailrace.log.reader import LogReader
from tailrace.recovery.restored_table import CopiedColumn
from tailrace.recovery.table_restore import Block, Blocks, PlannedRestore, copy_blocks
from tailrace.state.fold import has_key
from tailrace.state.table_state import TableState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PART_BYTES: Final = 32 << 20
"""Bytes of a snapshot for one task. The driver gets the rows of one task at a time, several times as many bytes."""


def spark_blocks(spark: SparkSession, store_url: str, store_options: Mapping[str, str]) -> Blocks:
    """Reads rows by tasks, which keep them on the executors' disks until the destination takes them."""
    from pyspark import StorageLevel

    def blocks(planned: PlannedRestore, accepts_binary: bool) -> Iterator[Block]:
        state, columns, options = planned.state, tuple(planned.table.columns), dict(store_options)
        parts = _parts(state)
        numbers = spark.sparkContext.parallelize(range(parts), parts)
        lines = numbers.flatMap(lambda part: _read(store_url, options, state, columns, accepts_binary, part, parts))
        lines.persist(StorageLevel.DISK_ONLY)
        try:
            lines.count()  # all tasks at once; the iterator below would run one after the other
            yield from lines.toLocalIterator(prefetchPartitions=True)
        finally:
            lines.unpersist()

    return blocks


def _read(
    url: str,
    options: Mapping[str, str],
    state: TableState,
    columns: Sequence[CopiedColumn],
    accepts_binary: bool,
    part: int,
    parts: int,
) -> Iterator[Block]:
    return copy_blocks(state, LogReader(url, options), columns, accepts_binary, part, parts)


def _parts(state: TableState) -> int:
    if not (has_key(state.snapshot.relation) and has_key(state.relation)):
        return 1  # a changed row may be in any part
    copied = sum(chunk.bytes for chunk in state.snapshot.manifest)
    return max(1, min(copied // _PART_BYTES, len(state.snapshot.manifest)))
