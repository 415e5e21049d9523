"""A table's data files, and an index that locates a row by its fingerprint without reading the table.

A data file never changes, so its index is valid for as long as the file is in the table. An index holds the sorted
fingerprints of the file's rows, in a memory-mapped file on the local disk, and is built when a row is first looked up
in the data file. The cost of a change depends on how many rows change, not on the size of the table.
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

from tailrace.sinks.iceberg.fingerprint import Fingerprints

I64 = npt.NDArray[np.int64]

_IN_MEMORY: Final = 20_000
"""Rows. The index of a smaller file stays in memory."""


class FingerprintIndex:
    """Locates a data file's rows by their fingerprints."""

    def __init__(self, prints: Fingerprints, directory: Path) -> None:
        order = np.argsort(prints[:, 0], kind="stable")
        self._first = _spill(prints[order, 0], directory)
        self._second = _spill(prints[order, 1], directory)
        self._rows = _spill(order.astype(np.uint32), directory)

    def find(self, prints: Fingerprints) -> tuple[I64, I64]:
        """Pairs of an index into `prints` and a row with that fingerprint. Several rows may share one."""
        begin = np.searchsorted(self._first, prints[:, 0], "left")
        end = np.searchsorted(self._first, prints[:, 0], "right")
        counts = end - begin
        wanted = np.repeat(np.arange(len(prints)), counts)
        starts = np.cumsum(counts) - counts
        places = np.arange(len(wanted)) - np.repeat(starts, counts) + np.repeat(begin, counts)
        same = self._second[places] == prints[wanted, 1]
        return wanted[same], self._rows[places[same]].astype(np.int64)


def _spill(array: npt.NDArray[Any], directory: Path) -> npt.NDArray[Any]:
    """The same array, mapped from a file if it is large."""
    if len(array) <= _IN_MEMORY:
        return array
    with tempfile.NamedTemporaryFile(dir=directory, suffix=".npy") as file:
        np.save(file, array)
        file.flush()
        # Closing the file unlinks it; the mapping keeps its content alive.
        mapped: npt.NDArray[Any] = np.load(file.name, mmap_mode="r")
        return mapped


@dataclass
class LiveFile:
    """A data file that is in the table, or will be with the current transaction."""

    location: str
    rows: int
    data: Any = None
    """Iceberg's object for the file; None if it is not committed yet."""
    vector: Any = None
    """Iceberg's object for the file's deletion vector in the table."""
    deleted: BitMap64 = field(default_factory=BitMap64)
    has_new_deletes: bool = False
    """Whether `deleted` contains rows that the table's deletion vector does not."""
    index: FingerprintIndex | None = None

    @property
    def is_empty(self) -> bool:
        return len(self.deleted) >= self.rows

    @cached_property
    def bytes(self) -> int:
        """The size of a committed file."""
        return int(self.data.fileSizeInBytes())

    def live_rows(self) -> I64:
        """The rows that are not deleted."""
        return np.setdiff1d(np.arange(self.rows), np.fromiter(self.deleted, np.int64))


class LiveFiles:
    """All data files of a table.

    `list_files` returns the table's files. It is called when the first row is deleted, so a table that only grows is
    never listed. `fingerprints_of` reads the fingerprints of a data file's rows.
    """

    def __init__(
        self,
        list_files: Callable[[], Iterable[LiveFile]],
        fingerprints_of: Callable[[LiveFile], Fingerprints],
        directory: Path,
    ) -> None:
        self._list_files = list_files
        self._fingerprints_of = fingerprints_of
        self._directory = directory
        self._is_listed = False
        self._files: dict[str, LiveFile] = {}
        self.removed_files: list[LiveFile] = []
        """Committed files that the current transaction removes."""

    def all(self) -> list[LiveFile]:
        if not self._is_listed:
            self._files = {file.location: file for file in self._list_files()} | self._files
            self._is_listed = True
        return list(self._files.values())

    def reload(self) -> None:
        """List the table's files again. Those that are still there keep their indexes."""
        if self._is_listed:
            before = self._files
            self._files = {file.location: file for file in self._list_files()}
            for location, file in self._files.items():
                file.index = before[location].index if location in before else None

    def known_files(self) -> list[LiveFile]:
        """The files that were added or listed so far."""
        return list(self._files.values())

    def add(self, file: LiveFile) -> None:
        self._files[file.location] = file

    def clear(self) -> None:
        for file in self.all():
            self.remove(file)

    def remove(self, file: LiveFile) -> None:
        del self._files[file.location]
        if file.data is not None:
            self.removed_files.append(file)

    def drop_indexes(self) -> None:
        """For a table whose rows are identified by other columns from now on."""
        for file in self._files.values():
            file.index = None

    def mark_committed(self) -> None:
        """The current transaction was committed."""
        self.removed_files.clear()
        if not self._is_listed:
            self._files.clear()
        for file in self._files.values():
            file.has_new_deletes = False

    def delete_rows(self, prints: Fingerprints, copies: I64 | None = None) -> tuple[list[LiveFile], I64, I64]:
        """Find rows by fingerprint and mark them as deleted.

        Returns the files, and for each fingerprint the number of the file and the row. A file number of -1 means that
        there is no such row. `copies` says how many rows to delete for each fingerprint; then the file number only
        tells whether there were enough.
        """
        # The newest files first: recently changed rows are the most likely to change again.
        files = self.all()[::-1]
        left = np.ones(len(prints), np.int64) if copies is None else copies.copy()
        numbers, rows = np.full(len(prints), -1, np.int64), np.full(len(prints), -1, np.int64)
        for number, file in enumerate(files):
            open_ = np.flatnonzero(left)
            if not len(open_):
                break
            which, found = self._index(file).find(prints[open_])
            if not len(which):
                continue
            which = open_[which]
            is_live = ~_contains(file.deleted, found)
            which, found = which[is_live], found[is_live]
            # Of several equal rows, as many as are still to be deleted.
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
            file.deleted |= BitMap64(found.tolist())
            file.has_new_deletes = True
        numbers[left > 0] = -1
        return files, numbers, rows

    def _index(self, file: LiveFile) -> FingerprintIndex:
        if file.index is None:
            file.index = FingerprintIndex(self._fingerprints_of(file), self._directory)
        return file.index


def _contains(deleted: BitMap64, rows: I64) -> npt.NDArray[np.bool_]:
    if not deleted:
        return np.zeros(len(rows), np.bool_)
    found = np.fromiter(deleted & BitMap64(rows.tolist()), np.int64)
    return np.isin(rows, found)
