"""`tailrace status` before and after capture, and with an unreachable source. It needs no Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.capturing import capture_to_end, environment
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress
from tests.ops.test_http import SINK

from tailrace.change import Lsn
from tailrace.delivery import status
from tailrace.store import Store

# Simulates an installation without Spark.
_WITHOUT_SPARK = "import sys; sys.modules['pyspark'] = None; from tailrace.cli import main; main(sys.argv[1:])"


def run_status(env: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-c", _WITHOUT_SPARK, "status", *arguments]
    done = subprocess.run(command, env=env | {"COLUMNS": "160"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_status_of_everything(database: Database, s3_address: StoreAddress, tmp_path: Path) -> None:
    config = tmp_path / "tailrace.toml"
    config.write_text("""
        [[sink]]
        type = "postgres"
        name = "replica"
        [[sink]]
        type = "files"
        name = "unused"
    """)
    env = environment(database, *s3_address) | {"TAILRACE_CONFIG": str(config)}
    nothing = run_status(env)
    assert "slot tailrace does not exist yet" in nothing
    assert "run `tailrace capture` to start the log" in nothing
    assert "never ran" in nothing

    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture_to_end(env)
    database.execute("INSERT INTO t SELECT generate_series(1, 10)")
    capture_to_end(env)
    database.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 100000))")
    store = Store.open(*s3_address)
    now = datetime.now(UTC)
    status.save(store, replace(SINK, name="replica", lag_bytes=2_500_000, dead_letters=3, updated_at=now))
    silent = replace(
        SINK, name="silent", state="retrying", last_error="cannot be [reached]", last_error_hint="look there"
    )
    status.save(store, replace(silent, updated_at=now - timedelta(hours=1)))

    overview: dict[str, Any] = json.loads(run_status(env, "--json"))
    assert overview["source"]["is_active"] is False
    assert overview["source"]["wal_held_bytes"] > 100_000
    assert overview["log"]["last"].endswith(":10"), "the commit follows ten changes"
    assert Lsn.parse(overview["log"]["end_lsn"]) <= Lsn.parse(overview["source"]["confirmed_lsn"])
    assert overview["log"]["bytes"] > 0
    assert [(s["name"], s["is_silent"]) for s in overview["sinks"]] == [("replica", False), ("silent", True)]
    assert overview["faults"] == ["sink silent is retrying: cannot be [reached]: look there"]

    screen = run_status(env)
    for words in ("not in use", "WAL held back", "objects", "2.5 MB", "running", "never ran"):
        assert words in screen
    assert "replica: 3 dead letters: `tailrace deadletter list replica`" in screen
    assert "silent: cannot be [reached]. look there" in screen
    assert "silent: last status 1 h 0 min ago; is it running?" in screen
    assert max(map(len, screen.splitlines())) < 160


def test_an_unreachable_source_is_shown_as_unknown(database: Database, file_address: StoreAddress) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    env = environment(database, *file_address)
    capture_to_end(env)
    unreachable = env | {
        "TAILRACE_SOURCE_URL": "postgresql://nobody@127.0.0.1:1/nothing",
        "PGPASSWORD": "planted-secret",
    }
    screen = run_status(unreachable)
    assert "unknown" in screen
    assert "ends at" in screen
    assert "planted-secret" not in screen
    assert (
        json.loads(run_status({k: v for k, v in env.items() if k != "TAILRACE_SOURCE_URL"}, "--json"))["source"] is None
    )
