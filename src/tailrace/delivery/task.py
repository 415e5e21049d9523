"""Tasks: what an executor does for one part of a step. It reads, decodes, shapes and stages.

Everything here is picklable and runs in any process that reaches the store and the destination.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import numpy as np

from tailrace import settings
from tailrace.change import Position
from tailrace.delivery import repair
from tailrace.delivery.contract import Load, Part, Receipt, Sink, Step
from tailrace.delivery.transforms import Shaping
from tailrace.errors import TailraceError
from tailrace.log import decoding
from tailrace.log.decoding import ChangeFilter, LogicalMessages, TableChanges
from tailrace.log.planner import Slice
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotChunk, TableSnapshot
from tailrace.state import table_state
from tailrace.store import Store


@dataclass(frozen=True)
class SnapshotRows:
    """One chunk of a snapshot."""

    snapshot: TableSnapshot
    chunk: SnapshotChunk
    first_ordinal: int
    load: Load


@dataclass(frozen=True)
class TaskResult:
    receipt: Receipt
    changes: int


@dataclass(frozen=True)
class StageTask:
    """Stages one part of a step: slices of the log, or one chunk of a snapshot."""

    sink: Sink
    shaping: Shaping
    store: settings.StoreSettings
    step: Step
    number: int
    slices: tuple[Slice, ...] = ()
    change_filter: ChangeFilter = field(default_factory=ChangeFilter)
    rows: SnapshotRows | None = None
    """For a load; then there are no slices."""
    repair: TableChanges | None = None
    """Of a repair: its changes, as texts; then there are no slices."""
    without: frozenset[Position] = frozenset()
    """The positions of dead letters, which are left out."""

    @property
    def bytes(self) -> int:
        return self.rows.chunk.bytes if self.rows is not None else sum(s.bytes for s in self.slices)

    def run(self, on_changes: Callable[[int], None] = lambda _: None) -> TaskResult:
        """Stage the part. `on_changes` is called with the number of changes so far."""
        counter = ChangeCounter(on_changes)
        part = Part(self.step, self.number, counter.over(self.chunks()), self.rows.load if self.rows else None)
        receipt = self.sink.stage(part)
        for _ in part.chunks:  # a sink that ignores messages, for example, may have stopped early
            pass
        return TaskResult(receipt, counter.changes)

    def chunks(self, as_text: bool | None = None) -> Iterator[decoding.Chunk]:
        """What the part holds, shaped: in the form that the sink wants, unless `as_text` says otherwise."""
        as_text = self.sink.values == "text" if as_text is None else as_text
        if self.repair is not None:
            yield [self.repair if as_text else repair.typed(self.repair)]
            return
        if self.rows is not None:
            snapshot = replace(self.rows.snapshot, store=log_reader(self.store).store)
            found = table_state.snapshot_chunks(snapshot, self.rows.chunk, self.rows.first_ordinal, as_text=as_text)
            yield from (self.shaping.apply(chunk) for chunk in found)
            return
        read = decoding.chunks(log_reader(self.store), self.slices, self.change_filter, as_text=as_text)
        yield from decoding.with_last((s, self._select(self.shaping.apply(chunk))) for s, chunk in read)

    def _select(self, chunk: decoding.Chunk) -> decoding.Chunk:
        """Leave dead letters out; if some are delivered again, leave everything else out."""
        replays = frozenset(self.step.replays)
        if not (replays or self.without):
            return chunk
        parts = (_selected(part, replays or self.without, is_in=bool(replays)) for part in chunk)
        return [part for part in parts if len(part)]


@dataclass
class ChangeCounter:
    """Counts the changes that pass."""

    on_changes: Callable[[int], None] = lambda _: None
    changes: int = 0

    def over(self, chunks: Iterator[decoding.Chunk]) -> Iterator[decoding.Chunk]:
        for chunk in chunks:
            self.changes += sum(map(len, chunk))
            yield chunk
            self.on_changes(self.changes)


class Task(Protocol):
    """Work that can be pickled and run in another process."""

    def run(self) -> TaskResult: ...


Executor = Callable[[Sequence[Task]], Sequence[TaskResult]]
"""Runs tasks, several at the same time, and returns their results in the same order."""


def run_in_process(tasks: Sequence[Task]) -> list[TaskResult]:
    return [task.run() for task in tasks]


def run_or_error(run: Callable[[], TaskResult]) -> TaskResult | TailraceError:
    """Run a task in another process. Spark turns exceptions into text, so a Tailrace error is returned instead."""
    try:
        return run()
    except TailraceError as error:
        return error


def log_reader(store: settings.StoreSettings) -> LogReader:
    """Return this process's reader of a log. It caches listings and headers, which every task needs again."""
    return _cached_reader(store.url, tuple(sorted(store.options.items())))


@lru_cache(maxsize=8)
def _cached_reader(url: str, options: tuple[tuple[str, str], ...]) -> LogReader:
    return LogReader(Store.open(url, dict(options)))


def _selected(
    part: TableChanges | LogicalMessages, positions: frozenset[Position], *, is_in: bool
) -> TableChanges | LogicalMessages:
    selected = np.array([(part.at.position(row) in positions) == is_in for row in range(len(part))], np.bool_)
    return part if selected.all() else part.take(selected)
