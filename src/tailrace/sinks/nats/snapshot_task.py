"""Publishes a table's rows to stream `INIT` in chunks, in one task or in several independent ones.

Of n tasks, each numbers its chunks n apart. Tasks need different numbers of chunks: the missing numbers are published
as chunks without rows, so that the numbers go from 0 on without a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import settings
from tailrace.delivery.sink_settings import SinkSettings
from tailrace.delivery.task import TaskResult
from tailrace.delivery.transforms import Shaping
from tailrace.errors import SinkError, TailraceError
from tailrace.log.decoding import TableChanges
from tailrace.log.planner import MIB
from tailrace.log.reader import LogReader
from tailrace.sinks.messages.payload_encoding import ENCODINGS, PayloadEncoding
from tailrace.sinks.nats.client import NatsClient
from tailrace.sinks.nats.compression import ChunkCompressor
from tailrace.sinks.nats.options import NatsOptions
from tailrace.state import table_state
from tailrace.state.fold import has_key
from tailrace.state.table_state import TableState
from tailrace.store import Store

STOPPING: Final = ("the sink is stopping", "Request the snapshot again.")
CHUNK_ROWS: Final = 10_000
_HEADER_BYTES: Final = 512
_OVERHEAD_BYTES: Final = 512 + _HEADER_BYTES
"""The room in a message for everything except the rows."""
_COMPRESSION_RATIO: Final = 8
"""The typical ratio for rows."""
_SMALL_BYTES: Final = 16 * MIB
"""Of snapshot and changes together. Below this, one task finishes before several would have started."""
_PART_BYTES: Final = 32 * MIB
"""Of a snapshot per task, a few seconds of work. At least the bytes of later changes, which every task reads."""


@dataclass(frozen=True)
class SnapshotCounts:
    """What a task published."""

    rows: int
    chunks: int


@dataclass(frozen=True)
class SnapshotTask:
    """Publishes one part of a table. Picklable."""

    options: NatsOptions
    sink: str
    store: settings.StoreSettings
    common: SinkSettings
    state: TableState
    target: tuple[str, str]
    name: str
    """As in subjects."""
    id: str
    dictionary: bytes | None = None
    """None: chunks are not compressed. Empty: they are compressed without a dictionary."""
    part: int = 0
    parts: int = 1
    is_stopping: Callable[[], bool] = field(default=lambda: False, compare=False)
    """Whether to give up because the sink stops."""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"options": self.options.to_picklable(), "is_stopping": _never}

    @property
    def _encoding(self) -> PayloadEncoding:
        return ENCODINGS[self.options.encoding]

    def rows(self) -> Iterator[pa.Array]:
        """Yield batches of encoded rows."""
        reader = LogReader(Store.open(self.store.url, self.store.options))
        shaping = Shaping(self.common, "")
        for images in table_state.rows(self.state, reader, self.part, self.parts):
            for run in shaping.apply([table_state.as_changes(self.state.relation, images)]):
                if isinstance(run, TableChanges) and len(run):
                    yield _encode(run, self._encoding)

    def run(self) -> TaskResult:
        client = NatsClient(self.options, f"{self.sink} snapshot")
        try:
            return TaskResult(self.publish(client), 0)
        finally:
            client.close()

    def publish(self, client: NatsClient) -> SnapshotCounts:
        compressor = self._compressor()
        # Compressed rows need less room. A chunk that is too large after all is split.
        max_bytes = (client.max_payload - _OVERHEAD_BYTES) * (_COMPRESSION_RATIO if compressor else 1)
        max_content = client.max_payload - _HEADER_BYTES
        chunks = rows = 0
        for chunk in split_into_chunks(self.rows(), max_bytes):
            remaining = [chunk]
            while remaining:
                if self.is_stopping():
                    raise SinkError(*STOPPING)
                part = remaining.pop(0)
                number = self.part + self.parts * chunks
                content = self._content(part, number, compressor)
                if len(content) > max_content:
                    if len(part) == 1:
                        raise TailraceError(
                            f"a row of {self.name} makes a message of {len(content):,} bytes, and the server accepts"
                            f" {max_content:,}",
                            "Raise max_payload of the NATS server, or exclude the column with `columns` in the sink's"
                            " settings.",
                        )
                    remaining[:0] = [part.slice(0, len(part) // 2), part.slice(len(part) // 2)]
                    continue
                self._publish(client, number, content)
                chunks += 1
                rows += len(part)
        return SnapshotCounts(rows, chunks)

    def publish_empty_chunks(self, client: NatsClient, published: SnapshotCounts, chunks: int) -> None:
        """Publish chunks without rows until this task has published `chunks` of them."""
        compressor = self._compressor()
        for chunk in range(published.chunks, chunks):
            number = self.part + self.parts * chunk
            self._publish(client, number, self._content(pa.array([], pa.binary()), number, compressor))

    def _compressor(self) -> ChunkCompressor | None:
        return None if self.dictionary is None else ChunkCompressor(self.dictionary)

    def _content(self, rows: pa.Array, number: int, compressor: ChunkCompressor | None) -> bytes:
        encoding = self._encoding
        content = encoding.single_map(
            [
                ("table", encoding.text(self.target[1])),
                ("operation", encoding.text("snapshot")),
                ("snapshot_id", encoding.text(self.id)),
                ("chunk", encoding.integer(number)),
                ("lsn", encoding.text(str(self.state.lsn))),
                ("data", encoding.array_of_rows(rows)),
            ]
        )
        return content if compressor is None else compressor.compress(content)

    def _publish(self, client: NatsClient, number: int, content: bytes) -> None:
        # With an id: a failed task is repeated, perhaps by another executor.
        check_stored(
            client.publish(f"init.snap.{self.name}.{self.id}.{number}", content, f"{self.name}-{self.id}-{number}")
        )


def _never() -> bool:
    return False


def split(task: SnapshotTask, parallelism: int) -> list[SnapshotTask]:
    """Split a task into several; not if the table is small, or has no key by which rows could be assigned to tasks."""
    manifest = task.state.snapshot.manifest
    copied, changed = sum(chunk.bytes for chunk in manifest), sum(s.bytes for s in task.state.slices)
    if copied + changed < _SMALL_BYTES or not (has_key(task.state.snapshot.relation) and has_key(task.state.relation)):
        return [task]
    # All rows of one object go to the same task.
    parts = min(max(parallelism, copied // max(_PART_BYTES, changed)), len(manifest))
    if parts < 2:
        return [task]
    return [replace(task, part=part, parts=parts) for part in range(parts)]


def split_into_chunks(batches: Iterator[pa.Array], max_bytes: int) -> Iterator[pa.Array]:
    """Yield up to `CHUNK_ROWS` rows and `max_bytes` at a time, but at least one row whatever its size."""
    waiting: list[pa.Array] = []
    count = size = 0
    for rows in batches:
        ends = np.cumsum(pc.binary_length(rows).to_numpy() + 1, dtype=np.int64)
        start = 0
        while start < len(rows):
            base = int(ends[start - 1]) if start else 0
            fitting = int(np.searchsorted(ends, base + max_bytes - size, side="right")) - start
            taken = max(min(fitting, CHUNK_ROWS - count, len(rows) - start), 0 if count else 1)
            if taken:
                waiting.append(rows.slice(start, taken))
                count += taken
                start += taken
                size += int(ends[start - 1]) - base
            if start < len(rows) or count == CHUNK_ROWS:
                yield pa.concat_arrays(waiting)
                waiting, count, size = [], 0, 0
    if waiting:
        yield pa.concat_arrays(waiting)


def check_stored(answer: dict[str, object]) -> None:
    if "error" in answer:
        raise TailraceError(f"the stream rejected the message: {answer['error']}", "Is the stream full?")


def _encode(run: TableChanges, encoding: PayloadEncoding) -> pa.Array:
    """Encode each row as a map."""
    columns = run.relation.columns
    return encoding.maps(
        [(c.name, encoding.values(run.new.batch.column(index), c), None) for index, c in enumerate(columns)], len(run)
    )
