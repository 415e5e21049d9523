"""A sink from outside, in this process: keeps what it is given in memory, and fails when a test wants it to."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from tailrace.change import Position
from tailrace.errors import PoisonError, SinkError, SinkRefused
from tailrace.log.decoding import TableChanges
from tailrace.sinks import Context
from tailrace.sinks.base import Parallel, Part, State, Step


@dataclass
class Memory:
    """What one sink was given, and how it is to behave."""

    state: State = field(default_factory=State)
    positions: list[Position] = field(default_factory=list)
    failures: int = 0
    """As many commits fail, with an error that may pass."""
    refuses: bool = False
    is_away: bool = False
    """It takes nothing, and cannot even be asked where it stands."""
    is_open: bool = False
    poison: frozenset[Position] = frozenset()
    may_go: threading.Event = field(default_factory=threading.Event)
    """Commits wait until it is set."""
    entered: threading.Event = field(default_factory=threading.Event)
    opened: int = 0
    tended: int = 0

    def __post_init__(self) -> None:
        self.may_go.set()


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

    def __init__(self, name: str, options: WitnessOptions, context: Context) -> None:
        self.name = name
        self.memory = MEMORIES.setdefault(options.memory or name, Memory())

    def open(self) -> State:
        self.memory.opened += 1
        if self.memory.is_away:
            raise SinkError("nobody answers", "wait")
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
            raise PoisonError("it cannot be swallowed", "do not send it", tuple(poison))
        return sorted(found)

    def commit(self, step: Step, receipts: Sequence[list[Position]]) -> None:
        self.memory.entered.set()
        self.memory.may_go.wait()
        if self.memory.refuses:
            raise SinkRefused("the destination says no", "ask it nicely")
        assert self.memory.is_open, "open() comes first"
        if self.memory.is_away:
            raise SinkError("it is away in the middle of a step", "wait")
        if self.memory.failures:
            self.memory.failures -= 1
            raise SinkError("the destination is away", "wait")
        assert self.memory.state == step.before
        for receipt in receipts:
            self.memory.positions += receipt
        self.memory.state = step.after

    def tend(self) -> None:
        assert self.memory.is_open, "open() comes first"
        if self.memory.is_away:
            raise SinkError("nobody is there", "wait")
        self.memory.tended += 1

    def rewind(self, state: State) -> None:
        self.memory.state = state

    def close(self) -> None:
        self.memory.is_open = False
