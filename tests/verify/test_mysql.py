"""Rows of a MariaDB replica that differ from the source's are found, named and repaired, under load."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contract.mysql_tables import make_database
from tests.fixtures.postgres import Database
from tests.verify import planted
from tests.verify.load import TABLES, busy
from tests.verify.running_sink import named, scene
from tests.workload import Workload

from tailrace.embedded.mariadb import MariaDbServer
from tailrace.sinks.mysql.options import MysqlOptions
from tailrace.sinks.mysql.session import MysqlSession


def test_planted_differences_are_named_and_repaired_under_load(
    database: Database, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    database.execute(TABLES)
    with make_database(mariadb_server) as url, scene(database, tmp_path, {"type": "mysql", "url": url}) as own:
        own.catch_up()
        with busy(database):
            assert named(own.verify()) == []
            session = MysqlSession(MysqlOptions(url=url))
            session.execute("UPDATE item SET price = 7066.51 WHERE id = 4711")
            session.execute("DELETE FROM pair WHERE a = 'key 3'")
            session.execute("INSERT INTO bag VALUES (5, 'B')")
            session.commit()
            session.close()
            found = own.verify()
            assert named(found) == [
                ("public.bag", "extra", {"a": "5", "b": "B"}, {}),
                ("public.item", "changed", {"id": "4711"}, {"price": ("7066.50", "7066.51")}),
                ("public.pair", "missing", {"b": "3", "a": "key 3"}, {}),
            ]
            repaired, totals = own.repair(found)
            assert named(repaired) == []
            assert repaired.exit_code == 0
            assert totals.applied == 3


def test_differences_of_every_kind_are_named_and_repaired_under_load(
    database: Database, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    database.execute(TABLES)
    planted.create(database)
    with make_database(mariadb_server) as url, scene(database, tmp_path, {"type": "mysql", "url": url}) as own:
        planted.assert_planted_rows_are_named_and_repaired(own, frozenset({"1.00 instead of 1.0"}))


@pytest.mark.soak
def test_a_random_workload_has_no_false_alarm(
    database: Database, mariadb_server: MariaDbServer, tmp_path: Path
) -> None:
    workload = Workload(lambda: database.connect(), 6, exclusive=0.0, rest_s=0.005)
    workload.create()
    workload.run(100)
    with (
        make_database(mariadb_server) as url,
        scene(database, tmp_path, {"type": "mysql", "url": url, "on_unrepresentable": "text"}) as own,
    ):
        own.catch_up()
        with workload:
            for _ in range(3):
                report = own.verify()
                assert named(report) == []
                assert report.is_complete, [(t.table, t.error, t.notes) for t in report.tables]
