"""Checksums of ranges, of rows that are read here. Pure, vectorised.

The sums correspond to those of `TableQuery`, but are other numbers: both sides of a comparison must be computed alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tailrace.sinks.database.postgresql.table_query import RangeSum, RangeSums
from tailrace.state.key_index import row_hashes

U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class RangeHash:
    key: tuple[int, ...]
    """The indexes of the key's columns."""
    ranges: int
    """How many ranges there are: a power of two."""
    seed: int

    def sums(self, batches: Iterable[pa.RecordBatch]) -> RangeSums:
        """The checksums of all ranges."""
        counts = np.zeros(self.ranges, np.int64)
        totals = np.zeros(self.ranges, np.uint64)
        for batch in batches:
            numbers = self._numbers(batch)
            counts += np.bincount(numbers, minlength=self.ranges)
            # A sum of the hashes themselves would be the same if two rows exchanged values.
            np.add.at(totals, numbers, _mixed(row_hashes(batch.columns) ^ np.uint64(self.seed)))
        return {int(n): RangeSum(int(counts[n]), int(totals[n])) for n in np.flatnonzero(counts)}

    def select(self, batches: Iterable[pa.RecordBatch], ranges: Collection[int]) -> Iterator[pa.RecordBatch]:
        """The rows of some ranges."""
        wanted = np.zeros(self.ranges, np.bool_)
        wanted[[*ranges]] = True
        for batch in batches:
            yield batch.filter(pa.array(wanted[self._numbers(batch)]))

    def _numbers(self, batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
        hashes = _mixed(row_hashes([batch.column(index) for index in self.key]) ^ np.uint64(self.seed))
        return (hashes & np.uint64(self.ranges - 1)).astype(np.int64)


def _mixed(hashes: U64) -> U64:
    """Hashes that are no linear function of the given ones: the finaliser of SplitMix64."""
    x = hashes ^ (hashes >> np.uint64(30))
    x = x * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: U64 = x ^ (x >> np.uint64(31))
    return found


def range_count(rows: int, rows_per_range: int = 1000, most: int = 1 << 16) -> int:
    """How many ranges divide a table of about so many rows: a power of two."""
    return min(1 << max(rows // rows_per_range, 0).bit_length(), most)


def columns_of(batch: pa.RecordBatch, columns: Sequence[int], names: Sequence[str]) -> pa.RecordBatch:
    """Some columns of a batch, under other names."""
    return pa.RecordBatch.from_arrays([batch.column(index) for index in columns], names=list(names))
