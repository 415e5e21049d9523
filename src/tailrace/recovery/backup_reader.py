"""Reads the files of a backup from the store, in order, and compares each with PostgreSQL's manifest."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from tailrace.errors import CorruptError
from tailrace.recovery import backup_manifest
from tailrace.recovery.backup_record import (
    CHOOSE_ANOTHER,
    BackupFile,
    BackupRecord,
    data_key,
    read_index,
    read_manifest,
    read_object,
)
from tailrace.store import Store

# Objects that are fetched and decompressed ahead of the one that is in use.
_AHEAD = 3

FileSink = Callable[[memoryview], None]
"""Takes a file's content in pieces."""


class BackupReader:
    """One backup. Raises CorruptError if an object is damaged or missing, or if the files are not the manifest's."""

    def __init__(self, store: Store, record: BackupRecord) -> None:
        self._store = store
        self._record = record
        self._where = f"{store.url}: backup {record.id}"
        self.files = read_index(store, record.id)
        self._manifest = backup_manifest.parse(read_manifest(store, record.id), self._where)
        backup_manifest.check_files(self._manifest, self.files, self._where)

    def read(
        self,
        paths: Collection[str] | None,
        open_sink: Callable[[BackupFile], FileSink],
        on_file: Callable[[BackupFile], None] = lambda _: None,
    ) -> None:
        """Read files, all or those in `paths`, in the order in which they are stored.

        `open_sink` is called before a file's content, `on_file` once the file is complete and matches the manifest.
        """
        wanted = [f for f in self.files if f.kind == "file" and (paths is None or f.path in paths)]
        chunks = self._chunks(_chunk_numbers(wanted, self._record.chunk_bytes))
        number, chunk = -1, b""
        for file in wanted:
            sink = open_sink(file)
            digest = hashlib.sha256()
            at, end = file.offset, file.offset + file.size
            while at < end:
                while number < at // self._record.chunk_bytes:
                    number, chunk = next(chunks)
                start = at % self._record.chunk_bytes
                piece = memoryview(chunk)[start : start + end - at]
                if not piece:
                    raise CorruptError(f"{self._where}: object {number} is too short", CHOOSE_ANOTHER)
                digest.update(piece)
                sink(piece)
                at += len(piece)
            backup_manifest.check_file(self._manifest, file, digest.digest(), self._where)
            on_file(file)

    def _chunks(self, numbers: list[int]) -> Iterator[tuple[int, bytes]]:
        with ThreadPoolExecutor(_AHEAD, "backup-reader") as pool:
            pending: deque[tuple[int, Future[bytes]]] = deque()
            left = iter(numbers)
            try:
                while True:
                    while len(pending) <= _AHEAD and (number := next(left, None)) is not None:
                        pending.append((number, pool.submit(self._chunk, number)))
                    if not pending:
                        return
                    number, future = pending.popleft()
                    yield number, future.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _chunk(self, number: int) -> bytes:
        return read_object(self._store, data_key(self._record.id, number))


def _chunk_numbers(files: list[BackupFile], chunk_bytes: int) -> list[int]:
    """The objects that hold these files, each once, in order."""
    numbers: list[int] = []
    for file in files:
        if file.size:
            first, last = file.offset // chunk_bytes, (file.offset + file.size - 1) // chunk_bytes
            numbers.extend(range(max(first, numbers[-1] + 1 if numbers else first), last + 1))
    return numbers


def verify(store: Store, record: BackupRecord, on_file: Callable[[BackupFile], None] = lambda _: None) -> None:
    """Read a whole backup and compare it with PostgreSQL's manifest. Raises CorruptError if anything differs."""

    def discard(piece: memoryview) -> None:
        """The reader has hashed it."""

    BackupReader(store, record).read(None, lambda _: discard, on_file)
