"""The PostgreSQL sink, which also records when each step is staged and committed; configured by dotted path."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tailrace.change import Lsn
from tailrace.delivery.contract import Receipt, Step
from tailrace.delivery.sink_settings import SinkContext
from tailrace.sinks.postgres import PostgresSink

TYPE: Final = "bench.timed_sink:TimedSink"


@dataclass
class Times:
    """The times of one step."""

    end: Lsn
    begun: float
    segments: dict[int, float]
    """The time at which each of its segments was written, by id."""
    staged: float = 0.0
    committed: float = 0.0


STEPS: Final[list[Times]] = []
"""The steps of this process, the driver, where steps begin and are committed. Loads are not included."""


class TimedSink(PostgresSink):
    def __init__(self, name: str, options: Any, context: SinkContext) -> None:
        super().__init__(name, options, context)
        self._log = Path(context.store.url) / "log"

    def begin(self, step: Step) -> None:
        now = time.time()
        if not step.loads:
            files = {id: self._log / f"{id:020d}.parquet" for id in range(step.start.segment + 1, step.end.segment + 1)}
            written = {id: file.stat().st_mtime for id, file in files.items()}
            STEPS.append(Times(step.end.lsn, now, written))
        super().begin(step)

    def commit(self, step: Step, receipts: Sequence[Receipt]) -> None:
        staged = time.time()
        super().commit(step, receipts)
        if not step.loads and STEPS and STEPS[-1].end == step.end.lsn:
            STEPS[-1].staged, STEPS[-1].committed = staged, time.time()
