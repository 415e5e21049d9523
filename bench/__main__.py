"""`python -m bench [NAME …]`: all benchmarks, or those named."""

from __future__ import annotations

import importlib
import os
import sys

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
    report = Report()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; ratios are against the same work in this run")
    for name in names or _PARTS:
        importlib.import_module(f"bench.{name}").run(report)
    print("\nEvery figure wanted is met." if not report.missed else "\nMissed:\n  " + "\n  ".join(report.missed))


if __name__ == "__main__":
    main(sys.argv[1:])
