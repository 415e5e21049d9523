"""Differences between the rows that a destination should have and those that it has. Pure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

Row = tuple[str | None, ...]
Kind = Literal["changed", "missing", "extra"]


@dataclass(frozen=True)
class Difference:
    """One row that differs. Without a key, the whole row is the key, and it is missing or extra."""

    columns: tuple[str, ...]
    """The names of the columns that are compared."""
    key: tuple[int, ...]
    """The indexes of the key's columns."""
    expected: Row | None
    """The row that the destination should have; None if it should have none."""
    found: Row | None
    """The row that the destination has."""

    @property
    def kind(self) -> Kind:
        if self.found is None:
            return "missing"
        return "extra" if self.expected is None else "changed"

    @property
    def key_values(self) -> dict[str, str | None]:
        row = self.expected if self.expected is not None else self.found
        assert row is not None
        return {self.columns[index]: row[index] for index in self.key}

    @property
    def values(self) -> dict[str, tuple[str | None, str | None]]:
        """By column, the source's value and the destination's, where both have the row and the values differ."""
        if self.expected is None or self.found is None:
            return {}
        pairs = zip(self.columns, self.expected, self.found, strict=True)
        return {name: (expected, found) for name, expected, found in pairs if expected != found}

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "key": self.key_values,
            "columns": {name: {"source": s, "destination": d} for name, (s, d) in self.values.items()},
        }


def differences(
    expected: Iterable[pa.RecordBatch], found: Iterable[pa.RecordBatch], columns: Sequence[str], key: Sequence[int]
) -> Iterator[Difference]:
    """The rows that differ.

    Args:
        expected: The rows that the destination should have, in any order.
        found: The rows that it has.
        columns: The names of the columns.
        key: The indexes of the key's columns; all of them, for a table without a key.
    """
    names, places = tuple(columns), tuple(key)
    if len(places) == len(names):
        # Without a key there may be any number of equal rows: they are counted.
        wanted_copies, present_copies = Counter(_rows(expected)), Counter(_rows(found))
        for row in wanted_copies.keys() | present_copies.keys():
            surplus = present_copies[row] - wanted_copies[row]
            one = Difference(names, places, None, row) if surplus > 0 else Difference(names, places, row, None)
            yield from itertools.repeat(one, abs(surplus))
        return
    wanted, present = _by_key(expected, places), _by_key(found, places)
    for place in wanted.keys() | present.keys():
        lacking, surplus_rows = _remove_common(wanted.get(place, []), present.get(place, []))
        for right, wrong in itertools.zip_longest(lacking, surplus_rows):
            yield Difference(names, places, right, wrong)


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Row]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _by_key(batches: Iterable[pa.RecordBatch], key: Sequence[int]) -> dict[Row, list[Row]]:
    rows: defaultdict[Row, list[Row]] = defaultdict(list)
    for row in _rows(batches):
        rows[tuple([row[index] for index in key])].append(row)
    return rows


def _remove_common(expected: list[Row], found: list[Row]) -> tuple[list[Row], list[Row]]:
    if expected == found:
        return [], []
    lacking = list(expected)
    surplus = []
    for row in found:
        if row in lacking:
            lacking.remove(row)
        else:
            surplus.append(row)
    return lacking, surplus
