"""Kills deliveries to Valkey, and the server: its rows are PostgreSQL's, and its streams have each change once."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from tests import oracle
from tests.contract.valkey_rows import comparable_document, connect, document_row, escaped
from tests.faults.test_delivery import KILLS, Scene, kill
from tests.fixtures.opensearch import Digits
from tests.fixtures.postgres import Database
from tests.workload import Workload

from tailrace.embedded.process import wait_until
from tailrace.embedded.valkey import ValkeyServer
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader

_SINKS = ("rows", "documents", "changes")


def _toml(server: ValkeyServer) -> str:
    return f"""
        [[sink]]
        name = "rows"
        type = "valkey"
        url = "{server.url}"
        exclude = ["public.bag"]
        [[sink]]
        name = "documents"
        type = "valkey"
        url = "{server.url}"
        mode = "json"
        key = "documents:{{schema}}:{{table}}:{{key}}"
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
        scene.workload = Workload(database.connect, seed=3, rest_s=0.2, ddl=True, exclusive=0.1, swaps=True)
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
    """Wait until all sinks have advanced."""
    before = _states(server)

    def have_advanced() -> bool:
        return all(now not in (None, old) for now, old in zip(_states(server), before, strict=True))

    assert wait_until(have_advanced, 300), "nothing was delivered"


def _states(server: ValkeyServer) -> list[Any]:
    with suppress(redis.ConnectionError):
        return [connect(server).hget(f"tailrace:{sink}", "state") for sink in _SINKS]
    return [None] * len(_SINKS)


def _assert_rows(scene: Scene, server: ValkeyServer) -> None:
    """The hashes and the documents are PostgreSQL's rows."""
    client = connect(server)
    keys = list(client.scan_iter(count=1000))
    with scene.database.connect(client_encoding="UTF8") as source:
        for name, described in oracle.column_descriptions(source).items():
            if name == ("public", "bag"):
                continue
            columns = [column["name"] for column in described]
            types = {column["name"]: column["data_type"] for column in described}
            expected = oracle.rows(source, *name, columns)
            prefix = f"{escaped(name[0])}:{escaped(name[1])}:"
            hashes: list[Any] = [client.hgetall(key) for key in keys if key.startswith(prefix.encode())]
            found = Counter(tuple(row.get(column.encode()) for column in columns) for row in hashes)
            assert found == expected, name
            texts: list[Any] = [client.get(key) for key in keys if key.startswith(f"documents:{prefix}".encode())]
            documents = [json.loads(text, parse_int=Digits, parse_float=Digits) for text in texts]
            rows = Counter(document_row(document, columns, types) for document in documents)
            assert rows == Counter(comparable_document(row, columns, types) for row in expected.elements()), name


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
