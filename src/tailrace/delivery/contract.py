"""The contract between delivery and a sink: all of it, once.

A sink is one destination with one cursor. Delivery reads the log, shapes the changes as the sink's settings say, and
delivers them in *steps*. Each step is one batch of the sink's streaming query:

    stage(part)              runs in the tasks of the batch, in Spark's executors: several parts at the same time where
                             the sink allows it. Returns a receipt, which must be picklable.
    commit(step, receipts)   runs in the driver once all parts are staged, with the receipts in the log's order.

**Order.** A step starts where the previous one ended. `parallel` says how a step is divided:

- `Parallel.NONE`: one task stages all parts, one after the other, in the log's order. What `stage` writes may become
  visible at once.
- `Parallel.RANGES`: each part is a range of the log, staged at the same time as others. Nothing of it may be visible
  before `commit`, which applies the parts in the order of their receipts.

**Transactions.** A step never ends inside a transaction. With `whole_transactions` no part does either. `at.is_last`
marks the last delivered change of each transaction; where `RANGES` may divide a transaction, the last in each part.

**Duplicates.** Any part may be staged again, for instance after an executor died, even while the first attempt still
runs; only the receipts that `commit` gets count. Any step may be repeated from its start: delivery starts from the
cursor that `open` returns. So a sink either stores the cursor in the same atomic act as the data (a crash then leaves
both or neither), or derives the names of what it writes from the step alone, so that a repetition overwrites itself.
The latter also stores the step that `begin` announces and returns it from `pending` until it is committed: delivery
then repeats that step exactly, from the same start to the same end in the same parts, before anything else.

**Durability.** When `commit` returns, everything in the step survives a crash of any process, and `open` returns the
step's `after` from then on. If `commit` did not return, `open` returns either `before` or `after`.

**Tables.** A step may *load* tables. The parts of a load hold SNAPSHOT rows, which replace whatever the destination has
of that table. The changes since that snapshot follow, if the cursor is beyond it. `State.tables` says which tables (by
oid) the destination has, and from which LSN on their changes count; delivery sends no others.

**Schema changes.** Each run of changes carries its relation. Runs of one table come in order, so a sink that keeps
tables alters its own when it meets a new relation.

**Failure.** Raise a `TailraceError`. If its `retry` is true, delivery opens the sink again and retries, with growing
pauses, forever. Any other error stops this sink until an operator acts, and no other sink. `SinkPaused`, of a
destination that wants no more changes, pauses the sink as an operator would. A change that the destination can never
accept is a `PoisonError` that names the positions: the sink's settings say whether it stops the sink or becomes a dead
letter.

**Dead letters.** An operator can have dead letters delivered again, once the destination would accept them. A sink that
keeps tables loads the table again. Another sink gets a step whose `replays` names the changes, if it declares
`replays_dead_letters`. Changes that follow them in the log were delivered before, the state stays the same, and `begin`
is not called. After a crash the step may be repeated.

**Repairs.** `tailrace verify --repair` corrects rows that differ from the source's. A sink that keeps tables gets a
step whose one part inserts, updates and deletes these rows; the state stays the same, and `begin` is not called. Their
positions are between those delivered and those to come. The step is not repeated: if it fails, the rows are compared
again.

**Threads.** One step at a time. `stage` runs on copies of the sink in other processes, so connections and the like are
left out of the pickled state and made on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, runtime_checkable

from tailrace.change import Lsn, Position, Relation
from tailrace.finding import Finding
from tailrace.log.decoding import Chunk
from tailrace.log.planner import Offset

if TYPE_CHECKING:
    from tailrace.delivery.row_reader import RowReader
    from tailrace.delivery.task import Executor

REWIND: Final = "`tailrace sink rewind {} snapshot` loads its tables again"
"""The hint for a destination that was changed by someone else; takes the sink's name."""

Receipt = Any
"""What `stage` reports to `commit`: small, and picklable."""


class Parallel(Enum):
    NONE = "one part after the other"
    RANGES = "ranges of the log at the same time"


@dataclass(frozen=True)
class State:
    """How far a sink is. The destination is the truth of it."""

    cursor: Lsn | None = None
    """Every change that commits below this LSN is durable at the destination. None: nothing was ever delivered."""
    tables: Mapping[int, Lsn] = field(default_factory=dict)
    """The tables that the destination has, by oid, each with the LSN from which on its changes count."""


@dataclass(frozen=True)
class Load:
    """A table that starts again from a snapshot."""

    relation: Relation
    """As delivered: shaped as the settings say."""
    target: tuple[str, str]
    snapshot: str
    """The snapshot's id."""
    lsn: Lsn


@dataclass(frozen=True)
class Step:
    """What is delivered at once: from one state of the sink to another."""

    before: State
    after: State
    start: Offset
    end: Offset
    parts: int
    """The number of parts of the log. Parts of loads come before them and are not counted."""
    loads: tuple[Load, ...] = ()
    replays: tuple[Position, ...] = ()
    """Dead letters that are delivered again. The step then has nothing else."""
    repair: str = ""
    """The id of a repair. The step then has nothing but changes that are not in the log: see `Repairs` above."""


@dataclass(frozen=True)
class Part:
    """What one call of `stage` has to write."""

    step: Step
    number: int
    """From 0, in the log's order; for a load from 0 in the snapshot's."""
    chunks: Iterator[Chunk]
    """To be consumed one by one: together they may be larger than memory."""
    load: Load | None = None
    """The load whose rows these are; None for changes from the log."""


class Sink(Protocol):
    """Constructed as `Class(name, options, context)`: the sink's name, its `Options`, and a `SinkContext`.

    `BaseSink` has the defaults of everything that is optional.
    """

    Options: ClassVar[type]
    """A frozen dataclass: the keys of `[[sink]]` that are this sink's own, each with its default."""
    parallel: ClassVar[Parallel]
    whole_transactions: ClassVar[bool]
    keeps_tables: ClassVar[bool]
    """Whether the destination holds the tables' rows rather than events. Rewinding such a sink loads its tables again;
    for event sinks, rewinding republishes the events."""
    replays_dead_letters: ClassVar[bool]
    """Whether the sink accepts steps with `replays`. Only for sinks that deliver events."""
    start: ClassVar[str]
    """Where a new sink starts unless the settings say otherwise: `snapshot`, or `earliest` for sinks that deliver
    changes only and never load a table."""
    loads_tables: ClassVar[bool]
    """Whether the settings may say `snapshot`, if `start` does not. The sink then gets the rows of snapshots."""
    interval_ms: ClassVar[int]
    """The least time between two steps, unless the settings say otherwise. Changes are gathered meanwhile."""

    @property
    def values(self) -> Literal["text", "typed"]:
        """What columns hold: PostgreSQL's own text, or the mapped Arrow types with special values beside them. It must
        not change during the sink's life; a class attribute will do."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Java libraries that the sink needs in the Spark session, as Maven's `group:artifact:version`."""

    def open(self) -> State:
        """Connect, create what the sink needs at the destination, return its state. Called again after a failure."""

    def pending(self) -> Step | None:
        """Return the step that was begun and not committed, if the sink stores it."""

    def begin(self, step: Step) -> None:
        """Called before anything of a step is staged. Not called for a step that loads a table: the names of what it
        writes follow from the snapshot's id, and after a crash the load starts again."""

    def stage(self, part: Part) -> Receipt: ...

    def commit(self, step: Step, receipts: Sequence[Receipt]) -> None: ...

    def maintain(self) -> None:
        """Maintain the destination, if it needs that. Called between two steps every few seconds. The next step waits
        for it, so it does a little at a time."""

    def rewind(self, state: State) -> None:
        """Set the sink's state: the next steps replay or skip changes. Durable when it returns."""

    def close(self) -> None:
        """Release connections. `open` may follow."""


class BaseSink:
    """The defaults of a sink: events in order, one part after the other, from the first change in the log."""

    values: ClassVar[Literal["text", "typed"]] = "text"
    parallel: ClassVar[Parallel] = Parallel.NONE
    whole_transactions: ClassVar[bool] = True
    keeps_tables: ClassVar[bool] = False
    replays_dead_letters: ClassVar[bool] = False
    start: ClassVar[str] = "earliest"
    loads_tables: ClassVar[bool] = False
    interval_ms: ClassVar[int] = 0
    packages: ClassVar[tuple[str, ...]] = ()

    def pending(self) -> Step | None:
        return None

    def begin(self, step: Step) -> None:
        pass

    def maintain(self) -> None:
        pass

    def close(self) -> None:
        pass


@runtime_checkable
class UsesExecutor(Protocol):
    """A sink that runs tasks of its own beside its steps, for example to answer requests for snapshots."""

    def attach(self, executor: Executor, parallelism: Callable[[], int]) -> None:
        """Called before `open`. `parallelism` returns how many tasks can run at the same time now."""


@runtime_checkable
class ChecksDestination(Protocol):
    """A sink that `tailrace check` asks about its destination."""

    def check(self) -> Iterator[Finding]:
        """Log in, test the rights that the sink needs, and report what is wrong. Changes nothing."""


@runtime_checkable
class ReadsRows(Protocol):
    """A sink whose rows `tailrace verify` can compare with the source's. The sink need not be open, and another process
    may deliver to it."""

    def read_rows(self) -> AbstractContextManager[RowReader]:
        """Open a view of the destination. Changes nothing there."""


@runtime_checkable
class RecordsGaps(Protocol):
    """A sink for which no snapshot makes up for lost changes. It continues after a gap that an operator accepted, once
    it has everything before the gap, and records the gap where its readers find it."""

    def record_gap(self, before: State, after: State, lost_from: Lsn) -> None:
        """Changes from `lost_from` up to the cursor of `after` are lost. Durable when it returns, with the cursor."""
