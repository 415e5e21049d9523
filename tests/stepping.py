"""Steps without Spark: planned by the product's `Stepper`, run by an executor of the test's, committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tailrace import settings
from tailrace.delivery.contract import Parallel
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.delivery.step import PlannedStep, Stepper
from tailrace.delivery.task import Task, TaskResult, run_in_process
from tailrace.errors import PoisonError
from tailrace.log import planner
from tailrace.log.planner import LogBatch, Offset

Run = Callable[[Sequence[Task], Parallel], Sequence[TaskResult]]


def in_order(tasks: Sequence[Task], parallel: Parallel) -> Sequence[TaskResult]:
    return run_in_process(tasks)


class DrivenStepper(Stepper):
    """Delivers synchronously, as a pipeline and its query do together."""

    def __init__(
        self,
        configured: ConfiguredSink,
        store: settings.StoreSettings,
        run: Run = in_order,
        parallelism: Callable[[], int] = lambda: 1,
    ) -> None:
        super().__init__(configured, store, parallelism)
        self.run = run

    def open(self) -> None:
        """Also finishes a step that was begun and not committed."""
        super().open()
        if self._pending is not None:
            self.finish(self.next_step())

    def load_missing(self) -> int:
        """Load the tables that are due; returns how many there were."""
        self.look_for_loads()
        return self._load()

    def _load(self) -> int:
        count = 0
        while snapshots := self._next_loads():
            self.finish(self._plan_loads(snapshots))
            count += len(snapshots)
        return count

    def deliver(self, end: Offset) -> None:
        """Deliver everything up to an offset as one step, after the loads that are due and before those it reveals."""
        self._learn_source()
        self._load()
        start = self.offset()
        if end.lsn <= start.lsn or end.segment <= start.segment:
            return
        self.finish(self._plan_changes(planner.batch_between(self._reader, start, end)))
        self._load()

    def reload(self, patterns: Sequence[str]) -> int:
        count = super().reload(patterns)
        self._load()
        return count

    def ahead(self) -> LogBatch:
        return self._following()

    def finish(self, planned: PlannedStep | None) -> None:
        while planned is not None:
            self.begin(planned)
            try:
                results: Any = self.run(planned.tasks, self.sink.parallel)
                self.commit(planned, results)
                return
            except PoisonError as error:
                if not self.add_dead_letters(error):
                    raise
                planned = self._plan_changes(planner.batch_between(self._reader, planned.step.start, planned.step.end))
