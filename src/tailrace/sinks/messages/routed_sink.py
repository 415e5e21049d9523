"""A sink that publishes the changes of each table to a destination of its own. The store holds its cursor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tailrace.change import Relation
from tailrace.delivery import cursors
from tailrace.delivery.contract import BaseSink, Receipt, State, Step
from tailrace.delivery.cursors import StoredState
from tailrace.delivery.sink_settings import SinkContext
from tailrace.delivery.transforms import Shaping
from tailrace.log import published_table, source_record
from tailrace.log.decoding import Chunk, TableChanges
from tailrace.log.published_table import PublishedOids
from tailrace.sinks.messages import destination_registry
from tailrace.sinks.messages.destination_registry import DestinationRegistry, PartRegistry, RegisteredTable, Standing
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.store import Store


@dataclass(frozen=True)
class RoutingReceipt:
    tables: tuple[RegisteredTable, ...] = ()
    """The tables of the part that were new or renamed, in the order in which their changes came."""


class RoutedSink(BaseSink):
    """The state of a sink and its registry of destinations. Subclasses publish in `stage`."""

    replays_dead_letters: ClassVar[bool] = True
    collision_hint: ClassVar[str]
    """What resolves two tables with the same destination, in this sink's settings."""

    def __init__(self, name: str, context: SinkContext) -> None:
        self.name = name
        self._context = context
        self._stored_state = StoredState()
        self._registry = DestinationRegistry(self.collision_hint)
        self._database = ""
        self._source = ""

    def template(self) -> DestinationTemplate:
        """Return the template of destinations. Not to be called before `open`, which learns the database's name."""
        raise NotImplementedError

    @property
    def _store(self) -> Store:
        return Store.open(self._context.store.url, self._context.store.options)

    def _load_state(self) -> State:
        """Load state and registry, and refuse two published tables that share a destination."""
        self._stored_state = self._read_stored() or StoredState()
        self._registry = destination_registry.load(self._store, self.name, self.collision_hint)
        source = source_record.load(self._store)
        if source is not None:
            self._database = str(source["database"])
            self._source = f"{source['system_id']}/{self._database}"
        self._check_collisions(published_table.load(self._store))
        return self._stored_state.state

    def _check_collisions(self, published: Iterable[Relation]) -> None:
        """Refuse to start, or to continue, with two published tables that share a destination."""
        shaping = self._shaping()
        shaped = [(relation, shaping.load(relation)) for relation in published]
        self._registry.check(
            self._registered(relation, found[1], "known") for relation, found in shaped if found is not None
        )

    def _shaping(self) -> Shaping:
        return Shaping(self._context.common, self._database)

    def _registered(self, relation: Relation, target: tuple[str, str], standing: Standing) -> RegisteredTable:
        destination = self.template().of_table(target)
        return RegisteredTable(relation.oid, (relation.schema, relation.name), target, destination, standing)

    def _register(self, chunk: Chunk, tables: PartRegistry) -> Chunk:
        """Register the tables of a chunk before any of its messages is published."""
        for run in chunk:
            if isinstance(run, TableChanges) and len(run):
                table = self._registered(run.relation, run.target, "current")
                tables.register(replace(table, seen_at_us=int(run.at.committed_at_us[0])))
        return chunk

    def _published_oids(self) -> PublishedOids:
        return published_table.load_oids(self._store)

    def _registry_after(self, receipts: Sequence[RoutingReceipt]) -> DestinationRegistry:
        registry = self._registry
        for receipt in receipts:
            for table in receipt.tables:
                registry = registry.register(table, self._published_oids)
        return registry

    def commit(self, step: Step, receipts: Sequence[Receipt]) -> None:
        registry = self._registry_after(receipts)
        self._stored_state = self._advance(step, replace(self._stored_state, state=step.after))
        self._save_registry(registry)

    def rewind(self, state: State) -> None:
        self._stored_state = self._rewind_stored(state)
        self._save_registry(self._registry.rewound())

    def _read_stored(self) -> StoredState | None:
        """Return the stored state. A sink whose destination holds it overrides this and the next two."""
        return cursors.load(self._store, self.name)

    def _advance(self, step: Step, stored: StoredState) -> StoredState:
        """Store the state after a step. Durable when it returns."""
        return cursors.advance(self._store, self.name, step.before, stored)

    def _rewind_stored(self, state: State) -> StoredState:
        """Store the state that the sink delivers from now on. Durable when it returns."""
        return cursors.rewind(self._store, self.name, state)

    def _save_registry(self, registry: DestinationRegistry) -> None:
        if registry != self._registry:
            destination_registry.save(self._store, self.name, registry)
        self._registry = registry
