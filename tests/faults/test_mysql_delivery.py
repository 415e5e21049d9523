"""Kills deliveries to MariaDB and MySQL, and the server: no change is lost or duplicated, also while tables change.

Real `tailrace deliver` processes run while a workload runs and capture writes. `DELIVERY_KILLS` is the number of kills.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pymysql
import pytest
from tests.faults.test_delivery import KILLS, Scene, kill
from tests.fixtures.postgres import Database
from tests.sinks.mysql_replica import MysqlReplica
from tests.workload import Workload

from tailrace.embedded.mysql_family import MysqlFamilyServer
from tailrace.embedded.process import wait_until


def _cursor(server: MysqlFamilyServer) -> str | None:
    try:
        with closing(MysqlReplica(server.url)) as replica:
            return next((lsn for (lsn,) in replica.rows("SELECT cursor_lsn FROM tailrace_sinks")), None)
    except pymysql.Error:
        return None  # the server is starting, or the table does not exist yet


@pytest.mark.soak
@pytest.mark.parametrize("product", ["mariadb", "mysql"])
def test_killed_deliveries_and_servers_lose_and_duplicate_nothing(
    database: Database, tmp_path: Path, request: pytest.FixtureRequest, product: str
) -> None:
    """The deliveries, the server, or both are killed at any time, or just after the cursor moved."""
    rng = random.Random(1)
    start: Callable[..., MysqlFamilyServer] = request.getfixturevalue(f"start_{product}")
    server = start({"innodb_flush_log_at_trx_commit": 1})
    toml = f'[[sink]]\nname = "replica"\ntype = "mysql"\nurl = "{server.url}"\non_unrepresentable = "text"\n'
    scene = Scene(database, tmp_path, toml)
    scene.workload = Workload(database.connect, seed=3, rest_s=0.2, ddl=True, exclusive=0.1, swaps=True)
    with scene.captured():
        for number in range(KILLS):
            process = scene.start()
            try:
                before = _cursor(server)
                assert wait_until(lambda b=before: _cursor(server) not in (None, b), 180), scene.tail()  # type: ignore[misc]
                if number % 2:
                    time.sleep(rng.uniform(0, 1.0))  # a random time for the kill
                if number % 4 < 3:
                    server.kill9()
                    if number % 4 == 2:
                        # The same process delivers again when the server is back.
                        server.start()
                        after = _cursor(server)
                        assert wait_until(lambda a=after: _cursor(server) not in (None, a), 180), scene.tail()  # type: ignore[misc]
            finally:
                kill(process)
            if number % 4 < 2:
                server.start()
    scene.deliver_all()
    with closing(MysqlReplica(server.url)) as replica:
        for table in scene.workload.tables:
            replica.assert_same(database, table.name, schema=table.schema)
