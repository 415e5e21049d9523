"""`tailrace run` and the other commands on a SlateDB database, as a user types them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest
from tests.capture.slatedb.database_writer import DatabaseWriter
from tests.capture.slatedb.test_capture import directory, mirrored  # noqa: F401 (a fixture)
from tests.capturing import tailrace
from tests.cli.test_run import Run, running
from tests.fixtures.postgres import Database

from tailrace.embedded.process import free_port

_CONFIG = """
[source]
type = "slatedb"
url = "{database}"
name = "users"

[source.value]
format = "json"
columns = {{ name = "text" }}

[store]
url = "{store}"

[[sink]]
type = "postgres"
name = "mirror"
url = "{mirror}"

[[sink]]
type = "files"
name = "events"
url = "{files}"
format = "jsonl"
"""


@pytest.fixture
def env(directory: Path, database: Database, tmp_path: Path) -> Mapping[str, str]:  # noqa: F811
    config = tmp_path / "tailrace.toml"
    places = {"store": tmp_path / "store", "files": tmp_path / "files", "database": directory}
    config.write_text(_CONFIG.format(mirror=database.url, **{name: path.as_uri() for name, path in places.items()}))
    return os.environ | {"TAILRACE_CONFIG": str(config), "TAILRACE_HTTP_PORT": str(free_port())}


def done(env: Mapping[str, str], *arguments: str, code: int = 0) -> str:
    """What a command prints."""
    run = subprocess.run(tailrace(*arguments), env=env, capture_output=True, text=True, timeout=240)
    assert run.returncode == code, run.stdout + run.stderr
    return run.stdout + run.stderr


def value(name: str) -> bytes:
    return json.dumps({"name": name}).encode()


def replayed(files: Path) -> dict[bytes, bytes]:
    """The rows that the events add up to."""
    raw = [json.loads(line) for file in files.rglob("*.jsonl") for line in file.read_text().splitlines()]
    found: dict[bytes, bytes] = {}
    for event in sorted(raw, key=lambda event: (event["operation"] != "SNAPSHOT", _position(event["position"]))):
        if event["operation"] == "DELETE":
            found.pop(_bytes(event["key"]["key"]), None)
        else:
            found[_bytes(event["after"]["key"])] = _bytes(event["after"]["value"])
    return found


def _position(text: str) -> tuple[int, int]:
    high, low, ordinal = re.split("[/:]", text)
    return int(high, 16) << 32 | int(low, 16), int(ordinal)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix("\\x"))


@pytest.mark.soak
def test_run(env: dict[str, str], directory: Path, database: Database, tmp_path: Path) -> None:  # noqa: F811
    with DatabaseWriter(directory, flush_interval="20ms") as writer:
        writer.put(b"\xff\x00", value("Ada"))
        writer.put(b"gone", value("Bo"))
        writer.flush_table()
        assert "capture can run" in done(env, "check")

        def arrives(run: Run, what: str) -> None:
            rows = writer.scan()
            run.await_(lambda: _has_table(database) and mirrored(database) == rows, f"{what}: the mirror")
            run.await_(lambda: replayed(tmp_path / "files") == rows, f"{what}: the events")

        with running(env, tmp_path / "log") as run:
            arrives(run, "the snapshot")
            writer.delete(b"gone")
            for number in range(200):
                writer.put(b"\xff%d" % (number % 50), value(str(number)))
            arrives(run, "changes")
            (capture,) = [p for p in psutil.Process(run.process.pid).children() if "capture" in p.cmdline()]
            capture.kill()
            writer.put(b"meanwhile", value("Cy"))
            arrives(run, "changes from before the restart")
            metrics = run.client.get("/metrics").text
            assert re.search(r"^tailrace_source_oldest_wal_seconds \d", metrics, re.MULTILINE)
            assert re.search(r"^tailrace_source_unread_wal_seconds \d", metrics, re.MULTILINE)
            status = done(env, "status")
            assert re.search(r"oldest WAL file +.* s old", status)
            assert database.rows("SELECT name FROM slatedb.users WHERE key = 'meanwhile'") == [("Cy",)]
            run.process.send_signal(signal.SIGTERM)
            assert run.process.wait(90) == 0, run.log.read_text()
        assert "Traceback" not in run.log.read_text()


def _has_table(database: Database) -> bool:
    return database.rows("SELECT to_regclass('slatedb.users')") != [(None,)]


@pytest.mark.soak
def test_a_gap_and_its_repair(env: dict[str, str], directory: Path, database: Database) -> None:  # noqa: F811
    with DatabaseWriter(directory) as writer:
        writer.put(b"\xff\x00", value("Ada"))
        writer.put(b"a", value("Bo"), ttl_ms=10**9)
        writer.flush()
        done(env, "capture", "--until-lsn", "current")
        done(env, "deliver", "--once", "--sink", "mirror")
        assert mirrored(database) == writer.scan()
        shown = [json.loads(line) for line in done(env, "log", "cat", "--json").splitlines()]
        assert [event["key"]["key"] for event in shown] == ["\\xff00", "\\x61"]
        assert shown[1]["after"]["expires_at"] is not None
        assert "0/1:0" in done(env, "log", "ls")
        done(env, "log", "verify")

        for name in ("lost", "in tables", "later"):
            writer.put(b"b", value(name))
            writer.flush()
            if name == "in tables":
                writer.collect_garbage()
        lost = re.compile(r"WAL files? \d+( to \d+)? (was|were) removed by garbage collection")
        for command, code in ((["check"], 1), (["status"], 1), (["capture", "--until-lsn", "current"], 1)):
            output = " ".join(done(env, *command, code=code).split())
            assert lost.search(output), output
            assert "tailrace capture --accept-gap" in output
        done(env, "capture", "--until-lsn", "current", "--accept-gap")
        assert "tailrace sink rewind NAME snapshot" in " ".join(
            done(env, "deliver", "--once", "--sink", "mirror", code=1).split()
        )
        done(env, "sink", "rewind", "mirror", "snapshot")
        done(env, "deliver", "--once", "--sink", "mirror")
        assert mirrored(database) == writer.scan()
        assert "capture can run" in done(env, "check")
        assert "1 accepted gaps" in done(env, "log", "verify")
