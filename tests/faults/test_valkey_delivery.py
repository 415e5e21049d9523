"""Kills deliveries to Valkey, and the server: its rows are PostgreSQL's, and its streams have each change once."""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from tests import oracle
from tests.contract.valkey_rows import connect, escaped
from tests.faults.test_delivery import KILLS, Scene, kill
from tests.fixtures.postgres import Database

from tailrace.embedded.process import wait_until
from tailrace.embedded.valkey import ValkeyServer
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader


def _toml(server: ValkeyServer) -> str:
    return f"""
        [[sink]]
        name = "rows"
        type = "valkey"
        url = "{server.url}"
        exclude = ["public.bag"]
        [[sink]]
        name = "changes"
        type = "valkey"
        url = "{server.url}"
        mode = "stream"
        key = "changes:{{schema}}:{{table}}"
        """


@pytest.mark.soak
def test_killed_deliveries_and_servers_lose_and_duplicate_nothing(database: Database, tmp_path: Path) -> None:
    """The server has its defaults: it writes its append-only file to disk once a second."""
    rng = random.Random(1)
    with ValkeyServer() as server:
        scene = Scene(database, tmp_path, _toml(server))
        with scene.captured():
            for number in range(KILLS):
                process = scene.start()
                try:
                    _wait_for_progress(server)
                    time.sleep(rng.uniform(0, 1.0))
                    if number % 2:
                        server.kill9()
                        server.start()
                        _wait_for_progress(server)
                finally:
                    kill(process)
                if number % 4 > 1:
                    server.kill9()
                    server.start()
        scene.deliver_all()
        _assert_rows(scene, server)
        _assert_entries(scene, server)


def _wait_for_progress(server: ValkeyServer) -> None:
    """Wait until both sinks have advanced."""
    before = _states(server)

    def have_advanced() -> bool:
        return all(now not in (None, old) for now, old in zip(_states(server), before, strict=True))

    assert wait_until(have_advanced, 300), "nothing was delivered"


def _states(server: ValkeyServer) -> list[Any]:
    with suppress(redis.ConnectionError):
        return [connect(server).hget(f"tailrace:{sink}", "state") for sink in ("rows", "changes")]
    return [None, None]


def _assert_rows(scene: Scene, server: ValkeyServer) -> None:
    client = connect(server)
    with scene.database.connect(client_encoding="UTF8") as source:
        for table in scene.workload.tables:
            if table.name == "bag":
                continue
            columns = [
                str(name)
                for (name,) in source.execute(
                    "SELECT column_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s",
                    [table.schema, table.name],
                )
            ]
            prefix = f"{escaped(table.schema)}:{escaped(table.name)}:".encode()
            found: Counter[Any] = Counter()
            for key in client.scan_iter(count=1000):
                if key.startswith(prefix):
                    row: Any = client.hgetall(key)
                    found[tuple(row.get(column.encode()) for column in columns)] += 1
            assert found == oracle.rows(source, table.schema, table.name, columns), table.name


def _assert_entries(scene: Scene, server: ValkeyServer) -> None:
    client = connect(server)
    since = {s.relation.oid: s.lsn for s in SnapshotReader(scene.store).list()}
    expected = Counter(
        str(change.position)
        for change in LogReader(scene.store).changes()
        if change.relation is not None and change.position.commit_lsn >= since[change.relation.oid]
    )
    found: Counter[str] = Counter()
    for stream in client.scan_iter("changes:*"):
        entries: Any = client.xrange(stream)
        found.update(
            fields[b"Tailrace-Position"].decode() for _, fields in entries if b'"SNAPSHOT"' not in fields[b"value"]
        )
    assert found == expected
