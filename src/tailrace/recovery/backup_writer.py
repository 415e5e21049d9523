"""Writes the contents of a backup's files to the store, in objects of equal size, with the index of the files."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Final, Self

from tailrace.recovery import compressed_object
from tailrace.recovery.backup_record import BackupFile, data_key, encode_index, index_key
from tailrace.recovery.tar_stream import TarMember
from tailrace.store import Store

CHUNK_BYTES: Final = 16 << 20
"""Large enough to make a PUT's fixed cost negligible, small enough to hold several in memory."""
# One is compressed while another is written.
_WORKERS = 2
_MOST_IN_FLIGHT = 4


class BackupWriter:
    """Used in a `with` block: leaving it ends the threads. `finish` makes everything durable."""

    def __init__(self, store: Store, id: str) -> None:
        self._store = store
        self._id = id
        self._pool = ThreadPoolExecutor(_WORKERS, "backup")
        self._slots = threading.Semaphore(_MOST_IN_FLIGHT)
        self._futures: list[Future[None]] = []
        self._buffer: list[memoryview] = []
        self._buffered = 0
        self._lock = threading.Lock()
        self.files: list[BackupFile] = []
        self.size = 0
        self.stored_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def add_member(self, path: str, member: TarMember) -> None:
        """Begin a file, whose content follows, or add a directory."""
        if member.kind != "link":  # a tablespace's; the record names the tablespaces
            self.files.append(BackupFile(path, member.kind, member.size, member.mode, member.modified_at, self.size))

    def add_content(self, piece: memoryview) -> None:
        self.size += len(piece)
        while piece:
            part = piece[: CHUNK_BYTES - self._buffered]
            piece = piece[len(part) :]
            self._buffer.append(part)
            self._buffered += len(part)
            if self._buffered == CHUNK_BYTES:
                self._flush()

    def finish(self) -> None:
        """Write what is left, and the index. Raises the first error of a thread."""
        if self._buffered:
            self._flush()
        for future in self._futures:
            future.result()
        self.stored_bytes += compressed_object.create(self._store, index_key(self._id), encode_index(self.files))

    def _flush(self) -> None:
        for future in self._futures:
            if future.done():
                future.result()
        self._slots.acquire()
        pieces, self._buffer, self._buffered = self._buffer, [], 0
        number = len(self._futures)
        self._futures.append(self._pool.submit(self._write, number, pieces))

    def _write(self, number: int, pieces: list[memoryview]) -> None:
        try:
            stored = compressed_object.create(self._store, data_key(self._id, number), b"".join(pieces))
            with self._lock:
                self.stored_bytes += stored
        finally:
            self._slots.release()
