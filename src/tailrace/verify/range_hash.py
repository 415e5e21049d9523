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
        return self.totals(batches).sums()

    def totals(self, batches: Iterable[pa.RecordBatch]) -> RangeTotals:
        """The same as columns, which can be added."""
        found = self.no_rows()
        for batch in batches:
            found.add(self._numbers(self._keys_of(batch)), self._row_hashes(batch))
        return found

    def no_rows(self) -> RangeTotals:
        """The checksums of no rows."""
        return RangeTotals(np.zeros(self.ranges, np.int64), np.zeros(self.ranges, np.uint64))

    def rows(self, batches: Iterable[pa.RecordBatch]) -> RowHashes:
        """The hashes of all rows, from which checksums without some rows can be computed later."""
        keys, rows = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
        for batch in batches:
            keys.append(self._keys_of(batch))
            rows.append(self._row_hashes(batch))
        return RowHashes(self, np.concatenate(keys), np.concatenate(rows))

    def select(self, batches: Iterable[pa.RecordBatch], ranges: Collection[int]) -> Iterator[pa.RecordBatch]:
        """The rows of some ranges."""
        wanted = np.zeros(self.ranges, np.bool_)
        wanted[[*ranges]] = True
        for batch in batches:
            yield batch.filter(pa.array(wanted[self._numbers(self._keys_of(batch))]))

    def key_hashes(self, columns: Sequence[pa.Array]) -> U64:
        """Hashes of keys, given their columns in the order of `key`."""
        return _mixed(row_hashes(columns) ^ np.uint64(self.seed))

    def _numbers(self, keys: U64) -> npt.NDArray[np.int64]:
        return (keys & np.uint64(self.ranges - 1)).astype(np.int64)

    def _keys_of(self, batch: pa.RecordBatch) -> U64:
        return self.key_hashes([batch.column(index) for index in self.key])

    def _row_hashes(self, batch: pa.RecordBatch) -> U64:
        # A sum of the hashes themselves would be the same if two rows exchanged values.
        return _mixed(row_hashes(batch.columns) ^ np.uint64(self.seed))


@dataclass(frozen=True)
class RangeTotals:
    """The checksums of all ranges, as columns by the number of the range."""

    counts: npt.NDArray[np.int64]
    hashes: U64

    def add(self, numbers: npt.NDArray[np.int64], rows: U64) -> None:
        """Add rows, given the numbers of their ranges and their hashes."""
        self.counts[:] += np.bincount(numbers, minlength=len(self.counts))
        np.add.at(self.hashes, numbers, rows)

    def add_totals(self, other: RangeTotals) -> None:
        self.counts[:] += other.counts
        self.hashes[:] += other.hashes

    def sums(self) -> RangeSums:
        return {int(n): RangeSum(int(self.counts[n]), int(self.hashes[n])) for n in np.flatnonzero(self.counts)}


@dataclass(frozen=True)
class RowHashes:
    """The hashes of rows and of their keys: 16 bytes for each row."""

    hash: RangeHash
    keys: U64
    rows: U64

    def sums(self, without: U64 | None = None) -> RangeSums:
        """The checksums of all ranges, without the rows whose keys have these hashes."""
        kept = slice(None) if without is None or not len(without) else ~np.isin(self.keys, without)
        found = self.hash.no_rows()
        found.add(self.hash._numbers(self.keys[kept]), self.rows[kept])
        return found.sums()


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
