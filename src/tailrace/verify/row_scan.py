"""One side of a comparison whose rows are hashed by Tailrace, and not by its server: here, or in Spark's tasks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import pyarrow as pa

from tailrace.sinks.database.postgresql.table_query import RangeSums
from tailrace.verify.column_match import ColumnMatch
from tailrace.verify.range_hash import RangeHash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_ROWS: Final = 50_000_000
"""From this number of rows on, Spark reads a table if the destination's reader can use it. One process takes minutes
for so many; Spark needs twice the processor time and several times the memory."""
SPARK_PROCESSORS: Final = 4
"""With fewer on this machine, and without a cluster, one process is as fast."""


class RowScan(Protocol):
    """All rows of one side, which can be read several times."""

    def sums(self, hash_: RangeHash) -> RangeSums:
        """The checksums of all ranges."""

    def select(self, hash_: RangeHash, ranges: Collection[int]) -> list[pa.RecordBatch]:
        """The rows of some ranges."""


@dataclass(frozen=True)
class LocalScan:
    """Reads the rows in this process."""

    rows: Callable[[], Iterator[pa.RecordBatch]]

    def sums(self, hash_: RangeHash) -> RangeSums:
        return hash_.sums(self.rows())

    def select(self, hash_: RangeHash, ranges: Collection[int]) -> list[pa.RecordBatch]:
        return [*hash_.select(self.rows(), ranges)]


@runtime_checkable
class ScansWithSpark(Protocol):
    """What a reader offers if Spark can read its destination."""

    @property
    def packages(self) -> Sequence[str]:
        """The Java packages that the session needs."""

    def scan(self, spark: SparkSession, oid: int, match: ColumnMatch) -> RowScan:
        """The rows of a table, read by Spark's tasks."""


class SparkOnDemand:
    """The Spark session of a verification, which starts with the first large table."""

    def __init__(self, start: Callable[[Sequence[str]], SparkSession]) -> None:
        """`start` returns a session that has these Java packages."""
        self._start = start
        self._session: SparkSession | None = None

    def session(self, packages: Sequence[str]) -> SparkSession:
        if self._session is None:
            self._session = self._start(packages)
        return self._session

    def cancel(self) -> None:
        """Cancel what Spark is executing; another thread may call it."""
        if self._session is not None:
            self._session.sparkContext.cancelAllJobs()

    def close(self) -> None:
        if self._session is not None:
            self._session.stop()
            self._session = None
