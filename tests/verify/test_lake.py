"""Rows of a lake that differ from the source's are found, named and repaired, under load."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.postgres import Database
from tests.verify.load import TABLES, busy
from tests.verify.running_sink import named, scene
from tests.workload import Workload

pytestmark = pytest.mark.usefixtures("spark")


@pytest.mark.soak
def test_planted_differences_are_named_and_repaired_under_load(database: Database, tmp_path: Path) -> None:
    database.execute(TABLES)
    lake = {"type": "iceberg", "warehouse": (tmp_path / "lake").as_uri(), "mode": "both", "interval_ms": 100}
    with scene(database, tmp_path, lake) as own:
        own.catch_up()
        with busy(database):
            assert named(own.verify()) == []
            own.plant(
                "item",
                inserted=[("9999", "extra", None, "")],
                updated=[("4711", "name 4711", "7066.51", "x" * 11)],
                deleted=[("4712", None, None, None)],
            )
            found = own.verify()
            assert named(found) == [
                ("public.item", "changed", {"id": "4711"}, {"price": ("7066.50", "7066.51")}),
                ("public.item", "extra", {"id": "9999"}, {}),
                ("public.item", "missing", {"id": "4712"}, {}),
            ]
            repaired, totals = own.repair(found)
            assert named(repaired) == []
            assert repaired.exit_code == 0
            assert totals.applied == 3


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
