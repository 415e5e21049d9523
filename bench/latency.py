"""Commit → durable: the latency of small transactions at random times, into files and into the S3 server."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from statistics import quantiles
from typing import Any

from bench.report import Report
from tailrace import settings
from tailrace.capture.capture import Capture
from tailrace.change import Lsn
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.embedded.s3 import S3Server
from tailrace.store import Store

_COMMITS = 400
_PER_SECOND = 50


def run(report: Report) -> None:
    report.title(f"Latency: commit → durable, {_COMMITS} small transactions at {_PER_SECOND} a second")
    with Postgres() as server, server.connect(autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id serial PRIMARY KEY, note text)")
        with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as directory:
            _measure(report, "local store", server, connection, Store.open(directory), 80)
        with S3Server() as s3:
            _measure(report, "S3 server", server, connection, Store.open(s3.url_of("bench"), s3.options), 120)


def _measure(report: Report, name: str, server: Postgres, connection: Any, store: Store, want_ms: float) -> None:
    slot = name.lower().replace(" ", "_")
    configured = settings.Settings(source=settings.SourceSettings(url=server.url, slot=slot))
    capture = Capture(configured, store)
    thread = threading.Thread(target=capture.run, daemon=True)
    thread.start()
    wait_until(lambda: capture.is_streaming, 60)
    rng = random.Random(1)
    committed: list[tuple[Lsn, float]] = []
    durable: list[float] = []
    finished = threading.Event()
    watcher = threading.Thread(target=_watch, args=(capture, committed, durable, finished))
    watcher.start()
    for _ in range(_COMMITS):
        time.sleep(rng.expovariate(_PER_SECOND))
        connection.execute("INSERT INTO t (note) VALUES ('x')")
        at = time.perf_counter()
        row = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
        # Once the durable LSN is past its record, a commit is durable. The next record begins here or after padding.
        committed.append((Lsn(Lsn.parse(row[0]) - 8), at))
    wait_until(lambda: len(durable) == _COMMITS, 60)
    finished.set()
    watcher.join()
    capture.stop()
    thread.join()
    cuts = quantiles([d * 1000 for d in durable], n=100)
    report.section(name)
    report.line("p50", f"{cuts[49]:.0f} ms", f"want ≤ {want_ms:.0f}", ok=cuts[49] <= want_ms)
    report.line("p95", f"{cuts[94]:.0f} ms")
    report.line("p99", f"{cuts[98]:.0f} ms")


def _watch(capture: Capture, committed: list[tuple[Lsn, float]], durable: list[float], finished: Any) -> None:
    while not finished.wait(0.0005):
        lsn = capture.durable_lsn
        while len(durable) < len(committed) and committed[len(durable)][0] <= lsn:
            durable.append(time.perf_counter() - committed[len(durable)][1])
