"""A table's state in Spark: its rows at a position or a time, computed by independent tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceReader, InputPartition

from tailrace.change import Lsn
from tailrace.errors import ConfigError, TailraceError
from tailrace.log import planner
from tailrace.log.planner import MIB
from tailrace.log.reader import LogReader
from tailrace.spark import reading, schema
from tailrace.spark.options import Options
from tailrace.spark.rows import fit_to_spark
from tailrace.spark.schema import Pinned
from tailrace.state import table_state as log_state
from tailrace.state.fold import has_key
from tailrace.state.table_state import TableState

_SMALL_BYTES: Final = 4 * MIB
"""Below this size of snapshot and changes together, one task finishes before others would have started."""
_FEW_SPLITS: Final = 4
_SPLIT_BYTES: Final = 128 * MIB
"""Bytes of a snapshot for one task. Not less, because each task reads all changes since the snapshot, whatever its
share of the rows. After a recent snapshot they are few."""


def state(
    spark: SparkSession,
    store: str,
    table: str,
    as_of: Lsn | datetime | str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return a table's rows as they were at an LSN or a time.

    spark: the session to read with.
    store: the URL of the store that holds the log.
    table: schema.table, quoted as in PostgreSQL.
    as_of: an LSN or a time: the state includes all transactions that committed before it. A datetime without a time
        zone is in UTC. None: the newest state in the log.
    options: further options of the data source.
    """
    from tailrace.spark.datasource import register

    register(spark)
    reader = spark.read.format("tailrace").options(**(options or {})).option("table", table).option("snapshot", "true")
    if isinstance(as_of, datetime) and as_of.tzinfo is None:
        as_of = as_of.replace(tzinfo=UTC)
    if as_of is not None:
        reader = reader.option("as_of", as_of.isoformat() if isinstance(as_of, datetime) else str(as_of))
    return reader.load(store)


def find_state(log: LogReader, options: Options) -> TableState:
    if options.table is None:
        raise ConfigError("snapshot = true needs the option table", 'add .option("table", "public.orders")')
    as_of: Lsn | None = None
    if options.as_of != "latest":
        as_of = planner.resolve_lsn(log, options.as_of, "as_of")
        if as_of is None:
            raise ConfigError(f"as_of is {options.as_of!r}", "use latest, an LSN such as 0/1A2B3C4, or an ISO time")
    return log_state.find(log, options.table.schema, options.table.name, as_of)


@dataclass
class Share(InputPartition):
    """The share of a state that one task computes."""

    state: TableState
    part: int
    parts: int


class StateReader(DataSourceReader):
    def __init__(self, options: Options, pinned: Pinned) -> None:
        self._options = options
        self._pinned = pinned

    @reading.with_hints
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        assert options.table is not None
        # As of the DataFrame's creation, however often it is used.
        state = log_state.find(options.log(), options.table.schema, options.table.name, self._pinned.end.lsn)
        count = splits(state, options.splits)
        return [Share(state, part, count) for part in range(count)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        relation = partition.state.relation
        wanted = schema.state(relation)
        try:
            for images in log_state.rows(partition.state, self._options.log(), partition.part, partition.parts):
                arrays, special = fit_to_spark(images, relation)
                yield pa.RecordBatch.from_arrays([*arrays, special], schema=wanted)
        except TailraceError as error:
            raise reading.with_hint(error) from None


def splits(state: TableState, wanted: int | None) -> int:
    """Return how many tasks compute the state."""
    if not (has_key(state.snapshot.relation) and has_key(state.relation)):
        return 1
    if wanted is not None:
        return wanted
    copied = sum(chunk.bytes for chunk in state.snapshot.manifest)
    if copied + sum(s.bytes for s in state.slices) < _SMALL_BYTES:
        return 1
    return max(_FEW_SPLITS, copied // _SPLIT_BYTES)
