"""A sink driven without an engine: steps planned, staged and committed as the contract says, one by one."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tailrace.change import Lsn
from tailrace.log import decoding, plan
from tailrace.log.decoding import Admission
from tailrace.log.plan import Limits, Slice
from tailrace.log.reader import LogReader
from tailrace.sinks.base import Part, Receipt, State, Step
from tailrace.store import Store


@dataclass(frozen=True)
class Planned:
    """A step, and which slices of the log each of its parts has."""

    step: Step
    parts: tuple[tuple[Slice, ...], ...]
    admission: Admission


class Driver:
    """Steps from where the sink stands. What an engine sends to other processes goes through pickle here too."""

    def __init__(self, sink: Any, store: Store, *, admission: Admission | None = None) -> None:
        self.sink = sink
        self.reader = LogReader(store)
        self.state: State = sink.open()
        self._admission = admission

    def plan(self, parts: int = 1, limits: Limits | None = None) -> Planned | None:
        """The next step; None at the log's end."""
        start = plan.begin(self.reader, self.state.cursor)
        batch = plan.following(self.reader, start, limits)
        if batch.end == start or batch.end.lsn == self.state.cursor:
            return None
        slices = batch.parts(parts, whole_transactions=self.sink.whole_transactions)
        after = replace(self.state, cursor=batch.end.lsn)
        step = Step(self.state, after, start, batch.end, len(slices))
        admission = self._admission or Admission(tables=self.state.tables)
        admission = replace(admission, start=max(admission.start, self.state.cursor or Lsn(0)))
        return Planned(step, tuple(slices), admission)

    def stage(self, planned: Planned) -> list[Receipt]:
        return [self.stage_part(planned, number) for number in range(len(planned.parts))]

    def stage_part(self, planned: Planned, number: int) -> Receipt:
        copy = pickle.loads(pickle.dumps(self.sink))
        part = Part(planned.step, number, self._chunks(planned, number))
        return pickle.loads(pickle.dumps(copy.stage(part)))

    def commit(self, planned: Planned, receipts: list[Receipt]) -> None:
        self.sink.commit(planned.step, receipts)
        self.state = planned.step.after

    def step(self, parts: int = 1, limits: Limits | None = None) -> bool:
        """One step; False at the log's end."""
        planned = self.plan(parts, limits)
        if planned is None:
            return False
        self.sink.begin(planned.step)
        self.commit(planned, self.stage(planned))
        return True

    def _chunks(self, planned: Planned, number: int) -> Iterator[decoding.Chunk]:
        as_text = self.sink.values == "text"
        slices = planned.parts[number]
        yield from decoding.with_last(decoding.chunks(self.reader, slices, planned.admission, as_text=as_text))


def deliver(
    sink: Any,
    store: Store,
    *,
    parts: int | Callable[[], int] = 1,
    limits: Limits | Callable[[], Limits] | None = None,
    admission: Admission | None = None,
) -> int:
    """Everything that is in the log now; how many steps it took. `parts` and `limits` may differ from step to step."""
    driver = Driver(sink, store, admission=admission)
    steps = 0
    try:
        while driver.step(parts() if callable(parts) else parts, limits() if callable(limits) else limits):
            steps += 1
    finally:
        sink.close()
    return steps
