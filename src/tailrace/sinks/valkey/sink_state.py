"""A sink's state at the server, and the fence that admits one writer."""

from __future__ import annotations

from typing import Final
from uuid import uuid4

from tailrace.delivery import cursors
from tailrace.delivery.contract import REWIND
from tailrace.delivery.cursors import StoredState
from tailrace.errors import CorruptError, SinkDiverged, SinkError, SinkRefused
from tailrace.sinks.messages.progress import Progress
from tailrace.sinks.valkey.client import ValkeyClient
from tailrace.sinks.valkey.command import CommandBatch
from tailrace.sinks.valkey.options import ValkeyOptions
from tailrace.sinks.valkey.own_key import OwnKeys
from tailrace.sinks.valkey.valkey_error import ServerError

_STATE, _PROGRESS, _MODE, _DIVERGED = "state", "progress", "mode", "diverged"
_DURABLE_MS: Final = 30_000
"""How long to wait until a step is durable."""


class SinkState:
    """What the server holds about a sink besides its data."""

    def __init__(self, client: ValkeyClient, sink: str) -> None:
        self._client = client
        self._sink = sink
        self.keys = OwnKeys(sink)

    def stored(self, mode: str) -> StoredState | None:
        """Return the stored state; None if there is none. Raises a SinkRefused if the sink has another mode."""
        found, data = self._client.run("HMGET", self.keys.state, _MODE, _STATE)
        if found is not None and found.decode() != mode:
            raise SinkRefused(
                f"sink {self._sink} exists already at the server with mode {found.decode()}, and not {mode}",
                "Give the sink another name.",
            )
        if data is None:
            return None
        try:
            return cursors.from_json(data, self.keys.state)
        except ValueError as error:
            raise self._corrupt(error) from error

    def progress(self) -> Progress | None:
        data = self._client.run("HGET", self.keys.state, _PROGRESS)
        try:
            return None if data is None else Progress.from_json(data)
        except ValueError as error:
            raise self._corrupt(error) from error

    def divergence(self) -> str:
        """Return what the sink found to be wrong; empty: nothing."""
        found = self._client.run("HGET", self.keys.state, _DIVERGED)
        return "" if found is None else str(found.decode())

    def add_stored(self, batch: CommandBatch, mode: str, stored: StoredState) -> None:
        batch.add("HSET", self.keys.state, _MODE, mode, _STATE, cursors.to_json(stored))

    def add_progress(self, batch: CommandBatch, progress: Progress) -> None:
        batch.add("HSET", self.keys.state, _PROGRESS, progress.to_json())

    def advance(self, mode: str, before: StoredState | None, stored: StoredState, batch: CommandBatch) -> None:
        """Store a state, unless another process has stored one meanwhile. `batch` has commands that belong to it."""
        self._client.run("WATCH", self.keys.state)
        if self.stored(mode) != before:
            raise self._moved()
        self.add_stored(batch, mode, stored)
        batch.add("HDEL", self.keys.state, _DIVERGED)
        if self._client.transaction(batch) is None:
            raise self._moved()

    def _moved(self) -> SinkError:
        return SinkError(
            f"sink {self._sink}: another process has changed the sink's state",
            "Continuing from there. Is another deliver running with a sink of this name?",
        )

    def _corrupt(self, error: ValueError) -> CorruptError:
        return CorruptError(
            f"key {self.keys.state} at the server does not hold the state of sink {self._sink}: {error}",
            "Give the sink another name, or remove that key so that the sink starts from the beginning.",
        )

    def diverge(self, what: str) -> SinkDiverged:
        """Record that the destination does not hold what was delivered, and return the error."""
        self._client.run("HSET", self.keys.state, _DIVERGED, what)
        return diverged(self._sink, what)


def diverged(sink: str, what: str) -> SinkDiverged:
    return SinkDiverged(f"sink {sink}: {what}", REWIND.format(sink))


class Writer:
    """Runs transactions for a sink. A new one takes over: all earlier ones are refused from then on."""

    def __init__(self, client: ValkeyClient, state: SinkState, sink: str) -> None:
        self._client = client
        self._state = state
        self._sink = sink
        self._id = uuid4().hex.encode()
        client.run("SET", state.keys.writer, self._id)

    def watch(self) -> None:
        """Begin a transaction: what is read from now on is still so when it is run. Raises if another took over."""
        batch = CommandBatch()
        batch.add("WATCH", self._state.keys.writer)
        batch.add("GET", self._state.keys.writer)
        if self._client.pipeline(batch)[-1] != self._id:
            raise self._superseded()

    def run(self, batch: CommandBatch, what: str) -> None:
        """Run a transaction, all of it or nothing. `what` says what it does, for messages."""
        answers = self._client.transaction(batch)
        if answers is None:
            raise self._superseded()
        # The server runs the rest of a transaction if one command fails.
        errors = [answer for answer in answers if isinstance(answer, ServerError)]
        if errors:
            raise self._state.diverge(f"{what}: {errors[0].code}: somebody else wrote to a key of the sink")

    def _superseded(self) -> SinkError:
        return SinkError(
            f"sink {self._sink}: another process writes for this sink",
            "Is another deliver running with a sink of this name? If so, stop it. Else continuing.",
        )


def await_durability(client: ValkeyClient, options: ValkeyOptions) -> None:
    """Wait until everything that the server did before is as durable as the settings ask."""
    match options.durability:
        case "aof":
            done, wanted = client.run("WAITAOF", 1, 0, _DURABLE_MS)[0], 1
        case "replicas":
            done, wanted = client.run("WAIT", options.replicas, _DURABLE_MS), options.replicas
        case _:
            return
    if done < wanted:
        raise SinkError(
            f"the step was not durable within {_DURABLE_MS // 1000} s: {done} of {wanted} have it",
            "Look at the server's disk, or at its replicas. Retrying.",
        )
