"""Writes received WAL to the archive: complete segments, and parts of the segment that is still open.

Threads compress several segments at a time, a large one frame by frame as it arrives. But they write one after the
other, so that a kill never leaves a gap. A part is written when its WAL is old enough, and one at a time: while it is
written, the next one grows.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from tailrace.change import Lsn
from tailrace.errors import FencedError, SourceError, StoreError, TailraceError
from tailrace.recovery import compressed_object
from tailrace.recovery.compressed_object import FRAME_BYTES, Compressor
from tailrace.recovery.frame_buffer import Frame, FramePool
from tailrace.recovery.store_retry import run_with_retries
from tailrace.recovery.wal_archive import ArchivePosition, read_parts
from tailrace.recovery.wal_segment import WalSegment
from tailrace.store import Store

_log = logging.getLogger("tailrace.archive")

# Two segments are compressed at a time, beside one part.
_WORKERS = 3
# More than this much WAL waiting for the store stops the stream, not counting what of the open segment is compressed.
_MOST_BYTES = 64 << 20
# Up to this size a part is written by the thread of the stream if the store is quick: it is on the disk before another
# thread would have begun, and a commit waits for it.
_QUICK_BYTES = 64 << 10
# On a stop, the store has this long to accept what was received.
_CLOSE_SECONDS = 15.0


@dataclass(slots=True)
class ArchiveProgress:
    """What the archive has done since it started."""

    received_bytes: int = 0
    stored_bytes: int = 0
    segments: int = 0
    parts: int = 0


@dataclass(slots=True)
class _OpenSegment:
    segment: WalSegment
    previous: _OpenSegment | None = None
    """The segment before it, until that one is durable."""
    prefix_bytes: int = 0
    """How much of it the parts of an earlier run hold."""
    prefix_digest: bytes = b""
    received_prefix: Any = field(default_factory=hashlib.sha256)
    size: int = 0
    compressor: Compressor = field(default_factory=Compressor)
    frame: Frame | None = None
    """The content since the last frame."""
    compressed: Future[None] | None = None
    """The frame before."""
    tail: list[memoryview] = field(default_factory=list)
    """The pieces of frames that no part holds yet."""
    tail_bytes: int = 0
    tail_at: float | None = None
    """When the oldest of them arrived."""
    stored: int = 0
    """How much of it parts hold, or will hold once the part in flight is written."""
    part: Future[None] | None = None
    whole: Future[None] | None = None
    is_durable: bool = False
    durable_bytes: int = 0


class WalWriter:
    """Takes WAL of one timeline from a segment's start on. `wake` is called when something became durable or failed."""

    def __init__(
        self,
        store: Store,
        first: WalSegment,
        part_after_s: float,
        progress: ArchiveProgress,
        wake: Callable[[], None],
    ) -> None:
        """`part_after_s` is the age at which WAL of an open segment is written; 0 writes it at once."""
        self._store = store
        self._part_after_s = part_after_s
        self._progress = progress
        self._wake = wake
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(_WORKERS, "archive")
        self._pending: deque[_OpenSegment] = deque()
        self._futures: set[Future[None]] = set()
        self._pending_bytes = 0  # to be compressed, or compressed and to be written
        self._frames = FramePool(min(FRAME_BYTES, first.bytes))
        self._open = self._begin(first)
        self.error: Exception | None = None
        """Why nothing more is written."""
        self._durable = Lsn(first.start + self._open.durable_bytes)

    @property
    def received_lsn(self) -> Lsn:
        return Lsn(self._open.segment.start + self._open.size)

    @property
    def durable_lsn(self) -> Lsn:
        with self._lock:
            return self._durable

    @property
    def is_full(self) -> bool:
        with self._lock:
            return self._pending_bytes + self._open.tail_bytes >= _MOST_BYTES

    def offer(self, lsn: Lsn, data: memoryview) -> None:
        """Add WAL. Never waits."""
        if lsn != self.received_lsn:
            raise SourceError(f"the server sent WAL at {lsn} instead of {self.received_lsn}", "reconnecting")
        self._progress.received_bytes += len(data)
        while data:
            piece = data[: self._open.segment.bytes - self._open.size]
            data = data[len(piece) :]
            self._add(piece)

    def write_due_part(self, *, now: bool = False) -> float | None:
        """Begin to write a part if its WAL is old enough or large, or with `now` in any case.

        Return the seconds until the next one is due; None if something else happens first.
        """
        current = self._open
        if current.tail_at is None or (current.part is not None and not current.part.done()):
            return None
        left_s = current.tail_at + self._part_after_s - time.monotonic()
        if left_s > 0 and not now and current.tail_bytes < FRAME_BYTES:
            return left_s
        content = b"".join(current.tail)
        start = current.stored
        current.stored += len(content)
        current.tail, current.tail_bytes, current.tail_at = [], 0, None
        if not self._write_quickly(current, start, content):
            current.part = self._submit(self._write_part, current, start, content)
        return None

    def _write_quickly(self, current: _OpenSegment, start: int, content: bytes) -> bool:
        """Write a small part now. Return False if that could take long, or if the store fails and a retry may help."""
        is_next = current.previous is None or current.previous.is_durable
        if not self._store.is_quick or len(content) > _QUICK_BYTES or not is_next:
            return False
        try:
            self._write_part(current, start, content)
        except TailraceError as error:
            if error.retry:
                return False
            self.error = self.error or error
        return True

    def prepare_part(self) -> None:
        """While nothing else is to be done, begin what the next part will need."""
        if self._store.is_quick and not self._part_after_s:
            self._store.prepare(self._open.segment.parts_prefix)

    def save(self, position: ArchivePosition) -> None:
        """Record the position. Never waits."""
        self._submit(position.save, self._store)

    def write_rest(self) -> None:
        """Make all that was received durable. The store has 15 seconds to accept it."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        if self._open.part is not None:
            wait([self._open.part], _CLOSE_SECONDS)
        self.write_due_part(now=True)
        wait(list(self._futures), max(deadline - time.monotonic(), 0))
        if self.error is None and self.durable_lsn < self.received_lsn:
            self.error = StoreError(
                f"the store did not accept the WAL from {self.durable_lsn} on in time",
                "the server retains it; run the archive again",
            )

    def close(self) -> None:
        """Wait for what is still being written or removed, such as the position and parts."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        while self._futures and time.monotonic() < deadline:  # one of them may begin another
            wait(list(self._futures), deadline - time.monotonic())

    def abort(self) -> None:
        """End the threads. What is in flight is finished or given up."""
        self._stopping.set()
        self._pool.shutdown(cancel_futures=True)

    def _begin(self, segment: WalSegment) -> _OpenSegment:
        """Open a segment, which may have parts from an earlier run."""
        prefix = read_parts(self._store, segment)
        return _OpenSegment(
            segment,
            prefix_bytes=len(prefix),
            prefix_digest=hashlib.sha256(prefix).digest(),
            stored=len(prefix),
            durable_bytes=len(prefix),
        )

    def _add(self, piece: memoryview) -> None:
        current = self._open
        before, current.size = current.size, current.size + len(piece)
        if before < current.prefix_bytes:
            current.received_prefix.update(piece[: current.prefix_bytes - before])
            if current.prefix_bytes <= current.size:
                self._check_prefix(current)
        stored = max(current.prefix_bytes - before, 0)  # bytes of the piece
        while piece:
            frame = current.frame = current.frame or self._frames.take()
            taken = frame.add(piece)
            piece = piece[len(taken) :]
            if new := taken[stored:]:
                current.tail.append(new)
                current.tail_bytes += len(new)
                current.tail_at = current.tail_at or time.monotonic()
            stored = max(stored - len(taken), 0)
            if frame.size == self._frames.frame_bytes and current.size < current.segment.bytes:
                self._take_frame(current)
                current.compressed = self._submit(self._compress, current, frame, current.compressed)
        if current.size == current.segment.bytes:
            current.tail = []
            last = self._take_frame(current)
            with self._lock:
                self._pending.append(current)
            current.whole = self._submit(self._write_segment, current, last)
            self._open = _OpenSegment(current.segment.next, current)

    def _take_frame(self, current: _OpenSegment) -> Frame:
        frame, current.frame = current.frame, None
        assert frame is not None
        frame.is_shared = bool(current.tail)
        with self._lock:
            self._pending_bytes += frame.size
        return frame

    def _compress(self, current: _OpenSegment, frame: Frame, before: Future[None] | None) -> None:
        """Compress one frame after the one `before`. Does nothing if it was done."""
        if before is not None:
            wait([before])
        if not frame.is_compressed:
            current.compressor.add(frame.content)
            frame.is_compressed = True
            with self._lock:
                self._pending_bytes -= frame.size
            if not frame.is_shared:
                self._frames.put_back(frame)

    def _check_prefix(self, current: _OpenSegment) -> None:
        """Compare what the server sends now with what an earlier run stored."""
        if current.received_prefix.digest() != current.prefix_digest:
            raise FencedError(
                f"the server's segment {current.segment} differs from the archive's in its first "
                f"{current.prefix_bytes} bytes",
                "this server lost WAL that the archive holds, or another server wrote there: restore from the archive, "
                "or archive this server in another location",
            )

    def _submit(self, work: Callable[..., None], *arguments: object) -> Future[None]:
        future = self._pool.submit(self._guard, work, *arguments)
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def _guard(self, work: Callable[..., None], *arguments: object) -> None:
        """Run `work` until the store accepts it. Other errors end the stream."""
        try:
            run_with_retries(lambda: work(*arguments), self._stopping, _log)
        except Exception as error:
            self.error = self.error or error
        self._wake()

    def _write_part(self, current: _OpenSegment, start: int, content: bytes) -> None:
        end = start + len(content)
        if not self._await_previous(current):
            return
        stored = compressed_object.create(self._store, current.segment.part_key(start, end), content)
        with self._lock:
            self._progress.stored_bytes += stored
            self._progress.parts += 1
            current.durable_bytes = end
            self._advance()

    def _write_segment(self, current: _OpenSegment, last_frame: Frame) -> None:
        self._compress(current, last_frame, current.compressed)
        if current.compressor.content_bytes != current.segment.bytes:
            return  # a frame could not be compressed, which has ended the stream
        data = current.compressor.finish()
        with self._lock:
            self._pending_bytes += len(data)
        try:
            if not self._await_previous(current):
                return
            compressed_object.create_compressed(self._store, current.segment.key, data)
        finally:
            with self._lock:
                self._pending_bytes -= len(data)
        with self._lock:
            self._progress.stored_bytes += len(data)
            self._progress.segments += 1
            current.is_durable = True
            current.compressor = Compressor()
            self._advance()
        if current.stored:
            self._submit(self._remove_parts, current)

    def _remove_parts(self, current: _OpenSegment) -> None:
        if current.part is not None:
            wait([current.part])  # so that it is not created after the others were removed
        for info in self._store.list(current.segment.parts_prefix):
            self._store.delete(info.key)

    def _await_previous(self, current: _OpenSegment) -> bool:
        """Wait for the segment before. Return whether it is durable; if not, the stream has ended."""
        previous = current.previous
        if previous is not None:
            assert previous.whole is not None
            wait([previous.whole])
            if not previous.is_durable:
                return False
            current.previous = None
        return True

    def _advance(self) -> None:
        while self._pending and self._pending[0].is_durable:
            self._durable = max(self._durable, self._pending.popleft().segment.end)
        oldest = self._pending[0] if self._pending else self._open
        self._durable = max(self._durable, Lsn(oldest.segment.start + oldest.durable_bytes))
