"""What a statement gives: rows that stream from DuckDB, batch by batch, or a word that it is done."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from tailrace.query.oid import WireType
from tailrace.query.wire import Field

BATCH_ROWS: Final = 16_384
"""Eight of DuckDB's vectors: large enough that a batch's fixed cost vanishes, small enough to stay in a cache."""
_AHEAD: Final = 2


@dataclass(frozen=True)
class Word:
    """Done, without rows."""

    tag: str
    notices: Sequence[bytes] = ()
    """Messages that go before it: a changed setting, a warning."""


@dataclass
class Rows:
    fields: Sequence[Field]
    types: Sequence[WireType]
    batches: Iterator[pa.RecordBatch]
    close: Callable[[], None] = field(default=lambda: None)
    """Lets go of what the rows come from; harmless twice."""
    tag: str = "SELECT"
    rest: pa.RecordBatch | None = None
    """What was fetched and not yet asked for."""

    def take(self, limit: int) -> Iterator[pa.RecordBatch]:
        """Up to so many rows; 0 for all. What is left of a batch waits for the next call."""
        left = limit
        while True:
            batch, self.rest = self.rest, None
            if batch is None:
                batch = next(self.batches, None)
            if batch is None:
                return
            if limit and batch.num_rows > left:
                self.rest = batch.slice(left)
                batch = batch.slice(0, left)
            yield batch
            left -= batch.num_rows
            if limit and left == 0:
                return

    def is_exhausted(self) -> bool:
        while self.rest is None or self.rest.num_rows == 0:
            self.rest = next(self.batches, None)
            if self.rest is None:
                return True
        return False


def ahead(reader: Any) -> Generator[pa.RecordBatch, None, None]:
    """The batches of a reader, of which the next is fetched while one is being sent. Never more than a few wait."""
    first = next(reader, None)
    if first is None:
        return
    yield first
    if first.num_rows < BATCH_ROWS:
        yield from reader
        return
    waiting: queue.Queue[Any] = queue.Queue(_AHEAD)
    over = threading.Event()

    def put(item: Any) -> None:
        while not over.is_set():
            try:
                waiting.put(item, timeout=0.5)
            except queue.Full:
                continue
            return

    def fetch() -> None:
        try:
            for batch in reader:
                put(batch)
                if over.is_set():
                    return
            put(None)
        except BaseException as error:
            put(error)

    fetcher = threading.Thread(target=fetch, name="fetching", daemon=True)
    fetcher.start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        over.set()
        while fetcher.is_alive():
            try:
                waiting.get_nowait()
            except queue.Empty:
                fetcher.join(0.01)
