"""Debian's RabbitMQ, where it is installed, as a node of its own on free ports of 127.0.0.1, for tests and benchmarks.

There is no wheel of RabbitMQ. The node shares nothing with the machine's own broker: it has its own name, data, cookie,
plugins and port mapper (epmd), and runs as the current user.
"""

from __future__ import annotations

import atexit
import base64
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

from tailrace.embedded.process import EmbeddedServer, Process, free_port, wait_until
from tailrace.errors import ConfigError, TailraceError

_SCRIPT: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Not the one in /usr/sbin, which changes to the user `rabbitmq`."""
_NODE: Final = "tailrace@localhost"
_PORTS: Final = ("epmd", "distribution", "amqp", "amqps", "stream", "stream_tls")
_GREETING: Final = b"AMQP\x00\x00\x09\x01"


def is_installed() -> bool:
    """Whether this machine has RabbitMQ."""
    return _SCRIPT.exists() and shutil.which("epmd") is not None


class RabbitMqServer(EmbeddedServer):
    """One broker with streams. Its data is removed when it is closed, or when this process ends."""

    user: Final = "tailrace"

    def __init__(
        self,
        configuration: Mapping[str, str] | None = None,
        *,
        plugins: Sequence[str] = (),
        permissions: Mapping[str, tuple[str, str, str]] | None = None,
        vhosts: Sequence[str] = (),
        certificate: tuple[Path, Path] | None = None,
        password: str = "",
    ) -> None:
        """Configure a broker.

        Args:
            configuration: Lines of rabbitmq.conf, such as `max_message_size`.
            plugins: Plugins beside the one for streams.
            permissions: Further users without a password of their own (they have `password`): each one's regular
                expressions for configure, write and read in the vhost `/`.
            vhosts: Vhosts beside `/`. `user` may do anything in them.
            certificate: The authority, and a file with the server's certificate and key: TLS listeners are added.
            password: The password of all users; a random one by default.
        """
        if not is_installed():
            raise ConfigError("RabbitMQ is not installed", "apt-get install rabbitmq-server")
        self._directory = Path(tempfile.mkdtemp(prefix="tailrace-rabbitmq-"))
        self._configuration = dict(configuration or {})
        self._plugins = ["rabbitmq_stream", *plugins]
        self._permissions = {self.user: (".*", ".*", ".*"), **(permissions or {})}
        self._vhosts = ["/", *vhosts]
        self._certificate = certificate
        self.password = password or secrets.token_hex(12)
        self._ports: dict[str, int] = {}
        self._process: Process | None = None
        self._epmd: Process | None = None

    @property
    def port(self) -> int:
        return self._ports["amqp"]

    @property
    def tls_port(self) -> int:
        return self._ports["amqps"]

    @property
    def stream_port(self) -> int:
        return self._ports["stream"]

    @property
    def stream_tls_port(self) -> int:
        return self._ports["stream_tls"]

    @property
    def log(self) -> Path:
        return self._directory / "server.log"

    @property
    def url(self) -> str:
        return self.url_of("/")

    def url_of(self, vhost: str) -> str:
        return f"amqp://{self.user}:{self.password}@127.0.0.1:{self.port}/{quote(vhost, safe='')}"

    def start(self, timeout_s: float = 60) -> Self:
        """Start the broker. After `kill9` it starts again on the same ports with the same data."""
        for _ in range(5):
            self._ports = self._ports or {name: free_port() for name in _PORTS}
            self._write_files()
            atexit.register(self.close)
            self._epmd = Process(
                self._command("epmd", "-port", str(self._ports["epmd"]), "-address", "127.0.0.1"),
                self.log,
                signal.SIGKILL,
            )
            self._process = process = Process(self._command("sh", str(_SCRIPT), "-noinput"), self.log, signal.SIGKILL)
            wait_until(lambda p=process: not p.is_running or self._answers(), timeout_s)  # type: ignore[misc]
            if process.is_running and self._answers():
                return self
            self.kill9()
            words = self.log.read_text(errors="replace")
            if "eaddrinuse" not in words and "already in use" not in words:
                break
            self._ports = {}
        self.close()
        raise TailraceError("the embedded RabbitMQ did not start", words[-2000:])

    def has_stored_streams(self) -> bool:
        """Whether `kill9` spares the streams. The broker forgets all of them if it is killed within a second after it
        created its first one: it writes down by then that it has streams at all."""
        files = (self._directory / "data").glob("*/coordination/*/names.dets")
        return any(b"rabbit_stream_coordinator" in file.read_bytes() for file in files)

    def kill9(self) -> None:
        for process in (self._process, self._epmd):
            if process is not None:
                process.kill_tree()
        self._process = self._epmd = None

    def close(self) -> None:
        atexit.unregister(self.close)
        self.kill9()
        shutil.rmtree(self._directory, ignore_errors=True)

    def control(self, *arguments: str) -> str:
        """Run `rabbitmqctl` on this broker, and return what it prints."""
        # Its own port for the distribution would be the same for all brokers.
        port = str(free_port())
        ports = [f"RABBITMQ_CTL_DIST_PORT_MIN={port}", f"RABBITMQ_CTL_DIST_PORT_MAX={port}"]
        command = self._command(*ports, str(_SCRIPT.with_name("rabbitmqctl")), "--quiet", *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise TailraceError(f"rabbitmqctl {arguments[0]} failed", (done.stdout + done.stderr)[-2000:])
        return done.stdout

    def _command(self, *command: str) -> list[str]:
        """Return a command with exactly the environment that the node needs: the machine's settings do not apply."""
        directory = self._directory
        variables = {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(directory),  # of the cookie
            "ERL_EPMD_PORT": str(self._ports["epmd"]),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # The script then replaces itself with the broker, which has the process's pid.
            "RABBITMQ_ALLOW_INPUT": "1",
            "RABBITMQ_NODENAME": _NODE,
            "RABBITMQ_DIST_PORT": str(self._ports["distribution"]),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONF_ENV_FILE": str(directory / "none.conf"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "none.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(directory / "data"),
            "RABBITMQ_LOG_BASE": str(directory),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(directory / "pid"),
        }
        return ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), *command]

    def _write_files(self) -> None:
        definitions = self._directory / "definitions.json"
        lines = {
            "listeners.tcp.local": f"127.0.0.1:{self._ports['amqp']}",
            "stream.listeners.tcp.local": f"127.0.0.1:{self._ports['stream']}",
            "stream.advertised_host": "127.0.0.1",
            "stream.advertised_port": str(self._ports["stream"]),
            "load_definitions": str(definitions),
            **self._tls_lines(),
            **self._configuration,
        }
        self._write("rabbitmq.conf", "".join(f"{name} = {value}\n" for name, value in lines.items()))
        self._write("enabled_plugins", f"[{','.join(self._plugins)}].\n")
        self._write("definitions.json", json.dumps(self._definitions()))

    def _write(self, name: str, text: str) -> None:
        file = self._directory / name
        file.touch(mode=0o600)
        file.write_text(text)

    def _tls_lines(self) -> dict[str, str]:
        if self._certificate is None:
            return {}
        authority, certificate = map(str, self._certificate)
        return {
            "listeners.ssl.local": f"127.0.0.1:{self._ports['amqps']}",
            "stream.listeners.ssl.local": f"127.0.0.1:{self._ports['stream_tls']}",
            "stream.advertised_tls_host": "localhost",
            "stream.advertised_tls_port": str(self._ports["stream_tls"]),
            "ssl_options.cacertfile": authority,
            "ssl_options.certfile": certificate,
            "ssl_options.keyfile": certificate,
            "ssl_options.verify": "verify_peer",
            "ssl_options.fail_if_no_peer_cert": "false",
        }

    def _definitions(self) -> dict[str, object]:
        users = [
            {
                "name": name,
                "password_hash": _hash(self.password),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": "administrator" if name == self.user else "",
            }
            for name in self._permissions
        ]
        permissions = [
            {"user": name, "vhost": vhost, "configure": rights[0], "write": rights[1], "read": rights[2]}
            for name, rights in self._permissions.items()
            for vhost in (self._vhosts if name == self.user else ["/"])
        ]
        return {"users": users, "vhosts": [{"name": name} for name in self._vhosts], "permissions": permissions}

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._ports["stream"]), timeout=5):
                pass
            with socket.create_connection(("127.0.0.1", self._ports["amqp"]), timeout=5) as connection:
                connection.sendall(_GREETING)
                return connection.recv(1) == b"\x01"
        except OSError:
            return False


def _hash(password: str) -> str:
    salt = secrets.token_bytes(4)
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()
