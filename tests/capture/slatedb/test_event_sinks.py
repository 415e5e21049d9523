"""Sinks of events have every entry of the WAL and every row of the snapshot, each once; together they are the scan."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests import oracle
from tests.capture.slatedb.database_writer import MERGE_OPERATOR, DatabaseWriter, RandomWrites
from tests.capture.slatedb.test_capture import BUSY_COMPACTION, Scene, directory, scene  # noqa: F401 (fixtures)
from tests.contract.audit_table import AuditTable
from tests.contract.delivery_driver import DeliveryDriver
from tests.contract.destinations import Destination
from tests.contract.nats_stream import NatsStream
from tests.contract.rabbitmq_messages import RabbitMqStreams
from tests.contract.scenario import Scenario
from tests.contract.test_sinks import destination  # noqa: F401 (a fixture)
from tests.fixtures.postgres import Database

from tailrace.change import Lsn
from tailrace.delivery.contract import State
from tailrace.embedded.nats import NatsServer
from tailrace.embedded.rabbitmq import RabbitMqServer

FIRST = ["jsonl", "parquet", "webhook", "valkey stream"]
OTHERS = ["recorder", "recorder of ranges", "kafka", "rabbitmq queue"]

Rows = dict[bytes, bytes]


class Deliveries:
    """Random writes, captured and delivered in several steps. The log says what must have been delivered."""

    def __init__(self, scene: Scene, directory: Path, place: Any, has_merges: bool) -> None:  # noqa: F811
        self.scene = scene.with_source(merge_operator=MERGE_OPERATOR) if has_merges else scene
        self.driver = DeliveryDriver(place, scene.settings.store)
        self._directory = directory
        self._has_merges = has_merges

    def run(self) -> tuple[Scenario, State]:
        writes = RandomWrites(41, has_merges=self._has_merges, has_ttl=False)
        with DatabaseWriter(self._directory, None, None, **BUSY_COMPACTION) as writer:
            writes.run(writer, 40)
            writer.flush_table()
            copied = writer.scan()
            for _ in range(3):
                self.scene.capture()
                with self.driver.stepper() as one:
                    one.load_missing()
                    one.deliver(one.log_end())
                    state = one.state
                writes.run(writer, 40)
            self.scene.capture()
            with self.driver.stepper() as one:
                one.deliver(one.log_end())
                state = one.state
            scan = writer.scan()
        scenario = Scenario(Path(self.scene.store.url.removeprefix("file://")))
        (snapshot,) = scenario.snapshots
        nulls = [None] * (len(snapshot.relation.columns) - 2)
        rows = Counter((_text(key), _text(value), *nulls) for key, value in copied.items())
        scenario.__dict__["copied"] = {(snapshot.relation.oid, snapshot.lsn): rows}
        assert _replayed(scenario, rows) == {_text(key): _text(value) for key, value in scan.items()}
        return scenario, state


def _replayed(scenario: Scenario, rows: oracle.Rows) -> dict[Any, Any]:
    """The rows that snapshot and changes add up to."""
    found: dict[Any, Any] = {key: value for key, value, *_ in rows}
    for change in scenario.changes.values():
        if change.new is not None:
            found[change.new[0]] = change.new[1]
        else:
            assert change.old is not None
            found.pop(change.old[0], None)
    return found


def _text(value: bytes) -> bytes:
    return b"\\x" + value.hex().encode()


@pytest.mark.parametrize("has_merges", [False, True])
@pytest.mark.parametrize(
    "destination", [*FIRST, *(pytest.param(sink, marks=pytest.mark.soak) for sink in OTHERS)], indirect=True
)
def test_events_are_the_wal(
    scene: Scene,  # noqa: F811
    directory: Path,  # noqa: F811
    destination: Destination,  # noqa: F811
    has_merges: bool,
) -> None:
    deliveries = Deliveries(scene, directory, destination, has_merges)
    scenario, state = deliveries.run()
    driver = deliveries.driver
    assert driver.began is not None
    none: Any = None  # a mark is about rows of PostgreSQL
    destination.assert_holds(scenario, none, State(state.cursor, driver.tables), driver.began)


@pytest.mark.soak
def test_streams_of_rabbitmq(scene: Scene, directory: Path, rabbitmq_server: RabbitMqServer) -> None:  # noqa: F811
    test_events_are_the_wal(scene, directory, RabbitMqStreams(rabbitmq_server, [("slatedb", "users")]), True)


@pytest.mark.parametrize("has_merges", [False, True])
@pytest.mark.parametrize("encoding", ["msgpack", "json"])
def test_a_stream_of_nats(
    scene: Scene,  # noqa: F811
    directory: Path,  # noqa: F811
    nats_server: NatsServer,
    encoding: str,
    has_merges: bool,
) -> None:
    stream = NatsStream(nats_server, encoding)
    scenario, state = Deliveries(scene, directory, stream, has_merges).run()
    assert state.cursor is not None
    types = {17: "bytea", 1184: "timestamp with time zone"}
    stream.assert_matches(list(scenario.changes.values()), state.cursor, types)


@pytest.mark.parametrize("has_merges", [False, True])
def test_an_audit_trail(scene: Scene, directory: Path, database: Database, has_merges: bool) -> None:  # noqa: F811
    trail = AuditTable(database)
    scenario, state = Deliveries(scene, directory, trail, has_merges).run()
    assert state.cursor is not None
    trail.assert_matches(scenario.changes.values(), Lsn(0), state.cursor)
