"""Commit → visible in the replica: the latency of small transactions at random times, and where the time goes.

The clock of each transaction starts when its commit returns to the client, and stops when a poll of the replica sees
its row. Four times in between are recorded: the segment's file was written, the step began, its rows were decoded and
staged, its commit returned. Capture runs in a separate process, as in production.
"""

from __future__ import annotations

import bisect
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

import psycopg

from bench import timed_sink
from bench.report import Report
from bench.timed_sink import STEPS
from tailrace import settings, sinks
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.log.reader import LogReader
from tailrace.spark.engine import Engine
from tailrace.store import FileStore, Store

_PER_SECOND = 50
_COMMITS = 1000
# Java compiles frequently run code. The measurement is of a warm process, as in production.
_WARMING = 500
_WANT_MS = {50: 200, 95: 400}


@dataclass
class _Commits:
    """The commit time of each row, and the time it was first seen; by id, from 1."""

    committed: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)


def run(report: Report) -> None:
    report.title(f"Delivery: commit → visible in the replica, {_COMMITS} transactions at {_PER_SECOND} a second")
    with (
        Postgres() as source,
        Postgres() as destination,
        tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory,
        source.connect() as connection,
    ):
        connection.execute("CREATE TABLE t (id serial PRIMARY KEY, note text)")
        with Capturing(source, directory):
            commits = _measure(connection, destination, directory)
        _print(report, commits, directory)


class Capturing:
    """Runs `tailrace capture` until the context ends."""

    def __init__(self, source: Postgres, store_url: str) -> None:
        self._environment = {"TAILRACE_SOURCE_URL": source.url, "TAILRACE_STORE_URL": store_url}

    def __enter__(self) -> None:
        command = [sys.executable, "-m", "tailrace", "capture"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ | self._environment
        )

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


def _measure(connection: psycopg.Connection[Any], destination: Postgres, store_url: str) -> _Commits:
    store = Store.open(store_url)
    assert wait_until(lambda: any(i.key.endswith("meta.json") for i in store.list("snapshots")), 60), "no snapshot"
    configured = settings.Settings(
        store=settings.StoreSettings(url=store_url),
        sinks=({"type": timed_sink.TYPE, "name": "replica", "url": destination.url},),
    )
    STEPS.clear()
    engine = Engine(configured, sinks.from_settings(configured, {}))
    engine.start()
    commits = _Commits()
    finished = threading.Event()
    watcher = threading.Thread(target=_watch, args=(destination, commits, finished))
    try:
        assert wait_until(lambda: engine.wait(engine.end(), 0), 120), engine.sinks["replica"].error
        watcher.start()
        rng = random.Random(1)
        for _ in range(_WARMING + _COMMITS):
            time.sleep(rng.expovariate(_PER_SECOND))
            connection.execute("INSERT INTO t (note) VALUES ('x')")
            commits.committed.append(time.time())
        assert wait_until(lambda: len(commits.seen) == len(commits.committed), 60), "rows did not arrive in time"
    finally:
        finished.set()
        if watcher.is_alive():
            watcher.join()
        engine.stop()
    return commits


def _watch(destination: Postgres, commits: _Commits, finished: threading.Event) -> None:
    with destination.connect() as connection:
        while not finished.wait(0.002):
            row = connection.execute("SELECT max(id) FROM t").fetchone()
            now = time.time()
            newest = row[0] or 0 if row else 0
            commits.seen.extend([now] * (newest - len(commits.seen)))


def _print(report: Report, commits: _Commits, store_url: str) -> None:
    whole = [seen - committed for seen, committed in zip(commits.seen, commits.committed, strict=True)][_WARMING:]
    cuts = quantiles([1000 * d for d in whole], n=100)
    report.section(f"after {_WARMING} to warm up")
    for percent in (50, 95, 99):
        want = _WANT_MS.get(percent)
        figure = cuts[percent - 1]
        report.line(
            f"p{percent}", f"{figure:.0f} ms", f"want ≤ {want}" if want else "", ok=figure <= want if want else None
        )
    report.section("where the time goes, median of each")
    for name, spans in _spans(commits, store_url).items():
        spans = spans[_WARMING:]
        report.line(name, f"{1000 * median(spans):.0f} ms", f"95 %: {1000 * quantiles(spans, n=20)[18]:.0f} ms")
    counted = [s for s in STEPS if s.begun >= commits.committed[_WARMING]]
    if len(counted) > 1:
        apart = (counted[-1].begun - counted[0].begun) / (len(counted) - 1)
        report.line("between steps", f"{1000 * apart:.0f} ms", f"{len(whole) / len(counted):.1f} transactions each")


def _spans(commits: _Commits, store_url: str) -> dict[str, list[float]]:
    store = Store.open(store_url)
    assert isinstance(store, FileStore)
    written = {id: at for step in STEPS for id, at in step.segments.items()}
    reader = LogReader(store)
    segments = {id: header.end_lsn for id in sorted(written) if (header := reader.header(id)) is not None}
    ends = list(segments.values())
    step_ends = [step.end for step in STEPS]
    names = (
        "commit → segment written",
        "→ step begun (plan)",
        "→ staged (read, decode)",
        "→ committed",
        "→ seen",
    )
    spans: dict[str, list[float]] = {name: [] for name in names}
    rows = [c for c in reader.changes() if c.relation is not None]
    for change, committed, seen in zip(rows, commits.committed, commits.seen, strict=True):
        lsn = change.position.commit_lsn
        step = STEPS[bisect.bisect_right(step_ends, lsn)]
        segment = written[list(segments)[bisect.bisect_right(ends, lsn)]]
        times = (committed, segment, step.begun, step.staged, step.committed, seen)
        for name, before, after in zip(names, times, times[1:], strict=False):
            spans[name].append(after - before)
    return spans
