"""The source of a sink's streaming query: each batch is one step, planned by the driver, staged by the batch's tasks.

Spark runs a Python source in three places. `latestOffset` and `partitions` run in a process of their own beside the
driver; they ask the driver's `StepServer` over a Unix socket, because the driver knows the sink. `read` runs in the
executors' Python workers: it reads, decodes, shapes and stages, and yields one row for each change, the first of which
carries the task's pickled result. So Spark's own figures count changes, and hardly any data crosses into Java.

Under a trickle, a batch stays open on the driver's machine: its task hands in each step's results over the socket, gets
the next step, and yields the rows of all of them at the end.

This module is imported by the source's process, which stays small: it imports neither Arrow nor the log.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Client, Connection
from typing import TYPE_CHECKING, Any, Final, Self

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa

    from tailrace.delivery.task import StageTask, TaskResult
    from tailrace.errors import TailraceError

SCHEMA = "result binary"
"""One row for each change. `result` is NULL, except in the first row of each task. For a sink with a statement, one row
for each task, which is pickled in `result`."""


_REPORT_S: Final = 1.0

OpenStep = tuple[Any, Sequence[bytes]]
"""A step of an open batch: the cursor that it leads to, and its tasks, pickled."""


class StepPartition(InputPartition):
    """The work of one Spark task: some of a step's tasks, pickled, to be run in order."""

    def __init__(self, tasks: Sequence[bytes], cursor: Any = None, open_batch: int | None = None) -> None:
        """For a batch that stays open, `open_batch` is its number, and `cursor` is where its first step leads to."""
        self.tasks = tuple(tasks)
        self.cursor = cursor
        self.open_batch = open_batch


class StepReader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str]) -> None:
        self._address = options["steps"]
        self._sink = options["sink"]
        self._gives_tasks = options.get("tasks") == "true"
        self._connection: Connection | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_connection": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        return self._call("initial")  # type: ignore[no-any-return]

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802 (Spark's name)
        return self._call("latest")  # type: ignore[no-any-return]

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._call("partitions", start, end)  # type: ignore[no-any-return]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, StepPartition)
        if self._gives_tasks:
            # A statement is evaluated between reading and staging: both are done further on in the same Spark task.
            yield _rows(partition.tasks)
        elif partition.open_batch is not None:
            yield _rows((), self._run_open(partition.open_batch, (partition.cursor, partition.tasks)))
        else:
            with LoadReporter(self._address, self._sink) as reporter:
                for result, changes in _run(partition.tasks, reporter.report):
                    yield _rows((pickle.dumps(result),), max(changes - 1, 0))
        _freeze()

    def _run_open(self, batch: int, step: OpenStep | None) -> int:
        """Run the steps of an open batch. Returns how many changes they had."""
        total = 0
        with Client(self._address, "AF_UNIX") as connection:
            connection.send(("task", self._sink))
            while step is not None:
                cursor, tasks = step
                done = list(_run(tasks))
                total += sum(changes for _, changes in done)
                connection.send((batch, cursor, [result for result, _ in done]))
                step = connection.recv()
        return total

    def stop(self) -> None:
        """Also called when the query has ended. Spark closes the connection, then ends this process, which would print
        a traceback about the one if the other comes late."""
        if isinstance(sys.exception(), EOFError | ConnectionError):
            os._exit(0)

    def _call(self, *request: Any) -> Any:
        if self._connection is None:
            self._connection = Client(self._address, "AF_UNIX")
            self._connection.send(("source", self._sink))
        self._connection.send(request)
        return self._connection.recv()


class LoadReporter:
    """Reports to the driver how many rows of a load a task has read, every second and at its end."""

    def __init__(self, address: str, sink: str) -> None:
        self._address = address
        self._sink = sink
        self._connection: Connection | None = None
        self._is_reachable = True
        self._reported_at = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def report(self, task: StageTask, rows: int) -> None:
        now = time.monotonic()
        if task.rows is None or (rows < task.rows.chunk.rows and now - self._reported_at < _REPORT_S):
            return
        self._reported_at = now
        try:
            self._send((task.rows.load.snapshot, task.number), rows)
        except (OSError, EOFError):
            # On a cluster, tasks on other machines do not reach the driver's socket: the rows count with their step.
            self._is_reachable = False

    def _send(self, part: tuple[str, int], rows: int) -> None:
        if not self._is_reachable:
            return
        if self._connection is None:
            self._connection = Client(self._address, "AF_UNIX")
            self._connection.send(("load", self._sink))
        self._connection.send((part, rows))
        self._connection.recv()


def _run(
    tasks: Sequence[bytes], report: Callable[[StageTask, int], None] = lambda *_: None
) -> Iterator[tuple[TaskResult | TailraceError, int]]:
    """Run tasks in order, up to one that fails: what comes after it must not become visible before it. Returns each
    one's result and number of changes. `report` is called with the number of changes so far."""
    from tailrace.delivery.task import run_or_error
    from tailrace.errors import TailraceError

    for task in tasks:
        one: StageTask = pickle.loads(task)  # noqa: S301 (the driver pickled it)
        result = run_or_error(partial(one.run, partial(report, one)))
        if isinstance(result, TailraceError):
            yield result, 0
            return
        if one.rows is not None:
            report(one, one.rows.chunk.rows)  # also those that a condition leaves out
        yield result, result.changes


def _rows(results: Sequence[bytes], others: int = 0) -> pa.RecordBatch:
    import pyarrow as pa

    values = pa.concat_arrays([pa.array(results, pa.binary()), pa.nulls(others, pa.binary())])
    return pa.RecordBatch.from_arrays([values], names=["result"])


_runs = 0


def _freeze() -> None:
    """Take what a worker has loaded out of garbage collection. Spark collects garbage after each task, which takes 15
    to 20 ms of processor time with pyarrow loaded. Modules keep being imported during the first tasks."""
    global _runs
    _runs += 1
    if _runs in (1, 2, 4, 8, 16, 32, 64):
        gc.collect()
        gc.freeze()
