"""`python -m bench [NAME …]`: all benchmarks, or those named."""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from bench.report import missed_by

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
        missed = [line for lines in processes.map(missed_by, names or _PARTS) for line in lines]
    print("\nEvery figure wanted is met." if not missed else "\nMissed:\n  " + "\n  ".join(missed))


if __name__ == "__main__":
    main(sys.argv[1:])
