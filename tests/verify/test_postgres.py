"""Rows of a PostgreSQL replica that differ from the source's are found, named and repaired, under load."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.sinks.replicas import assert_same
from tests.verify import planted
from tests.verify.load import TABLES, busy
from tests.verify.running_sink import named, scene
from tests.workload import Workload

from tailrace.embedded.postgres import Postgres


@pytest.fixture
def replica(postgres: Postgres) -> Iterator[Database]:
    database = make_database(postgres)
    yield database
    drop_database(database)


def _postgres(replica: Database, **more: object) -> dict[str, object]:
    return {"type": "postgres", "url": replica.url, **more}


def test_planted_differences_are_named_and_repaired_under_load(
    database: Database, replica: Database, tmp_path: Path
) -> None:
    database.execute(TABLES)
    with scene(database, tmp_path, _postgres(replica)) as own:
        own.catch_up()
        with busy(database):
            assert named(own.verify()) == []
            # Rows that nobody at the source changes: only the plants differ.
            replica.execute(
                "UPDATE item SET name = 'Name 4711' WHERE id = 4711; DELETE FROM item WHERE id = 4712;"
                "INSERT INTO item VALUES (9999, 'extra', NULL, ''); UPDATE pair SET a = 'kex 3' WHERE a = 'key 3';"
                "UPDATE bag SET b = 'B' WHERE ctid = (SELECT min(ctid) FROM bag WHERE b = 'b' AND a = 5)"
            )
            found = own.verify()
            assert named(found) == [
                ("public.bag", "extra", {"a": "5", "b": "B"}, {}),
                ("public.bag", "missing", {"a": "5", "b": "b"}, {}),
                ("public.item", "changed", {"id": "4711"}, {"name": ("name 4711", "Name 4711")}),
                ("public.item", "extra", {"id": "9999"}, {}),
                ("public.item", "missing", {"id": "4712"}, {}),
                ("public.pair", "extra", {"b": "3", "a": "kex 3"}, {}),
                ("public.pair", "missing", {"b": "3", "a": "key 3"}, {}),
            ]
            assert found.exit_code == 1
            repaired, totals = own.repair(found)
            assert named(repaired) == []
            assert repaired.exit_code == 0
            assert totals.applied == 7
        own.catch_up()
        assert_same(database, replica, "item", "pair", "bag")
        assert own.running.pipeline.status().failures == 0


def test_differences_of_every_kind_are_named_and_repaired_under_load(
    database: Database, replica: Database, tmp_path: Path
) -> None:
    database.execute(TABLES)
    planted.create(database)
    with scene(database, tmp_path, _postgres(replica)) as own:
        planted.assert_planted_rows_are_named_and_repaired(own)
        assert_same(database, replica, "odd")


def test_a_random_workload_has_no_false_alarm(database: Database, replica: Database, tmp_path: Path) -> None:
    workload = Workload(lambda: database.connect(), 5, exclusive=0.0, rest_s=0.002)
    workload.create()
    workload.run(100)
    with scene(database, tmp_path, _postgres(replica)) as own:
        own.catch_up()
        with workload:
            for _ in range(3):
                report = own.verify()
                assert named(report) == []
                assert report.is_complete, [(t.table, t.error, t.notes) for t in report.tables]
                assert len(report.tables) == 8
