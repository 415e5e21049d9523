"""Rows of a lake that differ from the source's are found, named and repaired, under load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.fixtures.postgres import Database
from tests.verify import planted
from tests.verify.load import TABLES
from tests.verify.running_sink import named, scene
from tests.workload import Workload

from tailrace.verify import row_scan, source_snapshot
from tailrace.verify.row_scan import SparkOnDemand

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(params=["one process", "Spark"])
def reading(
    request: pytest.FixtureRequest, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> SparkOnDemand | None:
    """What reads large tables; with Spark, all tables are large, and have several parts."""
    if request.param == "one process":
        return None
    monkeypatch.setattr(row_scan, "SPARK_ROWS", 0)
    monkeypatch.setattr(source_snapshot, "_PART_BYTES", 64 << 10)
    return SparkOnDemand(lambda _: spark)


@pytest.mark.soak
def test_planted_differences_are_named_and_repaired_under_load(
    database: Database, reading: SparkOnDemand | None, tmp_path: Path
) -> None:
    database.execute(TABLES)
    planted.create(database)
    lake = {"type": "iceberg", "warehouse": (tmp_path / "lake").as_uri(), "mode": "both", "interval_ms": 100}
    with scene(database, tmp_path, lake) as own:
        own.spark = reading
        planted.assert_planted_rows_are_named_and_repaired(own)


@pytest.mark.soak
def test_a_random_workload_has_no_false_alarm(
    database: Database, reading: SparkOnDemand | None, tmp_path: Path
) -> None:
    workload = Workload(lambda: database.connect(), 7, exclusive=0.0, rest_s=0.01)
    workload.create()
    workload.run(100)
    lake = {"type": "iceberg", "warehouse": (tmp_path / "lake").as_uri(), "interval_ms": 100}
    with scene(database, tmp_path, lake) as own:
        own.spark = reading
        own.catch_up()
        with workload:
            for _ in range(3):
                report = own.verify()
                assert named(report) == []
                assert report.is_complete, [(t.table, t.error, t.notes) for t in report.tables]
