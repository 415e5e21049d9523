"""Snapshots on request: who publishes to `snapshot.request.<table>` gets the table's rows, in chunks, from the log.

The rows are the newest state that the log tells of, a snapshot and what changed since, so the source has no part in it;
unless the request says `fresh`, or the table has not been copied yet: then capture is asked for a snapshot first.
Requests are answered one after the other, by a thread of its own, while the sink goes on; who asks for a table that is
being told, or waits to be, is answered with that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import settings
from tailrace.change import Relation
from tailrace.errors import SinkError, TailraceError
from tailrace.log import publication, state
from tailrace.log.decoding import TableChanges
from tailrace.log.publication import Wish
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader
from tailrace.retry import Backoff
from tailrace.sinks import Common
from tailrace.sinks.nats import stream
from tailrace.sinks.nats.compression import Compression
from tailrace.sinks.nats.encoding import ENCODINGS, Encoding
from tailrace.sinks.nats.options import NatsOptions
from tailrace.sinks.nats.payload import token
from tailrace.sinks.nats.schemas import is_known
from tailrace.sinks.nats.wire import Wire
from tailrace.sinks.shaping import Shaping
from tailrace.store import Store

_log = logging.getLogger("tailrace.deliver")

REQUESTS: Final = "snapshot.request"
CHUNK_ROWS: Final = 10_000
_STREAM: Final = "INIT"
_KEPT_S: Final = 7 * 24 * 3600
_FRESH: Final = b"fresh"
"""What a request says that wants a snapshot of its own, from the source."""
_LOOK_S: Final = 0.2
_WISHES_S: Final = 1.0
_PATIENCE: Final = timedelta(seconds=30)
"""Capture looks every few seconds, if it is there."""
_ROOM: Final = 1024
"""In a message, for what stands beside the rows."""
_DENSE: Final = 8
"""How many times smaller rows become, as a rule."""


@dataclass(frozen=True)
class Table:
    relation: Relation
    target: tuple[str, str]
    is_copied: bool
    """It has a snapshot."""


@dataclass
class Asked:
    name: str
    """As subjects have it."""
    replies: list[str] = field(default_factory=list)
    is_fresh: bool = False


@dataclass
class _Waiting:
    """For capture to take a snapshot."""

    table: Table
    asked: Asked
    wish: Wish


class Requests:
    """Answers them from `start` to `stop`."""

    def __init__(self, options: NatsOptions, name: str, store: settings.Store, common: Common) -> None:
        self._options = options
        self._name = name
        self._store = Store.open(store.url, store.options)
        self._reader = LogReader(self._store)
        self._snapshots = SnapshotReader(self._store)
        self._shaping = Shaping(common, "")
        self._encoding = ENCODINGS[options.encoding]
        self._last = 0
        self._waiting: dict[str, _Waiting] = {}
        self._next_look = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"requests {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            try:
                self._listen()
            except TailraceError as error:
                _log.debug("sink %s: requests: %s", self._name, error)
                self._stopping.wait(backoff.next())

    def _listen(self) -> None:
        wire = Wire(self._options, f"{self._name} requests", f"{REQUESTS}.>")
        try:
            stream.ensure(wire, _STREAM, ["init.>"], stream.kept_for(_KEPT_S), create=self._options.create)
            while not self._stopping.is_set():
                for asked in self._asked(wire):
                    self._heed(wire, asked)
                if time.monotonic() >= self._next_look:
                    self._look(wire)
                    self._next_look = time.monotonic() + _WISHES_S
        finally:
            wire.close()

    def _asked(self, wire: Wire) -> Collection[Asked]:
        """What is asked for by now, each table once, with who wants to hear of it."""
        found: dict[str, Asked] = {}
        message = wire.next(_LOOK_S)
        while message is not None:
            name = message.subject.decode()[len(REQUESTS) + 1 :]
            asked = found.setdefault(name, Asked(name))
            asked.replies += [message.reply.decode()] if message.reply else []
            asked.is_fresh |= bytes(message.payload).strip() == _FRESH
            message = wire.next(0)
        return found.values()

    def _heed(self, wire: Wire, asked: Asked) -> None:
        if (waiting := self._waiting.get(asked.name)) is not None:
            asked.replies += waiting.asked.replies
            if waiting.wish.is_fresh or not asked.is_fresh:
                waiting.asked.replies = asked.replies
                return
        table = self._table(asked.name)
        if table is None and is_known(wire, self._options.bucket, asked.name):
            return  # another sink's, which answers
        if table is None:
            self._answer(wire, asked, TailraceError(f"there is no table {asked.name}", "names are as in subjects"))
        elif asked.is_fresh or not table.is_copied:
            wish = Wish(self._name, table.relation.oid, asked.is_fresh)
            wish.save(self._store)
            self._waiting[asked.name] = _Waiting(table, asked, wish)
        else:
            self._answer(wire, asked, table)

    def _look(self, wire: Wire) -> None:
        """After what capture was asked for."""
        for waiting in list(self._waiting.values()):
            wish = waiting.wish.now(self._store)
            if wish.lsn is not None:
                self._answer(wire, waiting.asked, waiting.table)
            elif wish.error is not None:
                self._answer(wire, waiting.asked, TailraceError(wish.error, wish.hint))
            elif not wish.is_seen and datetime.now(UTC) - wish.asked_at > _PATIENCE:
                silence = "capture was asked for a snapshot, and does not answer"
                self._answer(wire, waiting.asked, TailraceError(silence, "does it run, with snapshot.on_start = true?"))
            else:
                continue
            del self._waiting[waiting.asked.name]
            wish.forget(self._store)

    def _answer(self, wire: Wire, asked: Asked, found: Table | TailraceError) -> None:
        """With the table, or with why not."""
        try:
            if isinstance(found, TailraceError):
                raise found
            said = self._tell(wire, found)
        except SinkError:
            raise  # the connection: who asked asks again
        except TailraceError as error:
            _log.warning("sink %s: a snapshot of %s was asked for: %s. %s", self._name, asked.name, error, error.hint)
            said = self._encoding.plain({"table": asked.name, "error": str(error), "hint": error.hint})
            wire.tell(f"init.error.{asked.name}", said)
        for reply in asked.replies:
            wire.say(reply, said)

    def _table(self, name: str) -> Table | None:
        """The one that goes under this name."""
        for relation, is_copied in publication.tables(self._snapshots):
            shaped = self._shaping.load(relation)
            if shaped is not None and self._token(shaped[1]) == name:
                return Table(relation, shaped[1], is_copied)
        return None

    def _token(self, target: tuple[str, str]) -> str:
        return ".".join(map(token, self._options.names(target)))

    def _tell(self, wire: Wire, table: Table) -> bytes:
        """Chunks, then what the whole was; that is the answer."""
        target = table.target
        then = state.find(self._reader, table.relation.schema, table.relation.name)
        name, began = self._token(target), max(int(time.time()), self._last + 1)
        self._last = began  # a name of its own for each
        encoding = self._encoding
        snapshot_id = f"snap-{began}"
        chunks = rows = 0
        compression: Compression | None = None
        # What is compressed has room for more; if not, it is cut.
        waiting = chunked(self._rows(then), (wire.max_payload - _ROOM) * (_DENSE if self._options.zstd else 1))
        for some in waiting:
            if self._options.zstd and compression is None:
                compression = Compression.trained(some)
                if compression.dictionary:
                    _checked(wire.tell(f"init.dict.{name}.{snapshot_id}", compression.dictionary))
            left = [some]
            while left:
                if self._stopping.is_set():
                    raise SinkError("the sink stops", "ask again")
                part = left.pop(0)
                fields = [
                    ("table", encoding.text(target[1])),
                    ("operation", encoding.text("snapshot")),
                    ("snapshot_id", encoding.text(snapshot_id)),
                    ("chunk", encoding.integer(chunks)),
                    ("lsn", encoding.text(str(then.lsn))),
                    ("data", encoding.items(part)),
                ]
                content = encoding.map_of(fields)
                content = content if compression is None else compression.compressed(content)
                if len(content) > wire.max_payload and len(part) > 1:
                    left[:0] = [part.slice(0, len(part) // 2), part.slice(len(part) // 2)]
                    continue
                _checked(wire.tell(f"init.snap.{name}.{snapshot_id}.{chunks}", content))
                chunks += 1
                rows += len(part)
        meta = encoding.plain(
            {
                "snapshot_id": snapshot_id,
                "lsn": str(then.lsn),
                "timestamp": began,
                "batch_count": chunks,
                "row_count": rows,
                "table": target[1],
            }
        )
        _checked(wire.tell(f"init.meta.{name}", meta))
        _log.info(
            "sink %s: %s rows of %s as of %s were told, as %s", self._name, f"{rows:,}", name, then.lsn, snapshot_id
        )
        return meta

    def _rows(self, then: state.TableState) -> Iterator[pa.Array]:
        for images in state.rows(then, self._reader):
            for run in self._shaping.apply([state.as_changes(then.relation, images)]):
                if isinstance(run, TableChanges) and len(run):
                    yield _encoded(run, self._encoding)


def _encoded(run: TableChanges, encoding: Encoding) -> pa.Array:
    """Each row as a map."""
    columns = run.relation.columns
    return encoding.maps(
        [(c.name, encoding.values(run.new.batch.column(place), c), None) for place, c in enumerate(columns)], len(run)
    )


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


def _checked(answer: dict[str, object]) -> None:
    if "error" in answer:
        raise TailraceError(f"the stream did not take it: {answer['error']}", "is it full?")
