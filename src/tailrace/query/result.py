"""The result of a statement: rows streamed from DuckDB batch by batch, or a completion without rows."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from tailrace.postgres.protocol import ResultField
from tailrace.query.wire_type import WireType

BATCH_ROWS: Final = 16_384
"""Eight DuckDB vectors: large enough that the fixed cost of a batch is negligible, small enough to stay in cache."""
_PREFETCH: Final = 2


@dataclass(frozen=True)
class Completion:
    """A finished statement that returns no rows."""

    tag: str
    notices: Sequence[bytes] = ()
    """Messages to send first: a changed setting, a warning."""


@dataclass
class ResultSet:
    fields: Sequence[ResultField]
    types: Sequence[WireType]
    batches: Iterator[pa.RecordBatch]
    close: Callable[[], None] = field(default=lambda: None)
    """Releases the resources behind the rows. Safe to call twice."""
    tag: str = "SELECT"
    pending: pa.RecordBatch | None = None
    """Rows fetched but not yet taken."""

    def take(self, limit: int) -> Iterator[pa.RecordBatch]:
        """Yield up to `limit` rows; 0 means all. The rest of a batch is returned by the next call."""
        left = limit
        while True:
            batch, self.pending = self.pending, None
            if batch is None:
                batch = next(self.batches, None)
            if batch is None:
                return
            if limit and batch.num_rows > left:
                self.pending = batch.slice(left)
                batch = batch.slice(0, left)
            yield batch
            left -= batch.num_rows
            if limit and left == 0:
                return

    def is_exhausted(self) -> bool:
        while self.pending is None or self.pending.num_rows == 0:
            self.pending = next(self.batches, None)
            if self.pending is None:
                return True
        return False


def prefetch(reader: Any) -> Generator[pa.RecordBatch, None, None]:
    """Yield a reader's batches, fetching the next while one is being sent. At most a few are buffered."""
    first = next(reader, None)
    if first is None:
        return
    yield first
    if first.num_rows < BATCH_ROWS:
        yield from reader
        return
    fetched: queue.Queue[Any] = queue.Queue(_PREFETCH)
    closed = threading.Event()

    def put(item: Any) -> None:
        while not closed.is_set():
            try:
                fetched.put(item, timeout=0.5)
            except queue.Full:
                continue
            return

    def fetch() -> None:
        try:
            for batch in reader:
                put(batch)
                if closed.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    fetcher = threading.Thread(target=fetch, name="prefetch", daemon=True)
    fetcher.start()
    try:
        while (item := fetched.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        closed.set()
        while fetcher.is_alive():
            try:
                fetched.get_nowait()
            except queue.Empty:
                fetcher.join(0.01)
