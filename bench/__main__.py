"""`python -m bench [NAME …]`: all benchmarks, or those named."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from bench.report import Report

_PARTS = (
    "throughput",
    "latency",
    "snapshot",
    "replica",
    "delivery_latency",
    "spark_read",
    "lake",
    "query",
    "audit",
    "nats",
)


def main(names: list[str]) -> None:
    unknown = set(names) - set(_PARTS)
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(_PARTS)}")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; ratios are against the same work in this run")
    # Each in a process of its own: Spark's Java lasts as long as the process, with the libraries it was started with.
    own = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1)
    with own as processes:
        missed = [line for lines in processes.map(_run, names or _PARTS) for line in lines]
    print("\nEvery figure wanted is met." if not missed else "\nMissed:\n  " + "\n  ".join(missed))


def _run(name: str) -> list[str]:
    """What was wanted and not reached."""
    report = Report()
    importlib.import_module(f"bench.{name}").run(report)
    return report.missed


if __name__ == "__main__":
    main(sys.argv[1:])
