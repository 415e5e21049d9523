"""The data files of a table, and where in them a row is: found by its fingerprint, without reading the table.

A data file never changes, so an index of it holds for as long as it is in the table: its rows' fingerprints, sorted, in
a file on this machine's disk that is mapped into memory. It is made when a row is first looked for there. What a
change costs follows from how many rows change, not from how many there are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from tailrace.sinks.iceberg.fingerprint import Prints

I64 = npt.NDArray[np.int64]

_IN_MEMORY: Final = 20_000
"""Rows: the index of a smaller file is not worth a file of its own."""


class Index:
    """A data file's rows by their fingerprints."""

    def __init__(self, prints: Prints, directory: Path) -> None:
        order = np.argsort(prints[:, 0], kind="stable")
        self._first = _kept(prints[order, 0], directory)
        self._second = _kept(prints[order, 1], directory)
        self._rows = _kept(order.astype(np.uint32), directory)

    def find(self, prints: Prints) -> tuple[I64, I64]:
        """Pairs: the number of a fingerprint, and a row that has it. There may be several rows for one."""
        begin = np.searchsorted(self._first, prints[:, 0], "left")
        end = np.searchsorted(self._first, prints[:, 0], "right")
        counts = end - begin
        wanted = np.repeat(np.arange(len(prints)), counts)
        starts = np.cumsum(counts) - counts
        places = np.arange(len(wanted)) - np.repeat(starts, counts) + np.repeat(begin, counts)
        same = self._second[places] == prints[wanted, 1]
        return wanted[same], self._rows[places[same]].astype(np.int64)


def _kept(array: npt.NDArray[Any], directory: Path) -> npt.NDArray[Any]:
    if len(array) <= _IN_MEMORY:
        return array
    with tempfile.NamedTemporaryFile(dir=directory, suffix=".npy") as file:
        np.save(file, array)
        file.flush()
        # The file has no name any more once it is closed, and goes with the mapping.
        mapped: npt.NDArray[Any] = np.load(file.name, mmap_mode="r")
        return mapped


@dataclass
class Live:
    """A data file that is in the table, or will be with the commit under way."""

    location: str
    rows: int
    data: Any = None
    """Iceberg's own object; None of a file that is not committed yet."""
    vector: Any = None
    """Iceberg's object of the deletion vector that the table has for it."""
    deleted: BitMap64 = field(default_factory=BitMap64)
    is_touched: bool = False
    """More of its rows are gone than the table knows."""
    index: Index | None = None

    @property
    def is_empty(self) -> bool:
        return len(self.deleted) >= self.rows

    @cached_property
    def bytes(self) -> int:
        """Of one that the table has."""
        return int(self.data.fileSizeInBytes())

    def kept(self) -> I64:
        """The rows that are not gone."""
        return np.setdiff1d(np.arange(self.rows), np.fromiter(self.deleted, np.int64))


class Files:
    """All of a table's. `planned` asks the table for those it has, when a row is first to go: what only grows is never
    read. `prints_of` reads the fingerprints of a data file's rows."""

    def __init__(
        self, planned: Callable[[], Iterable[Live]], prints_of: Callable[[Live], Prints], directory: Path
    ) -> None:
        self._planned = planned
        self._prints_of = prints_of
        self._directory = directory
        self._is_planned = False
        self._live: dict[str, Live] = {}
        self.removed: list[Live] = []
        """Those that the table has and that go with the commit under way."""

    def all(self) -> list[Live]:
        if not self._is_planned:
            self._live = {live.location: live for live in self._planned()} | self._live
            self._is_planned = True
        return list(self._live.values())

    def replan(self) -> None:
        """The table may have other files. Those that are still there keep their indexes."""
        if self._is_planned:
            before = self._live
            self._live = {live.location: live for live in self._planned()}
            for location, live in self._live.items():
                live.index = before[location].index if location in before else None

    def known(self) -> list[Live]:
        """Those that were added or looked at."""
        return list(self._live.values())

    def add(self, live: Live) -> None:
        self._live[live.location] = live

    def clear(self) -> None:
        for live in self.all():
            self.remove(live)

    def remove(self, live: Live) -> None:
        del self._live[live.location]
        if live.data is not None:
            self.removed.append(live)

    def forget_indexes(self) -> None:
        """The table's rows are found by other columns now."""
        for live in self._live.values():
            live.index = None

    def settle(self) -> None:
        """What was under way is committed."""
        self.removed.clear()
        if not self._is_planned:
            self._live.clear()
        for live in self._live.values():
            live.is_touched = False

    def take(self, prints: Prints, copies: I64 | None = None) -> tuple[list[Live], I64, I64]:
        """Find rows and mark them as gone: the files, and for each fingerprint the file's number and the row.

        A number of -1: there is no such row. With `copies` as many rows go for each as it says; then the answer is
        only whether there were enough.
        """
        # The newest first: what changed last is what changes next.
        files = self.all()[::-1]
        left = np.ones(len(prints), np.int64) if copies is None else copies.copy()
        numbers, rows = np.full(len(prints), -1, np.int64), np.full(len(prints), -1, np.int64)
        for number, live in enumerate(files):
            open_ = np.flatnonzero(left)
            if not len(open_):
                break
            which, found = self._index(live).find(prints[open_])
            if not len(which):
                continue
            which = open_[which]
            there = ~_contains(live.deleted, found)
            which, found = which[there], found[there]
            # Of several rows that are alike, as many as are wanted.
            order = np.argsort(which, kind="stable")
            which, found = which[order], found[order]
            firsts = np.flatnonzero(np.append(True, which[1:] != which[:-1])) if len(which) else which
            rank = np.arange(len(which)) - np.repeat(firsts, np.diff(np.append(firsts, len(which))))
            wanted = rank < left[which]
            which, found = which[wanted], found[wanted]
            if not len(which):
                continue
            np.subtract.at(left, which, 1)
            numbers[which], rows[which] = number, found
            live.deleted |= BitMap64(found.tolist())
            live.is_touched = True
        numbers[left > 0] = -1
        return files, numbers, rows

    def _index(self, live: Live) -> Index:
        if live.index is None:
            live.index = Index(self._prints_of(live), self._directory)
        return live.index


def _contains(deleted: BitMap64, rows: I64) -> npt.NDArray[np.bool_]:
    if not deleted:
        return np.zeros(len(rows), np.bool_)
    gone = np.fromiter(deleted & BitMap64(rows.tolist()), np.int64)
    return np.isin(rows, gone)
