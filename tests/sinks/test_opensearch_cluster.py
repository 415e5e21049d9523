"""The sink `opensearch` on servers of its own: one that is too busy for some documents, and one that is restored."""

from __future__ import annotations

import json
import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from opensearchpy.exceptions import TransportError
from tests.fixtures.opensearch import search_client
from tests.fixtures.postgres import Database
from tests.sinks.search_gateway import SearchGateway
from tests.sinks.test_opensearch import Scene

from tailrace.embedded.opensearch import OpenSearchServer
from tailrace.embedded.process import wait_until


@pytest.fixture
def server(start_opensearch: Callable[..., OpenSearchServer]) -> Iterator[OpenSearchServer]:
    """It writes one request at a time, and lets one wait. It can be restored."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)  # the server runs as another user
        busy = {"node.processors": 1, "thread_pool.write.size": 1, "thread_pool.write.queue_size": 1}
        yield start_opensearch({**busy, "path.repo": name})


@pytest.fixture
def scene(database: Database, server: OpenSearchServer, tmp_path: Path) -> Scene:
    database.execute("""
        CREATE TABLE t (id int PRIMARY KEY, body text, n int);
        INSERT INTO t SELECT g, md5(g::text), g FROM generate_series(1, 2000) g;
        CREATE PUBLICATION tailrace FOR ALL TABLES;
    """)
    return Scene(database, server, tmp_path / "store")


@pytest.mark.soak
def test_documents_that_the_cluster_is_too_busy_for_are_sent_again(scene: Scene, server: OpenSearchServer) -> None:
    """The cluster rejects items of a bulk request, and accepts others: its index has several shards."""
    scene.indices.more = {"index_settings": {"number_of_replicas": "0", "number_of_shards": "4"}}
    scene.capture(snapshot=["t"])
    scene.deliver()
    scene.capture("UPDATE t SET n = -n", "DELETE FROM t WHERE id % 7 = 0")
    rejected: list[int] = []
    has_rejected = threading.Event()

    def observe(path: str, status: int, body: bytes) -> None:
        if "_bulk" in path and status == 200 and (items := json.loads(body).get("items")):
            statuses = [outcome["status"] for item in items for outcome in item.values()]
            if 429 in statuses:
                rejected.append(statuses.count(429))
                has_rejected.set()

    def flood() -> None:
        client = search_client(server.url)
        lines = "".join(f'{{"index":{{}}}}\n{{"a":"{number}"}}\n' for number in range(2000))
        while not has_rejected.is_set():
            with suppress(TransportError):  # it is too busy for others, too
                client.bulk(index="others", body=lines)

    others = [threading.Thread(target=flood) for _ in range(6)]
    with SearchGateway(server, observe=observe) as gateway:
        for thread in others:
            thread.start()
        try:
            scene.indices.more = {**scene.indices.more, "url": gateway.url}
            scene.deliver()
        finally:
            has_rejected.set()
            for thread in others:
                thread.join()
    assert rejected, "the cluster was not busy"
    scene.assert_same()


@pytest.mark.soak
def test_a_restored_index_is_loaded_again(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """It has documents of an earlier time, and another identity."""
    scene.capture(snapshot=["t"])
    scene.deliver()
    client, index = scene.client, scene.index()
    place = {"type": "fs", "settings": {"location": "copies"}}
    client.snapshot.create_repository(repository="copies", body=place)
    client.snapshot.create(
        repository="copies", snapshot="first", body={"indices": index}, params={"wait_for_completion": "true"}
    )
    scene.capture("UPDATE t SET n = 0 WHERE id < 100", "DELETE FROM t WHERE id > 1900")
    scene.deliver()
    scene.assert_same()
    client.indices.delete(index=index)
    client.snapshot.restore(repository="copies", snapshot="first", params={"wait_for_completion": "true"})
    assert wait_until(lambda: client.count(index=index)["count"] == 2000, 30)
    scene.capture("INSERT INTO t VALUES (3000, 'after the restore', 1)")
    with caplog.at_level(logging.WARNING):
        scene.deliver()
    assert "the index of public.t is missing or was restored" in caplog.text
    scene.assert_same()
    scene.indices.assert_no_leftovers()
