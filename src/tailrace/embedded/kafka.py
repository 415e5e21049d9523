"""A real Kafka server from Maven Central, on free ports of 127.0.0.1, for demo, tests and benchmarks."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from tailrace import maven
from tailrace.embedded.process import ListeningServer, free_port
from tailrace.errors import ConfigError, TailraceError
from tailrace.spark import java

_PINS: Final = Path(__file__).with_suffix(".txt")
_TIMEOUT_S: Final = 30.0
# Half a gigabyte is enough for a million messages. One collector thread leaves the processors to whoever is measured.
_JAVA: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
# Without the optimising compiler a start takes half the processor time.
QUICK_START: Final = ("-XX:TieredStopAtLevel=1",)
# The server prints this line once it accepts requests of every kind.
_STARTED: Final = re.compile(rb"Kafka Server started")
# A controller prints these lines once it has noted that a broker ended, and once the note is written.
_FENCED: Final = re.compile(rb"Read-write operation (maybeFenceStaleBroker\(\d+\)).*Processed \1", re.DOTALL)
_LEVEL: Final = "-Dorg.slf4j.simpleLogger.log"
_SHOW_STARTED: Final = f"{_LEVEL}.kafka.server.KafkaRaftServer=info"
_SHOW_FENCED: Final = f"{_LEVEL}.org.apache.kafka.controller.QuorumController=debug"


class KafkaServer(ListeningServer):
    """One server that is broker and controller."""

    product: ClassVar[str] = "Kafka"

    def __init__(
        self,
        properties: Mapping[str, object] | None = None,
        *,
        users: Mapping[str, str] | None = None,
        mechanisms: Sequence[str] = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        certificate: Path | None = None,
        client_authority: Path | None = None,
        java_options: Sequence[str] = (),
        advertised_port: int | None = None,
    ) -> None:
        """The arguments secure the listener of clients; a second one without security serves administrators.

        Args:
            properties: add to or replace those in the server's configuration file: `message.max.bytes`.
            users: names and passwords. With them clients authenticate by SASL.
            mechanisms: those of SASL that clients may use.
            certificate: a PEM file with a PKCS #8 key and its certificates. With it clients use TLS.
            client_authority: a PEM file. With it clients need a certificate from this authority.
            java_options: for the server's process: `QUICK_START` for one that does not live long.
            advertised_port: the port that clients are told to connect to, such as a proxy's.
        """
        self._jars = jars()
        self._java = java.find()
        self._properties = properties or {}
        self._users = users or {}
        self._mechanisms = mechanisms
        self._certificate = certificate
        self._client_authority = client_authority
        self._java_options = java_options
        self._advertised_port = advertised_port
        self._is_formatted = False
        self._is_killed = False
        self._ports: dict[str, int] = {}
        super().__init__()

    @property
    def url(self) -> str:
        return f"kafka://{self.bootstrap}"

    @property
    def bootstrap(self) -> str:
        """The address of the clients' listener, `host:port`. Certificates are for `localhost`."""
        return f"{'localhost' if self._certificate else '127.0.0.1'}:{self._advertised_port or self.port}"

    @property
    def internal_bootstrap(self) -> str:
        """The address of the listener that has no security, with which tests manage users and access rights."""
        return f"127.0.0.1:{self._ports['INTERNAL']}"

    def kill9(self) -> None:
        self._is_killed = self._process is not None or self._is_killed
        super().kill9()

    def tool(self, main: str, *arguments: str, timeout_s: float = 120) -> str:
        """Run a Java program that comes with the server, and return its standard output.

        `org.apache.kafka.tools.consumer.ConsoleConsumer` is `kafka-console-consumer`, for example.
        """
        command = [str(self._java), *_JAVA, *QUICK_START, "-cp", self._class_path, main, *arguments]
        done = subprocess.run(command, capture_output=True, timeout=timeout_s)
        if done.returncode != 0:
            raise TailraceError(f"{main} failed", (done.stderr + done.stdout).decode(errors="replace")[-2000:])
        return done.stdout.decode()

    @property
    def _class_path(self) -> str:
        return os.pathsep.join(map(str, self._jars))

    def _starts(self, timeout_s: float) -> bool:
        if not self.port:
            self._ports = {"CLIENTS": free_port(), "INTERNAL": free_port(), "CONTROLLER": free_port()}
            self.port = self._ports["CLIENTS"]
        if not self._is_formatted:
            shutil.rmtree(self._directory / "data", ignore_errors=True)
            self._format(self._write_configuration({}))
        elif self._is_killed:
            self._fence(timeout_s)
        if not self._prints({}, _SHOW_STARTED, _STARTED, timeout_s):
            return False
        self._is_formatted, self._is_killed = True, False
        return True

    def _fence(self, timeout_s: float) -> None:
        """Let the controller note that the broker has ended, before the broker starts again.

        Otherwise the broker starts as the leader of its partitions, sends the markers of committed transactions to its
        listener, which is still closed, is then fenced, and takes the partitions for deleted: the transaction is
        recorded as complete without its markers, and consumers with read_committed wait for them for ever.
        """
        alone = {
            "process.roles": "controller",
            "listeners": f"CONTROLLER://127.0.0.1:{self._ports['CONTROLLER']}",
            "advertised.listeners": "",
            "broker.session.timeout.ms": 100,
            "broker.heartbeat.interval.ms": 50,
        }
        self._prints(alone, _SHOW_FENCED, _FENCED, timeout_s)
        self.kill9()

    def _prints(self, properties: Mapping[str, object], level: str, lines: re.Pattern[bytes], timeout_s: float) -> bool:
        """Start the process, and return whether it prints the lines."""
        configuration = self._write_configuration(properties)
        begin = self._log_bytes()
        options = (*_JAVA, *self._java_options, level, "-cp", self._class_path)
        command = [str(self._java), *options, "kafka.Kafka", str(configuration)]
        return self._run(command, lambda: lines.search(self.log.read_bytes(), begin) is not None, timeout_s)

    def _format(self, configuration: Path) -> None:
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        users = [
            argument
            for mechanism in self._mechanisms
            if mechanism.startswith("SCRAM")
            for name, password in self._users.items()
            for argument in ("--add-scram", f"{mechanism}=[name={name},password={password}]")
        ]
        # `=`, as an identifier may begin with a dash.
        self.tool("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(configuration), *users)

    def _write_configuration(self, properties: Mapping[str, object]) -> Path:
        file = self._directory / "server.properties"
        file.touch(mode=0o600)
        found = self._base_properties() | self._security_properties() | dict(self._properties) | dict(properties)
        file.write_text("".join(f"{name}={value}\n" for name, value in found.items() if value != ""))
        return file

    def _base_properties(self) -> dict[str, object]:
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in self._ports.items())
        advertised = f"CLIENTS://{self.bootstrap},INTERNAL://{self.internal_bootstrap}"
        protocol = ("SASL_" if self._users else "") + ("SSL" if self._certificate else "PLAINTEXT")
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._ports['CONTROLLER']}",
            "listeners": listeners,
            "advertised.listeners": advertised,
            "listener.security.protocol.map": f"CLIENTS:{protocol},INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self._directory / "data",
            "auto.create.topics.enable": "false",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "share.coordinator.state.topic.num.partitions": 1,
            # A consumer group would wait three seconds for more members.
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 16 << 20,
        }

    def _security_properties(self) -> dict[str, object]:
        found: dict[str, object] = {}
        if self._certificate:
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": self._certificate}
        if self._client_authority:
            found |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": self._client_authority,
                "ssl.client.auth": "required",
            }
        if self._users:
            found["sasl.enabled.mechanisms"] = ",".join(self._mechanisms)
            for mechanism in self._mechanisms:
                found[f"listener.name.clients.{mechanism.lower()}.sasl.jaas.config"] = self._login_module(mechanism)
        return found

    def _login_module(self, mechanism: str) -> str:
        package = "org.apache.kafka.common.security"
        if mechanism == "PLAIN":
            users = " ".join(f'user_{name}="{password}"' for name, password in self._users.items())
            return f"{package}.plain.PlainLoginModule required {users};"
        if mechanism == "OAUTHBEARER":  # accepts tokens without a signature
            return f'{package}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="server";'
        return f"{package}.scram.ScramLoginModule required;"


def jars() -> list[Path]:
    """The server's jars, with those of its tools. They are fetched if necessary."""
    try:
        return maven.fetch_all(maven.read_pins(_PINS), _TIMEOUT_S)
    except OSError as error:
        raise ConfigError(
            f"the embedded Kafka server cannot be fetched from Maven Central ({error})",
            "it is fetched once, into ~/.cache/tailrace: allow access to repo1.maven.org",
        ) from error
