"""Drives a sink without Spark: plans, stages and commits steps one by one, as the contract requires."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tailrace.change import Lsn
from tailrace.delivery.contract import Part, Receipt, State, Step
from tailrace.log import decoding, planner
from tailrace.log.decoding import ChangeFilter
from tailrace.log.planner import BatchLimits, Slice
from tailrace.log.reader import LogReader
from tailrace.store import Store


@dataclass(frozen=True)
class PlannedDelivery:
    """A step, and the slices of the log in each of its parts."""

    step: Step
    parts: tuple[tuple[Slice, ...], ...]
    change_filter: ChangeFilter


class Driver:
    """Runs steps from the sink's cursor. Whatever is sent to other processes in production is pickled here, too."""

    def __init__(self, sink: Any, store: Store, *, change_filter: ChangeFilter | None = None) -> None:
        self.sink = sink
        self.reader = LogReader(store)
        self.state: State = sink.open()
        self._change_filter = change_filter

    def plan(self, parts: int = 1, limits: BatchLimits | None = None) -> PlannedDelivery | None:
        """The next step; None at the end of the log."""
        start = planner.start_offset(self.reader, self.state.cursor)
        batch = planner.next_batch(self.reader, start, limits)
        if batch.end == start or batch.end.lsn == self.state.cursor:
            return None
        slices = batch.split(parts, whole_transactions=self.sink.whole_transactions)
        after = replace(self.state, cursor=batch.end.lsn)
        step = Step(self.state, after, start, batch.end, len(slices))
        change_filter = self._change_filter or ChangeFilter(tables=self.state.tables)
        change_filter = replace(change_filter, start=max(change_filter.start, self.state.cursor or Lsn(0)))
        return PlannedDelivery(step, tuple(slices), change_filter)

    def stage(self, planned: PlannedDelivery) -> list[Receipt]:
        return [self.stage_part(planned, number) for number in range(len(planned.parts))]

    def stage_part(self, planned: PlannedDelivery, number: int) -> Receipt:
        copy = pickle.loads(pickle.dumps(self.sink))
        part = Part(planned.step, number, self._chunks(planned, number))
        return pickle.loads(pickle.dumps(copy.stage(part)))

    def commit(self, planned: PlannedDelivery, receipts: list[Receipt]) -> None:
        self.sink.commit(planned.step, receipts)
        self.state = planned.step.after

    def step(self, parts: int = 1, limits: BatchLimits | None = None) -> bool:
        """Run one step; False at the end of the log."""
        planned = self.plan(parts, limits)
        if planned is None:
            return False
        self.sink.begin(planned.step)
        self.commit(planned, self.stage(planned))
        return True

    def _chunks(self, planned: PlannedDelivery, number: int) -> Iterator[decoding.Chunk]:
        as_text = self.sink.values == "text"
        slices = planned.parts[number]
        yield from decoding.with_last(decoding.chunks(self.reader, slices, planned.change_filter, as_text=as_text))


def deliver(
    sink: Any,
    store: Store,
    *,
    parts: int | Callable[[], int] = 1,
    limits: BatchLimits | Callable[[], BatchLimits] | None = None,
    change_filter: ChangeFilter | None = None,
) -> int:
    """Deliver the whole log; returns the number of steps. `parts` and `limits` may differ from step to step."""
    driver = Driver(sink, store, change_filter=change_filter)
    steps = 0
    try:
        while driver.step(parts() if callable(parts) else parts, limits() if callable(limits) else limits):
            steps += 1
    finally:
        sink.close()
    return steps
