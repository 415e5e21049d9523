"""A replica that rejected a change has it after a replay: its table is loaded again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.capturing import CaptureThread
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.sinks.replicas import assert_same
from tests.stepping import DrivenStepper

from tailrace import settings, sinks
from tailrace.capture.postgres.bootstrap import Bootstrap
from tailrace.change import Lsn
from tailrace.delivery import dead_letters
from tailrace.embedded.postgres import Postgres
from tailrace.store import Store


@pytest.fixture
def replica(postgres: Postgres) -> Iterator[Database]:
    database = make_database(postgres)
    yield database
    drop_database(database)


def test_a_replay_loads_the_table_again(database: Database, replica: Database, tmp_path: Path) -> None:
    for one in (database, replica):
        one.execute("CREATE TYPE mood AS ENUM ('ok', 'sad')")
    database.execute(
        "CREATE TABLE m (id int PRIMARY KEY, feels mood); INSERT INTO m SELECT g, 'ok' FROM generate_series(1, 9) g"
    )
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    given = settings.Settings(
        source=settings.SourceSettings(url=database.url),
        store=settings.StoreSettings((tmp_path / "store").as_uri()),
        sinks=({"type": "postgres", "name": "replica", "url": replica.url, "on_poison": "dead_letter"},),
    )
    store = Store.open(given.store.url)
    (configured,) = sinks.from_settings(given, {})
    bootstrap = Bootstrap(given, store, poll_seconds=0.1)
    with CaptureThread(given, store, snapshots=bootstrap) as capture:
        assert bootstrap.wait(60)
        stepper = DrivenStepper(configured, given.store)
        stepper.open()
        stepper.load_missing()
        database.execute("ALTER TYPE mood ADD VALUE 'glad'")
        with database.connect() as connection:
            connection.execute("UPDATE m SET feels = 'glad' WHERE id = 3")
            connection.execute("UPDATE m SET feels = 'sad' WHERE id = 4")
            connection.commit()
            row = connection.execute("SELECT pg_logical_emit_message(true, 'x', '')::text").fetchone()
            assert row is not None
            connection.commit()
        capture.wait_for(Lsn(Lsn.parse(row[0]) + 1))
        bootstrap.stop()
    stepper.deliver(stepper.log_end())
    assert stepper.dead_letters == 1
    assert replica.rows("SELECT feels::text FROM m WHERE id IN (3, 4) ORDER BY id") == [("ok",), ("sad",)]

    replica.execute("ALTER TYPE mood ADD VALUE 'glad'")
    (letter,) = dead_letters.load_all(store, "replica")
    dead_letters.request_replay(store, letter)
    stepper.look_for_loads()
    planned = stepper.next_step()
    assert planned is not None
    assert planned.is_load
    stepper.finish(planned)
    assert stepper.dead_letters == 0
    assert_same(database, replica, "m")
    stepper.close()
