"""`tailrace status` beside nothing, beside a capture, and with a source that is away. No Spark, and none needed."""

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
from tailrace.sinks import status
from tailrace.store import Store

# As on a machine where nobody has installed it.
_WITHOUT_SPARK = "import sys; sys.modules['pyspark'] = None; from tailrace.cli import main; main(sys.argv[1:])"


def tell(env: dict[str, str], *arguments: str) -> str:
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
        name = "unborn"
    """)
    env = environment(database, *s3_address) | {"TAILRACE_CONFIG": str(config)}
    nothing = tell(env)
    assert "there is no slot tailrace" in nothing
    assert "`tailrace capture` starts it" in nothing
    assert "never ran" in nothing

    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture_to_end(env)
    database.execute("INSERT INTO t SELECT generate_series(1, 10)")
    capture_to_end(env)
    database.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 100000))")
    store = Store.open(*s3_address)
    now = datetime.now(UTC)
    status.save(store, replace(SINK, name="replica", lag_bytes=2_500_000, set_aside=3, updated_at=now))
    silent = replace(
        SINK, name="gone", state="retrying", last_error="cannot be [reached]", last_error_hint="look there"
    )
    status.save(store, replace(silent, updated_at=now - timedelta(hours=1)))

    told: dict[str, Any] = json.loads(tell(env, "--json"))
    assert told["source"]["is_active"] is False
    assert told["source"]["wal_held_bytes"] > 100_000
    assert told["log"]["last"].endswith(":10"), "the commit stands after ten changes"
    assert Lsn.parse(told["log"]["end_lsn"]) <= Lsn.parse(told["source"]["confirmed_lsn"])
    assert told["log"]["bytes"] > 0
    assert [(s["name"], s["is_silent"]) for s in told["sinks"]] == [("replica", False), ("gone", True)]
    assert told["faults"] == ["sink gone is retrying: cannot be [reached]: look there"]

    screen = tell(env)
    for words in ("not in use", "WAL held back", "objects", "2.5 MB", "running", "never ran"):
        assert words in screen
    assert "replica: 3 changes set aside, in cursors/replica/set_aside/ of the store" in screen
    assert "gone: cannot be [reached]. look there" in screen
    assert "gone: last heard of 1 h 0 min ago; does it run?" in screen
    assert max(map(len, screen.splitlines())) < 160


def test_a_source_that_is_away_is_left_out(database: Database, file_address: StoreAddress) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    env = environment(database, *file_address)
    capture_to_end(env)
    away = env | {"TAILRACE_SOURCE_URL": "postgresql://nobody@127.0.0.1:1/nothing", "PGPASSWORD": "planted-secret"}
    screen = tell(away)
    assert "not known" in screen
    assert "ends at" in screen
    assert "planted-secret" not in screen
    assert json.loads(tell({k: v for k, v in env.items() if k != "TAILRACE_SOURCE_URL"}, "--json"))["source"] is None
