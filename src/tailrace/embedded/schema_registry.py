"""A real schema registry, Apicurio from Maven Central, on a free port of 127.0.0.1, for tests and benchmarks."""

from __future__ import annotations

import atexit
import shutil
import signal
import tarfile
import tempfile
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Final, Self

from tailrace import maven
from tailrace.embedded.process import EmbeddedServer, Process, free_port, wait_until
from tailrace.errors import ConfigError, TailraceError
from tailrace.maven import Jar
from tailrace.spark import java

_ARCHIVE: Final = Jar(
    "io.apicurio:apicurio-registry-app:3.3.3",
    "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63",
    "-all.tar.gz",
)
_TIMEOUT_S: Final = 30.0
_JAVA_VERSIONS: Final = (21,)
# It starts in 4 seconds instead of 13 without the optimising compiler.
_JAVA: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_API: Final = "/apis/ccompat/v7"


class SchemaRegistryServer(EmbeddedServer):
    """One registry with Confluent's API, in memory. It requires no compatibility until it is told to."""

    def __init__(self) -> None:
        self._java = java.find(_JAVA_VERSIONS, "the embedded schema registry")
        self._program = _program()
        self._directory = Path(tempfile.mkdtemp(prefix="tailrace-registry-"))
        self._process: Process | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{_API}"

    def start(self, timeout_s: float = 90) -> Self:
        atexit.register(self.close)
        log = self._directory / "server.log"
        try:
            for _ in range(5):
                self.port = free_port()
                self._process = process = Process(self._command(), log, signal.SIGKILL)
                wait_until(lambda p=process: not p.is_running or self._answers(), timeout_s)  # type: ignore[misc]
                if process.is_running and self._answers():
                    return self
                self._kill()
                if b"already in use" not in log.read_bytes():
                    break
            words = log.read_text(errors="replace")[-2000:]
            raise TailraceError("the embedded schema registry did not start", words)
        except BaseException:
            self.close()
            raise

    def _command(self) -> list[str]:
        # Quarkus has a second port for its own health checks, 9000 by default.
        ports = {"quarkus.http": self.port, "quarkus.management": free_port()}
        addresses = [f"-D{name}.{key}" for name, port in ports.items() for key in (f"port={port}", "host=127.0.0.1")]
        return [str(self._java), *_JAVA, *addresses, "-jar", str(self._program)]

    def close(self) -> None:
        atexit.unregister(self.close)
        self._kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send(signal.SIGKILL)
            process.wait(30)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as response:  # noqa: S310 (HTTP)
                return bool(response.status == 200)
        except (OSError, HTTPException):
            return False


def _program() -> Path:
    """Return the program, which is fetched and unpacked once, beside the archive in the user's cache."""
    try:
        archive = maven.fetch(_ARCHIVE, _TIMEOUT_S)
        directory = archive.with_name(archive.name.removesuffix(".tar.gz"))
        if not directory.exists():
            _unpack(archive, directory)
    except OSError as error:
        raise ConfigError(
            f"the embedded schema registry cannot be fetched from Maven Central ({error})",
            "it is fetched once, into ~/.cache/tailrace: allow access to repo1.maven.org",
        ) from error
    return directory / "quarkus-run.jar"


def _unpack(archive: Path, directory: Path) -> None:
    draft = Path(tempfile.mkdtemp(dir=archive.parent))
    try:
        with tarfile.open(archive) as content:
            content.extractall(draft, filter="data")
        draft.rename(directory)
    except OSError:  # another process was first
        shutil.rmtree(draft)
        if not directory.exists():
            raise
    except BaseException:
        shutil.rmtree(draft)
        raise
