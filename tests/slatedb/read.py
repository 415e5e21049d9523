"""Reads files through their iterators."""

from __future__ import annotations

from collections.abc import Iterable

from tailrace.slatedb.row_entry import RowEntry
from tailrace.slatedb.wal_reader import WalFile


def all_entries(files: Iterable[WalFile]) -> list[RowEntry]:
    """The entries of files that all exist."""
    found = list[RowEntry]()
    for file in files:
        iterator = file.iterator()
        assert iterator is not None
        found += iterator
    return found
