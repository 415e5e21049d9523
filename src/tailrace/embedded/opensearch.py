"""A real OpenSearch server from Maven Central, on a free port of 127.0.0.1, for demo, tests and benchmarks."""

from __future__ import annotations

import os
import urllib.request
import zipfile
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import ClassVar, Final

from tailrace import maven
from tailrace.embedded.installation import unprivileged_user
from tailrace.embedded.process import ListeningServer, free_port
from tailrace.errors import ConfigError
from tailrace.maven import Jar
from tailrace.spark import java

_VERSION: Final = "3.6.0"
# The others need what the Java wheel lacks, such as a Thai locale, or are not needed.
_MODULES: Final = ("transport-netty4", "reindex", "lang-painless", "mapper-extras")
_TIMEOUT_S: Final = 60.0
_JAVA_VERSIONS: Final = (21,)
# Half a gigabyte is enough for a million small documents. One collector thread leaves the processors to whoever is
# measured.
_JAVA: Final = (
    *("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-Xshare:auto"),
    *("--add-opens=java.base/java.nio=ALL-UNNAMED", "-Dopensearch.distribution.type=zip"),
    *("-Djava.net.preferIPv4Stack=true", "-Dlog4j2.disable.jmx=true"),
)
# Without the optimising compiler a start takes half the processor time.
QUICK_START: Final = ("-XX:TieredStopAtLevel=1",)
_LOGGING: Final = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = [%d{ISO8601}][%-5p][%c{1.}] %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class OpenSearchServer(ListeningServer):
    """One node without security."""

    product: ClassVar[str] = "OpenSearch"
    archive: ClassVar[Jar] = Jar(
        f"org.opensearch.distribution.integ-test-zip:opensearch:{_VERSION}",
        "a91faa1dc1cadc78cb278b4f63847e19e1627a4e9de698e14e7efc14ee37b286",
        ".zip",
    )
    parts: ClassVar[tuple[str, ...]] = ("lib/", "agent/", *(f"modules/{name}/" for name in _MODULES))
    """What of the archive is needed."""

    def __init__(self, settings: Mapping[str, object] | None = None, *, java_options: tuple[str, ...] = ()) -> None:
        """Configure a server.

        Args:
            settings: Lines of opensearch.yml, such as `thread_pool.write.queue_size`.
            java_options: For the server's process: `QUICK_START` for one that does not live long.
        """
        self._java = java.find(_JAVA_VERSIONS, f"the embedded {self.product} server")
        self._archive = self._fetch(self.archive)
        self._settings = settings or {}
        self._java_options = java_options
        self._user = unprivileged_user()
        self._is_installed = False
        super().__init__()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _fetch(self, jar: Jar) -> Path:
        """The path of a file from Maven Central. It is fetched if necessary."""
        try:
            return maven.fetch(jar, _TIMEOUT_S)
        except OSError as error:
            raise ConfigError(
                f"the embedded {self.product} server cannot be fetched from Maven Central ({error})",
                "it is fetched once, into ~/.cache/tailrace: allow access to repo1.maven.org",
            ) from error

    def _starts(self, timeout_s: float) -> bool:
        if not self._is_installed:
            self._install()
        self.port = self.port or free_port()
        self._write_configuration()
        return self._run(self._command(), self._answers, timeout_s, self._user)

    @property
    def _home(self) -> Path:
        return self._directory / self.archive.name.removesuffix(".zip")

    def _install(self) -> None:
        with zipfile.ZipFile(self._archive) as archive:
            for name in archive.namelist():
                part = name.partition("/")[2]
                if part.startswith(self.parts) and not part.startswith("lib/tools/"):
                    archive.extract(name, self._directory)
        for name in ("config", "data", "logs", "tmp"):
            (self._home / name).mkdir(exist_ok=True)
        self._add_modules()
        (self._home / "config" / "log4j2.properties").write_text(_LOGGING)
        (self._home / "config" / "jvm.options").write_text("")
        if self._user is not None:
            for path in (self._directory, *self._directory.rglob("*")):
                os.chown(path, *self._user)
        self._is_installed = True

    def _add_modules(self) -> None:
        """Add what the archive lacks."""

    def _write_configuration(self) -> None:
        found: dict[str, object] = {
            "cluster.name": "tailrace",
            "discovery.type": "single-node",
            "network.host": "127.0.0.1",
            "http.port": self.port,
            # Clients use HTTP alone.
            "transport.port": 0,
            # The disk belongs to others, too: how full it is is not what is tested.
            "cluster.routing.allocation.disk.threshold_enabled": "false",
            "cluster.max_shards_per_node": 10_000,
            **self._settings,
        }
        lines = "".join(f"{name}: {value}\n" for name, value in found.items())
        (self._home / "config" / f"{self.product.lower()}.yml").write_text(lines)

    def _command(self) -> list[str]:
        home = self._home
        return [
            str(self._java),
            *_JAVA,
            *self._java_options,
            f"-javaagent:{home / 'agent' / 'opensearch-agent.jar'}",
            f"-Djava.io.tmpdir={home / 'tmp'}",
            f"-Dopensearch.path.home={home}",
            f"-Dopensearch.path.conf={home / 'config'}",
            *("-cp", str(home / "lib" / "*")),
            "org.opensearch.bootstrap.OpenSearch",
        ]

    def _answers(self) -> bool:
        health = f"{self.url}/_cluster/health?wait_for_status=yellow&timeout=1s"
        try:
            with urllib.request.urlopen(health, timeout=5) as answer:  # noqa: S310 (HTTP)
                return bool(answer.status == 200)
        except (OSError, HTTPException):
            return False
