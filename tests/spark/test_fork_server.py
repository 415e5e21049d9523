"""The fork server: what Spark runs as Python is a fork, and behaves like a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tailrace.embedded.process import wait_until
from tailrace.spark import java
from tailrace.spark.fork_server_process import ADDRESS, ForkServerProcess

_PROGRAM = """
import json, os, sys
print(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "arguments": sys.argv[1:], "directory": os.getcwd(),
    "environment": dict(os.environ), "imported": "pyspark.worker" in sys.modules, "input": sys.stdin.read(),
    "hash": hash("a"),
}))
print("warned", file=sys.stderr)
sys.exit(7)
"""
_WAITS = """
import os, time
print(os.getpid(), flush=True)
while True:
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServerProcess]:
    running = ForkServerProcess()
    yield running
    running.close()


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    (tmp_path / "shows_itself.py").write_text(_PROGRAM)
    (tmp_path / "waits.py").write_text(_WAITS)
    return tmp_path


def python(module: str, *arguments: str, address: str | None, programs: Path, **options: Any) -> subprocess.Popen[str]:
    """Run Python as Spark does."""
    environment = {"TAILRACE_PYTHON": sys.executable, "PYTHONPATH": str(programs), "MARK": "1"}
    return subprocess.Popen(
        [java.LAUNCHER / "bin" / "python", "-m", module, *arguments],
        env=os.environ | environment | ({ADDRESS: address} if address else {}),
        cwd=programs,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.mark.parametrize("how", ["forked", "no server", "server is gone"])
def test_a_fork_has_the_arguments_environment_and_streams_of_its_client(
    server: ForkServerProcess, programs: Path, how: str
) -> None:
    address = {"forked": server.address, "no server": None, "server is gone": str(programs / "nobody")}[how]
    client = python("shows_itself", "a b", "", address=address, programs=programs)
    output, errors = client.communicate("from Spark", timeout=60)
    assert client.returncode == 7
    assert errors == "warned\n"
    shown = json.loads(output)
    assert shown["imported"] == (how == "forked")
    assert (shown["pid"] == client.pid) == (how != "forked")
    assert shown["arguments"] == ["a b", ""]
    assert shown["directory"] == str(programs)
    assert shown["environment"]["MARK"] == "1"
    assert shown["input"] == "from Spark"


def test_forks_have_equal_hashes(server: ForkServerProcess, programs: Path) -> None:
    """Spark divides rows by the hashes of their keys, in several processes."""
    outputs = [
        python("shows_itself", address=server.address, programs=programs).communicate("", timeout=60)[0]
        for _ in range(2)
    ]
    expected = subprocess.run(
        [sys.executable, "-c", "print(hash('a'))"],
        env=os.environ | {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {json.loads(output)["hash"] for output in outputs} == {int(expected.stdout)}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killing_the_client_kills_its_fork(server: ForkServerProcess, programs: Path, number: int) -> None:
    client = python("waits", address=server.address, programs=programs)
    assert client.stdout is not None
    pid = int(client.stdout.readline())
    assert psutil.pid_exists(pid)
    client.send_signal(number)
    assert client.wait(30) == -number
    assert wait_until(lambda: not psutil.pid_exists(pid), 30)
    client.communicate()


def test_a_fork_that_is_killed_fails_like_a_process(server: ForkServerProcess, programs: Path) -> None:
    client = python("waits", address=server.address, programs=programs)
    assert client.stdout is not None
    os.kill(int(client.stdout.readline()), signal.SIGKILL)
    assert client.wait(30) != 0
    client.communicate()


def test_forks_end_with_the_server(programs: Path) -> None:
    server = ForkServerProcess()
    client = python("waits", address=server.address, programs=programs)
    assert client.stdout is not None
    pid = int(client.stdout.readline())
    server.close()
    assert wait_until(lambda: not psutil.pid_exists(pid), 30)
    assert client.wait(30) != 0
    client.communicate()
