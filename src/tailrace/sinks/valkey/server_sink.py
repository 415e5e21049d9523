"""What the modes share whose state is at the server: rows and streams."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, ClassVar

from tailrace.change import Relation
from tailrace.delivery import cursors
from tailrace.delivery.contract import State, Step
from tailrace.delivery.cursors import StoredState
from tailrace.delivery.sink_settings import SinkContext
from tailrace.errors import ConfigError
from tailrace.finding import Finding
from tailrace.log import published_table
from tailrace.sinks.messages.destination_registry import RegisteredTable, Standing
from tailrace.sinks.messages.message_sink import MessageSink
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.valkey.check import check_server
from tailrace.sinks.valkey.client import ValkeyClient
from tailrace.sinks.valkey.command import CommandBatch
from tailrace.sinks.valkey.options import ValkeyOptions
from tailrace.sinks.valkey.own_key import PREFIX
from tailrace.sinks.valkey.server import require_suitable
from tailrace.sinks.valkey.sink_state import SinkState, await_durability, diverged

_log = logging.getLogger(__name__)


class ServerSink(MessageSink[ValkeyOptions]):
    Options: ClassVar[type] = ValkeyOptions
    start: ClassVar[str] = "snapshot"
    collision_hint: ClassVar[str] = (
        "Use another template in `key`, give them different names with `route`, such as '{schema}.{schema}_{table}',"
        " or exclude one of them."
    )

    def __init__(self, name: str, options: ValkeyOptions, context: SinkContext) -> None:
        super().__init__(name, options.validate(), context)
        self._client: ValkeyClient | None = None
        self._loss = ""
        """What the server has lost, if anything."""

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_client": None}

    def template(self) -> DestinationTemplate:
        return self._options.template(self._database).names

    def _registered(self, relation: Relation, target: tuple[str, str], standing: Standing) -> RegisteredTable:
        table = super()._registered(relation, target, standing)
        if table.destination.startswith(PREFIX):
            raise ConfigError(
                f"{relation.qualified_name} would be written to {table.destination}, and keys that begin with {PREFIX}"
                " are Tailrace's own",
                self.collision_hint,
            )
        return table

    def open(self) -> State:
        state = super().open()
        self._loss = self._find_loss(state)
        return state

    def pending(self) -> Step | None:
        """An operator can still rewind a sink whose server has lost data."""
        if self._loss:
            raise diverged(self.name, self._loss)
        return super().pending()

    def check(self) -> Iterator[Finding]:
        template, shaping = self._options.template(self._database), self._shaping()
        shaped = [shaping.load(relation) for relation in published_table.load(self._store)]
        keys = [template.of_table(found[1]) for found in shaped if found is not None]
        yield from check_server(self.name, self._options, keys)

    def _find_loss(self, state: State) -> str:
        published = cursors.published(self._store, self.name)
        if published is not None and state.cursor is None:
            return f"the server has no data of this sink, which was delivered up to {published}: it has lost them"
        if published is not None and state.cursor is not None and state.cursor < published:
            _log.warning(
                "sink %s: the server went back from %s to %s: delivering again from there",
                *(self.name, published, state.cursor),
            )
        return self._state.divergence()

    def close(self) -> None:
        super().close()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> ValkeyClient:
        """Return the driver's connection, to a server on which the sink can keep its promises."""
        if self._client is None:
            self._client = ValkeyClient(self._options, f"tailrace-{self.name}")
            require_suitable(self._client, self._options)
        return self._client

    @property
    def _state(self) -> SinkState:
        return SinkState(self._connected(), self.name)

    def _read_stored(self) -> StoredState | None:
        return self._state.stored(self._options.mode)

    def _advance(self, step: Step, stored: StoredState) -> StoredState:
        before = self._state.stored(self._options.mode)
        cursors.require_state(before or StoredState(), step.before, self.name)
        batch = CommandBatch()
        for load in step.loads:
            batch.add("DEL", self._state.keys.loaded(load.relation.oid))
        self._store_state(before, stored, batch)
        return stored

    def _rewind_stored(self, state: State) -> StoredState:
        before = self._state.stored(self._options.mode)
        stored = cursors.rewound(before or StoredState(), state)
        self._store_state(before, stored, CommandBatch())
        self._loss = ""
        return stored

    def _store_state(self, before: StoredState | None, stored: StoredState, batch: CommandBatch) -> None:
        self._state.advance(self._options.mode, before, stored, batch)
        await_durability(self._connected(), self._options)
