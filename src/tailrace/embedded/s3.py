"""A real S3 server (SeaweedFS) from a wheel, on free ports of 127.0.0.1, for tests and benchmarks."""

from __future__ import annotations

import atexit
import json
import secrets
import shutil
import signal
import tempfile
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Self

import obstore
from obstore.exceptions import BaseError
from obstore.store import S3Store

from tailrace.embedded.process import EmbeddedServer, Process, free_port, program, wait_until
from tailrace.errors import StoreError


class S3Server(EmbeddedServer):
    """One server with one bucket. Its data is removed when it is closed, or when this process ends."""

    def __init__(self, bucket: str = "tailrace") -> None:
        self.bucket = bucket
        self._program = program("weed", "S3 server")
        self._directory = Path(tempfile.mkdtemp(prefix="tailrace-s3-"))
        self._secret = secrets.token_hex(20)
        self._ports: dict[str, int] = {}
        self._process: Process | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3.port']}"

    @property
    def url(self) -> str:
        return self.url_of("")

    def url_of(self, prefix: str) -> str:
        return f"s3://{self.bucket}/{prefix}".rstrip("/")

    @property
    def options(self) -> dict[str, str]:
        """The options that a store needs beside the URL, as obstore names them."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": "tailrace",
            "secret_access_key": self._secret,
            "region": "us-east-1",
        }

    def start(self, timeout_s: float = 60) -> Self:
        log = self._directory / "server.log"
        for _ in range(5):
            self._process = process = Process(self._command(), log, signal.SIGKILL)
            atexit.register(self.close)
            wait_until(lambda p=process: not p.is_running or self._answers(), timeout_s)  # type: ignore[misc]
            if process.is_running and self._create_bucket(timeout_s):
                return self
            self.stop()
            if b"address already in use" not in log.read_bytes():
                break
        words = log.read_text(errors="replace")[-2000:]
        self.close()
        raise StoreError("the embedded S3 server did not start", words)

    def stop(self) -> None:
        """Stop the server by SIGKILL: on SIGTERM it takes 15 seconds, and its data need not be retained."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.is_running:
            process.send(signal.SIGKILL)
        process.wait(30)
        for port in self._ports.values():
            for socket in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):  # noqa: S108 (where the server puts them)
                socket.unlink(missing_ok=True)

    def close(self) -> None:
        atexit.unregister(self.close)
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _command(self) -> list[str]:
        servers = ("s3", "master", "volume", "filer")
        self._ports = {f"{server}.{port}": free_port() for server in servers for port in ("port", "port.grpc")}
        identity = {
            "name": "tailrace",
            "credentials": [{"accessKey": "tailrace", "secretKey": self._secret}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        identities = self._directory / "identities.json"
        identities.touch(mode=0o600)
        identities.write_text(json.dumps({"identities": [identity]}))
        return [
            str(self._program),
            "server",
            f"-dir={self._directory}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-filer",
            "-s3",
            f"-s3.config={identities}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=1024",
            "-volume.max=64",
            *(f"-{name}={port}" for name, port in self._ports.items()),
        ]

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(self.endpoint, timeout=5).close()  # noqa: S310 (our own HTTP address)
        except urllib.error.HTTPError as refusal:
            refusal.close()
            return True
        except OSError:
            return False
        return True

    def _create_bucket(self, timeout_s: float) -> bool:
        """Create the bucket by writing an object. Once it is written, all four servers have found each other."""
        store = S3Store.from_url(
            self.url_of(".ready"),
            config=self.options,  # type: ignore[arg-type]
            client_options={"allow_http": True},
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=5)},
        )

        def is_written() -> bool:
            try:
                obstore.put(store, "probe", b"")
                obstore.delete(store, "probe")
            except (BaseError, OSError):
                return False
            return True

        return wait_until(is_written, timeout_s)
