"""Snapshots on request: who publishes to `snapshot.request.<table>` gets the table's rows, in chunks, from the log.

The rows are the newest state that the log tells of, a snapshot and what changed since, so the source has no part in it;
unless the request says `fresh`, or the table has not been copied yet: then capture is asked for a snapshot first.
Requests are answered one after the other, by a thread of its own, while the sink goes on; those for one table that wait
together share one answer. Not one that is being told already: its state may be from before whoever asks now began to
listen. Large tables are told by Spark's executors.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from tailrace import settings
from tailrace.change import Relation
from tailrace.errors import GapError, SinkError, SnapshotError, TailraceError
from tailrace.log import publication, state
from tailrace.log.publication import Wish
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader
from tailrace.retry import Backoff
from tailrace.sinks import Common
from tailrace.sinks.base import Parallel
from tailrace.sinks.errand import Staff, in_this_process
from tailrace.sinks.nats import schemas, stream
from tailrace.sinks.nats.compression import trained
from tailrace.sinks.nats.encoding import ENCODINGS
from tailrace.sinks.nats.options import NatsOptions
from tailrace.sinks.nats.payload import token
from tailrace.sinks.nats.telling import Telling, Told, checked, parted
from tailrace.sinks.nats.wire import Wire
from tailrace.sinks.shaping import Shaping
from tailrace.store import Store

_log = logging.getLogger("tailrace.deliver")

REQUESTS: Final = "snapshot.request"
_STREAM: Final = "INIT"
_KEPT_S: Final = 7 * 24 * 3600
_FRESH: Final = b"fresh"
"""What a request says that wants a snapshot of its own, from the source."""
_LOOK_S: Final = 0.2
_GATHER_S: Final = 0.05
"""Consumers that are started together ask one after the other."""
_WISHES_S: Final = 1.0
_PATIENCE: Final = timedelta(seconds=30)
"""Capture looks every few seconds, if it is there."""


@dataclass(frozen=True)
class Table:
    relation: Relation
    target: tuple[str, str]
    is_copied: bool
    """It has a snapshot."""
    is_published: bool
    """As far as capture has said."""


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

    def __init__(
        self,
        options: NatsOptions,
        name: str,
        store: settings.Store,
        common: Common,
        staff: Staff = in_this_process,
        hands: Callable[[], int] = lambda: 1,
    ) -> None:
        self._options = options
        self._name = name
        self._settings = store
        self._common = common
        self._staff = staff
        self._hands = hands
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
            except SinkError as error:  # the sink meets it too, and tells it
                _log.debug("sink %s: requests: %s", self._name, error)
                self._stopping.wait(backoff.next())
            except TailraceError as error:
                _log.warning("sink %s: a request was not answered: %s. %s", self._name, error, error.hint)
                self._stopping.wait(backoff.next())

    def _listen(self) -> None:
        wire = Wire(self._options, f"{self._name} requests", f"{REQUESTS}.>")
        try:
            more = {**stream.kept_for(_KEPT_S), **stream.like(wire, self._options.stream)}
            stream.ensure(wire, _STREAM, ["init.>"], more, create=self._options.create)
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
        until = time.monotonic() + _LOOK_S
        while message is not None:
            name = message.subject.decode()[len(REQUESTS) + 1 :]
            asked = found.setdefault(name, Asked(name))
            asked.replies += [message.reply.decode()] if message.reply else []
            asked.is_fresh |= bytes(message.payload).strip() == _FRESH
            message = wire.next(_GATHER_S if time.monotonic() < until else 0)
        return found.values()

    def _heed(self, wire: Wire, asked: Asked) -> None:
        if (waiting := self._waiting.get(asked.name)) is not None:
            asked.replies += waiting.asked.replies
            if waiting.wish.is_fresh or not asked.is_fresh:
                waiting.asked.replies = asked.replies
                return
        table = self._table(wire, asked.name)
        if table is None and schemas.described(wire, self._options.bucket, asked.name) is not None:
            return  # another sink's, which answers
        if table is None:
            self._answer(wire, asked, TailraceError(f"there is no table {asked.name}", "names are as in subjects"))
        elif not table.is_published:
            gone = f"{table.relation.qualified_name} is not published any more: it is dropped, or left out"
            self._answer(wire, asked, TailraceError(gone, "what the log has of it is not its state"))
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

    def _table(self, wire: Wire, name: str) -> Table | None:
        """The one that goes under this name: of several that had it, the one that is still published; or one that the
        log knows by it, and that had another when it was copied."""
        published = {relation.oid for relation in publication.published(self._store)}
        gone: Table | None = None
        # One after the other: what the log knows is looked up only where no snapshot has the name.
        for relation, is_copied in itertools.chain(publication.tables(self._snapshots), self._renamed(wire, name)):
            shaped = self._shaping.load(relation)
            if shaped is None or self._token(shaped[1]) != name:
                continue
            if not published or relation.oid in published:
                return Table(relation, shaped[1], is_copied, is_published=True)
            gone = gone or Table(relation, shaped[1], is_copied, is_published=False)
        return gone

    def _renamed(self, wire: Wire, name: str) -> Iterator[tuple[Relation, bool]]:
        if (described := schemas.described(wire, self._options.bucket, name)) is None:
            return
        try:
            found = state.find(self._reader, *described)
        except (GapError, SnapshotError):
            return  # the log does not know it
        yield found.relation, True

    def _token(self, target: tuple[str, str]) -> str:
        return ".".join(map(token, self._options.names(target)))

    def _tell(self, wire: Wire, table: Table) -> bytes:
        """Chunks, then what the whole was; that is the answer."""
        then = state.find(self._reader, table.relation.schema, table.relation.name)
        began = max(int(time.time()), self._last + 1)
        self._last = began  # a name of its own for each
        name, id = self._token(table.target), f"snap-{began}"
        whole = Telling(
            self._options,
            self._name,
            self._settings,
            self._common,
            then,
            table.target,
            name,
            id,
            is_over=self._stopping.is_set,
        )
        if self._options.zstd:
            dictionary = trained(next(whole.rows(), None))
            whole = replace(whole, dictionary=dictionary)
            if dictionary:
                checked(wire.tell(f"init.dict.{name}.{id}", dictionary))
        parts = parted(whole, self._hands())
        told = self._handed_out(wire, parts) if len(parts) > 1 else [whole.tell(wire)]
        most = max(one.chunks for one in told)
        for part, one in zip(parts, told, strict=True):
            part.fill(wire, one, most)
        rows = sum(one.rows for one in told)
        meta = self._encoding.plain(
            {
                "snapshot_id": id,
                "lsn": str(then.lsn),
                "timestamp": began,
                "batch_count": len(parts) * most,
                "row_count": rows,
                "table": table.target[1],
            }
        )
        checked(wire.tell(f"init.meta.{name}", meta))
        _log.info("sink %s: %s rows of %s as of %s were told, as %s", self._name, f"{rows:,}", name, then.lsn, id)
        return meta

    def _handed_out(self, wire: Wire, parts: Sequence[Telling]) -> list[Told]:
        """As many at once as there are hands: in between it may be over."""
        told: list[Told] = []
        for first in range(0, len(parts), hands := max(self._hands(), 1)):
            if self._stopping.is_set():
                raise SinkError("the sink stops", "ask again")
            told += [one.receipt for one in self._staff(parts[first : first + hands], Parallel.RANGES)]
            wire.keep()
        return told
