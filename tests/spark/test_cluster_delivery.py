"""Delivery on a real cluster, with the log on S3: the workers share the work, and losing one loses no changes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests import oracle
from tests.capturing import CaptureThread, configured, current_lsn, tailrace
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.fixtures.store import StoreAddress
from tests.stepping import DrivenStepper

from tailrace import settings, sinks
from tailrace.embedded.cluster import Cluster
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.store import Store

_ROWS = 20_000
_STAGING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'CREATE UNLOGGED%'"


@pytest.mark.soak
def test_a_worker_killed_in_the_middle_of_a_step_loses_and_duplicates_nothing(
    cluster: Cluster, postgres: Postgres, database: Database, s3_address: StoreAddress, tmp_path: Path
) -> None:
    replica = make_database(postgres)
    try:
        _deliver_and_kill(cluster, database, replica, s3_address, tmp_path)
        with database.connect() as source, replica.connect() as destination:
            assert oracle.rows(destination, "public", "events") == oracle.rows(source, "public", "events")
    finally:
        drop_database(replica)


def _deliver_and_kill(
    cluster: Cluster, database: Database, replica: Database, address: StoreAddress, tmp_path: Path
) -> None:
    store = Store.open(*address)
    sink = {"type": "postgres", "name": "replica", "url": replica.url, "start": "earliest"}
    database.execute("CREATE TABLE events (id int PRIMARY KEY, body text)")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    with CaptureThread(configured(database, segment_bytes=1024 * 1024), store) as captured:
        insert = (
            f"INSERT INTO events SELECT i, repeat(md5(i::text), 8) FROM generate_series({{}}, {{}} + {_ROWS - 1}) i"
        )
        with database.connect() as connection:
            connection.execute("INSERT INTO events VALUES (0, 'first')")
            captured.wait_for(current_lsn(connection))
            _first_step(address, sink, store)
            for first in (1, 1 + _ROWS):
                connection.execute(insert.format(first, first))
            connection.execute("UPDATE events SET body = body || '!' WHERE id % 3 = 0")
            connection.execute("DELETE FROM events WHERE id % 5 = 0")
            captured.wait_for(current_lsn(connection))

    command = tailrace(
        "--config", str(_write_config(tmp_path, address, sink)), "deliver", "--once", "--master", cluster.url
    )
    with replica.connect(autocommit=False) as blocker, replica.connect() as watcher:
        # While this lasts, nobody can create a table: tasks that stage their rows block.
        blocker.execute("LOCK TABLE pg_catalog.pg_class IN SHARE MODE")
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=_environment()) as process:
            try:
                both = wait_until(
                    lambda: watcher.execute(_STAGING).fetchone() == (2,) or process.poll() is not None, 180
                )
                assert both, "two executors with one core each do not stage at the same time"
                cluster.kill_worker(cluster.workers[0])
                blocker.rollback()
                output, _ = process.communicate(timeout=180)
                assert process.returncode == 0, output.decode()
            finally:
                process.kill()


def _first_step(address: StoreAddress, sink: dict[str, str], store: Store) -> None:
    """Let the sink create its tables at the destination before the lock prevents it."""
    given = settings.Settings(store=settings.StoreSettings(address.url, address.options), sinks=(sink,))
    stepper = DrivenStepper(sinks.from_settings(given, {})[0], given.store)
    stepper.open()
    stepper.deliver(stepper.backlog().end)
    stepper.close()


def _write_config(tmp_path: Path, address: StoreAddress, sink: dict[str, str]) -> Path:
    lines = ["[store]", f"url = {json.dumps(address.url)}", "[store.options]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in address.options.items()]
    lines += ["[[sink]]", *(f"{key} = {json.dumps(value)}" for key, value in sink.items())]
    path = tmp_path / "tailrace.toml"
    path.write_text("\n".join(lines))
    return path


def _environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if not key.startswith("TAILRACE_")}
