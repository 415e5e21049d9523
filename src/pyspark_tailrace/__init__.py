"""Registers the format `tailrace`: Spark looks for data sources in modules whose names begin with `pyspark_`."""

from __future__ import annotations

from tailrace.spark.datasource import TailraceSource as DefaultSource

__all__ = ["DefaultSource"]
