"""The sink `opensearch` on a real server: crashes, lost indices, rejected documents, busy clusters, names."""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import oracle
from tests.contract.delivery_driver import Crash, DeliveryDriver, crashing
from tests.contract.search_indices import SearchIndices
from tests.fixtures.opensearch import search_client
from tests.fixtures.postgres import Database
from tests.sinks.captured_source import CapturedSource

from tailrace.delivery import dead_letters
from tailrace.delivery.step import Stepper
from tailrace.embedded.opensearch import OpenSearchServer
from tailrace.embedded.process import wait_until
from tailrace.errors import ConfigError, PoisonError, SinkError, SinkRefused


class Scene(CapturedSource):
    """A source, its log, and indices on the shared server."""

    def __init__(self, source: Database, server: OpenSearchServer, directory: Path) -> None:
        super().__init__(source, directory)
        self.indices = SearchIndices(server)
        self.client = search_client(server.url)

    def driver(self, **more: Any) -> DeliveryDriver:
        return DeliveryDriver(self.indices, self.given.store, **more)

    def deliver(self, **more: Any) -> None:
        with self.driver(**more).stepper() as stepper:
            stepper.load_missing()
            stepper.deliver(stepper.log_end())

    def assert_same(self, table: str = "t") -> None:
        """The documents are the source's rows."""
        with self.source.connect(client_encoding="UTF8") as connection:
            described = oracle.column_descriptions(connection)["public", table]
            columns = [column["name"] for column in described]
            expected = oracle.rows(connection, "public", table, columns)
        types = {column["name"]: column["data_type"] for column in described}
        assert self.indices.rows(("public", table), columns, types) == expected

    def index(self, table: str = "t") -> str:
        """The index behind a table's alias."""
        (name,) = self.client.indices.get_alias(name=self.indices.alias("public", table))
        return str(name)


@pytest.fixture
def scene(database: Database, opensearch_server: OpenSearchServer, tmp_path: Path) -> Iterator[Scene]:
    database.execute("""
        CREATE TABLE t (id int PRIMARY KEY, body text, n int);
        ALTER TABLE t ALTER body SET STORAGE EXTERNAL;
        INSERT INTO t SELECT g, repeat(md5(g::text), 80), g FROM generate_series(1, 9) g;
        CREATE PUBLICATION tailrace FOR ALL TABLES;
    """)
    made = Scene(database, opensearch_server, tmp_path / "store")
    yield made
    made.indices.close()


_HARD = (
    # Rows swap their keys, and PostgreSQL sends none of their large values.
    "BEGIN; UPDATE t SET id = -1 WHERE id = 1; UPDATE t SET id = 1 WHERE id = 2;"
    " UPDATE t SET id = 2 WHERE id = -1; COMMIT",
    "UPDATE t SET n = -n WHERE id < 5",
    "BEGIN; UPDATE t SET id = 20 WHERE id = 3; INSERT INTO t VALUES (3, 'took its key', 0);"
    " DELETE FROM t WHERE id = 4; COMMIT",
    "BEGIN; ALTER TABLE t ADD extra text DEFAULT 'older rows show it'; UPDATE t SET n = 7 WHERE id = 20;"
    " UPDATE t SET id = 21 WHERE id = 20; COMMIT",
    "UPDATE t SET n = 8 WHERE id IN (1, 2, 21)",
)


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.soak)])
def test_a_crash_before_any_request_changes_nothing_in_the_end(scene: Scene, stride: int) -> None:
    """Also if the step moves rows whose values only the cluster has, and alters the table."""
    scene.capture(snapshot=["t"])
    scene.deliver()
    scene.capture(*_HARD)
    at = 1
    while True:
        try:
            with crashing(at):
                scene.deliver()
            break
        except Crash:
            at += stride
    assert at > 30
    scene.assert_same()
    scene.deliver()
    scene.indices.assert_no_leftovers()
    ledger = f"{scene.indices.prefix}-cursors"
    scene.client.indices.refresh(index=ledger)
    found = scene.client.search(index=ledger, params={"size": "100"})["hits"]["hits"]
    assert Counter(hit["_source"]["kind"] for hit in found) == {"sink": 1, "table": 1}


def test_a_step_that_was_begun_is_finished_before_another(scene: Scene) -> None:
    """Another step from the same start would not find what the first one stored for rows that move."""
    scene.capture(snapshot=["t"])
    scene.deliver()
    scene.capture("UPDATE t SET id = 30 WHERE id = 3")
    with scene.driver().stepper() as stepper:
        begun = stepper.next_step()
        assert begun is not None
        stepper.run(begun.tasks, stepper.sink.parallel)
    scene.capture("UPDATE t SET id = 31 WHERE id = 30")
    stepper = scene.driver().make_stepper()
    Stepper.open(stepper)  # does not finish the step
    assert stepper.is_interrupted
    with pytest.raises(SinkError, match="was begun"):
        stepper.finish(stepper._plan_changes(stepper.ahead()))
    stepper.close()
    scene.deliver()
    scene.assert_same()


def test_a_truncate_and_what_follows_it_are_one_step(scene: Scene) -> None:
    scene.capture(snapshot=["t"])
    scene.capture("UPDATE t SET n = 0", "TRUNCATE t", "INSERT INTO t VALUES (1, 'again', 1), (2, 'too', 2)")
    scene.deliver()
    scene.assert_same()


def test_rejected_documents_become_dead_letters_and_are_replayed(scene: Scene) -> None:
    scene.capture(snapshot=["t"])
    mapping = {"fields": {"public.t.body": json.dumps({"type": "text", "fields": {"n": {"type": "integer"}}})}}
    with pytest.raises(PoisonError, match=r"public\.t, 0/[0-9A-F]+:\d+: the cluster rejects .* field body") as caught:
        scene.deliver(**mapping)
    assert "c4ca4238" not in str(caught.value), "the message quotes a value"
    scene.deliver()
    number = {"fields": {"public.t.n": json.dumps({"type": "byte"})}}
    with scene.driver(**number, on_poison="dead_letter").stepper() as stepper:
        stepper.rewind("snapshot")
        stepper.load_missing()
        scene.capture("UPDATE t SET n = 1000 WHERE id = 2", "UPDATE t SET n = 100 WHERE id = 3")
        stepper.deliver(stepper.log_end())
        assert stepper.dead_letters == 1
        found = scene.indices.documents("public", "t")
        assert (found["2"]["n"], found["3"]["n"]) == ("2", "100")
    (letter,) = dead_letters.load_all(scene.store, "tested")
    dead_letters.request_replay(scene.store, letter)
    with scene.driver().stepper() as stepper:
        stepper.look_for_loads()
        stepper.finish(stepper.next_step())
        assert stepper.dead_letters == 0
    scene.assert_same()


def test_a_lost_index_is_loaded_again(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.capture(snapshot=["t"])
    scene.deliver()
    scene.client.indices.delete(index=scene.index())
    scene.capture("UPDATE t SET n = 0 WHERE id = 1")
    with caplog.at_level(logging.WARNING):
        scene.deliver()
    assert "the index of public.t is missing or was restored" in caplog.text
    scene.assert_same()
    # The index of the cursor, too: everything is loaded again.
    scene.client.indices.delete(index=f"{scene.indices.prefix}-cursors")
    scene.capture("UPDATE t SET n = 1 WHERE id = 1")
    scene.deliver()
    scene.assert_same()
    scene.indices.assert_no_leftovers()


def test_a_blocked_index_is_waited_for(scene: Scene) -> None:
    """The cluster rejects every document, as it does when its disk is full, until the block is removed."""
    scene.capture(snapshot=["t"])
    scene.deliver()
    scene.capture("UPDATE t SET n = 0")
    block = "index.blocks.read_only_allow_delete"
    scene.client.indices.put_settings(index=scene.index(), body={block: True})
    thread = threading.Thread(target=scene.deliver)
    thread.start()
    try:
        rejected = {"index": f"{scene.indices.prefix}-cursors", "id": "tested"}
        assert wait_until(lambda: scene.client.get(**rejected)["_source"]["claim"] != "", 30)
    finally:
        scene.client.indices.put_settings(index=scene.index(), body={block: None})
        thread.join()
    scene.assert_same()


def test_names_that_collide_or_belong_to_others_are_refused(scene: Scene) -> None:
    scene.capture(
        'CREATE SCHEMA "public-t"; CREATE TABLE "public-t".u (id int PRIMARY KEY)',
        'CREATE TABLE "t-u" (id int PRIMARY KEY)',
        snapshot=None,
    )
    with pytest.raises(ConfigError, match=r"public-t\.u and public\.t-u|public\.t-u and public-t\.u"):
        scene.deliver()
    scene.indices.close()
    scene.client.indices.create(index=scene.indices.alias("public", "t"))
    with pytest.raises(SinkRefused, match="exists already, and is not the sink's"):
        scene.deliver(tables=["public.t"])


def test_tables_without_a_key(scene: Scene) -> None:
    """One that only grows is delivered; one whose rows change is refused."""
    scene.capture("CREATE TABLE log (line text); INSERT INTO log VALUES ('a'), ('a'), (NULL)", snapshot=["t", "log"])
    scene.capture("INSERT INTO log VALUES ('a'), ('b')", "TRUNCATE log", "INSERT INTO log VALUES ('c'), ('c')")
    scene.deliver()
    scene.assert_same("log")
    scene.capture("CREATE TABLE sack (v text); ALTER TABLE sack REPLICA IDENTITY FULL", snapshot=["sack"])
    with pytest.raises(SinkRefused, match=r"public\.sack has REPLICA IDENTITY FULL and no key"):
        scene.deliver()
