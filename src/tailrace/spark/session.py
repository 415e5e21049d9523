"""The Spark session: tuned for short batches on this machine, or connected to a cluster."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tailrace.errors import ConfigError, SparkError
from tailrace.owned_directory import OwnedDirectory
from tailrace.spark import fork_server_process, jar, java, java_process
from tailrace.spark.fork_server_process import ForkServerProcess
from tailrace.spark.java_process import JavaProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOGGING = Path(__file__).with_name("log4j2.properties").as_uri()
_PYTHON = Path(__file__).with_name("launcher") / "bin" / "python"

_ALWAYS: Final = {
    # Off by default, because it takes a port and memory. `settings` can turn it on.
    "spark.ui.enabled": "false",
    # A progress bar for a job of milliseconds garbles the terminal.
    "spark.ui.showConsoleProgress": "false",
    # The default prints many warnings that nobody can act on.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING}",
    # The text of a timestamp must not depend on the machine's time zone.
    "spark.sql.session.timeZone": "UTC",
    # Convert in columns; the alternative pickles row by row.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # More compact than Java's own serialisation, in shuffles and broadcasts.
    "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
    # Sinks share executors: the jobs of one sink must not wait for a large job of another.
    "spark.scheduler.mode": "FAIR",
    # A query without state gains nothing from batches without data, and each would write two files.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Each batch writes two files: 15 ms each in this way, 45 ms in the default's, and 4 ms with `jar` (measured).
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Sinks store their own cursors, so a checkpoint is never rewound. The default of 100 batches is only files to list.
    "spark.sql.streaming.minBatchesToRetain": "10",
    # On TCP, each exchange with a Python worker can stall for 40 ms, and a batch has several.
    "spark.python.unix.domain.socket.enabled": "true",
    # A job's code is sent in blocks of this size. The default of 4 MiB is allocated and cleared for each job anew.
    "spark.broadcast.blockSize": "256k",
    # Each job's plan is described in words, for pages that are seldom looked at. The default describes it at length.
    "spark.sql.ui.explainMode": "simple",
    # A crash inside numba, Arrow or the store's client names the Python line, not only the signal.
    "spark.python.worker.faulthandler.enabled": "true",
}
"""Everything else keeps Spark's default on purpose: among others, workers are reused."""

_LOOPBACK: Final = {
    # Only this machine connects; and a machine that cannot resolve its own name starts all the same.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}

_LOCAL: Final = {
    # Here the driver is the executor too: its 1 GiB leaves 400 MiB to sort and shuffle in. Taken only when needed;
    # rows are decoded in Python's workers, beside it.
    "spark.driver.memory": "2g",
    # Whoever reaches Spark's ports, which are open to this machine's other users, needs a secret that Spark makes up.
    # A cluster's secret has to be the same everywhere, so its operator sets it.
    "spark.authenticate": "true",
}

# As the end of a name: `spark.sql.catalog.lake.token-refresh-enabled` holds none.
_SECRET = re.compile(r"(secret|password|token|credential|(access|secret)[.-]?key)$", re.IGNORECASE)

_starting = threading.Lock()


def session(
    name: str = "tailrace",
    master: str | None = None,
    *,
    packages: Sequence[str] = (),
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session on this machine's processors, or on `master`: `local[4]`, `spark://…`, `yarn`, `k8s://…`.

    `packages` are Maven coordinates, such as a sink's `packages`; `settings` is Spark configuration of your own, and
    wins over what is set here. Spark shows it in the list of processes: secrets belong into `spark-defaults.conf`.

    A process has one session: where there is one already, it is returned, with what can still be set.
    """
    return StartingSession(name, master, packages=packages, settings=settings).wait()


class StartingSession:
    """A session whose Java process starts in the background."""

    def __init__(
        self,
        name: str = "tailrace",
        master: str | None = None,
        *,
        packages: Sequence[str] = (),
        settings: Mapping[str, str] | None = None,
        imports: Sequence[str] = (),
    ) -> None:
        """`imports`: modules that every Python worker on this machine will need. The rest is as in `session`."""
        given = dict(settings or {})
        if secrets := sorted(key for key in given if _SECRET.search(key)):
            raise ConfigError(
                f"{', '.join(secrets)}: a session's settings hold no secrets, because the list of processes shows them",
                "put it into spark-defaults.conf, and let SPARK_CONF_DIR say where that is",
            )
        if find_spec("pyspark") is None:
            raise SparkError("Spark is not installed", "run pip install 'tailrace[spark]'")
        self._name = name
        self._master = master or f"local[{processors()}]"
        self._packages = packages
        bare = jar.local_file_system()
        self._uses_bare = bare is not None and "fs.file.impl" not in given
        self._configuration = _configuration(self._master, packages, given, bare)
        self._java: JavaProcess | None = None
        self._forks: dict[str, str] = {}
        if not _has_java():
            if "spark.pyspark.python" in self._configuration:
                self._forks = {fork_server_process.ADDRESS: _fork_server(tuple(imports)).address}
            with _environment(self._python() | self._address()):
                self._java = java_process.start(
                    {"spark.app.name": name, "spark.master": self._master} | self._configuration
                )

    def wait(self) -> SparkSession:
        """Wait until the session has started."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        with _starting, _environment(self._python() | self._address() | self._gateway()):
            builder = SparkSession.builder.appName(self._name).master(self._master)
            for key, value in self._configuration.items():
                builder = builder.config(key, value)
            try:
                spark = builder.getOrCreate()
            except (PySparkException, Py4JError) as error:
                raise SparkError(
                    f"Spark did not start on {self._master}: {first_line(error)}", _hint(self._master, self._packages)
                ) from error
        if self._java is not None:
            gateway: Any = spark.sparkContext._gateway
            gateway.proc = self._java.process
        if self._uses_bare:
            _use_bare_file_system(spark)
        _let_java_hang_up(spark)
        logging.getLogger().addFilter(_is_not_py4j)
        return spark

    def _python(self) -> dict[str, str]:
        """Which Python to use: Spark's scripts and pyspark read it only from the environment."""
        python = self._configuration.get("spark.pyspark.python")
        return {"PYSPARK_PYTHON": python, "TAILRACE_PYTHON": sys.executable, **self._forks} if python else {}

    def _address(self) -> dict[str, str]:
        """Where Spark's pages listen, if they are turned on: there is no setting for it, and they have no password."""
        if self._configuration.get("spark.driver.bindAddress") != _LOOPBACK["spark.driver.bindAddress"]:
            return {}
        return {"SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")}

    def _gateway(self) -> dict[str, str]:
        if self._java is not None:
            return self._java.environment()
        if "PYSPARK_GATEWAY_PORT" in os.environ:  # this process was started by spark-submit, and Java runs
            return {}
        return java.environment()


@lru_cache(maxsize=1)
def _fork_server(imports: tuple[str, ...]) -> ForkServerProcess:
    """Like Java, it stays until this process ends."""
    return ForkServerProcess(imports)


def _has_java() -> bool:
    """Whether this process has had a session: its Java is used again."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._gateway is not None


def _configuration(master: str, packages: Sequence[str], given: Mapping[str, str], bare: Path | None) -> dict[str, str]:
    chosen = dict(_ALWAYS)
    if re.match(r"local|spark://(127\.0\.0\.1|localhost):", master):
        chosen |= _LOOPBACK
    if master.startswith("local"):
        # The default of 200 makes 200 tasks of every shuffle, however small.
        chosen |= _LOCAL | {"spark.sql.shuffle.partitions": str(processors())}
    # Standalone workers beside us have the same Python, with Tailrace in it. YARN's and Kubernetes' have their own, and
    # whoever names another Spark or another Python is taken at their word.
    if master.startswith(("local", "spark:")) and not os.environ.keys() & {"SPARK_HOME", "PYSPARK_PYTHON"}:
        chosen |= {"spark.pyspark.python": str(_PYTHON), "spark.executorEnv.TAILRACE_PYTHON": sys.executable}
    chosen |= given
    jars = {package: jar.fetch(package) for package in packages}
    lists = {
        "spark.jars.packages": [package for package, file in jars.items() if file is None],
        "spark.jars": [str(file) for file in (bare, *jars.values()) if file is not None],
    }
    for key, ours in lists.items():
        if together := [*filter(None, given.get(key, "").split(",")), *ours]:
            chosen[key] = ",".join(together)
    from tailrace.spark import class_archive  # not needed by the processes that Spark starts to plan queries

    archive = class_archive.find()
    java_options = [_ALWAYS["spark.driver.extraJavaOptions"], *(archive.options() if archive is not None else ())]
    if master.startswith("local"):
        java_options.append(f'"-Djava.io.tmpdir={_private_directory().path}"')
    if options := given.get("spark.driver.extraJavaOptions"):
        java_options.append(options)
    chosen["spark.driver.extraJavaOptions"] = " ".join(java_options)
    return chosen


@lru_cache(maxsize=1)
def _private_directory() -> OwnedDirectory:
    """Where Spark has its sockets, which take pickles from whoever may connect, and the rows that it spills.

    The umask may be wider than that.
    """
    return OwnedDirectory()


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {key: os.environ.get(key) for key in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def _use_bare_file_system(spark: SparkSession) -> None:
    """Only now: named at the start, Spark would look for the class before it has the jar.

    Instances are not kept: one of Java's own may have been made already, and would be found instead.
    """
    from py4j.protocol import Py4JError

    jvm = spark.sparkContext._jvm
    assert jvm is not None
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(jar.FILE_SYSTEM)
    except Py4JError:
        return  # the session is older than this call, and has no such jar
    spark.conf.set("fs.file.impl", jar.FILE_SYSTEM)
    spark.conf.set("fs.file.impl.disable.cache", "true")


def _let_java_hang_up(spark: SparkSession) -> None:
    """At the end Java closes its connection to pyspark's accumulators, which are closed after that: if they notice it
    in between, they print a traceback."""
    server = spark.sparkContext._accumulatorServer
    report = server.handle_error

    def handle_error(request: Any, address: Any) -> None:
        if not isinstance(sys.exception(), EOFError):
            report(request, address)

    server.handle_error = handle_error  # type: ignore[assignment, method-assign]


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """When Java ends, py4j logs a traceback for each call to it, and raises the error too."""
    return "py4j" not in Path(record.pathname).parts


def processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def first_line(error: BaseException) -> str:
    """The first line of what Java said."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # py4j puts a line of its own before Java's exception.
    java = [line for line in lines if not line.startswith("An error occurred while calling")]
    return (java or [type(error).__name__])[0].removeprefix(": ")


def _hint(master: str, packages: Sequence[str]) -> str:
    causes = ["what Java printed says why"]
    if packages:
        causes.append("are the packages' names right, and does this machine reach Maven Central?")
    if not master.startswith("local"):
        causes.append(f"does {master} answer?")
    return "; ".join(causes)
