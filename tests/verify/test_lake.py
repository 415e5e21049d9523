"""Rows of a lake that differ from the source's are found, named and repaired, under load."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.postgres import Database
from tests.verify.load import TABLES
from tests.verify.running_sink import named, scene
from tests.workload import Workload

pytestmark = pytest.mark.usefixtures("spark")


@pytest.mark.soak
def test_planted_differences_are_named_and_repaired_under_load(database: Database, tmp_path: Path) -> None:
    database.execute(TABLES)
    lake = {"type": "iceberg", "warehouse": (tmp_path / "lake").as_uri(), "mode": "both", "interval_ms": 100}
    with scene(database, tmp_path, lake) as own:
        assert own.assert_planted_rows_are_named_and_repaired().exit_code == 0


@pytest.mark.soak
def test_a_random_workload_has_no_false_alarm(database: Database, tmp_path: Path) -> None:
    workload = Workload(lambda: database.connect(), 7, exclusive=0.0, rest_s=0.01)
    workload.create()
    workload.run(100)
    lake = {"type": "iceberg", "warehouse": (tmp_path / "lake").as_uri(), "interval_ms": 100}
    with scene(database, tmp_path, lake) as own:
        own.catch_up()
        with workload:
            for _ in range(3):
                report = own.verify()
                assert named(report) == []
                assert report.is_complete, [(t.table, t.error, t.notes) for t in report.tables]
