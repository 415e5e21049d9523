"""A real Spark standalone cluster on 127.0.0.1, with a master and workers from the installed package."""

from __future__ import annotations

import atexit
import importlib.util
import re
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Self

from tailrace.embedded.process import EmbeddedServer, Process, wait_until
from tailrace.errors import SparkError
from tailrace.spark import java

_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_MEMORY = "1g"


class Cluster(EmbeddedServer):
    """A cluster of `workers` with `cores` processors each; a session on `url` gets one executor on each worker.

    Leaving the context stops the cluster and removes its files. So does the end of the process, even by SIGKILL.
    """

    def __init__(self, workers: int = 2, cores: int = 1) -> None:
        self._home = _spark_home()
        self._java = java.environment()
        self._count = workers
        self._cores = cores
        self._directory = Path(tempfile.mkdtemp(prefix="tailrace-cluster-"))
        self._master: Process | None = None
        self._workers: dict[int, Process] = {}
        self.url = ""
        """`spark://…`, once the cluster has started."""

    @property
    def workers(self) -> list[int]:
        """The numbers of the running workers, counted from 1."""
        return [number for number, process in self._workers.items() if process.is_running]

    def start(self, timeout_s: float = 120) -> Self:
        atexit.register(self.close)
        try:
            self._master = self._process("master", "Master", "--port", "0")
            wait_until(lambda: _MASTER.search(self._log_text("master")) is not None or not self.is_running, timeout_s)
            found = _MASTER.search(self._log_text("master"))
            if found is None:
                raise SparkError("the embedded Spark master did not start", self._log_text("master")[-2000:])
            self.url = found[1]
            for number in range(1, self._count + 1):
                self._start_worker(number)
            if not wait_until(lambda: self._count_registered() >= self._count or not self.is_running, timeout_s):
                raise SparkError("the embedded Spark workers did not start", self._log_text("worker1")[-2000:])
        except BaseException:
            self.close()
            raise
        return self

    @property
    def is_running(self) -> bool:
        return self._master is not None and self._master.is_running

    def kill_worker(self, number: int) -> None:
        """Send SIGKILL to a worker, its executors and their Python processes, as if its machine had lost power."""
        self._workers.pop(number).kill_tree()

    def add_worker(self, timeout_s: float = 120) -> int:
        """Start another worker, for example to replace a killed one, and return its number."""
        before = self._count_registered()
        self._count += 1
        self._start_worker(self._count)
        if not wait_until(lambda: self._count_registered() > before, timeout_s):
            raise SparkError("the embedded Spark worker did not start", self._log_text(f"worker{self._count}")[-2000:])
        return self._count

    def close(self) -> None:
        """Kill all processes at once, because no data has to be retained."""
        atexit.unregister(self.close)
        for process in [*self._workers.values(), *filter(None, [self._master])]:
            if process.is_running:
                process.kill_tree()
            process.wait(30)
        self._workers, self._master = {}, None
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start_worker(self, number: int) -> None:
        name = f"worker{number}"
        work = self._directory / name
        limits = ("--cores", str(self._cores), "--memory", _MEMORY, "--work-dir", str(work))
        self._workers[number] = self._process(name, "Worker", *limits, self.url)

    def _process(self, name: str, role: str, *arguments: str) -> Process:
        environment = self._java | {
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._directory),
            # Master and workers only pass messages: they need little memory and no optimising compiler.
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dspark.master.rest.enabled=false",
        }
        # SIGTERM lets a worker stop its executors; after a SIGKILL the executors exit by themselves.
        return Process(
            [
                "/usr/bin/env",
                *(f"{key}={value}" for key, value in environment.items()),
                str(self._home / "bin" / "spark-class"),
                f"org.apache.spark.deploy.{role.lower()}.{role}",
                *("--host", "127.0.0.1", "--webui-port", "0"),
                *arguments,
            ],
            self._directory / f"{name}.log",
            signal.SIGTERM,
        )

    def _log_text(self, name: str) -> str:
        log = self._directory / f"{name}.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def _count_registered(self) -> int:
        return self._log_text("master").count("Registering worker ")


def _spark_home() -> Path:
    """The package's directory, found without importing the package, which takes longer."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SparkError("Spark is not installed", "run pip install 'tailrace[spark]'")
    return Path(spec.origin).parent
