"""A trickle of small transactions: what it costs, how late changes are, and what idle sinks cost.

`tailrace deliver` and `tailrace capture` run as processes of their own, as in production. The latency of a transaction
runs from the return of its commit to the first poll of the destination that sees its row. Processor time is that of
capture, deliver and all their children, without the PostgreSQL servers.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import psutil
import psycopg

from bench.report import Report
from tailrace.embedded.nats import NatsServer
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until

_PER_SECOND = 50
# Java compiles code that runs often. The measurement is of a warm process, as in production.
_WARM_UP_S = 60.0
_MEASURED_S = 40.0
_IDLE_S = 20.0
# By then the interval of the sink `files` is over, and Spark has stopped workers that were idle for a minute.
_UNTIL_IDLE_S = 90.0

_SEEN = {"replica": "SELECT max(id) FROM t", "audit": "SELECT max((after ->> 'id')::int) FROM changes"}


@dataclass
class Cost:
    """What some processes used during the measurement."""

    cores: float = 0.0
    resident_mb: float = 0.0
    processes: int = 0


@dataclass
class Latencies:
    committed: list[float] = field(default_factory=list)
    seen: list[float] = field(default_factory=list)

    def milliseconds(self, first: int) -> list[float]:
        return [1000 * (s - c) for s, c in zip(self.seen[first:], self.committed[first:], strict=True)]


def run(report: Report) -> None:
    report.title(f"A trickle of {_PER_SECOND} transactions a second")
    for sink in ("replica", "audit"):
        _one(report, sink)
    _five(report)


def _one(report: Report, sink: str) -> None:
    report.section(f"one sink: {sink}")
    with _running([sink]) as it:
        latencies, cost = it.trickle(sink)
        _print_latencies(report, latencies, {50: 90, 95: 160})
        most = max(latencies)
        report.line("the latest", f"{most:.0f} ms", "want ≤ 300 after a minute", ok=most <= 300)
        report.line("processor", f"{cost.cores:.2f} cores", "want ≤ 0.4 in all processes", ok=cost.cores <= 0.4)


def _five(report: Report) -> None:
    report.section("five sinks: replica, audit, lake, files, NATS")
    with _running(["replica", "audit", "lake", "files", "nats"]) as it:
        latencies, cost = it.trickle("replica")
        _print_latencies(report, latencies, {50: 350})
        report.line("processor", f"{cost.cores:.2f} cores", "want ≤ 1.2 in all processes", ok=cost.cores <= 1.2)
        time.sleep(_UNTIL_IDLE_S)
        idle = it.cost(_IDLE_S)
        report.section("five sinks, idle")
        report.line("processor", f"{100 * idle.cores:.1f} % of a core", "want ≤ 5 %", ok=idle.cores <= 0.05)
        memory = f"{idle.resident_mb:,.0f} MB in {idle.processes} processes"
        report.line("memory", memory, "want ≤ 1,200 MB", ok=idle.resident_mb <= 1200)


def _print_latencies(report: Report, latencies: Sequence[float], want: dict[int, int]) -> None:
    cuts = quantiles(latencies, n=100)
    for percent in (50, 95, 99):
        figure, most = cuts[percent - 1], want.get(percent)
        report.line(
            f"p{percent}", f"{figure:.0f} ms", f"want ≤ {most}" if most else "", ok=figure <= most if most else None
        )


class Running:
    """Capture and deliver, and the source they read."""

    def __init__(self, source: Postgres, destination: Postgres, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        self._source = source
        self._destination = destination
        self._processes = processes

    def trickle(self, sink: str) -> tuple[list[float], Cost]:
        """Latencies and cost of a trickle that has run for a minute."""
        latencies, finished = Latencies(), threading.Event()
        watcher = threading.Thread(target=self._watch, args=(_SEEN[sink], latencies, finished))
        watcher.start()
        rng, cost, first = random.Random(1), Cost(), 0
        measuring: threading.Thread | None = None
        try:
            with self._source.connect() as connection:
                started = next_at = time.time()
                while (now := time.time()) < started + _WARM_UP_S + _MEASURED_S:
                    if measuring is None and now > started + _WARM_UP_S:
                        first = len(latencies.committed)
                        measuring = threading.Thread(target=lambda: self._note(cost, _MEASURED_S - 1))
                        measuring.start()
                    next_at += rng.expovariate(_PER_SECOND)
                    time.sleep(max(next_at - now, 0))
                    connection.execute("INSERT INTO t (note) VALUES ('x')")
                    latencies.committed.append(time.time())
            assert measuring is not None
            measuring.join()
            assert wait_until(lambda: len(latencies.seen) == len(latencies.committed), 60), (
                "rows did not arrive in time"
            )
        finally:
            finished.set()
            watcher.join()
        return latencies.milliseconds(first), cost

    def cost(self, seconds: float) -> Cost:
        cost = Cost()
        self._note(cost, seconds)
        return cost

    def _note(self, cost: Cost, seconds: float) -> None:
        before, started = self._used(), time.monotonic()
        time.sleep(seconds)
        after, elapsed = self._used(), time.monotonic() - started
        cost.cores = sum(after[pid][0] - before.get(pid, (0.0, 0))[0] for pid in after) / elapsed
        cost.resident_mb = sum(resident for _, resident in after.values()) / 1e6
        cost.processes = len(after)

    def _used(self) -> dict[int, tuple[float, int]]:
        """Processor seconds and unshared bytes, by process."""
        found = {}
        for process in self._processes:
            for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
                try:
                    times = one.cpu_times()
                    found[one.pid] = times.user + times.system, one.memory_full_info().uss
                except (psutil.NoSuchProcess, psutil.AccessDenied):
                    continue
        return found

    def _watch(self, query: str, latencies: Latencies, finished: threading.Event) -> None:
        with self._destination.connect() as connection:
            while not finished.wait(0.002):
                newest = (connection.execute(query.encode()).fetchone() or (0,))[0] or 0
                now = time.time()
                latencies.seen.extend([now] * (newest - len(latencies.seen)))


@contextmanager
def _running(sinks: Sequence[str]) -> Iterator[Running]:
    with ExitStack() as stack:
        source, destination = stack.enter_context(Postgres()), stack.enter_context(Postgres())
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-bench-")))
        with source.connect() as connection:
            connection.execute("CREATE TABLE t (id serial PRIMARY KEY, note text)")
        nats = stack.enter_context(NatsServer()).url if "nats" in sinks else ""
        settings = {
            "replica": f'type = "postgres"\nurl = "{destination.url}"',
            "audit": f'type = "audit"\nurl = "{destination.url}"',
            "lake": f'type = "iceberg"\nwarehouse = "{(directory / "lake").as_uri()}"',
            "files": f'type = "files"\nurl = "{(directory / "files").as_uri()}"',
            "nats": f'type = "nats"\nurl = "{nats}"',
        }
        written = f'[source]\nurl = "{source.url}"\n\n[store]\nurl = "{(directory / "store").as_uri()}"\n'
        for sink in sinks:
            written += f'\n[[sink]]\nname = "{sink}"\n{settings[sink]}\n'
        (directory / "tailrace.toml").write_text(written)
        processes = []
        for command in ("capture", "deliver"):
            processes.append(_start(command, directory))
            stack.callback(_end, processes[-1])
        with destination.connect() as connection:
            for table in [{"replica": "t", "audit": "changes"}[sink] for sink in sinks if sink in _SEEN]:
                query = f"SELECT to_regclass('public.{table}') IS NOT NULL".encode()
                assert wait_until(partial(_is_true, connection, query), 120), f"{table} is missing"
        yield Running(source, destination, processes)


def _start(command: str, directory: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tailrace", command],
        cwd=directory,
        stdout=subprocess.DEVNULL,
        stderr=(directory / f"{command}.log").open("wb"),
        env=dict(os.environ),
    )


def _is_true(connection: psycopg.Connection[Any], query: bytes) -> bool:
    row = connection.execute(query).fetchone()
    return bool(row and row[0])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(60)
