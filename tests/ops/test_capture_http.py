"""The HTTP server of a capture without a supervisor: its status with and without the source, and a shutdown."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import httpx
from tests.capturing import environment, tailrace
from tests.fixtures.network import Proxy
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress

from tailrace.embedded.process import free_port, wait_until
from tailrace.log.reader import LogReader


def test_status_and_shutdown_of_a_capture(database: Database, file_address: StoreAddress) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    port = free_port()
    network = Proxy(database.server.port)
    env = environment(database, *file_address) | {
        "TAILRACE_SOURCE_URL": network.url(database.server, database.name),
        "TAILRACE_HTTP_PORT": str(port),
        "TAILRACE_HTTP_TOKEN": "s3cret",
    }
    process = subprocess.Popen(tailrace("capture"), env=env, stderr=subprocess.PIPE, text=True)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:

        def get(path: str = "/status") -> Any:
            try:
                return client.get(path).json()
            except httpx.TransportError:
                return {"capture": {"state": None, "changes": None}, "status": None}

        try:
            assert wait_until(lambda: get()["capture"]["state"] == "streaming", 60)
            assert get("/health") == {"status": "ok"}
            database.execute("INSERT INTO t SELECT generate_series(1, 10)")
            assert wait_until(lambda: get()["capture"]["changes"] == 10, 30)
            assert wait_until(lambda: get()["source"]["is_active"], 30), "refreshed every few seconds"
            assert get()["log"]["error"] is None
            metrics = client.get("/metrics").text
            assert 'tailrace_capture_changes_total{operation="insert"} 10\n' in metrics
            assert 'tailrace_capture_changes_total{operation="delete"} 0\n' in metrics
            assert "tailrace_capture_repeated_total 0\n" in metrics
            # BEGIN, RELATION, ten INSERTs, COMMIT.
            assert "tailrace_capture_messages_total 13\n" in metrics
            assert re.search(r"tailrace_capture_start_time_seconds \d{10}", metrics)
            assert client.post("/sinks/lake/pause", headers={"Authorization": "Bearer s3cret"}).status_code == 404

            # The source is unreachable: it is reported, and /health does not wait for it.
            network.close()
            assert wait_until(lambda: get("/health")["status"] == "wrong", 60)
            assert get("/health")["faults"][0].startswith("capture is disconnected: ")
            assert wait_until(lambda: get()["source"]["error"] is not None, 60)
            assert client.post("/shutdown").status_code == 401
            assert client.post("/shutdown", headers={"Authorization": "Bearer s3cret"}).status_code == 202
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
    assert process.returncode == 0, errors
    assert "s3cret" not in errors
    assert len([c for c in LogReader(*file_address).changes() if c.table == "t"]) == 10
