"""A table's rows, told to stream `INIT` in chunks: here, or in parts by processes that know nothing of each other.

Of several parts, each takes every so many-th number for its chunks. What is left out because parts differ in length is
told as chunks without rows, so that numbers go from 0 on without a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import settings
from tailrace.errors import SinkError, TailraceError
from tailrace.log import state
from tailrace.log.decoding import TableChanges
from tailrace.log.fold import has_key
from tailrace.log.plan import MIB
from tailrace.log.reader import LogReader
from tailrace.log.state import TableState
from tailrace.sinks import Common
from tailrace.sinks.errand import Staged
from tailrace.sinks.nats.compression import Compression
from tailrace.sinks.nats.encoding import ENCODINGS, Encoding
from tailrace.sinks.nats.options import NatsOptions
from tailrace.sinks.nats.wire import Wire
from tailrace.sinks.shaping import Shaping
from tailrace.store import Store

CHUNK_ROWS: Final = 10_000
_HEADERS: Final = 512
_ROOM: Final = 512 + _HEADERS
"""In a message, for what stands beside the rows."""
_DENSE: Final = 8
"""How many times smaller rows become, as a rule."""
_SMALL_BYTES: Final = 16 * MIB
"""Of snapshot and changes together: told before others would have begun."""
_PART_BYTES: Final = 32 * MIB
"""Of a snapshot: some seconds' work. Not less than of changes since, which each part reads all of."""


@dataclass(frozen=True)
class Told:
    rows: int
    chunks: int


@dataclass(frozen=True)
class Telling:
    """One part of it. Picklable."""

    options: NatsOptions
    sink: str
    store: settings.Store
    common: Common
    then: TableState
    target: tuple[str, str]
    name: str
    """As subjects have it."""
    id: str
    dictionary: bytes | None = None
    """None: not compressed; empty: without one."""
    part: int = 0
    parts: int = 1
    is_over: Callable[[], bool] = field(default=lambda: False, compare=False)
    """Whether nobody wants it any more."""

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"options": self.options.carried(), "is_over": _never}

    @property
    def _encoding(self) -> Encoding:
        return ENCODINGS[self.options.encoding]

    def rows(self) -> Iterator[pa.Array]:
        """Each as it is encoded, some at a time."""
        reader = LogReader(Store.open(self.store.url, self.store.options))
        shaping = Shaping(self.common, "")
        for images in state.rows(self.then, reader, self.part, self.parts):
            for run in shaping.apply([state.as_changes(self.then.relation, images)]):
                if isinstance(run, TableChanges) and len(run):
                    yield _encoded(run, self._encoding)

    def stage(self) -> Staged:
        wire = Wire(self.options, f"{self.sink} snapshot")
        try:
            return Staged(self.tell(wire), 0, has_marker=False)
        finally:
            wire.close()

    def tell(self, wire: Wire) -> Told:
        compression = None if self.dictionary is None else Compression(self.dictionary)
        # What is compressed has room for more; if not, it is cut.
        most = (wire.max_payload - _ROOM) * (_DENSE if compression else 1)
        chunks = rows = 0
        for some in chunked(self.rows(), most):
            left = [some]
            while left:
                if self.is_over():
                    raise SinkError("the sink stops", "ask again")
                part = left.pop(0)
                number = self.part + self.parts * chunks
                content = self._content(part, number, compression)
                if len(content) > wire.max_payload - _HEADERS:
                    if len(part) == 1:
                        raise TailraceError(
                            f"a row of {self.name} makes a message of {len(content):,} bytes, and the server takes"
                            f" {wire.max_payload - _HEADERS:,}",
                            "raise max_payload of the NATS server, or leave the column out: `columns` in the sink's"
                            " settings",
                        )
                    left[:0] = [part.slice(0, len(part) // 2), part.slice(len(part) // 2)]
                    continue
                self._publish(wire, number, content)
                chunks += 1
                rows += len(part)
        return Told(rows, chunks)

    def fill(self, wire: Wire, told: Told, most: int) -> None:
        """Chunks without rows, for the numbers that this part did not need."""
        compression = None if self.dictionary is None else Compression(self.dictionary)
        for chunk in range(told.chunks, most):
            number = self.part + self.parts * chunk
            self._publish(wire, number, self._content(pa.array([], pa.binary()), number, compression))

    def _content(self, rows: pa.Array, number: int, compression: Compression | None) -> bytes:
        encoding = self._encoding
        content = encoding.map_of(
            [
                ("table", encoding.text(self.target[1])),
                ("operation", encoding.text("snapshot")),
                ("snapshot_id", encoding.text(self.id)),
                ("chunk", encoding.integer(number)),
                ("lsn", encoding.text(str(self.then.lsn))),
                ("data", encoding.items(rows)),
            ]
        )
        return content if compression is None else compression.compressed(content)

    def _publish(self, wire: Wire, number: int, content: bytes) -> None:
        # With an id: a part may be done again by somebody else.
        checked(wire.tell(f"init.snap.{self.name}.{self.id}.{number}", content, f"{self.name}-{self.id}-{number}"))


def _never() -> bool:
    return False


def parted(whole: Telling, hands: int) -> list[Telling]:
    """Itself, if it is small, or if its rows cannot be told apart by a key."""
    manifest = whole.then.snapshot.manifest
    copied, since = sum(chunk.bytes for chunk in manifest), sum(s.bytes for s in whole.then.slices)
    if copied + since < _SMALL_BYTES or not (has_key(whole.then.snapshot.relation) and has_key(whole.then.relation)):
        return [whole]
    # Rows of one object stay together.
    parts = min(max(hands, copied // max(_PART_BYTES, since)), len(manifest))
    if parts < 2:
        return [whole]
    return [replace(whole, part=part, parts=parts) for part in range(parts)]


def chunked(rows: Iterator[pa.Array], most: int) -> Iterator[pa.Array]:
    """As many as a chunk has, or as a message has room for; one at least, whatever its size."""
    waiting: list[pa.Array] = []
    count = size = 0
    for some in rows:
        ends = np.cumsum(pc.binary_length(some).to_numpy() + 1, dtype=np.int64)
        start = 0
        while start < len(some):
            base = int(ends[start - 1]) if start else 0
            fitting = int(np.searchsorted(ends, base + most - size, side="right")) - start
            taken = max(min(fitting, CHUNK_ROWS - count, len(some) - start), 0 if count else 1)
            if taken:
                waiting.append(some.slice(start, taken))
                count += taken
                start += taken
                size += int(ends[start - 1]) - base
            if start < len(some) or count == CHUNK_ROWS:
                yield pa.concat_arrays(waiting)
                waiting, count, size = [], 0, 0
    if waiting:
        yield pa.concat_arrays(waiting)


def checked(answer: dict[str, object]) -> None:
    if "error" in answer:
        raise TailraceError(f"the stream did not take it: {answer['error']}", "is it full?")


def _encoded(run: TableChanges, encoding: Encoding) -> pa.Array:
    """Each row as a map."""
    columns = run.relation.columns
    return encoding.maps(
        [(c.name, encoding.values(run.new.batch.column(place), c), None) for place, c in enumerate(columns)], len(run)
    )
