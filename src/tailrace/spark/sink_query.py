"""A sink's streaming query: the batch's tasks stage a step, `foreachBatch` collects their results and commits it."""

from __future__ import annotations

import logging
import pickle
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tailrace.delivery.pipeline import Pipeline, QueryLostError
from tailrace.delivery.step import PlannedStep
from tailrace.delivery.task import TaskResult
from tailrace.errors import SinkError, SparkError, TailraceError
from tailrace.spark import java_process
from tailrace.spark.datasource import register
from tailrace.spark.progress import query_name
from tailrace.spark.session import first_line
from tailrace.spark.statement import runner
from tailrace.spark.statement.analysis import Statement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger("tailrace.deliver")

# A query takes a second or two to begin; four that begin at once, on one processor, eight.
_START_S: Final = 20.0
_RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception): (?!.*\bException\b.*at )")


class SinkQuery:
    """Carries the steps of one pipeline."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        steps: str,
        log: str,
        checkpoint: Path,
        statement: Statement | None = None,
    ) -> None:
        """`steps`: the address of the `StepServer`. `log`: the store's URL, shown by Spark."""
        self._spark = spark
        self._pipeline = pipeline
        self._steps = steps
        self._log = log
        self._checkpoint = checkpoint
        self._statement = statement
        self._query: StreamingQuery | None = None

    def start(self) -> None:
        # The destination's cursor is the truth: the checkpoint is scratch, and new at each start.
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        register(self._spark)
        # Sinks share executors fairly: jobs of one must not wait until a large one of another's is done.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", self._pipeline.name)
        results = (
            self._spark.readStream.format("tailrace")
            .option("steps", self._steps)
            .option("sink", self._pipeline.name)
            .option("tasks", str(self._statement is not None).lower())
            .load(self._log)
            .where("result IS NOT NULL")
        )
        self._query = (
            results.writeStream.queryName(query_name(self._pipeline.name))
            .foreachBatch(self._batch)
            .option("checkpointLocation", self._checkpoint.as_uri())
            .trigger(processingTime="0 seconds")
            .start()
        )

    def stop(self) -> None:
        query, self._query = self._query, None
        if query is None:
            return
        try:
            # Stopped earlier, the query would leave a process behind that complains that nobody answers.
            give_up_at = time.monotonic() + _START_S
            while _is_starting(query) and time.monotonic() < give_up_at:
                time.sleep(0.02)
            query.stop()
        except (PySparkException, Py4JError, OSError) as error:  # OSError: Java has ended, and its port is closed
            _log.debug("sink %s: the query did not stop: %s", self._pipeline.name, error)

    def failure(self) -> Exception | None:
        if self._query is None or self._query.isActive:
            return None
        return self._query.exception() or SinkError(f"sink {self._pipeline.name}: the streaming query was stopped")

    def is_lost(self) -> bool:
        return java_process.has_ended(self._spark)

    def _batch(self, batch: DataFrame, _: int) -> None:
        """Called by Spark for each batch. An exception would end the query, so the pipeline reports failures itself and
        plans the step again as the next batch."""
        self._pipeline.deliver(lambda planned: self._results(batch, planned))

    def _results(self, batch: DataFrame, planned: PlannedStep) -> Sequence[TaskResult | TailraceError]:
        try:
            if self._statement is not None:
                results = runner.run(self._statement, batch, planned)
            else:
                results = [pickle.loads(row.result) for row in batch.collect()]  # noqa: S301 (a task of ours pickled it)
        except (PySparkException, Py4JError) as error:
            if self._statement is not None and (failure := self._statement.failure(error)) is not None:
                raise failure from None
            if isinstance(error, Py4JError):
                self._check_java(error)
            raise job_failure(self._pipeline.name, error) from error
        except Exception as error:
            # While Java dies, pyspark and py4j raise whatever they meet first.
            self._check_java(error)
            raise
        return results

    def _check_java(self, error: Exception) -> None:
        if self.is_lost():
            raise QueryLostError("Spark's Java process has ended") from error


def job_failure(sink: str, error: BaseException) -> TailraceError:
    """Lost executors may come back; an exception in a task will be raised again."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # What the task raised is in the middle of a Java stack trace: the last line of Python's traceback says it.
    raised = [line for line in lines if _RAISED.match(line)]
    what = f"sink {sink}: a Spark job failed: {raised[0] if raised else first_line(error)}"
    return SparkError(what, "this is a bug in Tailrace or in the sink") if raised else SinkError(what)


def _is_starting(query: StreamingQuery) -> bool:
    return query.isActive and query.status["message"] in ("Initializing StreamExecution", "Initializing sources")
