"""Repeated kill -9 of capture under load: no change is lost, duplicated or reordered.

`KILLS` is the number of kills (`make chaos` runs thousands). A second slot of PostgreSQL gives the expected changes.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests import oracle
from tests.capturing import Witness, capture_to_end, changes_in_log, current_lsn, environment, tailrace
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress
from tests.workload import Workload

from tailrace.embedded.process import wait_until
from tailrace.log import segment
from tailrace.log.reader import LogReader
from tailrace.log.verify import verify
from tailrace.store import Store

KILLS = int(os.environ.get("KILLS", "12"))


@pytest.mark.parametrize("kind", ["file", pytest.param("s3", marks=pytest.mark.soak)])
def test_killed_captures_lose_and_duplicate_nothing(
    kind: str, database: Database, request: pytest.FixtureRequest
) -> None:
    address: StoreAddress = request.getfixturevalue(f"{kind}_address")
    kills = KILLS * 5 // 6 if kind == "file" else KILLS - KILLS * 5 // 6
    rng = random.Random(kills)
    workload = Workload(lambda: database.connect(autocommit=True), seed=7, rest_s=0.02)
    workload.create()
    database.execute("CREATE TABLE bulk (id int, n int, note text, PRIMARY KEY (id, n))")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    env = environment(database, *address)
    store = Store.open(*address)
    with database.connect(autocommit=True) as connection:
        witness = Witness(connection)
        with workload, _Bulk(database):
            for _ in range(kills):
                _run_and_kill(env, store, rng)
        up_to = current_lsn(connection)
        capture_to_end(env)

        expected = witness.changes(up_to)
        found = changes_in_log(store)
        assert found == expected
        replica = oracle.replay(LogReader(store).changes())
        for table in [*workload.tables, None]:
            schema, name = (table.schema, table.name) if table else ("public", "bulk")
            assert replica.rows(schema, name) == oracle.rows(connection, schema, name)
    assert not list(verify(store))
    headers = [each.metadata() for each in LogReader(store).list()]
    torn = sum(header is not None and header.voids_tail for header in headers)
    print(f"{kind}: {kills} kills, {len(found)} changes, {len(headers)} segments, {torn} torn tails")


def _run_and_kill(env: dict[str, str], store: Store, rng: random.Random) -> None:
    """Kill capture at a random time after it began to write, when it has something to lose."""
    last = LogReader(store).last()
    following = segment.key(last.id + 1 if last else 1)
    process = subprocess.Popen(tailrace("capture"), env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: process.poll() is not None or store.head(following) is not None, 60)
        time.sleep(rng.uniform(0, 0.4))
        assert process.poll() is None, process.stdout.read().decode() if process.stdout else ""
    finally:
        process.kill()
        process.communicate()


class _Bulk:
    """Runs transactions that span many segments, so that kills hit them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with self._database.connect(autocommit=True) as connection:
            number = 0
            while not self._stop.wait(0.5):
                number += 1
                _insert_many(connection, number)


def _insert_many(connection: psycopg.Connection[Any], number: int) -> None:
    connection.execute(
        "INSERT INTO bulk SELECT %s, n, md5(n::text) || repeat('x', 60) FROM generate_series(1, 700) n", (number,)
    )
    connection.execute("DELETE FROM bulk WHERE id < %s", (number - 2,))


CHILD = Path(__file__).with_name("killing_child.py")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_kill_between_each_pair_of_durable_steps(
    step: int, when: str, database: Database, file_address: StoreAddress
) -> None:
    """Steps are PUTs: source.json, then segments and, at any time, the definition of the table. After a step, the
    object exists, but the slot is not acknowledged."""
    env = environment(database, *file_address)
    store = Store.open(*file_address)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text); CREATE PUBLICATION tailrace FOR ALL TABLES")
    with database.connect(autocommit=True) as connection:
        witness = Witness(connection)
        connection.execute("INSERT INTO t SELECT n, repeat('x', 100) FROM generate_series(1, 3000) n")
        connection.execute("UPDATE t SET note = 'y' WHERE id % 7 = 0")
        connection.execute("DELETE FROM t WHERE id % 5 = 0")
        died = subprocess.run([sys.executable, str(CHILD), str(step), when], env=env, timeout=60)
        assert died.returncode == -9
        up_to = current_lsn(connection)
        capture_to_end(env)
        assert changes_in_log(store) == witness.changes(up_to)
        assert not list(verify(store))
