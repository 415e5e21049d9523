"""The session: starts quietly, runs Python, and is one to a process."""

from __future__ import annotations

from pyspark.sql import SparkSession


def test_a_job_runs(spark: SparkSession) -> None:
    assert spark.range(10).count() == 10
