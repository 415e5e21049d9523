"""What benchmarks of message and document sinks share: the drain of a ready log beside a bare client, the latency."""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import psutil

from bench.delivery_latency import Capturing
from bench.ready_log import ReadyLog
from bench.report import Report
from tailrace import settings, sinks
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.log import decoding, planner
from tailrace.log.reader import LogReader
from tailrace.spark import engine_session
from tailrace.spark.engine import Engine
from tailrace.store import Store

EVENTS = 1_000_001
"""The inserts of a ready log, and the row that says that they are finished."""
_ROUNDS = 3
_LIMIT_S = 600.0
_PER_SECOND = 50
_COMMITS = 1000
_WARMING = 500

Server = TypeVar("Server")


@dataclass(frozen=True)
class Drain(Generic[Server]):
    """A ready log drained into a new server in each round."""

    name: str
    """Of the sinks. A log that is drained again needs another name, because the sinks' cursors are in its store."""
    start: Callable[[], AbstractContextManager[Server]]
    sink: Callable[[Server], Mapping[str, Any]]
    """The sink's settings, without its name."""
    publish: Callable[[Server], float]
    """Publishes the same messages without Tailrace, and returns the seconds."""
    check: Callable[[Server], None]
    """Asserts that the server has each message once."""
    events: int = EVENTS

    def run(self, report: Report, log: ReadyLog, least_rate: float = 60_000, least_ratio: float = 0.6) -> float:
        """Print the rates, and return that of Tailrace."""
        spark = engine_session.start(settings.Settings(), ()).wait()
        ours: list[float] = []
        bare: list[float] = []
        processors: list[float] = []
        try:
            for round_ in range(_ROUNDS + 1):
                with self.start() as server:
                    bare.append(self.publish(server))
                with self.start() as server:
                    name = f"{self.name}{round_}"
                    configured = settings.Settings(
                        store=settings.StoreSettings(url=log.store_url), sinks=({"name": name, **self.sink(server)},)
                    )
                    engine = Engine(configured, sinks.from_settings(configured, {}), spark=spark)
                    before, began = _cpu(), time.monotonic()
                    engine.start()
                    try:
                        done = engine.wait(engine.end(), _LIMIT_S)
                        ours.append(time.monotonic() - began)
                        assert done, engine.sinks[name].error or "not delivered in time"
                        processors.append(_cpu() - before)
                    finally:
                        engine.stop()
                    self.check(server)
        finally:
            spark.stop()
        rate, alone = (self.events / statistics.median(times[1:]) for times in (ours, bare))
        report.line("bare publisher of equal bytes", f"{alone:,.0f} events/s")
        least = min(least_rate, least_ratio * alone)
        report.line("deliver", f"{rate:,.0f} events/s", f"want ≥ {least:,.0f}", ok=rate >= least)
        report.line("ratio to the bare publisher", f"{rate / alone:.2f}")
        processor_s = statistics.median(processors[1:])
        report.line("CPU seconds per million", f"{processor_s * 1e6 / self.events:.1f}", "ours, Spark's Java included")
        return rate


def chunks(log: ReadyLog) -> Iterator[decoding.Chunk]:
    """The changes of a ready log, for a bare publisher to encode before its clock starts."""
    reader = LogReader(Store.open(log.store_url))
    batch = planner.next_batch(reader, planner.start_offset(reader, None), planner.UNLIMITED)
    for _, chunk in decoding.chunks(reader, batch.slices, decoding.ChangeFilter(), as_text=True):
        yield [run for run in chunk if isinstance(run, decoding.TableChanges)]


def _cpu() -> float:
    """The CPU seconds of this process and its children, except the servers."""
    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            command = " ".join(process.cmdline())
            if any(
                name in command
                for name in (
                    *("postgres", "pg_", "nats-server", "valkey-server", "kafka.Kafka", "org.opensearch", "beam"),
                    "/bin/sh",
                )
            ):
                continue
            times = process.cpu_times()
            total += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return total


Watch = Callable[[list[float], threading.Event], None]
"""Appends the time at which each message is received, until the event is set. Runs in a thread."""


def measure_latency(report: Report, name: str, sink: Mapping[str, Any], watch: Watch) -> None:
    """Print the time from a commit to a consumer of its message."""
    report.title(f"{name}: commit → a consumer, {_COMMITS} transactions at {_PER_SECOND} a second")
    with (
        Postgres() as source,
        tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory,
        source.connect() as connection,
    ):
        connection.execute("CREATE TABLE t (id serial PRIMARY KEY, note text)")
        with Capturing(source, directory):
            store = Store.open(directory)
            assert wait_until(lambda: any(i.key.endswith("meta.json") for i in store.list("snapshots")), 60)
            configured = settings.Settings(
                store=settings.StoreSettings(url=directory), sinks=({"name": "bus", **sink},)
            )
            engine = Engine(configured, sinks.from_settings(configured, {}))
            engine.start()
            seen: list[float] = []
            committed: list[float] = []
            finished = threading.Event()
            watcher = threading.Thread(target=watch, args=(seen, finished))
            try:
                connection.execute("INSERT INTO t (note) VALUES ('first')")
                assert wait_until(lambda: engine.wait(engine.end(), 0), 120), engine.sinks["bus"].error
                watcher.start()
                assert wait_until(lambda: len(seen) >= 1, 60), "the consumer did not start in time"
                seen.clear()
                rng = random.Random(1)
                for _ in range(_WARMING + _COMMITS):
                    time.sleep(rng.expovariate(_PER_SECOND))
                    connection.execute("INSERT INTO t (note) VALUES ('x')")
                    committed.append(time.time())
                assert wait_until(lambda: len(seen) >= len(committed), 60), "messages did not arrive in time"
            finally:
                finished.set()
                watcher.join()
                engine.stop()
    spans = np.array([1000 * (s - c) for s, c in zip(seen, committed, strict=True)][_WARMING:])
    report.section("after 500 to warm up")
    for percent, want in ((50, 150), (95, None)):
        figure = float(np.percentile(spans, percent))
        ok = None if want is None else figure <= want
        report.line(f"p{percent}", f"{figure:.0f} ms", f"want ≤ {want}" if want else "", ok=ok)
