"""A sink that publishes messages through a transport: all of it except the transport and the options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, TypeVar
from uuid import uuid4

from tailrace.change import Lsn
from tailrace.delivery.contract import Part, Receipt, State, Step
from tailrace.delivery.sink_settings import SinkContext
from tailrace.delivery.task import log_reader
from tailrace.errors import PoisonError, SinkError, SinkRefused
from tailrace.log import planner
from tailrace.sinks.messages.batching import merge_small, prefetch
from tailrace.sinks.messages.destination_registry import PartRegistry
from tailrace.sinks.messages.encoder import MessageEncoder, PositionIds
from tailrace.sinks.messages.envelope_options import EnvelopeOptions
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.progress import PartProgress, Progress
from tailrace.sinks.messages.routed_sink import RoutedSink, RoutingReceipt
from tailrace.sinks.messages.transport import Transport, close_kept_transport, kept_transport

Options = TypeVar("Options", bound=EnvelopeOptions)


@dataclass(frozen=True, kw_only=True)
class TransportReceipt(RoutingReceipt):
    transport: str
    """The id of the transport that published the part."""


class MessageSink(RoutedSink, Generic[Options]):
    """Encodes changes and publishes them in log order, one task at a time.

    A subclass has `template`, `connect` and `encoder`. It may extend `open` to check the destination.
    """

    loads_tables: ClassVar[bool] = True

    def __init__(self, name: str, options: Options, context: SinkContext) -> None:
        super().__init__(name, context)
        self._options: Options = options
        self._opening = ""
        """Differs each time the sink is opened: what was connected before may be superseded."""
        self._last_transport = ""
        """The transport that published the last step, in whichever process that was."""

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_options": self._options.to_picklable()}

    def connect(self) -> Transport[Any]:
        """Connect to the destination. Other transports of this sink may be discarded by that."""
        raise NotImplementedError

    def encoder(self) -> MessageEncoder:
        """Return what makes messages of changes."""
        raise NotImplementedError

    def open(self) -> State:
        self.close()
        self._opening, self._last_transport = uuid4().hex, ""
        return self._load_state()

    def pending(self) -> Step | None:
        """Return the step that was published, at least in part, and not committed.

        It is completed before tables are loaded. Otherwise the changes of such a table, which the step left out, would
        seem to be published, because their positions are below that of the progress.
        """
        state = self._stored_state.state
        if state.cursor is None or not self._source:
            return None
        published = self._connected_progress().log
        if published is None or published.commit_lsn < state.cursor:
            return None
        reader = log_reader(self._context.store)
        start = planner.start_offset(reader, state.cursor)
        end = planner.advance_to(reader, start, Lsn(published.commit_lsn + 1))
        if end.lsn <= published.commit_lsn:
            raise SinkRefused(
                f"sink {self.name}: the destination has changes up to {published}, and the log ends at {end.lsn}",
                "Is it the right store? If so, give the sink another name.",
            )
        return Step(state, replace(state, cursor=end.lsn), start, end, 1)

    def stage(self, part: Part) -> TransportReceipt:
        """Publish what the destination lacks of a part."""
        tables = PartRegistry(self._registry, self._published_oids)
        step = part.step
        identity = self._opening, step.start, step.end, step.before.cursor, step.loads, step.replays, step.repair
        with kept_transport(self._transport_key, self.connect, identity, self._last_transport) as kept:
            progress = self._progress(kept.transport)
            self._check_interrupted(part.step, progress)
            try:
                for messages, after in prefetch(self._batches(part, progress, tables)):
                    kept.transport.publish(messages, after)
            except PoisonError as error:
                if part.load is None:
                    raise
                # The log has no such change: only changes can be dead letters.
                raise PoisonError(error.message, error.hint) from None
        return TransportReceipt(tables=tuple(tables.tables), transport=kept.id)

    def commit(self, step: Step, receipts: Sequence[Receipt]) -> None:
        if receipts:
            self._last_transport = receipts[-1].transport
        elif step.loads:  # empty tables: nothing was staged, so nothing was checked
            self._check_interrupted(step, self._connected_progress())
        super().commit(step, receipts)

    def _connected_progress(self) -> Progress:
        """Connect, so that attempts that were given up publish nothing any more, and return the progress."""
        close_kept_transport(self._transport_key)
        with kept_transport(self._transport_key, self.connect, None, "") as kept:
            self._last_transport = kept.id
            return self._progress(kept.transport)

    def _check_interrupted(self, step: Step, progress: Progress) -> None:
        """Refuse to load tables while an attempt that was given up has published something: see `pending`."""
        cursor = step.before.cursor
        if step.loads and progress.log is not None and cursor is not None and progress.log.commit_lsn >= cursor:
            raise SinkError(
                f"sink {self.name}: an interrupted step published changes up to {progress.log}",
                "Completing it before tables are loaded.",
            )

    def _batches(self, part: Part, progress: Progress, tables: PartRegistry) -> Iterator[tuple[Any, Progress]]:
        """Yield what the transport publishes, each with the progress that it leads to."""
        encoder, ids = self.encoder(), PositionIds(self._stored_state.replays)
        part_progress = PartProgress(progress, part)
        for chunk in merge_small(part.chunks):
            if not part.step.replays:
                self._register(chunk, tables)
            if part.load is None and not part.step.loads and not part.step.replays:
                encoder.observe(chunk)
            missing, after = part_progress.select_missing(chunk)
            if encoded := encoder.encode(missing, ids):
                yield OutgoingMessages.joined(encoded), after

    def _progress(self, transport: Transport[Any]) -> Progress:
        """Return how far the destination is with what this sink publishes now."""
        found = transport.progress()
        replays = self._stored_state.replays
        if found is None:
            return Progress(self._source, replays)
        if found.source != self._source:
            raise SinkRefused(
                f"sink {self.name}: the destination holds the progress of {found.source}, and this source is"
                f" {self._source}",
                "Give the sink another name, unless this is the wrong destination.",
            )
        if found.replays < replays:
            return Progress(self._source, replays)
        if found.replays > replays:
            raise SinkRefused(
                f"sink {self.name} was rewound {found.replays} times according to the destination, and {replays} times"
                " according to the store",
                "Is another deliver running with a sink of this name? If the store was restored from an old copy, give"
                " the sink another name.",
            )
        return found

    def close(self) -> None:
        close_kept_transport(self._transport_key)

    @property
    def _transport_key(self) -> str:
        return f"{self.name} {self._context.store.url} {self._options!r}"
