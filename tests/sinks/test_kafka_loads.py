"""Loads of tables into Kafka: rows, then the changes since, each once, also around steps that were interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.contract.delivery_driver import Crash, DeliveryDriver, crash_after_staging, crashing
from tests.contract.kafka_topics import KafkaTopics
from tests.fixtures.kafka import create_topic
from tests.fixtures.postgres import Database
from tests.sinks.captured_source import CapturedSource

from tailrace.change import Lsn
from tailrace.delivery import cursors
from tailrace.delivery.contract import State
from tailrace.embedded.kafka import KafkaServer
from tailrace.errors import PoisonError, SinkError, SinkRefused
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader
from tailrace.store import Store


class Scene(CapturedSource):
    def __init__(self, source: Database, server: KafkaServer, directory: Path) -> None:
        super().__init__(source, directory / "store")
        self.directory = directory / "store"
        self.topics = KafkaTopics(server)
        self.driver = DeliveryDriver(self.topics, self.given.store)

    def deliver(self) -> None:
        with self.driver.stepper() as one:
            one.load_missing()
            one.deliver(one.log_end())

    @contextmanager
    def without_snapshots(self, table: str) -> Iterator[None]:
        """As if capture had not finished the snapshots of a table yet."""
        files = list(self.directory.glob(f"snapshots/*{table}*/*/meta.json"))
        assert files
        for file in files:
            file.rename(file.with_suffix(".hidden"))
        yield
        for file in files:
            file.with_suffix(".hidden").rename(file)

    def assert_each_once(self) -> None:
        """Assert that the topics have the rows of each table's newest snapshot and all changes since, each once."""
        snapshots = {s.relation.oid: s for s in SnapshotReader(self.store).list()}
        expected = [
            f"{change.position} {change.operation.name}"
            for change in LogReader(self.store).changes()
            if change.relation is not None and change.position.commit_lsn >= snapshots[change.relation.oid].lsn
        ]
        expected += [f"{s.lsn}:{n} SNAPSHOT {s.relation.name}" for s in snapshots.values() for n in range(s.rows)]
        received = [
            f"{message.position} {message.payload['operation']}"
            + (f" {message.payload['table']}" if message.is_row else "")
            for message in self.topics.received()
        ]
        assert sorted(received) == sorted(expected)


@pytest.fixture
def scene(database: Database, kafka_server: KafkaServer, tmp_path: Path) -> Scene:
    database.execute("CREATE TABLE early (id int PRIMARY KEY, body text); CREATE TABLE late (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    return Scene(database, kafka_server, tmp_path)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_table_is_loaded_after_a_step_was_interrupted(scene: Scene, when: str) -> None:
    """The step left the table's changes out. Their positions are below the progress that the step left."""
    scene.capture("INSERT INTO early VALUES (1)", "INSERT INTO late VALUES (1)", snapshot=["early"])
    if when == "before":  # the sink's cursor passes the snapshot
        scene.capture("INSERT INTO early VALUES (2)", snapshot=["late"])
        scene.capture("INSERT INTO early VALUES (3); INSERT INTO late VALUES (3)")
        with scene.without_snapshots("late"):
            scene.deliver()
        scene.capture("INSERT INTO early VALUES (4); INSERT INTO late VALUES (4)")
    else:
        scene.deliver()
        scene.capture("INSERT INTO early VALUES (2)", snapshot=["late"])
        scene.capture("INSERT INTO early VALUES (3); INSERT INTO late VALUES (3)")
    with scene.without_snapshots("late"), scene.driver.stepper() as one:
        one.run = crash_after_staging(one.run)
        with pytest.raises(Crash):
            one.deliver(one.log_end())
    scene.deliver()
    scene.assert_each_once()


@pytest.mark.parametrize("rows", [0, 1])
def test_an_attempt_that_is_still_running_keeps_tables_from_being_loaded(scene: Scene, rows: int) -> None:
    """It publishes after a new delivery has looked for interrupted steps. An empty table has nothing to be staged."""
    scene.capture(
        "INSERT INTO early VALUES (1)", f"INSERT INTO late SELECT generate_series(1, {rows})", snapshot=["early"]
    )
    scene.deliver()
    scene.capture("INSERT INTO early VALUES (2)", snapshot=["late"])
    scene.capture("INSERT INTO early VALUES (3); INSERT INTO late VALUES (3)")
    with scene.driver.stepper() as new:
        with scene.without_snapshots("late"), scene.driver.stepper() as old:
            old.run = crash_after_staging(old.run)
            with pytest.raises(Crash):
                old.deliver(old.log_end())
        with pytest.raises(SinkError, match="an interrupted step published changes up to"):
            new.load_missing()
        new.open()
        new.load_missing()
        new.deliver(new.log_end())
    scene.assert_each_once()


def test_loads_that_crash_at_any_time(scene: Scene) -> None:
    """Several tables and chunks, and changes since the snapshots, one of which has the snapshot's LSN."""
    scene.capture(
        "INSERT INTO early SELECT n, repeat('x', 100) FROM generate_series(1, 100) n",
        "INSERT INTO late SELECT generate_series(1, 100)",
        snapshot=None,
    )
    scene.capture("UPDATE early SET body = 'y' WHERE id < 20", "DELETE FROM late WHERE id < 20")
    crashes = 0
    while True:
        try:
            with crashing(1 + 2 * crashes):
                scene.deliver()
            break
        except Crash:
            crashes += 1
    assert crashes > 3
    scene.assert_each_once()


def test_rows_of_a_snapshot_are_not_dead_letters(scene: Scene) -> None:
    """The log does not have them. A change may even have the same position."""
    scene.driver = DeliveryDriver(scene.topics, scene.given.store, on_poison="dead_letter")
    create_topic(scene.topics.server.bootstrap, f"{scene.topics.prefix}.public.early", 3, max_message_bytes="1000")
    scene.capture("INSERT INTO early VALUES (1, 'small'), (2, repeat('x', 2000))", snapshot=["early"])
    (snapshot,) = SnapshotReader(scene.store).list()
    with scene.driver.stepper() as one, pytest.raises(PoisonError) as raised:
        one.load_missing()
    assert f"{snapshot.lsn}:1 makes a message" in str(raised.value)
    assert "accepts 1,000" in str(raised.value)
    assert raised.value.positions == ()
    assert one.dead_letters == 0


def test_a_destination_that_is_ahead_of_the_log_is_refused(scene: Scene, tmp_path: Path) -> None:
    """The store is not the one that was delivered from, or was restored from an older copy."""
    scene.capture("INSERT INTO early VALUES (1)", snapshot=["early"])
    copied = {info.key: scene.store.get(info.key) or b"" for info in scene.store.list("")}
    scene.capture("INSERT INTO early VALUES (2)")
    scene.deliver()
    other = Store.open((tmp_path / "other").as_uri())
    for key, data in copied.items():
        other.replace(key, data)
    scene.driver = DeliveryDriver(scene.topics, type(scene.given.store)(other.url))
    with scene.driver.stepper():
        pass
    with pytest.raises(SinkRefused, match=r"the destination has changes up to .*, and the log ends at"):
        scene.deliver()


def test_a_cursor_of_another_source_is_refused(scene: Scene) -> None:
    scene.capture("INSERT INTO early VALUES (1)", snapshot=["early"])
    scene.deliver()
    before = scene.topics.fingerprint()
    record = scene.store.get("source.json") or b""
    scene.store.replace("source.json", record.replace(b'"database": "', b'"database": "other_'))
    for _ in range(2):
        with pytest.raises(
            SinkRefused, match=r"the destination holds the progress of .*, and this source is .*/other_"
        ):
            scene.deliver()
        cursors.rewind(scene.store, "tested", State(Lsn(0)))  # even if its positions do not count any more
    assert scene.topics.fingerprint() == before
