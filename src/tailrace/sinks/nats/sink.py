"""The sink `nats`: every change a message of a JetStream stream, in the log's order, exactly once.

The stream itself says how far the sink is: its last message of ours carries its position, so a step that is done again
goes on behind it, whatever the server's window for duplicates is. Where others publish too, there may be gaps before
that one, and all of ours count. The cursor in the store only says where to look from.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar, Final, Literal

from tailrace.change import Lsn, Relation
from tailrace.errors import SinkError, TailraceError
from tailrace.log import publication
from tailrace.log.decoding import Chunk, Messages, TableChanges
from tailrace.log.snapshot import SnapshotReader
from tailrace.sinks import Context, cursor
from tailrace.sinks.base import Parallel, Part, State, Step
from tailrace.sinks.cursor import Kept
from tailrace.sinks.errand import Staff, in_this_process
from tailrace.sinks.gathering import gathered
from tailrace.sinks.nats import frames, payload, stream
from tailrace.sinks.nats.encoding import ENCODINGS
from tailrace.sinks.nats.frames import Batch, Sender
from tailrace.sinks.nats.options import NatsOptions
from tailrace.sinks.nats.payload import Ids, Manner, Published
from tailrace.sinks.nats.requests import Requests
from tailrace.sinks.nats.schemas import Schemas, entry
from tailrace.sinks.nats.stream import Tail
from tailrace.sinks.nats.wire import NotTaken, Wire
from tailrace.sinks.shaping import Shaping
from tailrace.store import Store

_WRONG_LAST: Final = (10070, 10071)
_DUPLICATE: Final = 0
_CROWDED_S: Final = 60.0
"""How long the sink believes, of a stream that may be shared, that it is."""
_TOGETHER_BYTES: Final = 4 * 1024 * 1024
"""Of decoded rows: some ten thousand small ones. More at once is no faster."""


class _End:
    """There are no more."""


_END: Final = _End()


class NatsSink:
    Options: ClassVar[type] = NatsOptions
    values: ClassVar[Literal["text", "typed"]] = "text"
    parallel: ClassVar[Parallel] = Parallel.NONE
    whole_transactions: ClassVar[bool] = True
    keeps_tables: ClassVar[bool] = False
    start: ClassVar[str] = "earliest"
    interval_ms: ClassVar[int] = 0
    packages: ClassVar[tuple[str, ...]] = ()

    def __init__(self, name: str, options: NatsOptions, context: Context) -> None:
        self.name = name
        self._options = options.checked()
        self._context = context
        self._kept = Kept()
        self._wire: Wire | None = None
        self._tail: Tail | None = None
        self._crowded_until = 0.0
        self._known: Schemas | None = None
        self._requests: Requests | None = None
        self._is_described = False
        self._snapshots: SnapshotReader | None = None
        self._staff: Staff = in_this_process
        self._hands: Callable[[], int] = _one

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {
            "_options": self._options.carried(),
            "_wire": None,
            "_tail": None,
            "_known": None,
            "_requests": None,
            "_snapshots": None,
            "_staff": in_this_process,
            "_hands": _one,
        }

    def engage(self, staff: Staff, hands: Callable[[], int]) -> None:
        self._staff, self._hands = staff, hands

    @property
    def _store(self) -> Store:
        return Store.open(self._context.store.url, self._context.store.options)

    def open(self) -> State:
        self.close()
        self._kept = cursor.load(self._store, self.name) or Kept()
        options = self._options
        more = stream.kept_for(options.max_age_s)
        stream.ensure(self._opened(), options.stream, [f"{options.subject}.>"], more, create=options.create)
        self._schemas().ensure()
        self._is_described = False  # with the first step
        context = self._context
        self._requests = Requests(options, self.name, context.store, context.common, self._staff, self._hands)
        self._requests.start()
        return self._kept.state

    def pending(self) -> Step | None:
        return None

    def begin(self, step: Step) -> None:
        pass

    def stage(self, part: Part) -> Tail:
        """Published, and in the stream, when it returns; where the stream ends then."""
        try:
            return self._stage(part)
        except BaseException:
            self._disconnect()  # what is on its way is not known
            raise

    def _stage(self, part: Part) -> Tail:
        sender = Sender(self.name, self._kept.replays)
        manner = Manner(ENCODINGS[self._options.encoding], self._options)
        ids, schemas = Ids(self._kept.replays), self._schemas()
        newest: dict[tuple[str, str], Relation] = {}
        batches = (_batch(chunk, manner, ids, sender, schemas, newest) for chunk in _together(part.chunks))
        for found in _ahead(batches):
            self._publish(found, sender)
        for target, relation in newest.items():
            schemas.put(relation, target)
        return self._tail or self._look(sender)

    def _look(self, sender: Sender) -> Tail:
        is_chained = not self._options.shared
        name, floor = self._options.stream, self._kept.place
        self._tail = stream.tail(self._opened(), name, sender, floor, is_chained=is_chained)
        return self._tail

    def _publish(self, whole: Batch, sender: Sender) -> None:
        """What the stream lacks of it: each message behind the one before, or not at all. In a stream that may be
        shared that holds until somebody else's comes between; from then on single ones may be refused."""
        wire = self._opened()
        before = self._tail or self._look(sender)
        if self._crowded_until and time.monotonic() >= self._crowded_until:
            self._crowded_until = 0.0
            before = replace(before, last=stream.end(wire, self._options.stream))
        found = whole.lacking(before.reached, before.beyond)
        if not len(found):
            return
        frames.check_sizes(found, wire.max_payload if before.largest < 0 else min(before.largest, wire.max_payload))
        data, ends = frames.frames(found, wire.acknowledgements, None if self._crowded_until else before.last)
        try:
            last = wire.publish(data, ends, again=self._options.shared)
        except NotTaken as refusal:
            if not self._options.shared or self._crowded_until or refusal.code not in _WRONG_LAST:
                raise self._failure(refusal, found) from None
            # Who was refused had none taken behind it.
            reached = found.mark(refusal.taken - 1) if refusal.taken else before.reached
            self._crowded_until = time.monotonic() + _CROWDED_S
            self._tail = replace(before, last=before.last + refusal.taken, reached=reached)
            self._publish(whole, sender)
        else:
            reached = whole.mark(len(whole) - 1)
            beyond = frozenset(mark for mark in before.beyond if mark > reached)
            self._tail = replace(before, last=last, reached=reached, beyond=beyond)

    def _failure(self, refusal: NotTaken, found: Batch) -> TailraceError:
        position = found.at.position(min(refusal.taken, len(found) - 1))
        if refusal.code in _WRONG_LAST:
            return SinkError(
                f"somebody else publishes into stream {self._options.stream}",
                "if that is meant to be, say so: shared = true",
            )
        if refusal.code == _DUPLICATE:
            return SinkError(
                f"{position}: {refusal.words}", "was it removed from there? once that is forgotten, it goes on"
            )
        return SinkError(
            f"stream {self._options.stream} did not take {position}: {refusal.words} ({refusal.code})",
            "it is tried again until it does: is the stream full, or gone?",
        )

    def commit(self, step: Step, receipts: Sequence[Tail]) -> None:
        place = self._kept.place
        for tail in receipts[-1:]:
            # An attempt that went further may have died: what it published is above the place, too.
            if tail.furthest is None or tail.furthest.commit_lsn < (step.after.cursor or 0):
                place = tail.last
        kept = replace(self._kept, state=step.after, place=place)
        self._kept = cursor.keep(self._store, self.name, step.before, kept)
        if not self._is_described:
            self._describe()

    def tend(self) -> None:
        for wire in (self._wire, None if self._known is None else self._known.wire):
            if wire is not None:
                wire.keep()
        self._describe()

    def _describe(self) -> None:
        """Tables that nobody changed yet: by their snapshots, as far as the sink has come, or as they are published."""
        self._is_described = self._kept.state.cursor is not None
        shaping = Shaping(self._context.common, "")
        schemas = self._schemas()
        if self._snapshots is None:
            self._snapshots = SnapshotReader(self._store)
        for relation, _ in publication.tables(self._snapshots, before=self._kept.state.cursor or Lsn(0)):
            shaped = shaping.load(relation)
            if shaped is not None and schemas.lacks(shaped[1]):
                schemas.put(*shaped)

    def rewind(self, state: State) -> None:
        self._kept = cursor.rewound(self._store, self.name, state)
        self._tail = None

    def close(self) -> None:
        if self._requests is not None:
            self._requests.stop()
        self._requests = None
        self._disconnect()

    def _disconnect(self) -> None:
        if self._wire is not None:
            self._wire.close()
        if self._known is not None:
            self._known.close()
        self._wire = self._tail = self._known = None

    def _schemas(self) -> Schemas:
        if self._known is None:
            # By a connection of its own: the next messages are made while others are on their way.
            self._known = Schemas(Wire(self._options, self.name), self._options, ENCODINGS[self._options.encoding])
        return self._known

    def _opened(self) -> Wire:
        if self._wire is None:
            self._wire = Wire(self._options, self.name)
        return self._wire


def _one() -> int:
    return 1


def _ahead(batches: Iterator[Batch | None]) -> Iterator[Batch]:
    """Each is made while the one before is published."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, batches, _END)
        while not isinstance(found := coming.result(), _End):
            coming = pool.submit(next, batches, _END)
            if found is not None:
                yield found


def _together(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Small ones as one: a run of changes takes milliseconds, however few they are."""
    held: list[Chunk] = []
    size = 0
    for chunk in chunks:
        held.append(chunk)
        size += sum(run.new.batch.nbytes + run.old.batch.nbytes for run in chunk if isinstance(run, TableChanges))
        size += sum(len(content) for run in chunk if isinstance(run, Messages) for content in run.content)
        if size > _TOGETHER_BYTES:
            yield _joined(held)
            held, size = [], 0
    yield _joined(held)


def _joined(chunks: Sequence[Chunk]) -> Chunk:
    runs = sorted(gathered(chunks), key=lambda run: run.at.position(0))
    messages = [run for chunk in chunks for run in chunk if isinstance(run, Messages)]
    return [*runs, Messages.joined(messages)] if messages else runs


def _batch(
    chunk: Chunk,
    manner: Manner,
    ids: Ids,
    sender: Sender,
    schemas: Schemas,
    newest: dict[tuple[str, str], Relation],
) -> Batch | None:
    """`newest`: the relation of each table so far, kept up to date."""
    told: list[Published | None] = []
    for run in chunk:
        if isinstance(run, Messages):
            told.append(payload.messages(run, manner, ids) if len(run) else None)
        elif len(run):
            if schemas.differs(run.relation, run.target, newest.get(run.target)):
                content = entry(run.relation, run.target, manner.encoding)
                told.append(payload.schema(run, content, manner, ids))
            newest[run.target] = run.relation
            told.append(payload.changes(run, manner, ids))
    return frames.batch([some for some in told if some is not None], sender)
