"""Tasks beside a sink's steps, run by Spark's executors: for example, to answer requests for snapshots."""

from __future__ import annotations

from collections.abc import Sequence

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException

from tailrace.delivery.task import Task, TaskResult, run_or_error
from tailrace.errors import TailraceError
from tailrace.spark.sink_query import job_failure


def _result(task: Task) -> TaskResult | TailraceError:
    return run_or_error(task.run)


class SparkExecutor:
    """Runs the tasks of one sink, several at the same time."""

    def __init__(self, context: SparkContext, sink: str) -> None:
        self._context = context
        self._sink = sink

    def __call__(self, tasks: Sequence[Task]) -> list[TaskResult]:
        self._context.setLocalProperty("spark.scheduler.pool", self._sink)
        self._context.setJobDescription(f"{self._sink}: {len(tasks)} tasks beside its steps")
        try:
            found = self._context.parallelize(tasks, len(tasks)).map(_result).collect()
        except (PySparkException, Py4JError) as error:
            raise job_failure(self._sink, error) from error
        results = []
        for one in found:
            if isinstance(one, TailraceError):
                raise one
            results.append(one)
        return results
