"""The delivery engine: the pipelines of all configured sinks on one Spark session."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from tailrace.delivery.contract import UsesExecutor
from tailrace.delivery.lag import LagMeter
from tailrace.delivery.pipeline import Pipeline
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.errors import TailraceError
from tailrace.log import planner, snapshot
from tailrace.log.planner import Offset
from tailrace.log.reader import LogReader
from tailrace.owned_directory import OwnedDirectory
from tailrace.settings import Settings
from tailrace.spark import class_archive, engine_session, java_process
from tailrace.spark.executor import SparkExecutor
from tailrace.spark.progress import ProgressListener
from tailrace.spark.session import StartingSession, processors
from tailrace.spark.sink_query import SinkQuery
from tailrace.spark.statement.analysis import Statement
from tailrace.spark.statement.runner import with_statement
from tailrace.spark.step_server import StepServer
from tailrace.store import Store

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_log = logging.getLogger("tailrace.deliver")

# The published status of each sink: often enough to see it move.
_STATUS_S: Final = 2.0
# The current step is worth waiting for at the end: the next run would repeat it from its start.
_GRACE_S: Final = 30.0


class Engine:
    """Call `start`, then `wait` or do anything else, then `stop`."""

    def __init__(
        self,
        settings: Settings,
        configured: Sequence[ConfiguredSink],
        *,
        master: str | None = None,
        checkpoints: Path | None = None,
        spark: SparkSession | None = None,
        starting: StartingSession | None = None,
    ) -> None:
        """`spark`: the caller's session, which stays open. Without it, the engine has a session of its own, which it
        stops at the end: `starting`, or one that it starts itself."""
        self._settings = settings
        self._configured = configured
        self._master = master
        self._owns_session = spark is None
        self._spark = spark
        self._starting = starting
        self._temporary: OwnedDirectory | None = None
        if checkpoints is None:
            self._temporary = OwnedDirectory("checkpoints")
            checkpoints = self._temporary.path
        self._checkpoints = checkpoints
        self._store = Store.open(settings.store.url, settings.store.options)
        self._reader = LogReader(self._store)
        self._stopping = threading.Event()
        self._publisher = threading.Thread(target=self._publish, name="status of sinks", daemon=True)
        self._first_worker: threading.Thread | None = None
        self._steps: StepServer | None = None
        self._progress = ProgressListener(lambda: self.sinks)
        self._statements: dict[str, Statement] = {}
        self.sinks: Mapping[str, Pipeline] = {}

    def prepare(self) -> None:
        """Start Spark and make the pipelines: they can be rewound before they are started."""
        if self._spark is None:
            starting = self._starting or engine_session.start(self._settings, self._configured, self._master)
            self._spark = starting.wait()
            class_archive.create_in_background()
        context = self._spark.sparkContext
        if self._owns_session:
            # The process that workers are forked from takes a second to start: meanwhile the queries are planned.
            self._first_worker = threading.Thread(target=_start_worker, args=(context,), daemon=True)
            self._first_worker.start()
        if context.uiWebUrl:
            _log.info("Spark's pages: %s", context.uiWebUrl)

        def parallelism() -> int:
            return max(context.defaultParallelism, 1)

        open_batches = threading.Semaphore(_open_batches(str(context.master)))
        self._steps = StepServer(lambda: self.sinks)
        self._spark.streams.addListener(self._progress)
        for configured in self._configured:
            if isinstance(configured.sink, UsesExecutor):
                configured.sink.attach(SparkExecutor(context, configured.name), parallelism)
        self.sinks = {
            c.name: Pipeline(self._with_statement(c), self._settings.store, parallelism, self._active, open_batches)
            for c in self._configured
        }

    def start(self) -> None:
        if not self.sinks:
            self.prepare()
        assert self._spark is not None
        assert self._steps is not None
        for pipeline in self.sinks.values():
            checkpoint = self._checkpoints / pipeline.name
            statement = self._statements.get(pipeline.name)
            url = self._settings.store.url
            pipeline.start(SinkQuery(self._spark, pipeline, self._steps.address, url, checkpoint, statement))
        self._publisher.start()

    def stop(self) -> None:
        """Finish the current steps, or leave those that take too long to the next run."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        stops = [
            threading.Thread(target=pipeline.stop, args=(_GRACE_S,), daemon=True) for pipeline in self.sinks.values()
        ]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()
        if self._publisher.is_alive():
            self._publisher.join()
        if self._steps is not None:
            self._steps.close()
        if self._first_worker is not None:
            self._first_worker.join(_GRACE_S)  # Spark complains about jobs that it ends
        if self._owns_session and self._spark is not None:
            self._spark.stop()
        else:
            if self._spark is not None:
                self._spark.streams.removeListener(self._progress)
            for statement in self._statements.values():
                statement.close()
        if self._temporary is not None:
            self._temporary.remove()

    @property
    def java_exit_code(self) -> int | None:
        """How the Java process of the engine's own session has ended: this process cannot start another. None while it
        runs."""
        process = java_process.of(self._spark) if self._owns_session and self._spark is not None else None
        return None if process is None else process.poll()

    def end(self) -> Offset:
        """The end of the log now."""
        return planner.latest_offset(self._reader)

    def wait(self, until: Offset, timeout_s: float | None = None) -> bool:
        """Wait until every sink has delivered everything before an offset. False: one failed or was paused by its
        destination, or time ran out."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._stopping.is_set():
            late = [p for p in self.sinks.values() if p.has_failed or not p.has_delivered(until)]
            if all(p.has_failed or p.is_paused_by_destination for p in late):
                return not late
            if deadline is not None and time.monotonic() > deadline:
                return False
            self._stopping.wait(0.05)
        return False

    def _with_statement(self, configured: ConfiguredSink) -> ConfiguredSink:
        common = configured.common
        if not (common.sql or common.transform):
            return configured
        assert self._spark is not None
        found, self._statements[common.name] = with_statement(self._spark, configured, self._settings.store)
        return found

    def _active(self) -> int:
        return sum(pipeline.is_active for pipeline in self.sinks.values())

    def _publish(self) -> None:
        meter = LagMeter(self._store)
        announced: bytes | None = None
        while not self._stopping.wait(_STATUS_S):
            try:
                meter.follow()
                known, announced = announced, snapshot.announcement(self._store)
                for pipeline in self.sinks.values():
                    if announced != known:
                        pipeline.look_for_loads()
                    pipeline.publish_status(meter)
            except TailraceError as error:
                _log.debug("status of sinks: %s", error)


def _start_worker(context: SparkContext) -> None:
    try:
        context.parallelize([0], 1).count()
    except (PySparkException, Py4JError, OSError) as error:  # the engine was stopped meanwhile
        _log.debug("no worker was started ahead: %s", error)


def _open_batches(master: str) -> int:
    """How many batches may stay open: each occupies a slot. Half of the slots are left for the rest. On a cluster none
    may, because tasks on other machines do not reach the server of the steps."""
    if (found := re.match(r"local(?:\[(\d+|\*))?", master)) is None:
        return 0
    slots = found[1] or "1"
    return (processors() if slots == "*" else int(slots)) // 2
