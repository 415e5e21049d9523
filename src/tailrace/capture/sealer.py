"""The thread between a source's stream and the store: portions of the stream in, durable segments out.

It seals a segment when enough data is pending, or when a commit is pending and the last seal was `seal_after_ms` ago.
So a lone commit is durable at once, a busy stream writes at most 20 segments per second, and under backlog segments
grow to their full size. A segment ends at a commit, unless one transaction alone exceeds it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tailrace.capture.source import Converter, Portion
from tailrace.change import Lsn, Position, Relation
from tailrace.errors import StoreError, TailraceError
from tailrace.log.segment import Header
from tailrace.log.writer import LogWriter
from tailrace.log_rows import LogRows, RowBatch
from tailrace.retry import Backoff
from tailrace.settings import CaptureSettings

_log = logging.getLogger("tailrace.capture")

# How often WAL without captured changes is acknowledged; each time costs a small segment.
_IDLE_SECONDS = 10.0
# On a stop, the store has this long to accept what is committed.
_CLOSE_SECONDS = 15.0
# The stream is converted in portions of this size: cheap per row, and small enough for the processor's cache.
_PORTION_BYTES = 1 << 20
# The memory of a row's columns other than the payload.
_ROW_BYTES = 49
_OPERATIONS = {ord("I"): "INSERT", ord("U"): "UPDATE", ord("D"): "DELETE", ord("T"): "TRUNCATE", ord("M"): "MESSAGE"}
_COMMIT = ord("C")


@dataclass(slots=True)
class CaptureProgress:
    """What capture has done since it started, for status and metrics."""

    operations: Counter[str] = field(default_factory=Counter)
    """The number of changes per operation."""
    transactions: int = 0
    segments: int = 0
    payload_bytes: int = 0
    last_position: Position | None = None
    last_committed_at_us: int | None = None
    messages: int = 0
    """Messages of the stream, without keepalives."""
    keepalives: int = 0
    repeated: int = 0
    """Changes that the server sent again and the log already held."""
    left_out: int = 0
    """Changes of Tailrace's own tables, which are not captured."""

    @property
    def changes(self) -> int:
        return self.operations.total()

    def add(self, header: Header, rows: LogRows) -> None:
        kinds = np.bincount(rows.kind, minlength=256)
        self.operations.update({name: int(kinds[kind]) for kind, name in _OPERATIONS.items() if kinds[kind]})
        self.transactions += int(kinds[_COMMIT])
        self.segments += 1
        self.payload_bytes += header.payload_bytes
        if header.last is not None:
            self.last_position, self.last_committed_at_us = header.last, header.last_committed_at_us


class Sealer:
    """Owns the writer while it runs. `offer` and `idle` never block.

    `wake` is called when `durable_lsn` advanced, when there is room again, and when sealing failed.
    """

    def __init__(
        self,
        writer: LogWriter,
        converter: Converter,
        settings: CaptureSettings,
        progress: CaptureProgress,
        wake: Callable[[], None],
    ) -> None:
        self._writer = writer
        self._converter = converter
        self._settings = settings
        self._progress = progress
        self._wake = wake
        self._inbox: deque[Portion] = deque()
        self._inbox_bytes = 0
        self._batches: list[RowBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._relations: dict[int, Relation] = {}
        self._definitions: list[tuple[int, Relation]] = []
        self._resume: str | None = writer.resume
        """Where the stream continues after what was converted so far."""
        self._idle_lsn = Lsn(0)
        self._idle_urgent = False
        self._sealed_at = 0.0
        self._closing = False
        self._aborted = False
        self._condition = threading.Condition()
        self.error: TailraceError | None = None
        self._thread = threading.Thread(target=self._run, name="sealer", daemon=True)
        self._thread.start()

    @property
    def durable_lsn(self) -> Lsn:
        return self._writer.end_lsn

    @property
    def is_full(self) -> bool:
        """Whether the inbox exceeds its memory limit, so that the server should wait."""
        return self._inbox_bytes > self._settings.segment_bytes

    def offer(self, portion: Portion) -> None:
        with self._condition:
            is_first = not self._inbox
            self._inbox.append(portion)
            self._inbox_bytes += portion.size
            if is_first or self._inbox_bytes >= _PORTION_BYTES:
                self._condition.notify()

    def idle(self, lsn: Lsn, *, urgent: bool) -> None:
        """Note that the server has sent everything below `lsn`; `urgent` if it waits for a confirmation."""
        with self._condition:
            self._idle_lsn = lsn
            self._idle_urgent |= urgent
            if urgent or self._is_idle_due(lsn, urgent=False):
                self._condition.notify()

    def close(self) -> None:
        """Seal what is committed, and stop. If the store does not answer, the server sends the rest again."""
        with self._condition:
            self._closing = True
            self._condition.notify()
        self._thread.join(_CLOSE_SECONDS)
        self.abort()

    def abort(self) -> None:
        """Stop after the current step; the server sends the rest again."""
        with self._condition:
            self._aborted = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except TailraceError as error:
            self.error = error
        except Exception as error:  # a bug: it must stop capture and reach the operator
            _log.exception("sealing failed")
            self.error = TailraceError(f"sealing failed: {error!r}", "this is a bug in Tailrace: please report it")
        self._wake()

    def _step(self) -> bool:
        with self._condition:
            while (seconds := self._wait_seconds()) > 0:
                self._condition.wait(seconds)
            if self._aborted:
                return False
            portions = self._take()
            caught_up = not self._inbox
            closing = self._closing and caught_up
            idle_lsn, urgent = self._idle_lsn, self._idle_urgent and caught_up
        for portion in portions:
            self._read(portion)
        if self._is_due(caught_up, closing):
            self._seal()
        elif caught_up and self._is_idle_due(idle_lsn, urgent or closing):
            self._append(LogRows.empty(), 0, idle_lsn)
        with self._condition:
            # It stays urgent until confirmed: a segment sealed before may end below the LSN that the server waits for.
            self._idle_urgent &= self._idle_lsn > self._writer.end_lsn
        return not closing or self._is_due(caught_up, closing)

    def _wait_seconds(self) -> float:
        """How long to wait for work. What arrives before the next seal is due is converted together."""
        must_confirm = self._idle_urgent and not self._batches and not self._writer.tail_is_open
        if self._closing or self._aborted or must_confirm or self._inbox_bytes >= _PORTION_BYTES:
            return 0
        if self._inbox or any(b.end_lsn for b in self._batches):
            return self._sealed_at + self._settings.seal_after_ms / 1000 - time.monotonic()
        return 0 if self._is_idle_due(self._idle_lsn, urgent=False) else _IDLE_SECONDS

    def _take(self) -> list[Any]:
        """Take as much as fills the segment, in portions that are large enough to be cheap per row."""
        portions: list[list[Portion]] = []
        room = self._settings.segment_bytes - self._pending_bytes
        portion_bytes = _PORTION_BYTES
        while self._inbox and room > 0:
            if portion_bytes >= _PORTION_BYTES:
                portions.append([])
                portion_bytes = 0
            portion = self._inbox.popleft()
            portions[-1].append(portion)
            portion_bytes += portion.size
            room -= portion.size
            self._inbox_bytes -= portion.size
        if portions:
            self._wake()
        return [self._converter.join(portion) for portion in portions]

    def _read(self, portion: Portion) -> None:
        batch = self._converter.convert(portion)
        self._progress.messages += self._converter.count(portion)
        self._progress.repeated += batch.repeated
        self._progress.left_out += batch.left_out
        self._definitions += [(self._pending_rows + row, relation) for row, relation in batch.defined]
        self._resume = batch.resume or self._resume
        if len(batch.rows) or (batch.end_lsn and self._batches):
            self._add(batch)
        else:
            self._advance_idle(Lsn(batch.end_lsn))

    def _advance_idle(self, end_lsn: Lsn) -> None:
        """Skip transactions without captured changes."""
        with self._condition:
            self._idle_lsn = max(self._idle_lsn, end_lsn)

    def _add(self, batch: RowBatch) -> None:
        self._batches.append(batch)
        self._pending_rows += len(batch.rows)
        self._pending_bytes += batch.rows.payload.nbytes + _ROW_BYTES * len(batch.rows)

    def _is_due(self, caught_up: bool, closing: bool) -> bool:
        if self._pending_bytes >= self._settings.segment_bytes:
            return True
        waited = time.monotonic() - self._sealed_at >= self._settings.seal_after_ms / 1000
        return any(b.end_lsn for b in self._batches) and (closing or (waited and caught_up))

    def _is_idle_due(self, lsn: Lsn, urgent: bool) -> bool:
        has_moved = lsn > self._writer.end_lsn or self._resume != self._writer.resume
        if self._batches or self._writer.tail_is_open or not has_moved:
            return False
        return urgent or time.monotonic() - self._sealed_at >= _IDLE_SECONDS

    def _seal(self) -> None:
        rows = LogRows.concat([b.rows for b in self._batches])
        committed, end_lsn, at = 0, Lsn(0), 0
        for batch in self._batches:
            if batch.end_lsn:
                committed, end_lsn = at + batch.committed_rows, Lsn(batch.end_lsn)
            at += len(batch.rows)
        # Rows after the last commit wait for their own commit, unless they fill a segment by themselves.
        cut = committed if end_lsn else len(rows)
        if cut:
            self._append(rows.slice(0, cut), committed, end_lsn)
        else:
            self._advance_idle(end_lsn)
        self._batches, self._pending_rows, self._pending_bytes = [], 0, 0
        if cut < len(rows):
            self._add(RowBatch(rows.slice(cut, len(rows)), 0, 0))
        self._relations.update((r.oid, r) for row, r in self._definitions if row <= cut)
        self._definitions = [(row - cut, r) for row, r in self._definitions if row > cut]

    def _append(self, rows: LogRows, committed: int, end_lsn: Lsn) -> None:
        defined = [(0, r) for r in self._relations.values()] + [(i, r) for i, r in self._definitions if i < len(rows)]
        backoff = Backoff()
        while True:
            try:
                header = self._writer.append(rows, committed, end_lsn, defined, self._resume)
                break
            except StoreError as error:
                delay = backoff.next()
                _log.warning("%s; retrying in %.1f s, the source waits", error, delay)
                with self._condition:
                    if self._condition.wait_for(lambda: self._aborted, timeout=delay):
                        raise
        if backoff.failures:
            _log.info("the store is available again")
        self._sealed_at = time.monotonic()
        self._progress.add(header, rows)
        self._wake()
