"""The class archive: a start without one, or with a damaged one, is slower and nothing worse."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tailrace.spark import java
from tailrace.spark.class_archive import ClassArchive


def _archive(cache: Path, program: Path | None = None) -> ClassArchive:
    jars = cache / "jars"
    jars.mkdir(parents=True, exist_ok=True)
    os.utime(jars, (1, 1))
    return ClassArchive(cache, program or java.find(), "4.1.4", jars)


def _complete(archive: ClassArchive, java_bytes: bytes = b"java", spark_bytes: bytes = b"spark") -> Path:
    directory: Path = archive._directory
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "java.jsa").write_bytes(java_bytes)
    (directory / "spark.jsa").write_bytes(spark_bytes)
    (directory / "complete.txt").write_text(f"java.jsa {len(java_bytes)}\nspark.jsa {len(spark_bytes)}\n")
    return directory


def test_an_archive_is_used_once_it_is_complete(tmp_path: Path) -> None:
    archive = _archive(tmp_path)
    assert archive.is_wanted
    assert archive.options() == []
    directory = _complete(archive)
    assert not archive.is_wanted
    assert archive.options()[0] == f'"-XX:SharedArchiveFile={directory}/java.jsa:{directory}/spark.jsa"'


def test_a_truncated_archive_is_not_used(tmp_path: Path) -> None:
    """Java would not start with it."""
    archive = _archive(tmp_path)
    directory = _complete(archive)
    (directory / "spark.jsa").write_bytes(b"spa")
    assert archive.options() == []
    assert archive.is_wanted


def test_an_archive_belongs_to_one_java_and_one_spark(tmp_path: Path) -> None:
    _complete(_archive(tmp_path))
    assert _archive(tmp_path).exists
    os.utime(tmp_path / "jars", (2, 2))
    assert not ClassArchive(tmp_path, java.find(), "4.1.4", tmp_path / "jars").exists
    other = tmp_path / "jdk" / "bin" / "java"
    other.parent.mkdir(parents=True)
    other.write_text("#!/bin/sh\n")
    assert not _archive(tmp_path, other).exists


def test_a_failure_is_recorded_and_not_repeated(tmp_path: Path) -> None:
    """Otherwise every start would spend half a minute of processor time on it."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    archive = _archive(tmp_path, program)
    with pytest.raises(subprocess.CalledProcessError):
        archive.create()
    assert not archive.is_wanted
    assert archive.options() == []
    assert "exit status 3" in (archive._directory / "failed.txt").read_text()


@pytest.mark.soak
def test_java_uses_the_archive_that_training_makes(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tailrace.spark.class_training"]
    subprocess.run(command, env=environment, cwd="/", check=True, timeout=300)
    (complete,) = tmp_path.glob("tailrace/classes-*/complete.txt")
    program = (
        "from tailrace.spark import session\n"
        "spark = session()\n"
        "print(open(f'/proc/{spark.sparkContext._jvm.ProcessHandle.current().pid()}/maps').read())\n"
        "spark.stop()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd="/",
        check=True,
        timeout=300,
        capture_output=True,
        text=True,
    )
    assert str(complete.with_name("spark.jsa")) in ran.stdout
    assert str(complete.with_name("java.jsa")) in ran.stdout
