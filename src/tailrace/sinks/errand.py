"""What one call of a sink's `stage` has to write, in a form that can be sent to another process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

import numpy as np

from tailrace import settings
from tailrace.change import Position
from tailrace.errors import TailraceError
from tailrace.log import decoding, state
from tailrace.log.decoding import Admission, Messages, TableChanges
from tailrace.log.plan import Slice
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import MARKER_PREFIX, Chunk, Snapshot
from tailrace.sinks.base import Load, Parallel, Part, Receipt, Sink, Step
from tailrace.sinks.shaping import Shaping
from tailrace.store import Store


@dataclass(frozen=True)
class Rows:
    """One chunk of a snapshot."""

    snapshot: Snapshot
    chunk: Chunk
    first_ordinal: int
    load: Load


@dataclass(frozen=True)
class Errand:
    sink: Sink
    shaping: Shaping
    store: settings.Store
    step: Step
    number: int
    slices: tuple[Slice, ...] = ()
    admission: Admission = field(default_factory=Admission)
    rows: Rows | None = None
    """Of a load; then there are no slices."""
    without: frozenset[Position] = frozenset()
    """Changes that were set aside."""

    def stage(self) -> Staged:
        """Read, decode, shape, hand to the sink."""
        tally = Tally()
        part = Part(self.step, self.number, tally.over(self.chunks()), self.rows.load if self.rows else None)
        receipt = self.sink.stage(part)
        for _ in part.chunks:  # a sink that has no use for messages, say, may have stopped early
            pass
        return Staged(receipt, tally.changes, tally.has_marker)

    def chunks(self) -> Iterator[decoding.Chunk]:
        as_text = self.sink.values == "text"
        if self.rows is not None:
            snapshot = replace(self.rows.snapshot, store=reader(self.store).store)
            found = state.snapshot_chunks(snapshot, self.rows.chunk, self.rows.first_ordinal, as_text=as_text)
            yield from (self.shaping.apply(chunk) for chunk in found)
            return
        read = decoding.chunks(reader(self.store), self.slices, self.admission, as_text=as_text)
        yield from decoding.with_last((s, self._without(self.shaping.apply(chunk))) for s, chunk in read)

    def _without(self, chunk: decoding.Chunk) -> decoding.Chunk:
        if not self.without:
            return chunk
        return [part for part in (_filtered(part, self.without) for part in chunk) if len(part)]


@dataclass(frozen=True)
class Staged:
    """What came of an errand."""

    receipt: Receipt
    changes: int
    has_marker: bool
    """A snapshot was finished somewhere in it: there may be a table to load."""


@dataclass
class Tally:
    """Counts what goes by."""

    changes: int = 0
    has_marker: bool = False

    def over(self, chunks: Iterator[decoding.Chunk]) -> Iterator[decoding.Chunk]:
        for chunk in chunks:
            markers = sum(list(part.prefix).count(MARKER_PREFIX) for part in chunk if isinstance(part, Messages))
            self.changes += sum(map(len, chunk)) - markers
            self.has_marker |= markers > 0
            yield chunk


class Work(Protocol):
    """Whatever can be sent to another process to be done there."""

    def stage(self) -> Staged: ...


Staff = Callable[[Sequence[Work], Parallel], Sequence[Staged]]
"""Carries work out: in order, one after the other, for `Parallel.NONE`; else as many at once as there are hands."""


def in_this_process(work: Sequence[Work], parallel: Parallel) -> list[Staged]:  # noqa: ARG001
    return [one.stage() for one in work]


def reader(store: settings.Store) -> LogReader:
    return _kept_reader(store.url, tuple(sorted(store.options.items())))


@lru_cache(maxsize=8)
def _kept_reader(url: str, options: tuple[tuple[str, str], ...]) -> LogReader:
    """One a process: it knows the listing and the headers it has read, which a worker needs again and again."""
    return LogReader(Store.open(url, dict(options)))


def stage(work: Work) -> Staged | TailraceError:
    """For another process: Spark makes strings of what a task raises, so an error of ours is handed back instead."""
    try:
        return work.stage()
    except TailraceError as error:
        return error


def _filtered(part: TableChanges | Messages, without: frozenset[Position]) -> TableChanges | Messages:
    kept = np.array([part.at.position(row) not in without for row in range(len(part))], np.bool_)
    return part if kept.all() else part.take(kept)
