"""A third-party sink in this process, which holds what it receives in memory and fails on request."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.change import Position
from tailrace.delivery.contract import Parallel, Part, State, Step
from tailrace.delivery.sink_settings import SinkContext
from tailrace.errors import PoisonError, SinkError, SinkRefused
from tailrace.log.decoding import TableChanges


@dataclass
class Memory:
    """What one sink received, and how it must behave."""

    state: State = field(default_factory=State)
    positions: list[Position] = field(default_factory=list)
    failures: int = 0
    """The next commits, as many as this, fail with a transient error."""
    refuses: bool = False
    is_down: bool = False
    """It accepts nothing, and does not even report its state."""
    is_open: bool = False
    poison: frozenset[Position] = frozenset()
    may_go: threading.Event = field(default_factory=threading.Event)
    """Commits wait until it is set."""
    entered: threading.Event = field(default_factory=threading.Event)
    opened: int = 0
    maintained: int = 0

    def __post_init__(self) -> None:
        self.may_go.set()


@dataclass
class Poisoned:
    poison: frozenset[Position]


MEMORIES: dict[str, Memory] = {}


@dataclass(frozen=True)
class WitnessOptions:
    memory: str = ""


class Witness:
    Options = WitnessOptions
    values = "text"
    parallel = Parallel.NONE
    whole_transactions = True
    keeps_tables = False
    start = "snapshot"
    interval_ms = 0
    packages = ()

    def __init__(self, name: str, options: WitnessOptions, context: SinkContext) -> None:
        self.name = name
        self.memory = MEMORIES.setdefault(options.memory or name, Memory())

    def __getstate__(self) -> dict[str, Any]:
        """Tasks run in other processes, where they only need to know the poison."""
        return {"name": self.name, "memory": Poisoned(self.memory.poison)}

    def open(self) -> State:
        self.memory.opened += 1
        if self.memory.is_down:
            raise SinkError("the destination does not answer", "wait")
        self.memory.is_open = True
        return self.memory.state

    def pending(self) -> Step | None:
        return None

    def begin(self, step: Step) -> None:
        pass

    def stage(self, part: Part) -> list[Position]:
        found = []
        for chunk in part.chunks:
            for changes in chunk:
                if isinstance(changes, TableChanges):
                    found += [changes.at.position(row) for row in range(len(changes))]
        poison = [str(position) for position in found if position in self.memory.poison]
        if poison:
            raise PoisonError("the change cannot be stored", "do not send it", tuple(poison))
        return sorted(found)

    def commit(self, step: Step, receipts: Sequence[list[Position]]) -> None:
        self.memory.entered.set()
        self.memory.may_go.wait()
        if self.memory.refuses:
            raise SinkRefused("the destination refused the commit", "grant permission")
        assert self.memory.is_open, "commit() was called before open()"
        if self.memory.is_down:
            raise SinkError("the destination went down in the middle of a step", "wait")
        if self.memory.failures:
            self.memory.failures -= 1
            raise SinkError("the destination is down", "wait")
        assert self.memory.state == step.before
        for receipt in receipts:
            self.memory.positions += receipt
        self.memory.state = step.after

    def maintain(self) -> None:
        assert self.memory.is_open, "maintain() was called before open()"
        if self.memory.is_down:
            raise SinkError("the destination is down during maintenance", "wait")
        self.memory.maintained += 1

    def rewind(self, state: State) -> None:
        self.memory.state = state

    def close(self) -> None:
        self.memory.is_open = False
