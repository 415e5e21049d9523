"""Compares two sets of rows in any order, in bounded memory. No I/O.

Rows are lines of COPY. One pass over each side adds up the hashes of its rows in buckets. Equal sums mean equal rows:
Python's hash is keyed anew in each process, and two sets of rows have the same sum by chance in one of 2⁶⁴ cases. A
second pass looks only at rows whose bucket differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

Lines = Callable[[], Iterable[bytes]]
"""Reads one side: pieces of text, each of whole lines. Called once, and again to find the rows that differ."""

_BUCKETS: Final = 4096
# Few enough to list and to hold in memory, even if every row differs.
_MOST_BUCKETS: Final = 16


@dataclass(frozen=True, slots=True)
class RowDifference:
    """A row that is not the same on both sides."""

    key: str
    """The row's key, or the whole row if there is none, as COPY writes it."""
    kind: Literal["missing", "unexpected", "different"]
    """Seen from the second side, which is expected to equal the first one."""


@dataclass(frozen=True, slots=True)
class Comparison:
    rows: int
    """Of the first side."""
    other_rows: int
    differences: Sequence[RowDifference]
    is_equal: bool
    is_listed: bool = True
    """Whether `differences` has all of them, and not only some."""


def compare(expected: Lines, found: Lines, key: Sequence[int]) -> Comparison:
    """Compare two sides. `key` has the indexes of the columns that identify a row; it may be empty."""
    expected_rows, expected_sums = _sums(expected())
    found_rows, found_sums = _sums(found())
    buckets = np.flatnonzero(expected_sums != found_sums)
    if not len(buckets) and expected_rows == found_rows:
        return Comparison(expected_rows, found_rows, (), is_equal=True)
    chosen = buckets[:_MOST_BUCKETS]
    only_expected = _rows_in(expected(), chosen)
    only_found = _rows_in(found(), chosen)
    differences = list(_differences(only_expected - only_found, only_found - only_expected, key))
    return Comparison(expected_rows, found_rows, differences, is_equal=False, is_listed=len(chosen) == len(buckets))


def _sums(pieces: Iterable[bytes]) -> tuple[int, npt.NDArray[np.uint64]]:
    count, sums = 0, np.zeros(_BUCKETS, np.uint64)
    for _, hashes in _hashed(pieces):
        np.add.at(sums, _bucket(hashes), hashes)
        count += len(hashes)
    return count, sums


def _rows_in(pieces: Iterable[bytes], buckets: npt.NDArray[np.int64]) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for rows, hashes in _hashed(pieces):
        found.update(rows[index] for index in np.flatnonzero(np.isin(_bucket(hashes), buckets)))
    return found


def _hashed(pieces: Iterable[bytes]) -> Iterator[tuple[list[bytes], npt.NDArray[np.uint64]]]:
    for piece in pieces:
        rows = piece.split(b"\n")
        rows.pop()  # after the last line's end
        yield rows, np.fromiter(map(hash, rows), np.int64, len(rows)).view(np.uint64)


def _bucket(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    return (hashes % _BUCKETS).astype(np.int64)


def _differences(
    only_expected: Counter[bytes], only_found: Counter[bytes], key: Sequence[int]
) -> Iterator[RowDifference]:
    missing = Counter(_key(row, key) for row in only_expected.elements())
    unexpected = Counter(_key(row, key) for row in only_found.elements())
    for name in sorted(missing | unexpected):
        pairs = min(missing[name], unexpected[name])
        yield from [RowDifference(name, "different")] * pairs
        yield from [RowDifference(name, "missing")] * (missing[name] - pairs)
        yield from [RowDifference(name, "unexpected")] * (unexpected[name] - pairs)


def _key(row: bytes, key: Sequence[int]) -> str:
    fields = row.split(b"\t")
    return b"\t".join(fields[index] for index in key).decode(errors="replace") if key else row.decode(errors="replace")
