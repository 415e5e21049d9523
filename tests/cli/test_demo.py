"""The demo as a newcomer runs it: into a pipe, on a terminal, with and without Spark, to its end and interrupted."""

from __future__ import annotations

import os
import pty
import re
import shutil
import signal
import subprocess
import sys

import pytest
from tests.capturing import tailrace

from tailrace.embedded.kafka import KafkaServer
from tailrace.embedded.mariadb import MariaDbServer
from tailrace.log.verify import verify
from tailrace.store import FileStore, Store

# Simulates an installation without Spark and without the dependencies of sinks.
_WITHOUT_SPARK = """
import sys
sys.modules |= dict.fromkeys(("pyspark", "msgpack", "zstandard"))
from tailrace.cli import main
main()
"""
# Most of it is for starting Spark on a busy machine.
_TIMEOUT_S = 400


def _demo_store(shown: str) -> FileStore:
    stores = set(re.findall(r"log verify --store (file://\S+)", shown))
    assert len(stores) == 1
    store = Store.open(stores.pop())
    assert isinstance(store, FileStore)
    return store


def test_log_replica_lake_and_stream_equal_the_database_at_the_end() -> None:
    done = subprocess.run(tailrace("demo", "--seconds", "3"), capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # Java prints nothing
    assert re.search(r"table .* database .* log .* replica .* lake .* stream", done.stdout)
    assert re.search(r"SELECT status, count.*\n +(\w+ \d+ [\d.]+; )+", done.stdout), "the lake was queried"
    assert done.stdout.count("equal, row for row") == 3
    assert "DIFFERENT" not in done.stdout
    _assert_shows_the_stream(done.stdout)
    assert re.search(r'UPDATE .* user=\w+ request=r-\d+\n +status +"\w+" → "\w+"', done.stdout), (
        "the history of one order"
    )
    assert re.search(r"UPDATE \S+ SET \"status\" = .*\n.* tailrace_revert=.*\n +status", done.stdout), "reverted"
    assert re.search(r"[1-9][\d,]* changes, [\d,]+/s, commit → reader", done.stdout)
    store = _demo_store(done.stdout)
    assert not list(verify(store))
    shutil.rmtree(store.root.parent)


@pytest.mark.soak
def test_kafka_has_the_same_messages(kafka_server: KafkaServer) -> None:
    """The fixture skips the test if the server cannot be fetched."""
    done = subprocess.run(
        tailrace("demo", "--seconds", "3", "--with", "kafka"), capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.search(r"[1-9][\d,]* messages in Kafka: every change in the log", done.stdout)
    assert done.stdout.count("equal, row for row") == 3
    shutil.rmtree(_demo_store(done.stdout).root.parent)


@pytest.mark.soak
def test_mysql_has_the_same_rows(mariadb_server: MariaDbServer) -> None:
    """The fixture skips the test if the server cannot be fetched."""
    done = subprocess.run(
        tailrace("demo", "--seconds", "3", "--with", "mysql"), capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.search(r"^table .* replica .* mysql ", done.stdout, re.MULTILINE)
    assert done.stdout.count("equal, row for row") == 3
    shutil.rmtree(_demo_store(done.stdout).root.parent)


@pytest.mark.soak
def test_the_log_of_slatedb_has_the_same_rows() -> None:
    done = subprocess.run(
        tailrace("demo", "--seconds", "3", "--with", "slatedb"), capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = re.search(
        r"slatedb.carts: (\d+) rows in SlateDB, (\d+) in snapshot and log: equal, row for row", done.stdout
    )
    assert found
    assert int(found[1]) > 0
    assert done.stdout.count("equal, row for row") == 4
    shutil.rmtree(_demo_store(done.stdout).root.parent)


def _assert_shows_the_stream(shown: str) -> None:
    messages = re.search(r"([\d,]+) messages in the stream: every change in the log", shown)
    captured = re.search(r"([\d,]+) changes in [\d,]+ transactions", shown)
    assert messages
    assert captured
    assert _number(messages[1]) == _number(captured[1])
    for table, operation in (("orders", "update"), (r"\w+", "insert"), (r"\w+", "delete")):
        message = re.search(rf'  cdc\.({table})\.{operation}  [0-9a-f]+-\1-{operation}\S*\n +{{"data":{{".*…\n', shown)
        assert message, f"an {operation}, as a consumer sees it"
        assert max(map(len, message[0].splitlines())) <= 80


def _number(shown: str) -> int:
    return int(shown.replace(",", ""))


def test_demo_on_a_terminal_without_spark() -> None:
    ours, theirs = pty.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    command = [sys.executable, "-c", _WITHOUT_SPARK, "demo", "--seconds", "3"]
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 65536):
            shown += part
    except OSError:  # how a terminal reports that the other side is closed
        pass
    os.close(ours)
    assert process.wait(30) == 0
    text = shown.decode()
    assert "newest changes" in text
    assert "commit → reader" in text
    assert "pip install 'tailrace[spark]'" in text
    assert text.count("equal, row for row") == 3
    shutil.rmtree(_demo_store(text).root.parent)


@pytest.mark.soak
def test_ctrl_c_while_spark_starts_ends_the_demo_with_its_summary() -> None:
    command = tailrace("demo", "--seconds", "600")
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        shown = ""
        for line in process.stdout:
            shown += line
            if "replica: " in line:
                break
        os.killpg(process.pid, signal.SIGINT)  # to the whole process group, as a terminal does
        rest, errors = process.communicate(timeout=_TIMEOUT_S)
    assert process.returncode == 0, errors
    assert errors == ""
    assert rest.count("equal, row for row") == 3
    shutil.rmtree(_demo_store(shown + rest).root.parent)
