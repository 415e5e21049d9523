"""The session: starts quietly, runs Python, and is one to a process."""

from __future__ import annotations

from pyspark.sql import SparkSession


def test_a_job_runs(spark: SparkSession) -> None:
    assert spark.range(10).count() == 10
    assert spark.sparkContext.parallelize(range(4), 2).map(lambda n: n + 1).collect() == [1, 2, 3, 4]
    assert spark.range(10).toArrow().num_rows == 10
