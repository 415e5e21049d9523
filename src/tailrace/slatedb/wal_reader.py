"""Reads the write-ahead log of a SlateDB database: the interface of SlateDB's change-data-capture RFC.

The WAL is a sequence of files, `<path>/wal/<id>.sst`. Ids are consecutive, so a consumer polls `get(next_id)` and needs
no listing. Garbage collection removes old files and waits for nobody. A consumer that fell behind finds out with `gap`.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
from obstore.store import ObjectStore

from tailrace.slatedb.decoder import decode
from tailrace.slatedb.row_entry import RowEntry
from tailrace.store import Store

_log = logging.getLogger("tailrace.slatedb")
_NAME = re.compile(r"(\d{20})\.sst")
_ESCAPED = re.compile(rb"[^ -~]|[\\{^}%`\]\">\[~<#|*?]")


@dataclass(frozen=True, slots=True)
class WalFileMetadata:
    """What the store says about a WAL file."""

    last_modified: datetime
    size: int
    """In bytes. 0 is a fence: a writer that opened the database wrote it, and it has no entries."""
    location: str
    """The object's key in the store."""


@dataclass(frozen=True, slots=True)
class WalFileContent:
    """A WAL file that was read."""

    data: bytes
    metadata: WalFileMetadata
    reader: WalReader

    def rows(self) -> pa.RecordBatch:
        """The file's entries in columns. Raises what `WalFile.rows` raises."""
        rows = decode(self.data, f"{self.reader.store.url}: {self.metadata.location}")
        self.reader._count(read_entries=rows.num_rows)
        return rows


class WalFileIterator(Iterator[RowEntry]):
    """The entries of one WAL file, in the order in which they were written."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._entries = RowEntry.all(rows)

    def next_entry(self) -> RowEntry | None:
        """The next entry; None after the last one."""
        return next(self._entries, None)

    def __next__(self) -> RowEntry:
        return next(self._entries)


class WalFile:
    """A handle on one WAL file, which may not exist. Nothing is read until a method is called."""

    def __init__(self, reader: WalReader, id: int) -> None:
        self.id = id
        self._reader = reader

    @property
    def next_id(self) -> int:
        """The id of the file that follows this one."""
        return self.id + 1

    def metadata(self) -> WalFileMetadata | None:
        """The file's time, size and location; None if the file does not exist."""
        return self._reader._head(self.id)

    def rows(self) -> pa.RecordBatch | None:
        """The file's entries in columns (`tailrace.slatedb.row_entry.SCHEMA`); None if the file does not exist.

        Raises CorruptError if the file is damaged or truncated, and DecodeError if it is encrypted or has a format that
        is not known.
        """
        return self._reader._read(self.id)

    def content(self) -> WalFileContent | None:
        """The file's bytes and metadata in one request; None if the file does not exist."""
        return self._reader._content(self.id)

    def iterator(self) -> WalFileIterator | None:
        """The file's entries, one by one; None if the file does not exist. Raises what `rows` raises."""
        rows = self.rows()
        return None if rows is None else WalFileIterator(rows)

    def __repr__(self) -> str:
        return f"WalFile({self.id})"


@dataclass(frozen=True, slots=True)
class WalReaderCounters:
    """What a reader has done so far. Each `list`, `head` and `read` is one operation on the store."""

    lists: int = 0
    heads: int = 0
    reads: int = 0
    absent: int = 0
    """How many heads and reads found no file."""
    read_bytes: int = 0
    read_entries: int = 0


class WalReader:
    """Reads the WAL of one database. Threads may share a reader.

    Args:
        path: The database's path in the store, as the writer's builder got it.
        store: The store that holds the WAL: its URL (`file:///path`, `s3://bucket/prefix`), an obstore store, or a
            Tailrace store. If the database has a separate WAL store, this is the separate one.
        options: Options of the store, as in `[store.options]`. Only used with a URL.
    """

    def __init__(self, path: str, store: str | ObjectStore | Store, options: Mapping[str, str] | None = None) -> None:
        if isinstance(store, str):
            self.store = Store.open(store, options, must_exist=True)
        else:
            self.store = store if isinstance(store, Store) else Store(type(store).__name__, store)
        # SlateDB escapes the path, and escapes it again with the file's name.
        self._prefix = f"{_escape(_escape(path))}/wal/".removeprefix("/")
        self._counters = WalReaderCounters()
        self._lock = threading.Lock()

    @property
    def counters(self) -> WalReaderCounters:
        return self._counters

    def list(self, start: int | None = None, stop: int | None = None) -> list[WalFile]:
        """The existing files, in ascending order of their ids.

        A listing costs more the more files are retained. Call it once, then poll with `get`.

        Args:
            start: The lowest id to return; None for no limit.
            stop: The id before which to stop; None for no limit.
        """
        after = self._key(start - 1) if start else None
        found = [
            WalFile(self, id)
            for info in self.store.list(self._prefix, after)
            if (id := self._id(info.key)) is not None and id >= (start or 0) and (stop is None or id < stop)
        ]
        self._count(lists=1)
        _log.debug("listed %s of %s from %s to %s: %d files", self._prefix, self.store.url, start, stop, len(found))
        return found

    def get(self, id: int) -> WalFile:
        """A handle on the file with this id, whether or not it exists."""
        return WalFile(self, id)

    def gap(self, id: int) -> range | None:
        """The ids from `id` on that are missing although later files exist: garbage collection removed them.

        None if there is no gap: the file exists, or nothing was written after it yet. A miss of `get` alone proves
        nothing, and a listing may overlook a file that appears meanwhile, so the file is looked up after the listing.
        """
        later = self.list(id)
        if not later or later[0].id == id or self._head(id) is not None:
            return None
        return range(id, later[0].id)

    def _head(self, id: int) -> WalFileMetadata | None:
        info = self.store.head(self._key(id))
        self._count(heads=1, absent=int(info is None))
        _log.debug("looked up WAL file %d of %s: %s", id, self.store.url, "absent" if info is None else "found")
        return None if info is None else WalFileMetadata(info.modified_at, info.size, info.key)

    def _content(self, id: int) -> WalFileContent | None:
        found = self.store.get_with_info(self._key(id))
        if found is None:
            self._count(reads=1, absent=1)
            _log.debug("read WAL file %d of %s: absent", id, self.store.url)
            return None
        data, info = found
        self._count(reads=1, read_bytes=len(data))
        _log.debug("read WAL file %d of %s: %d bytes", id, self.store.url, len(data))
        return WalFileContent(data, WalFileMetadata(info.modified_at, info.size, info.key), self)

    def _read(self, id: int) -> pa.RecordBatch | None:
        content = self._content(id)
        return None if content is None else content.rows()

    def _count(self, **increments: int) -> None:
        with self._lock:
            before = self._counters
            self._counters = replace(before, **{name: getattr(before, name) + n for name, n in increments.items()})

    def _key(self, id: int) -> str:
        return f"{self._prefix}{id:020}.sst"

    def _id(self, key: str) -> int | None:
        name = _NAME.fullmatch(key.removeprefix(self._prefix))
        return int(name[1]) if name else None


def _escape(path: str) -> str:
    """The key that Rust's `object_store` makes of a path."""
    parts = [part for part in path.split("/") if part]
    dots = {".": "%2E", "..": "%2E%2E"}
    return "/".join(
        dots.get(part) or _ESCAPED.sub(lambda found: b"%%%02X" % ord(found[0]), part.encode()).decode()
        for part in parts
    )
