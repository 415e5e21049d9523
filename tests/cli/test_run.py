"""`tailrace run` with real servers: a source, two sinks of which one is unreachable, kills, a pause, a stop.

One test with many steps, because each start of Spark takes seconds.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests import oracle, process_tree
from tests.capturing import capture_to_end, environment, tailrace
from tests.fixtures.postgres import Database, drop_database, drop_slots, make_database
from tests.fixtures.store import StoreAddress

from tailrace.embedded.process import free_port

_CONFIG = """
[[sink]]
type = "postgres"
name = "replica"
url = "{replica}"
[[sink]]
type = "postgres"
name = "unreachable"
url = "postgresql://nobody@127.0.0.1:1/nothing"
"""


@pytest.fixture
def replica(database: Database) -> Iterator[Database]:
    made = make_database(database.server)
    yield made
    drop_database(made)


class Run:
    def __init__(self, env: dict[str, str], log: Path) -> None:
        self.log = log
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{env['TAILRACE_HTTP_PORT']}", timeout=30)
        with log.open("w") as file:
            self.process = subprocess.Popen(tailrace("run"), env=env, stdout=file, stderr=file)

    def status(self) -> dict[str, Any]:
        """Return an empty status while the server does not respond."""
        try:
            found: dict[str, Any] = self.client.get("/status").json()
            return found
        except httpx.TransportError:
            return {"capture": {"state": None}, "archive": {"state": None}, "sinks": []}

    def sink(self, name: str) -> dict[str, Any]:
        return next((s for s in self.status()["sinks"] if s["name"] == name), {"state": None})

    def await_(self, condition: Callable[[], bool], what: str, seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            with suppress(subprocess.TimeoutExpired):  # poll slowly: the machine is busy
                self.process.wait(0.1)
            assert self.process.returncode is None, f"{what}: the process ended\n{self.log.read_text()}"
            assert time.monotonic() < deadline, f"{what}: timed out\n{self.log.read_text()}"


@contextmanager
def running(env: dict[str, str], log: Path) -> Iterator[Run]:
    run = Run(env, log)
    try:
        yield run
    finally:
        if run.process.poll() is None:
            run.process.kill()
        run.process.wait()
        run.client.close()


def rows(database: Database) -> oracle.Rows:
    with database.connect() as connection:
        exists = connection.execute("SELECT to_regclass('public.t')").fetchone()
        return oracle.rows(connection, "public", "t") if exists != (None,) else oracle.Rows()


def test_capture_and_sinks_under_one_supervisor(
    database: Database, replica: Database, file_address: StoreAddress, tmp_path: Path
) -> None:
    config = tmp_path / "tailrace.toml"
    config.write_text(_CONFIG.format(replica=replica.url))
    env = environment(database, *file_address) | {
        "TAILRACE_CONFIG": str(config),
        "TAILRACE_HTTP_PORT": str(free_port()),
        "TAILRACE_SNAPSHOT_ON_START": "true",
        "TAILRACE_ARCHIVE_ENABLED": "true",
        "TAILRACE_VERIFY_ENABLED": "true",
        "TAILRACE_VERIFY_INTERVAL_S": "10",
    }
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (0, 'before')")

    def arrives(run: Run, what: str) -> None:
        run.await_(lambda: rows(replica) == rows(database), what)

    with running(env, tmp_path / "log") as run:
        run.await_(lambda: run.status()["capture"]["state"] == "streaming", "capture streams")
        run.await_(lambda: run.status()["archive"]["state"] == "streaming", "the archive")
        arrives(run, "the snapshot")
        database.execute("INSERT INTO t SELECT i, 'x' FROM generate_series(1, 1000) i; DELETE FROM t WHERE id % 7 = 3")
        arrives(run, "changes")

        # The destination of one sink is unreachable: it is reported, and the other sink is not affected.
        run.await_(lambda: run.sink("unreachable")["state"] == "retrying", "the other sink")
        run.await_(lambda: run.sink("replica")["state"] == "running", "the replica, reported a little later")
        health = run.client.get("/health")
        assert health.status_code == 503
        assert [fault.split(":")[0] for fault in health.json()["faults"]] == ["sink unreachable is retrying"]
        assert (
            'tailrace_sink_state{sink="replica",type="postgres",state="running"} 1' in run.client.get("/metrics").text
        )

        # Kill capture. The delivery process is not affected.
        first = run.status()["capture"]["pid"]
        os.kill(first, signal.SIGKILL)
        database.execute("UPDATE t SET v = 'while capture is down' WHERE id < 100")
        run.await_(
            lambda: (
                (capture := run.status()["capture"])["state"] == "streaming" and capture["pid"] not in (first, None)
            ),
            "capture again",
        )
        assert run.status()["capture"]["restarts"] == 1
        arrives(run, "changes from before the restart")

        # The delivery process hangs. It reports nothing, and the lag is measured nevertheless.
        deliver = next(p for p in psutil.Process(run.process.pid).children() if "deliver" in p.cmdline())
        deliver.suspend()
        database.execute("INSERT INTO t SELECT i, 'hangs' FROM generate_series(1500, 1600) i")
        run.await_(lambda: (run.sink("replica")["lag_bytes"] or 0) > 0, "the lag of a process that hangs")
        assert (1500,) not in replica.rows("SELECT id FROM t")
        deliver.resume()
        arrives(run, "changes that came while it hung")

        # Pause a sink, and look at it from another process.
        assert run.client.post("/sinks/replica/pause").status_code == 200
        run.await_(lambda: run.sink("replica")["state"] == "paused", "a pause")
        database.execute("INSERT INTO t VALUES (2000, 'paused')")
        run.await_(lambda: run.sink("replica")["lag_bytes"] > 0, "a lag")
        status = subprocess.run(tailrace("status", "--json"), env=env, capture_output=True, text=True, timeout=60)
        assert status.returncode == 1, "the unreachable sink is a fault"
        seen = {s["name"]: s for s in json.loads(status.stdout)["sinks"]}
        assert (seen["replica"]["state"], seen["unreachable"]["state"]) == ("paused", "retrying")
        assert json.loads(status.stdout)["source"]["is_active"]
        assert (2000,) not in replica.rows("SELECT id FROM t")
        assert run.client.post("/sinks/replica/resume").status_code == 200
        arrives(run, "what came during the pause")

        # Kill Spark's Java process. The delivery process is restarted; capture is not affected.
        java = [process for process in process_tree.children(run.process.pid) if "java" in process.name()]
        assert len(java) == 1
        assert "Traceback" not in run.log.read_text()
        java[0].kill()
        run.await_(lambda: "Spark's Java process was killed by SIGKILL; restarting" in run.log.read_text(), "a line")
        assert "Traceback" not in run.log.read_text(), "one line says it all"
        assert "Spark's Java process has ended" not in run.log.read_text()
        database.execute("INSERT INTO t SELECT i, 'without Java' FROM generate_series(3000, 3100) i")
        arrives(run, "changes from before Java died")
        assert run.status()["capture"]["restarts"] == 1

        # A table that is created now is captured, too. One without a key is reported until it has one.
        database.execute(
            "CREATE TABLE fresh (id int PRIMARY KEY); INSERT INTO fresh VALUES (1); CREATE TABLE bare (n int)"
        )
        run.await_(lambda: len(run.client.get("/health").json().get("warnings", [])) == 1, "a warning")
        run.await_(lambda: replica.rows("SELECT to_regclass('public.fresh')") != [(None,)], "a new table")
        run.await_(lambda: replica.rows("SELECT id FROM fresh") == [(1,)], "its rows")

        # Somebody writes to the replica. The background verification finds it, and says so wherever an operator looks.
        replica.execute("UPDATE t SET v = 'planted by hand' WHERE id = 3050; DELETE FROM t WHERE id = 3051")
        verified = re.compile(r'^tailrace_verify_differences\{sink="replica"\} 2$', re.MULTILINE)
        run.await_(lambda: verified.search(run.client.get("/metrics").text) is not None, "a comparison")
        warning = "sink replica: 2 rows differ from the source's"
        run.await_(lambda: warning in run.status()["warnings"], "a warning of differences")
        assert re.search(
            r"^verify \| .*ERROR .*sink replica: 2 rows of public\.t differ", run.log.read_text(), re.MULTILINE
        )
        assert "planted by hand" not in run.log.read_text(), "logs have no values"
        shown = subprocess.run(tailrace("status"), env=env, capture_output=True, text=True, timeout=60)
        assert re.search(r"replica: compared with the source .* 2 of [\d,]+ rows differ", shown.stdout), shown.stdout
        repair = subprocess.run(
            tailrace("verify", "replica", "--repair"), env=env, capture_output=True, text=True, timeout=120
        )
        assert repair.returncode in (0, 2), repair.stdout + repair.stderr
        assert "2 rows were corrected" in repair.stdout
        arrives(run, "the repair")
        run.await_(lambda: warning not in run.status()["warnings"], "no warning")

        # Stop while there is work to do. A parent such as `timeout` passes the signal on, so that it arrives twice.
        processes = process_tree.children(run.process.pid)
        database.execute("INSERT INTO t SELECT i, repeat('y', 100) FROM generate_series(10000, 15000) i")
        assert run.client.post("/shutdown", headers={"Origin": "https://evil.example"}).status_code == 403
        run.process.send_signal(signal.SIGTERM)
        run.process.send_signal(signal.SIGTERM)
        assert run.process.wait(90) == 0, run.log.read_text()
        assert not re.search(r"Traceback|^deliver \|\s+at ", run.log.read_text(), re.MULTILINE), run.log.read_text()
        _, alive = psutil.wait_procs(processes, timeout=30)
        assert alive == []
        database.execute("SELECT pg_drop_replication_slot('tailrace_archive')")

    reload = tailrace("sink", "reload", "replica", "public.tt")
    mistyped = subprocess.run(reload, env=env, capture_output=True, text=True, timeout=60)
    assert mistyped.returncode == 2
    assert "no table with a snapshot matches public.tt: did you mean public.t?" in mistyped.stderr

    # The replica is damaged: rebuild it from the snapshot. The next run also captures and delivers the rest.
    # A sink that fails permanently makes the command fail, and does not affect the other sink.
    replica.execute("DELETE FROM t WHERE id < 500; UPDATE t SET v = 'damaged' WHERE id = 3050")
    rewind = tailrace("sink", "rewind", "replica", "snapshot")
    assert subprocess.run(rewind, env=env, capture_output=True, timeout=60).returncode == 0
    capture_to_end(env)
    failing = env | {"TAILRACE_SINK_UNREACHABLE_URL": database.server.url_of("no_such_database")}
    delivered = subprocess.run(tailrace("deliver", "--once"), env=failing, capture_output=True, text=True, timeout=240)
    assert delivered.returncode == 1, delivered.stderr
    assert "no_such_database" in delivered.stderr
    assert "hint: " in delivered.stderr
    assert "sink replica is rewound" in delivered.stderr
    assert rows(replica) == rows(database)


_WITHOUT_SPARK = """
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "pyspark" else find(name, package)
"""


def test_run_ends_if_capture_fails_permanently(database: Database, file_address: StoreAddress, tmp_path: Path) -> None:
    """And without Spark, delivery is not tried again and again."""
    (tmp_path / "sitecustomize.py").write_text(_WITHOUT_SPARK)
    config = tmp_path / "tailrace.toml"
    config.write_text(f'[[sink]]\ntype = "files"\nname = "out"\nurl = "{(tmp_path / "out").as_uri()}"')
    env = environment(database, *file_address) | {
        "TAILRACE_CONFIG": str(config),
        "TAILRACE_HTTP_PORT": str(free_port()),
        "PYTHONPATH": str(tmp_path),
    }
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with running(env, tmp_path / "log") as run:
        run.await_(lambda: run.sink("out")["state"] == "failed", "delivery", 60)
        fault = run.client.get("/health").json()["faults"][0]
        assert "Spark is not installed: run pip install 'tailrace[spark]'" in fault
        run.await_(lambda: run.status()["capture"]["state"] == "streaming", "capture goes on", 60)
        with database.connect(autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 'tailrace'"
            )
            drop_slots(database)
        assert run.process.wait(60) == 1
    log = run.log.read_text()
    assert "error: slot tailrace does not exist, and the log ends at" in log
    assert "hint: later changes are missing from the log" in log
    assert log.count("deliver failed permanently") == 1
    assert "Traceback" not in log
