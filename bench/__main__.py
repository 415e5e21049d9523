"""`python -m bench [NAME …]`: run all benchmarks, or the named ones."""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor

from bench.report import missed_targets

_PARTS = (
    "throughput",
    "latency",
    "snapshot",
    "replica",
    "start",
    "delivery_latency",
    "trickle",
    "spark_read",
    "lake",
    "query",
    "audit",
    "nats",
    "encoding",
    "kafka",
    "rabbitmq",
    "webhook",
    "opensearch",
    "valkey",
    "slatedb",
    "recovery",
    "mysql",
)


def main(names: list[str]) -> None:
    unknown = set(names) - set(_PARTS)
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(sorted(unknown))}; choose from {', '.join(_PARTS)}")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; ratios compare with the same work in this run")
    # Each runs in its own process: Spark's JVM lives as long as the process, with the libraries it was started with.
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1)
    with pool as processes:
        missed = [line for lines in processes.map(missed_targets, names or _PARTS) for line in lines]
    print("\nAll targets are met." if not missed else "\nMissed:\n  " + "\n  ".join(missed))


if __name__ == "__main__":
    main(sys.argv[1:])
