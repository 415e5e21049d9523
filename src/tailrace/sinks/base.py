"""The contract between the delivery engine and a sink: all of it, once.

A sink is one destination with one cursor. The engine reads the log, shapes the changes as the sink's settings say, and
hands them over in *steps*. A step is done in two halves:

    stage(part)              anywhere: in the driver for a small step, in Spark's executors for a large one, several
                             parts at the same time where the sink allows it. Returns a receipt, which is pickled.
    commit(step, receipts)   in the driver, once all parts are staged, with their receipts in the log's order.

Both halves are the same code whether the step is small or large.

**Order.** A step starts where the last one ended. `parallel` says how the parts of a step are made:

- `Parallel.NONE`: parts are staged one after the other, in the log's order. What `stage` writes may be seen at once.
- `Parallel.RANGES`: each part is a range of the log, staged at the same time as others. Nothing of it may be seen
  before `commit`, which puts the parts into effect in the order of their receipts.
- `Parallel.KEYS`: each part holds all changes of some keys, in the log's order; what `stage` writes may be seen at
  once. All changes of one key are in one part, also when updates change keys or a TRUNCATE stands between: a table
  in which that happens within a step is one part.

**Transactions.** A step never ends inside a transaction. With `whole_transactions` no part does either. `at.is_last`
marks the last change of each transaction that is delivered; where a transaction may be cut into parts of `RANGES`, the
last in each part.

**Duplicates.** Any part may be staged again, after an executor died for instance, while the first attempt still runs;
only the receipts that `commit` gets count. Any step may be done again from its start: the engine starts from the
cursor that `open` returns, so a sink either stores the cursor in the same atomic act as the data (then a crash leaves
both or neither), or gives what it writes names that follow from the step alone, so that a repetition overwrites itself.
Such a sink also keeps what `begin` tells it: a step that was begun and not committed is repeated exactly, from the
same start to the same end in the same parts, before anything else.

**Durability.** When `commit` returns, everything in the step survives a crash of anything, and `open` returns the
step's `after` from then on. Of a step whose `commit` did not return, `open` returns `before` or `after`.

**Tables.** A step may *load* tables: their parts hold SNAPSHOT rows, which replace whatever the destination has of that
table, and after them come the changes since that snapshot, if the sink is further already. `state.tables` says which
tables (by oid) the destination has, and from which LSN on changes of each count; the engine admits no others.

**Schema changes.** Each run of changes carries the relation it was made under. Runs of one table come in order, so a
sink that keeps tables brings its own to the new relation when it meets it.

**Failure.** Raise a `TailraceError`. One whose `retry` is true is tried again, with growing pauses, for ever; the
others stop the sink until somebody acts, and stop nothing else. A change that the destination can never take is a
`PoisonError` that names its positions: the sink's settings say whether that stops it or the change is set aside.

**Threads.** One step at a time. `stage` runs on copies of the sink in other processes: what must not be pickled
(connections) is made on first use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, runtime_checkable

from tailrace.change import Lsn, Relation
from tailrace.log.decoding import Chunk
from tailrace.log.plan import Offset

if TYPE_CHECKING:
    from tailrace.sinks.errand import Staff

REWIND: Final = "`tailrace deliver --sink {} --rewind snapshot` loads its tables anew"
"""What helps a destination that is no longer as it was left: for a sink's name."""

Receipt = Any
"""What `stage` tells `commit`: small, and picklable."""


class Parallel(Enum):
    NONE = "one part after the other"
    RANGES = "ranges of the log at the same time"
    KEYS = "keys at the same time"


@dataclass(frozen=True)
class State:
    """Where a sink stands. The destination is the truth of it."""

    cursor: Lsn | None = None
    """Every change that commits below this is durable at the destination. None: nothing was ever delivered."""
    tables: Mapping[int, Lsn] = field(default_factory=dict)
    """The tables the destination has, by oid, each with the LSN from which on its changes count."""


@dataclass(frozen=True)
class Load:
    """A table that begins anew from a snapshot."""

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
    """How many parts of the log; those of loads come before them and are not counted."""
    loads: tuple[Load, ...] = ()


@dataclass(frozen=True)
class Part:
    """What one call of `stage` has to write."""

    step: Step
    number: int
    """From 0, in the log's order; for a load from 0 in the snapshot's."""
    chunks: Iterator[Chunk]
    """To be taken one by one: together they may be larger than memory."""
    load: Load | None = None
    """The load whose rows these are; None for changes from the log."""


class Sink(Protocol):
    """Made as `Class(name, options, context)`: the sink's name, its `Options`, and `tailrace.sinks.Context`."""

    Options: ClassVar[type]
    """A frozen dataclass: the keys of `[[sink]]` that are this sink's own, each with its default."""
    parallel: ClassVar[Parallel]
    whole_transactions: ClassVar[bool]
    keeps_tables: ClassVar[bool]
    """The destination holds tables as they are, not what happened to them. To deliver again to such a sink is to load
    its tables anew; to one that tells what happened it is to tell it again."""
    start: ClassVar[str]
    """Where a new sink begins, unless the settings say otherwise: `snapshot`; or `earliest` for one that has no use for
    rows that nobody changed, and never loads any."""
    interval_ms: ClassVar[int]
    """How long changes are gathered before a step is made of them, unless the settings say otherwise."""

    @property
    def values(self) -> Literal["text", "typed"]:
        """What columns hold: PostgreSQL's own texts, or the mapped Arrow types with special values beside them. The
        same for as long as the sink is there; an attribute of the class will do."""

    @property
    def packages(self) -> tuple[str, ...]:
        """Java libraries that the sink needs in the Spark session, as Maven's `group:artifact:version`."""

    def open(self) -> State:
        """Connect, make what the sink needs at the destination, say where it stands. Called again after a failure."""

    def pending(self) -> Step | None:
        """The step that was begun and not committed, for a sink that keeps it."""

    def begin(self, step: Step) -> None:
        """Told before anything of a step is staged. Not of a step that loads a table: its names follow from the
        snapshot's, and it begins again from there."""

    def stage(self, part: Part) -> Receipt: ...

    def commit(self, step: Step, receipts: Sequence[Receipt]) -> None: ...

    def tend(self) -> None:
        """Look after the destination, if it needs that: called between two steps every now and then. The next step
        waits for it, so it does a little at a time."""

    def rewind(self, state: State) -> None:
        """Stand at `state` from now on: what is delivered next replays or skips. Durable when it returns."""

    def close(self) -> None:
        """Let go of connections. `open` may follow."""


@runtime_checkable
class Helped(Protocol):
    """A sink that has more to do than its steps, such as to answer questions: it is told who else has hands."""

    def engage(self, staff: Staff, hands: Callable[[], int]) -> None:
        """Before `open`. `hands`: how many there are now."""


@runtime_checkable
class NotesGaps(Protocol):
    """A sink for which no snapshot makes up for what was lost. It goes on after a gap that somebody accepted, once it
    has all that is before it, and keeps a note where its readers find it."""

    def note_gap(self, before: State, after: State, lost_from: Lsn) -> None:
        """Changes from there up to where the sink stands now are lost. Durable when it returns, with the cursor."""
