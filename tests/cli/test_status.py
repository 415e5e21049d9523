"""`tailrace status` before and after capture, and with an unreachable source. It needs no Spark."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tests.capturing import capture_to_end, environment, tailrace
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress
from tests.ops.test_http import SINK

from tailrace.change import Lsn
from tailrace.cli import output
from tailrace.delivery import status
from tailrace.delivery.lag import Backlog
from tailrace.ops.probe import log_status
from tailrace.ops.sink_meter import MeasuredSink, with_lag
from tailrace.store import Store

# Simulates an installation without Spark.
_WITHOUT_SPARK = "import sys; sys.modules['pyspark'] = None; from tailrace.cli import main; main(sys.argv[1:])"


def run_status(env: dict[str, str], *arguments: str, is_wrong: bool = False) -> str:
    command = [sys.executable, "-c", _WITHOUT_SPARK, "status", *arguments]
    done = subprocess.run(command, env=env | {"COLUMNS": "160"}, capture_output=True, text=True, timeout=60)
    assert done.returncode == is_wrong, done.stderr
    return done.stdout


def test_a_sink_that_never_ran_is_not_up_to_date() -> None:
    """It has snapshots to load, even if the log has no changes yet."""
    new = replace(SINK, state="new", cursor=None)
    at_end, behind = Backlog(Lsn(100)), Backlog(Lsn(100), oldest_us=1)
    assert with_lag(new, MeasuredSink(Lsn(100), at_end)).lag_bytes is None
    assert with_lag(new, MeasuredSink(Lsn(60), behind)).lag_bytes == 40
    assert with_lag(SINK, MeasuredSink(Lsn(100), at_end)).lag_bytes == 0


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
    nothing = run_status(env, is_wrong=True)
    assert "slot tailrace does not exist yet" in nothing
    assert "run `tailrace capture` to start the log" in nothing
    *listed, wrong = nothing.splitlines()[-3:]
    assert [line.split()[:3] for line in listed] == [["replica", "postgres", "new"], ["unused", "files", "new"]]
    assert wrong.startswith("wrong: source: slot tailrace does not exist yet")

    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture_to_end(env)
    database.execute("INSERT INTO t SELECT generate_series(1, 10)")
    capture_to_end(env)
    database.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 100000))")
    store = Store.open(*s3_address)
    now = datetime.now(UTC)
    log = log_status(store)
    assert log.first is not None
    # The process that delivers may hang: what it last said about its lag does not count.
    delivered = replace(SINK, cursor=log.first.commit_lsn, lag_bytes=0, lag_seconds=0.0)
    status.save(store, replace(delivered, name="replica", dead_letters=3, updated_at=now))
    loading = replace(SINK, name="lake", state="loading", load_rows=250, load_total_rows=1000, load_seconds_left=75.0)
    status.save(store, replace(loading, updated_at=now))
    database.execute("CREATE TABLE bare (n int)")
    silent = replace(
        SINK, name="silent", state="retrying", last_error="cannot be [reached]", last_error_hint="look there"
    )
    status.save(store, replace(silent, updated_at=now - timedelta(hours=1)))

    overview: dict[str, Any] = json.loads(run_status(env, "--json", is_wrong=True))
    assert overview["source"]["is_active"] is False
    assert overview["source"]["wal_held_bytes"] > 100_000
    assert overview["log"]["last"].endswith(":10"), "the commit follows ten changes"
    assert Lsn.parse(overview["log"]["end_lsn"]) <= Lsn.parse(overview["source"]["confirmed_lsn"])
    assert overview["log"]["bytes"] > 0
    sinks = {sink["name"]: sink for sink in overview["sinks"]}
    assert [(name, sink["is_silent"]) for name, sink in sinks.items()] == [
        ("replica", False),
        ("unused", False),
        ("lake", False),
        ("silent", True),
    ]
    stopped, retrying, silence = overview["faults"]
    assert stopped == "capture does not run: nobody streams from slot tailrace"
    assert retrying == "sink silent is retrying: cannot be [reached]: look there"
    assert re.fullmatch(r"sink silent has no status for 36\d\d s: deliver hangs, or does not run", silence)
    distance = log.end_lsn - log.first.commit_lsn
    assert distance > 0
    assert sinks["replica"]["lag_bytes"] == distance
    assert sinks["unused"]["lag_bytes"] >= distance, "it has the whole log before it"
    assert sinks["replica"]["lag_seconds"] > 0
    assert sinks["unused"]["state"] == "new"

    screen = run_status(env, is_wrong=True)
    for words in ("not in use", "WAL held back", "objects", output.size(distance), "running", "new"):
        assert words in screen
    assert "replica: 3 dead letters: `tailrace deadletter list replica`" in screen
    assert "lake: loading 250 of 1,000 rows, 1 min 15 s left" in screen
    assert re.search(r"lake +postgres +loading .* 750 rows ", screen)
    assert re.search(r"not captured\n +public.bare +it has no replica identity", screen)
    assert 'ALTER TABLE "public"."bare" REPLICA IDENTITY FULL;' in screen
    assert "silent: cannot be [reached]. Look there" in screen
    assert "silent: last status 1 h 0 min ago; is it running?" in screen
    assert re.search(r"^wrong: sink silent has no status for 36\d\d s: deliver hangs, or does not run$", screen, re.M)
    assert max(map(len, screen.splitlines())) < 160


def test_ctrl_c_ends_a_watch_quietly(tmp_path: Path) -> None:
    env = os.environ | {"TAILRACE_STORE_URL": tmp_path.as_uri()}
    pipe = subprocess.PIPE
    with subprocess.Popen(tailrace("status", "--watch", "--json"), env=env, stdout=pipe, stderr=pipe) as watching:
        assert watching.stdout is not None
        assert watching.stderr is not None
        seen = [json.loads(watching.stdout.readline()) for _ in range(2)]
        assert [status["faults"] for status in seen] == [[], []]
        watching.send_signal(signal.SIGINT)
        assert (watching.wait(30), watching.stderr.read()) == (0, b"")


def test_an_unreachable_source_is_shown_with_the_reason(database: Database, file_address: StoreAddress) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    env = environment(database, *file_address)
    capture_to_end(env)
    unreachable = env | {
        "TAILRACE_SOURCE_URL": "postgresql://nobody@127.0.0.1:1/nothing",
        "PGPASSWORD": "planted-secret",
    }
    screen = run_status(unreachable, is_wrong=True)
    assert re.search(r"source\n +slot +tailrace *\n +error +connection to server at", screen), screen
    assert "ends at" in screen
    assert "planted-secret" not in screen
    assert (
        json.loads(run_status({k: v for k, v in env.items() if k != "TAILRACE_SOURCE_URL"}, "--json"))["source"] is None
    )
