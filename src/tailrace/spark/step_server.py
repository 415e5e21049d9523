"""The driver's side of the steps' source: it answers the source processes and the tasks of all sinks over one Unix
socket."""

from __future__ import annotations

import atexit
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, Listener
from typing import Any, Final

from tailrace.change import Lsn
from tailrace.delivery.contract import Parallel
from tailrace.delivery.pipeline import Pipeline
from tailrace.delivery.step import PlannedStep
from tailrace.delivery.task import TaskResult
from tailrace.errors import TailraceError
from tailrace.owned_directory import OwnedDirectory
from tailrace.spark.step_source import OpenStep, StepPartition

PATIENCE_S: Final = 5.0
"""How long `latestOffset` waits for a step. It returns at once when there is one or the sink stops, so this only bounds
how often an idle query wakes up."""


class StepServer:
    """Runs from construction to `close`. The socket is in a directory that only this user can enter."""

    def __init__(self, pipelines: Callable[[], Mapping[str, Pipeline]]) -> None:
        self._pipelines = pipelines
        self._directory = OwnedDirectory("steps")
        self.address = str(self._directory.path / "socket")
        self._listener = Listener(self.address, "AF_UNIX", backlog=64)
        self._thread = threading.Thread(target=self._accept, name="step server", daemon=True)
        self._thread.start()
        # When Java dies, the process ends without `close`. Otherwise the directory would go before the socket in it,
        # which prints a traceback.
        atexit.register(self.close)

    def close(self) -> None:
        atexit.unregister(self.close)
        with suppress(OSError):
            self._listener.close()
        self._directory.remove()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(connection,), name="steps", daemon=True).start()

    def _serve(self, connection: Connection) -> None:
        with connection, suppress(EOFError, OSError):
            who, sink = connection.recv()
            pipeline = self._pipelines()[sink]
            answer: Callable[..., Any]
            match who:
                case "source":
                    answer = _StepSession(pipeline).answer
                case "load":
                    answer = pipeline.report_load
                case _:
                    answer = partial(_advance, pipeline)
            while True:
                connection.send(answer(*connection.recv()))


def _advance(
    pipeline: Pipeline, batch: int, cursor: Lsn, results: Sequence[TaskResult | TailraceError]
) -> OpenStep | None:
    """Answer the task of an open batch."""
    following = pipeline.advance(batch, cursor, results)
    return None if following is None else _open_step(following)


def _open_step(planned: PlannedStep) -> OpenStep:
    assert planned.step.after.cursor is not None
    return planned.step.after.cursor, [pickle.dumps(task) for task in planned.tasks]


class _StepSession:
    """One run of one sink's query. Its offsets number the steps, and say how far the log is delivered with each."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._number = 0
        self._planned: PlannedStep | None = None
        self._initial = self._offset()

    def answer(self, what: str, *offsets: dict[str, Any]) -> Any:
        match what:
            case "initial":
                return self._initial  # asked for after the first "latest", oddly
            case "latest":
                if (planned := self._pipeline.plan(PATIENCE_S)) is not None:
                    self._planned = planned
                    self._number += 1
                return self._offset()
            case "partitions":
                return self._partitions(*offsets)
        raise AssertionError(what)

    def _offset(self) -> dict[str, Any]:
        cursor = self._pipeline.cursor if self._planned is None else self._planned.step.after.cursor
        return {"step": self._number, "cursor": str(cursor)}

    def _partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[StepPartition]:
        if start == end or self._planned is None:
            return []
        assert end["step"] == self._number, "a query never goes back: its checkpoint is new at each start"
        cursor, tasks = _open_step(self._planned)
        if (batch := self._pipeline.keep_open()) is not None:
            return [StepPartition(tasks, cursor, batch)]
        if self._pipeline.sink.parallel is Parallel.NONE or self._planned.fits_one_task:
            return [StepPartition(tasks)]
        return [StepPartition([task]) for task in tasks]
