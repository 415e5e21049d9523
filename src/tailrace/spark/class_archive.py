"""The class archive: Java maps Spark's classes from one file, instead of reading and verifying them from 287 jars.

With it a session starts in 4 s instead of 9 (2 cores, measured). It is made once for each Java and Spark, in the
background after the first start, and takes 170 MB in the user's cache. An image of a container can bring it along:

    python -m tailrace.spark.class_training
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import Final

from tailrace import maven
from tailrace.errors import TailraceError
from tailrace.spark import java

_log = logging.getLogger("tailrace.spark")

# A machine with one busy processor needs a minute and a half.
PATIENCE_S: Final = 600.0
# Java names each class that it cannot archive, and each reason why it does not use an archive.
_QUIET: Final = "-Xlog:cds*=off"
_COMPLETE: Final = "complete.txt"
_KEPT: Final = 3


class ClassArchive:
    """A directory with two files: Java's own classes, which Tailrace's wheel of Java lacks, and Spark's, based on them.

    Java does not start with a file that is damaged, so a third file lists their sizes. It is written last.
    """

    def __init__(self, cache: Path, program: Path, spark: str, jars: Path) -> None:
        """`program`: the `java` to be used. `spark`: the version of Spark. `jars`: where its jars are."""
        release = program.resolve().parents[1] / "release"
        java_release = release.read_text() if release.exists() else ""
        origin = f"{program.resolve()} {java_release} {spark} {jars} {jars.stat().st_mtime_ns}"
        self._program = program
        self._directory = cache / f"classes-{hashlib.sha256(origin.encode()).hexdigest()[:12]}"
        self._java = self._directory / "java.jsa"
        self._spark = self._directory / "spark.jsa"
        self._complete = self._directory / _COMPLETE
        self._failed = self._directory / "failed.txt"

    @property
    def exists(self) -> bool:
        try:
            return self._complete.read_text() == self._sizes()
        except OSError:
            return False

    @property
    def is_wanted(self) -> bool:
        """Whether it is missing and could be made, as far as is known."""
        return not self.exists and not self._failed.exists()

    def options(self) -> list[str]:
        """Java's options to use the archive. Java ignores one that does not fit its class path."""
        return [f'"-XX:SharedArchiveFile={self._java}:{self._spark}"', _QUIET] if self.exists else []

    def create(self) -> None:
        """Make it, unless another process is doing so. Takes half a minute of processor time."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            if not self.is_wanted:
                return
            try:
                self._create()
            except (OSError, subprocess.SubprocessError, TailraceError) as error:
                self._failed.write_text(f"{error}\n")
                raise
        self._remove_others()

    def _create(self) -> None:
        from tailrace.spark import class_training

        for file in (self._complete, self._java, self._spark):
            file.unlink(missing_ok=True)
        subprocess.run(
            [self._program, "-Xshare:dump", f"-XX:SharedArchiveFile={self._java}", _QUIET],
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=PATIENCE_S,
        )
        class_training.run(f'"-XX:SharedArchiveFile={self._java}" "-XX:ArchiveClassesAtExit={self._spark}" {_QUIET}')
        for file in (self._java, self._spark):
            with file.open("rb") as written:
                os.fsync(written.fileno())
        self._complete.write_text(self._sizes())

    def _sizes(self) -> str:
        return f"java.jsa {self._java.stat().st_size}\nspark.jsa {self._spark.stat().st_size}\n"

    def _remove_others(self) -> None:
        """Keep the newest archives: each virtual environment has its own."""
        others = sorted(
            self._directory.parent.glob(f"classes-*/{_COMPLETE}"), key=lambda file: file.stat().st_mtime, reverse=True
        )
        for file in others[_KEPT:]:
            shutil.rmtree(file.parent)


def find() -> ClassArchive | None:
    """The archive of the Java that Spark will run on. None: Tailrace does not choose it, or there is no cache."""
    if os.environ.keys() & {"SPARK_HOME", "PYSPARK_GATEWAY_PORT"}:
        return None
    try:
        jars = Path(str(metadata.distribution("pyspark").locate_file("pyspark/jars")))
        return ClassArchive(maven.cache_directory(), java.find(), metadata.version("pyspark"), jars)
    except (OSError, RuntimeError, metadata.PackageNotFoundError) as error:  # RuntimeError: there is no home directory
        _log.debug("no class archive: %s", error)
        return None


def create_in_background() -> None:
    """Make the archive if it is missing, in a process that goes on when this one ends."""
    archive = find()
    if archive is None or not archive.is_wanted:
        return
    _log.info("preparing faster starts in the background: half a minute of processor time, once")

    def run() -> None:
        subprocess.run(
            [sys.executable, "-m", "tailrace.spark.class_training"],
            cwd="/",  # this process's directory may be removed meanwhile
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=False,
        )

    threading.Thread(target=run, name="class archive", daemon=True).start()
