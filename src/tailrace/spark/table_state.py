"""A table's state in Spark: its rows at a position or a time, made by tasks that know nothing of each other."""

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
from tailrace.log import plan
from tailrace.log import state as log_state
from tailrace.log.fold import has_key
from tailrace.log.plan import MIB
from tailrace.log.reader import LogReader
from tailrace.log.state import TableState
from tailrace.spark import reading, schema
from tailrace.spark.options import Options
from tailrace.spark.rows import fitted
from tailrace.spark.schema import Pinned

_SMALL_BYTES: Final = 4 * MIB
"""Of snapshot and changes together: one task is done before others would have begun."""
_FEW_SPLITS: Final = 4
_SPLIT_BYTES: Final = 128 * MIB
"""Of a snapshot, for one task. Not less, because each task looks at all changes since, whatever its share of the
rows: a fresh snapshot makes them few."""


def state(
    spark: SparkSession,
    store: str,
    table: str,
    as_of: Lsn | datetime | str | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The table's rows as they were: after every transaction that commits below an LSN, or that did before a time.

    None is the newest state that the log tells of. `options` are the data source's.
    """
    from tailrace.spark.datasource import register

    register(spark)
    reader = spark.read.format("tailrace").options(**(options or {})).option("table", table).option("snapshot", "true")
    if isinstance(as_of, datetime) and as_of.tzinfo is None:
        as_of = as_of.replace(tzinfo=UTC)
    if as_of is not None:
        reader = reader.option("as_of", as_of.isoformat() if isinstance(as_of, datetime) else str(as_of))
    return reader.load(store)


def found(log: LogReader, options: Options) -> TableState:
    if options.table is None:
        raise ConfigError("a state is of a table", 'name it: .option("table", "public.orders")')
    as_of: Lsn | None = None
    if options.as_of != "latest":
        as_of = plan.parse_place(log, options.as_of, "as_of")
        if as_of is None:
            raise ConfigError(f"as_of is {options.as_of!r}", "write latest, an LSN such as 0/1A2B3C4, or an ISO time")
    return log_state.find(log, options.table.schema, options.table.name, as_of)


@dataclass
class Share(InputPartition):
    """What one task makes."""

    state: TableState
    part: int
    parts: int


class StateReader(DataSourceReader):
    def __init__(self, options: Options, pinned: Pinned) -> None:
        self._options = options
        self._pinned = pinned

    @reading.told
    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        assert options.table is not None
        # As of when the DataFrame was made, however often it is used.
        state = log_state.find(options.log(), options.table.schema, options.table.name, self._pinned.end.lsn)
        count = splits(state, options.splits)
        return [Share(state, part, count) for part in range(count)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Share)
        relation = partition.state.relation
        wanted = schema.state(relation)
        try:
            for images in log_state.rows(partition.state, self._options.log(), partition.part, partition.parts):
                arrays, special = fitted(images, relation)
                yield pa.RecordBatch.from_arrays([*arrays, special], schema=wanted)
        except TailraceError as error:
            raise reading.with_hint(error) from None


def splits(state: TableState, wanted: int | None) -> int:
    """How many tasks make the state."""
    if not (has_key(state.snapshot.relation) and has_key(state.relation)):
        return 1
    if wanted is not None:
        return wanted
    copied = sum(chunk.bytes for chunk in state.snapshot.manifest)
    if copied + sum(s.bytes for s in state.slices) < _SMALL_BYTES:
        return 1
    return max(_FEW_SPLITS, copied // _SPLIT_BYTES)
