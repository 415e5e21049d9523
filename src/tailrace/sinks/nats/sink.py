"""The sink `nats`: publishes each change as a message to a JetStream stream, in log order, exactly once.

The stream itself records the sink's progress: its last message from this sink carries a position, so a repeated step
continues after that message, whatever the server's duplicate window is. In a shared stream there may be gaps before
that message, so the sink takes all of its messages into account. The cursor in the store only limits the search.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from tailrace.change import Lsn, Relation
from tailrace.delivery.contract import Part, State, Step
from tailrace.delivery.sink_settings import SinkContext
from tailrace.delivery.task import Executor, log_reader, run_in_process
from tailrace.errors import SinkError, TailraceError
from tailrace.finding import Finding
from tailrace.log import planner, published_table
from tailrace.log.decoding import Chunk, TableChanges
from tailrace.log.published_table import PublishedOids
from tailrace.log.snapshot import SnapshotReader
from tailrace.sinks.messages.batching import merge_small, prefetch
from tailrace.sinks.messages.destination_registry import PartRegistry, RegisteredTable
from tailrace.sinks.messages.encoder import MessageEncoder
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.payload_encoding import ENCODINGS
from tailrace.sinks.messages.routed_sink import RoutedSink, RoutingReceipt
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.messages.tailrace_envelope import TailraceEnvelope
from tailrace.sinks.nats import connections, jetstream, message_batch
from tailrace.sinks.nats.client import NatsClient, PublishRejected
from tailrace.sinks.nats.jetstream import StreamTail
from tailrace.sinks.nats.message_batch import MessageBatch, Sender
from tailrace.sinks.nats.message_id import MessageIds
from tailrace.sinks.nats.options import NatsOptions
from tailrace.sinks.nats.schema_bucket import SchemaBucket
from tailrace.sinks.nats.snapshot_responder import SnapshotResponder

_WRONG_LAST: Final = (10070, 10071)
"""JetStream's error codes for a wrong expected message id and a wrong expected sequence."""
_DUPLICATE: Final = 0
_CONTENDED_S: Final = 60.0
"""How long the sink publishes without expected sequences after another publisher interfered in a shared stream."""
_COLLISION_HINT: Final = (
    "Set schema_in_subject = true, give them different names with `route`, such as '{schema}.{schema}_{table}', or"
    " exclude one of them."
)


@dataclass(frozen=True, kw_only=True)
class PublishReceipt(RoutingReceipt):
    tail: StreamTail
    contended_until: float
    """Until when, in seconds since 1970, the sink expects other publishers in a shared stream."""


class NatsSink(RoutedSink):
    Options: ClassVar[type] = NatsOptions
    collision_hint: ClassVar[str] = _COLLISION_HINT

    def __init__(self, name: str, options: NatsOptions, context: SinkContext) -> None:
        super().__init__(name, context)
        self._options = options.validate()
        self._client: NatsClient | None = None
        self._tail: StreamTail | None = None
        self._contended_until = 0.0
        self._schema_bucket: SchemaBucket | None = None
        self._responder: SnapshotResponder | None = None
        self._is_described = False
        self._dropped: dict[int, Lsn] = {}
        """By oid, the end of the log when a table was first missing from the publication."""
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

    def template(self) -> DestinationTemplate:
        return self._options.template

    def attach(self, executor: Executor, parallelism: Callable[[], int]) -> None:
        self._executor, self._parallelism = executor, parallelism

    def open(self) -> State:
        self.close()
        state = self._load_state()
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
        return state

    def check(self) -> Iterator[Finding]:
        options = self._options
        client = NatsClient(options, f"tailrace {self.name} check")
        try:
            jetstream.raise_for_error(client.request("$JS.API.INFO"))
            missing = client.request(f"$JS.API.STREAM.INFO.{options.stream}").get("error", {}).get("err_code")
            if missing != jetstream.NO_STREAM or not options.create:
                jetstream.ensure_stream(client, options.stream, [f"{options.subject}.>"], {}, create=False)
        finally:
            client.close()
        return iter(())

    def stage(self, part: Part) -> PublishReceipt:
        """Publish a part and return the tail of the stream once it holds all of it."""
        if part.number:
            self._tail = None  # the driver knows the tail before the step's first part
        if self._is_copy:
            self._client, schema_client = connections.take(self.name, self._options)
            self._schema_bucket = SchemaBucket(schema_client, self._options, ENCODINGS[self._options.encoding])
        try:
            receipt = self._stage_replay(part) if part.step.replays else self._stage(part)
        except BaseException:
            self._disconnect()  # which of the messages in flight arrived is unknown
            raise
        if self._is_copy:
            connections.give_back(self.name, self._options, self._connect(), self._schemas().client)
            self._client = self._schema_bucket = None
        return receipt

    def _stage(self, part: Part) -> PublishReceipt:
        sender = Sender(self.name, self._stored_state.replays)
        encoder = self._encoder()
        ids, schemas = MessageIds(self._stored_state.replays), self._schemas()
        newest: dict[tuple[str, str], Relation] = {}
        tables = PartRegistry(self._registry, self._published_oids)
        batches = (
            _batch(self._register(chunk, tables), encoder, ids, sender, schemas, newest)
            for chunk in merge_small(part.chunks)
        )
        for batch in prefetch(batches):
            if batch is not None:
                self._publish(batch, sender)
        for target, relation in newest.items():
            schemas.put(relation, target)
        tail = self._tail or self._find_tail(sender)
        return PublishReceipt(tail=tail, contended_until=self._contended_until, tables=tuple(tables.tables))

    def _stage_replay(self, part: Part) -> PublishReceipt:
        """Publish dead letters, unless an earlier attempt did.

        They come after their successors, so they do not show how far the sink is: they are marked as messages without
        an expected predecessor, as those are that were published beside another client.
        """
        sender = Sender(self.name, self._stored_state.replays)
        encoder, ids = self._encoder(), MessageIds(self._stored_state.replays, are_dead_letters=True)
        client = self._connect()
        for chunk in part.chunks:
            messages = message_batch.merge(encoder.encode(chunk, ids), sender)
            tail = self._find_tail(sender)
            missing = messages.select_missing(None, tail.beyond_gaps) if messages is not None else None
            if missing is not None and len(missing):
                message_batch.check_sizes(missing, tail.max_bytes(client.max_payload))
                data, ends = message_batch.encode_frames(missing, client.ack_subject, None)
                try:
                    client.publish_frames(data, ends, [])
                except PublishRejected as rejection:
                    raise self._error(rejection, missing) from None
        return PublishReceipt(tail=self._find_tail(sender), contended_until=self._contended_until)

    def _encoder(self) -> MessageEncoder:
        envelope = TailraceEnvelope(ENCODINGS[self._options.encoding], has_keys=False)
        return MessageEncoder(envelope, self._options.template, self._options.message_subject)

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
        message_batch.check_sizes(missing, before.max_bytes(client.max_payload))
        expected = None if self._contended_until else before.last_sequence
        data, ends = message_batch.encode_frames(missing, client.ack_subject, expected, has_gaps=before.has_gaps)
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
        if tables := [table for receipt in receipts for table in receipt.tables]:
            registry = self._registry_after(receipts)
            self._remove_descriptions(registry.unused([*self._registry.tables.values(), *tables]))
        self._stored_state = replace(self._stored_state, place=place)
        super().commit(step, receipts)
        if not self._is_described:
            self._renew_schema_connection()
            self._describe()

    def _remove_descriptions(self, tables: Sequence[RegisteredTable]) -> None:
        """Remove the bucket's entries of tables that were renamed or dropped."""
        if tables:
            self._renew_schema_connection()
        for table in tables:
            self._schemas().remove(table.target)

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
        """Describe tables without changes so far: from snapshots up to the cursor, or from the publication. Remove the
        descriptions of dropped tables."""
        self._is_described = self._stored_state.state.cursor is not None
        self._check_collisions(published_table.load(self._store))
        shaping, published = self._shaping(), self._published_oids()
        registry = self._registry
        schemas = self._schemas()
        if self._snapshots is None:
            self._snapshots = SnapshotReader(self._store)
        for relation, _ in published_table.known_tables(
            self._snapshots, before=self._stored_state.state.cursor or Lsn(0)
        ):
            shaped = shaping.load(relation)
            if shaped is None or (published.oids and relation.oid not in published.oids):
                continue
            registry = registry.register(self._registered(*shaped, "known"), lambda: published)
            # A table that was renamed since is described by its changes.
            if registry.tables[relation.oid].target == shaped[1] and schemas.lacks(shaped[1]):
                schemas.put(*shaped)
        remaining = registry.without(self._find_dropped(published))
        self._remove_descriptions(remaining.unused(registry.tables.values()))
        self._save_registry(remaining)

    def _find_dropped(self, published: PublishedOids) -> list[int]:
        """Return the tables that are not published any more and have no changes left to deliver."""
        tables = self._registry.tables.values()
        dropped = [table.oid for table in tables if published.is_dropped(table.oid, table.seen_at_us)]
        cursor = self._stored_state.state.cursor
        self._dropped = {oid: self._dropped[oid] if oid in self._dropped else self._log_end() for oid in dropped}
        return [oid for oid, end in self._dropped.items() if cursor is not None and cursor >= end]

    def _log_end(self) -> Lsn:
        return planner.latest_offset(log_reader(self._context.store)).lsn

    def rewind(self, state: State) -> None:
        super().rewind(state)
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


def _batch(
    chunk: Chunk,
    encoder: MessageEncoder,
    ids: MessageIds,
    sender: Sender,
    schemas: SchemaBucket,
    newest: dict[tuple[str, str], Relation],
) -> MessageBatch | None:
    """Make messages of a chunk. Updates `newest`, the latest relation of each table."""
    schema_messages: list[OutgoingMessages] = []
    for run in chunk:
        if isinstance(run, TableChanges) and len(run):
            if schemas.differs(run.relation, run.target, newest.get(run.target)):
                subject = encoder.template.of_operation(run.target, "schema")
                schema_messages.append(schemas.message(run, subject, ids.of_schema(run)))
            newest[run.target] = run.relation
    return message_batch.merge([*schema_messages, *encoder.encode(chunk, ids)], sender)
