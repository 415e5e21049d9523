"""Spark's Java process, started directly and ahead of time.

pyspark would run spark-submit: shell scripts that start one Java to compute the command line of another. Started from
here, Java is ready half a second earlier, and loads Spark's classes while this process still imports pyspark.
"""

from __future__ import annotations

import os
import shlex
import struct
import subprocess
import time
import weakref
from collections.abc import Mapping
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tailrace.errors import SparkError
from tailrace.owned_directory import OwnedDirectory
from tailrace.spark import java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_OPTIONS: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(
        f"--add-opens=java.base/{package}=ALL-UNNAMED"
        for package in (
            "java.lang",
            "java.lang.invoke",
            "java.lang.reflect",
            "java.io",
            "java.net",
            "java.nio",
            "java.util",
            "java.util.concurrent",
            "java.util.concurrent.atomic",
            "jdk.internal.ref",
            "sun.nio.ch",
            "sun.nio.cs",
            "sun.security.action",
            "sun.util.calendar",
        )
    ),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--enable-native-access=ALL-UNNAMED",
    "-Dderby.connection.requireAuthentication=false",
)
"""What the launcher of Spark 4.1 adds to each command. A test compares them."""

_MAIN: Final = "org.apache.spark.deploy.SparkSubmit"
_POLL_S: Final = 0.01
_END_S: Final = 1.0
# A busy machine with one processor needs half a minute.
_PATIENCE_S: Final = 300.0

# What only spark-submit's scripts read.
_VARIABLES: Final = {
    *("SPARK_HOME", "SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH"),
    *("PYSPARK_SUBMIT_ARGS", "PYSPARK_GATEWAY_PORT", "SPARK_TESTING"),
}
_SETTINGS: Final = {"spark.driver.extraClassPath", "spark.driver.extraLibraryPath", "spark.driver.defaultJavaOptions"}


class JavaProcess:
    """Runs from construction. It ends when this process does, because its standard input ends then.

    Java looks at its standard input only after it has written how to connect. If it cannot write that, it stays for
    ever. So it holds the directory too, and is killed if nobody waits for it any more.
    """

    def __init__(self, home: Path, configuration: Mapping[str, str]) -> None:
        self._directory = OwnedDirectory("java")
        self._connection = self._directory.path / "connection"
        self.process = subprocess.Popen(
            command(home, configuration, os.environ),
            stdin=subprocess.PIPE,
            pass_fds=[self._directory.lock],
            start_new_session=True,  # a signal for the whole group is for the driver, which ends Java in order
            env=os.environ
            | java.environment()
            | {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._connection)},
        )
        self._kill = weakref.finalize(self, _kill, self.process)

    def environment(self) -> dict[str, str]:
        """Wait until Java serves pyspark, and return the environment variables by which pyspark finds it."""
        give_up_at = time.monotonic() + _PATIENCE_S
        try:
            while not self._connection.exists():
                if self.process.poll() is not None:
                    raise SparkError("Spark did not start: Java has exited", "what Java printed says why")
                if time.monotonic() > give_up_at:
                    raise SparkError(f"Spark did not start within {_PATIENCE_S:.0f} s", "is the machine overloaded?")
                time.sleep(_POLL_S)
            content = self._connection.read_bytes()
        except BaseException:
            self._kill()
            raise
        finally:
            self._directory.remove()
        self._kill.detach()
        port, length = struct.unpack_from("!ii", content)
        secret = content[8 : 8 + length].decode()
        return {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def of(spark: SparkSession) -> subprocess.Popen[bytes] | None:
    """The Java process of a session; None if this process did not start it."""
    return getattr(spark.sparkContext._gateway, "proc", None)


def has_ended(spark: SparkSession) -> bool:
    """Whether the session's Java process has ended. Its connections break a moment earlier, so this waits for it."""
    process = of(spark)
    try:
        return process is not None and process.wait(_END_S) is not None
    except subprocess.TimeoutExpired:
        return False


def start(configuration: Mapping[str, str]) -> JavaProcess | None:
    """Start Java for a session. None: something needs spark-submit, which pyspark runs by itself."""
    home = _home()
    if home is None or os.environ.keys() & _VARIABLES or configuration.keys() & _SETTINGS:
        return None
    return JavaProcess(home, configuration)


def command(home: Path, configuration: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """The command line of Java for `spark-submit --conf … pyspark-shell`."""
    options = [*shlex.split(environ.get("SPARK_SUBMIT_OPTS", ""))]
    options += shlex.split(configuration.get("spark.driver.extraJavaOptions", ""))
    settings = [word for key, value in configuration.items() for word in ("--conf", f"{key}={value}")]
    return [
        str(java.LAUNCHER / "bin" / "java"),
        *("-cp", f"{home}/jars/*"),
        f"-Xmx{configuration.get('spark.driver.memory', '1g')}",
        *options,
        *JAVA_OPTIONS,
        _MAIN,
        *settings,
        "pyspark-shell",
    ]


def _home() -> Path | None:
    """The installed pyspark, if nobody has put configuration files into it."""
    spec = util.find_spec("pyspark")  # does not import it
    if spec is None or spec.origin is None:
        return None
    home = Path(spec.origin).parent
    return home if (home / "jars").is_dir() and not (home / "conf").exists() else None
