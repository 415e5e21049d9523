"""A sink that delivers in a thread, by the product's pipeline without Spark, and the capture of its source."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.capturing import CaptureThread, current_lsn
from tests.fixtures.postgres import Database

from tailrace import settings, sinks
from tailrace.capture.postgres.snapshot_job import SnapshotJob
from tailrace.delivery import control
from tailrace.delivery.lag import LagMeter
from tailrace.delivery.pipeline import Pipeline
from tailrace.delivery.repair import Repair, RepairOutcome, load_outcome
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.delivery.task import run_or_error
from tailrace.embedded.process import wait_until
from tailrace.log import planner
from tailrace.log.reader import LogReader
from tailrace.store import Store
from tailrace.verify.destination import read_rows
from tailrace.verify.report import SinkReport
from tailrace.verify.row_repair import RepairTotals, repair_differences
from tailrace.verify.row_scan import SparkOnDemand
from tailrace.verify.verification import Verification

NAME = "replica"


class RunningSink:
    """Delivers while the context lasts."""

    def __init__(self, configured: ConfiguredSink, store: settings.StoreSettings) -> None:
        self.pipeline = Pipeline(configured, store, lambda: 1)
        self._store = Store.open(store.url)
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._deliver, self._obey)]

    def __enter__(self) -> RunningSink:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self.pipeline.sink.close()

    def _deliver(self) -> None:
        while not self._stopping.is_set():
            if self.pipeline.plan(0.2) is not None:
                self.pipeline.deliver(lambda planned: [run_or_error(task.run) for task in planned.tasks])

    def _obey(self) -> None:
        meter = LagMeter(self._store)
        while not self._stopping.wait(0.1):
            meter.follow()
            self.pipeline.publish_status(meter)


@dataclass
class Scene:
    """A captured source and a sink that follows it."""

    source: Database
    given: settings.Settings
    configured: ConfiguredSink
    running: RunningSink
    capture: CaptureThread
    spark: SparkOnDemand | None = None
    """Compares large tables."""

    @property
    def store(self) -> Store:
        return Store.open(self.given.store.url)

    def catch_up(self) -> None:
        """Wait until the sink has everything that is committed."""
        with self.source.connect() as connection:
            connection.execute("SELECT pg_logical_emit_message(true, 'tests.verify', '')")
            self.capture.wait_for(current_lsn(connection))
        pipeline, end = self.running.pipeline, planner.latest_offset(LogReader(self.store))
        assert wait_until(lambda: pipeline.has_failed or pipeline.has_delivered(end), 60), "the sink is behind"
        assert not pipeline.has_failed, pipeline.error

    def verification(self) -> Verification:
        return Verification(self.given, self.configured, wait_s=120, spark=self.spark)

    def verify(self) -> SinkReport:
        return self.verification().run()

    def repair(self, report: SinkReport) -> tuple[SinkReport, RepairTotals]:
        return repair_differences(self.verification(), report, self.store, 120)

    def plant(self, table: str, **rows: Any) -> None:
        """Have the sink write wrong rows: `inserted`, `updated` or `deleted`."""
        with read_rows(self.given, self.configured) as reader:
            (stored,) = [stored for stored in reader.tables.values() if stored.relation.name == table]
            assert reader.state.cursor is not None
            plant = Repair(stored.relation, stored.target, reader.state.cursor, **rows)
        plant.save(self.store, NAME)
        control.repair(self.store, NAME, [plant.id])
        assert wait_until(lambda: load_outcome(self.store, NAME, plant.id) is not None, 60)
        assert load_outcome(self.store, NAME, plant.id) == RepairOutcome(applied=len(plant))


@contextmanager
def _ticking(source: Database) -> Iterator[None]:
    """Write to the WAL all the time: on an idle source, the log follows the WAL only every ten seconds."""
    stopping = threading.Event()

    def run() -> None:
        with source.connect() as connection:
            while not stopping.wait(0.1):
                connection.execute("SELECT pg_logical_emit_message(true, 'tests.verify', 'tick')")

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


@contextmanager
def scene(
    source: Database, directory: Path, sink: dict[str, Any], *, is_idle: bool = False, delivers: bool = True
) -> Iterator[Scene]:
    """Capture all tables of the source, take snapshots of them, and have a sink follow, at once if it `delivers`."""
    if not source.rows("SELECT 1 FROM pg_publication WHERE pubname = 'tailrace'"):
        source.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    given = settings.Settings(
        source=settings.SourceSettings(url=source.url),
        store=settings.StoreSettings((directory / "store").as_uri()),
        capture=settings.CaptureSettings(seal_after_ms=5),
        sinks=({"name": NAME, **sink},),
    )
    (configured,) = sinks.from_settings(given, {})
    store = Store.open(given.store.url)
    with CaptureThread(given, store) as capture, nullcontext() if is_idle else _ticking(source):
        job = SnapshotJob(given)
        job.start()
        assert job.wait(60)
        # The process has two objects of the sink, as `tailrace verify` is another process than the one that delivers.
        (delivering,) = sinks.from_settings(given, {})
        running = RunningSink(delivering, given.store)
        with running if delivers else nullcontext():
            yield Scene(source, given, configured, running, capture)


def named(report: SinkReport) -> Sequence[tuple[str, str, dict[str, str | None], dict[str, Any]]]:
    """The differences: table, kind, key and values."""
    return sorted(
        (
            (table.table, difference.kind, difference.key_values, difference.values)
            for table in report.tables
            for difference in table.differences
        ),
        key=str,
    )
