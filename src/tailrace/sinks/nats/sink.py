"""The sink `nats`: publishes each change as a message to a JetStream stream, in log order, exactly once.

The stream itself records the sink's progress: its last message from this sink carries a position, so a repeated step
continues after that message, whatever the server's duplicate window is. In a shared stream there may be gaps before
that message, so the sink takes all of its messages into account. The cursor in the store only limits the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from tailrace.change import Lsn, Relation
from tailrace.delivery import cursors
from tailrace.delivery.coalesce import coalesce
from tailrace.delivery.contract import BaseSink, Part, State, Step
from tailrace.delivery.cursors import StoredState
from tailrace.delivery.sink_settings import SinkContext
from tailrace.delivery.task import Executor, run_in_process
from tailrace.delivery.transforms import Shaping
from tailrace.errors import SinkError, TailraceError
from tailrace.log import published_table
from tailrace.log.decoding import Chunk, LogicalMessages, TableChanges
from tailrace.log.snapshot import SnapshotReader
from tailrace.sinks.nats import connections, jetstream, message_batch, payload
from tailrace.sinks.nats.client import NatsClient, PublishRejected
from tailrace.sinks.nats.jetstream import StreamTail
from tailrace.sinks.nats.message_batch import MessageBatch, Sender
from tailrace.sinks.nats.options import NatsOptions
from tailrace.sinks.nats.payload import MessageFormat, MessageIds, OutgoingMessages
from tailrace.sinks.nats.payload_encoding import ENCODINGS
from tailrace.sinks.nats.schema_bucket import SchemaBucket, entry
from tailrace.sinks.nats.snapshot_responder import SnapshotResponder
from tailrace.store import Store

_WRONG_LAST: Final = (10070, 10071)
"""JetStream's error codes for a wrong expected message id and a wrong expected sequence."""
_DUPLICATE: Final = 0
_CONTENDED_S: Final = 60.0
"""How long the sink publishes without expected sequences after another publisher interfered in a shared stream."""
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Decoded bytes per message batch, about ten thousand small rows. Larger batches are no faster."""


class _Exhausted:
    """Marks the end of the batches."""


_EXHAUSTED: Final = _Exhausted()


@dataclass(frozen=True)
class PublishReceipt:
    tail: StreamTail
    contended_until: float
    """Until when, in seconds since 1970, the sink expects other publishers in a shared stream."""


class NatsSink(BaseSink):
    Options: ClassVar[type] = NatsOptions

    def __init__(self, name: str, options: NatsOptions, context: SinkContext) -> None:
        self.name = name
        self._options = options.validate()
        self._context = context
        self._stored_state = StoredState()
        self._client: NatsClient | None = None
        self._tail: StreamTail | None = None
        self._contended_until = 0.0
        self._schema_bucket: SchemaBucket | None = None
        self._responder: SnapshotResponder | None = None
        self._is_described = False
        self._snapshots: SnapshotReader | None = None
        self._executor: Executor = run_in_process
        self._parallelism: Callable[[], int] = _one
        self._is_copy = False
        """It stages in a worker, with that process's connections."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {
            "_options": self._options.to_picklable(),
            "_client": None,
            "_schema_bucket": None,
            "_responder": None,
            "_snapshots": None,
            "_executor": run_in_process,
            "_parallelism": _one,
            "_is_copy": True,
        }

    def attach(self, executor: Executor, parallelism: Callable[[], int]) -> None:
        self._executor, self._parallelism = executor, parallelism

    @property
    def _store(self) -> Store:
        return Store.open(self._context.store.url, self._context.store.options)

    def open(self) -> State:
        self.close()
        self._stored_state = cursors.load(self._store, self.name) or StoredState()
        options = self._options
        config = jetstream.retention(options.max_age_s)
        jetstream.ensure_stream(
            self._connect(), options.stream, [f"{options.subject}.>"], config, create=options.create
        )
        self._schemas().ensure()
        self._is_described = False  # the first step does it
        context = self._context
        self._responder = SnapshotResponder(
            options, self.name, context.store, context.common, self._executor, self._parallelism
        )
        self._responder.start()
        return self._stored_state.state

    def stage(self, part: Part) -> PublishReceipt:
        """Publish a part and return the tail of the stream once it holds all of it."""
        if part.number:
            self._tail = None  # the driver knows the tail before the step's first part
        if self._is_copy:
            self._client, schema_client = connections.take(self.name, self._options)
            self._schema_bucket = SchemaBucket(schema_client, self._options, ENCODINGS[self._options.encoding])
        try:
            tail = self._stage(part)
        except BaseException:
            self._disconnect()  # which of the messages in flight arrived is unknown
            raise
        if self._is_copy:
            connections.give_back(self.name, self._options, self._connect(), self._schemas().client)
            self._client = self._schema_bucket = None
        return PublishReceipt(tail, self._contended_until)

    def _stage(self, part: Part) -> StreamTail:
        sender = Sender(self.name, self._stored_state.replays)
        message_format = MessageFormat(ENCODINGS[self._options.encoding], self._options)
        ids, schemas = MessageIds(self._stored_state.replays), self._schemas()
        newest: dict[tuple[str, str], Relation] = {}
        batches = (_batch(chunk, message_format, ids, sender, schemas, newest) for chunk in _merge_small(part.chunks))
        for batch in _prefetch(batches):
            self._publish(batch, sender)
        for target, relation in newest.items():
            schemas.put(relation, target)
        return self._tail or self._find_tail(sender)

    def _find_tail(self, sender: Sender) -> StreamTail:
        self._tail = jetstream.find_tail(self._connect(), self._options.stream, sender, self._stored_state.place)
        return self._tail

    def _publish(self, batch: MessageBatch, sender: Sender) -> None:
        """Publish the messages of a batch that the stream lacks.

        The stream accepts each message only directly after the previous one. In a shared stream this holds until
        another publisher's message comes between; from then on the server may reject individual messages.
        """
        client = self._connect()
        before = self._tail or self._find_tail(sender)
        if self._contended_until and time.time() >= self._contended_until:
            self._contended_until = 0.0
            before = replace(before, last_sequence=jetstream.last_sequence(client, self._options.stream))
        missing = batch.select_missing(before.complete_to, before.beyond_gaps)
        if not len(missing):
            return
        limits = client.max_payload, before.max_message_bytes
        message_batch.check_sizes(missing, limits[0] if limits[1] < 0 else min(limits))
        expected = None if self._contended_until else before.last_sequence
        data, ends = message_batch.encode_frames(
            missing, client.ack_subject, expected, has_gaps=bool(before.beyond_gaps)
        )
        duplicates: list[int] = []
        try:
            last = client.publish_frames(data, ends, duplicates if self._options.shared else None)
        except PublishRejected as rejection:
            self._check_duplicates(client, duplicates, missing)
            if not self._options.shared or self._contended_until or rejection.code not in _WRONG_LAST:
                raise self._error(rejection, missing) from None
            # The stream accepted nothing after the rejected message.
            accepted = rejection.accepted
            complete_to = missing.message_position(accepted - 1) if accepted else before.complete_to
            self._contended_until = time.time() + _CONTENDED_S
            self._tail = replace(before, last_sequence=before.last_sequence + accepted, complete_to=complete_to)
            self._publish(batch, sender)
        else:
            self._check_duplicates(client, duplicates, missing)
            complete_to = batch.message_position(len(batch) - 1)
            beyond_gaps = frozenset(position for position in before.beyond_gaps if position > complete_to)
            self._tail = replace(before, last_sequence=last, complete_to=complete_to, beyond_gaps=beyond_gaps)

    def _check_duplicates(self, client: NatsClient, sequences: Sequence[int], batch: MessageBatch) -> None:
        """Check that each message the stream reported as a duplicate is one: ours, or another publisher's message of
        the same change."""
        for headers, content in jetstream.stored_messages(client, self._options.stream, sequences):
            row = batch.ids.index(id := headers.get(message_batch.ID, "")).as_py()
            if headers.get(message_batch.SINK) == self.name or row < 0 or batch.payloads[row].as_py() == content:
                continue
            raise SinkError(
                f"stream {self._options.stream} has another message with id {id} of {batch.at.position(row)}",
                "Retrying until the stream's duplicate window has passed. Do bridges of several servers share it?",
            )

    def _error(self, rejection: PublishRejected, batch: MessageBatch) -> TailraceError:
        position = batch.at.position(min(rejection.accepted, len(batch) - 1))
        if rejection.code in _WRONG_LAST:
            return SinkError(
                f"another client publishes to stream {self._options.stream}",
                "If this is intended, set shared = true.",
            )
        if rejection.code == _DUPLICATE:
            return SinkError(
                f"{position}: {rejection.reason}",
                "Retrying until the stream's duplicate window has passed. Was the message deleted from the stream?",
            )
        return SinkError(
            f"stream {self._options.stream} rejected {position}: {rejection.reason} ({rejection.code})",
            "Retrying until the stream accepts it. Is the stream full, or deleted?",
        )

    def commit(self, step: Step, receipts: Sequence[PublishReceipt]) -> None:
        place = self._stored_state.place
        for receipt in receipts[-1:]:
            # The next step expects the stream as this one left it: another publisher's message is noticed.
            self._tail, self._contended_until = receipt.tail, receipt.contended_until
            # A failed attempt may have published messages beyond this step: the search must start before those.
            highest = receipt.tail.highest_position
            if highest is None or highest.commit_lsn < (step.after.cursor or 0):
                place = receipt.tail.last_sequence
        stored = replace(self._stored_state, state=step.after, place=place)
        self._stored_state = cursors.advance(self._store, self.name, step.before, stored)
        if not self._is_described:
            self._renew_schema_connection()
            self._describe()

    def _renew_schema_connection(self) -> None:
        """Replace a connection that the server closed: nobody answered its pings while the tasks published."""
        if self._schema_bucket is not None:
            try:
                self._schema_bucket.client.keep_alive()
            except SinkError:
                self._schema_bucket.close()
                self._schema_bucket = None

    def maintain(self) -> None:
        for client in (self._client, None if self._schema_bucket is None else self._schema_bucket.client):
            if client is not None:
                client.keep_alive()
        self._describe()

    def _describe(self) -> None:
        """Describe tables without changes so far: from snapshots up to the cursor, or from the publication."""
        self._is_described = self._stored_state.state.cursor is not None
        shaping = Shaping(self._context.common, "")
        schemas = self._schemas()
        if self._snapshots is None:
            self._snapshots = SnapshotReader(self._store)
        for relation, _ in published_table.known_tables(
            self._snapshots, before=self._stored_state.state.cursor or Lsn(0)
        ):
            shaped = shaping.load(relation)
            if shaped is not None and schemas.lacks(shaped[1]):
                schemas.put(*shaped)

    def rewind(self, state: State) -> None:
        self._stored_state = cursors.rewind(self._store, self.name, state)
        self._tail = None

    def close(self) -> None:
        if self._responder is not None:
            self._responder.stop()
        self._responder = None
        self._disconnect()

    def _disconnect(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._schema_bucket is not None:
            self._schema_bucket.close()
        self._client = self._tail = self._schema_bucket = None

    def _schemas(self) -> SchemaBucket:
        if self._schema_bucket is None:
            # With its own connection: a batch is prepared while the previous one is being published.
            self._schema_bucket = SchemaBucket(
                NatsClient(self._options, self.name), self._options, ENCODINGS[self._options.encoding]
            )
        return self._schema_bucket

    def _connect(self) -> NatsClient:
        if self._client is None:
            self._client = NatsClient(self._options, self.name)
        return self._client


def _one() -> int:
    return 1


def _prefetch(batches: Iterator[MessageBatch | None]) -> Iterator[MessageBatch]:
    """Yield the batches, preparing each one while the previous one is published."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, batches, _EXHAUSTED)
        while not isinstance(batch := coming.result(), _Exhausted):
            coming = pool.submit(next, batches, _EXHAUSTED)
            if batch is not None:
                yield batch


def _merge_small(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Merge small chunks: each run of changes costs milliseconds, however short it is."""
    waiting: list[Chunk] = []
    size = 0
    for chunk in chunks:
        waiting.append(chunk)
        size += sum(run.new.batch.nbytes + run.old.batch.nbytes for run in chunk if isinstance(run, TableChanges))
        size += sum(len(content) for run in chunk if isinstance(run, LogicalMessages) for content in run.content)
        if size > _BATCH_BYTES:
            yield _merge(waiting)
            waiting, size = [], 0
    yield _merge(waiting)


def _merge(chunks: Sequence[Chunk]) -> Chunk:
    runs = sorted(coalesce(chunks), key=lambda run: run.at.position(0))
    messages = [run for chunk in chunks for run in chunk if isinstance(run, LogicalMessages)]
    return [*runs, LogicalMessages.joined(messages)] if messages else runs


def _batch(
    chunk: Chunk,
    message_format: MessageFormat,
    ids: MessageIds,
    sender: Sender,
    schemas: SchemaBucket,
    newest: dict[tuple[str, str], Relation],
) -> MessageBatch | None:
    """Make messages of a chunk. Updates `newest`, the latest relation of each table."""
    outgoing: list[OutgoingMessages | None] = []
    for run in chunk:
        if isinstance(run, LogicalMessages):
            outgoing.append(payload.logical_messages(run, message_format, ids) if len(run) else None)
        elif len(run):
            if schemas.differs(run.relation, run.target, newest.get(run.target)):
                content = entry(run.relation, run.target, message_format.encoding)
                outgoing.append(payload.schema_message(run, content, message_format, ids))
            newest[run.target] = run.relation
            outgoing.append(payload.change_messages(run, message_format, ids))
    return message_batch.merge([messages for messages in outgoing if messages is not None], sender)
