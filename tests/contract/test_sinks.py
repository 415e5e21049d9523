"""One suite for every sink: whatever happens to a delivery, the destination has the content of the source."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests import oracle, values
from tests.contract import mysql_tables, order
from tests.contract.delivery_driver import (
    Crash,
    DeliveryDriver,
    count_refused,
    crash_after_staging,
    crashing,
    failing,
    in_other_processes,
    record_commits,
)
from tests.contract.destinations import (
    Destination,
    History,
    JsonLines,
    Mirror,
    Parquet,
    Place,
    RecorderFiles,
    assert_same,
    expected_changes,
)
from tests.contract.kafka_topics import KafkaTopics
from tests.contract.lake import Lake, LakeWithChangelog
from tests.contract.message_destination import MessageDestination
from tests.contract.mysql_tables import MysqlHistory, MysqlMirror
from tests.contract.rabbitmq_messages import RabbitMqQueue, RabbitMqStreams
from tests.contract.scenario import Mark, Scenario, Table
from tests.contract.search_indices import KEYLESS, SearchIndices
from tests.contract.valkey_rows import ValkeyRows
from tests.contract.valkey_streams import ValkeyStreams
from tests.contract.webhook_receiver import HttpReceiver, WebhookReceiver
from tests.fixtures.postgres import drop_database, make_database

from tailrace.change import Lsn, Position
from tailrace.delivery import step as stepping
from tailrace.delivery.contract import State
from tailrace.errors import StoreError
from tailrace.log import planner
from tailrace.log.planner import BatchLimits

SINKS = [
    *("mirror", "staged", "history", "lake", "jsonl", "parquet"),
    *("recorder", "recorder of ranges", "kafka", "rabbitmq streams", "rabbitmq queue", "webhook"),
    *("mysql", "mysql staged", "mysql history"),
    "opensearch",
    *("valkey hash", "valkey json", "valkey stream"),
    *("mysql on MySQL", "opensearch on Elasticsearch", "valkey hash on Redis", "valkey stream on Redis"),
]
"""Those that end in `on` and a server's name run where that server is installed."""


def all_sinks(*slow: str) -> list[Any]:
    """All sinks. Only `make chaos` runs those in `slow`, whose special cases have tests of their own, and those on
    other servers."""
    return [pytest.param(sink, marks=pytest.mark.soak) if sink in slow or " on " in sink else sink for sink in SINKS]


MYSQL_VARIANTS = ("mysql staged", "mysql history")
"""They differ from `mysql` as those of PostgreSQL differ from each other."""

FEW = ["public.accounts", "public.twins", "public.emptied_*", "public.altered", "public.reborn", "public.later"]
"""Tables with most kinds of changes, for tests that deliver repeatedly."""
EVENT_DESTINATIONS = (JsonLines, Parquet, RecorderFiles, MessageDestination)


@pytest.fixture(params=all_sinks())
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Destination]:
    sink, _, other_server = request.param.partition(" on ")

    def server_of(usual: str) -> Any:
        return request.getfixturevalue(f"{other_server.lower() or usual}_server")

    match sink:
        case "mirror" | "staged" | "history" as kind:
            database = make_database(request.getfixturevalue("postgres"))
            match kind:
                case "mirror":
                    yield Mirror(database)
                case "staged":
                    # The source's own types exist there too, so that columns get them.
                    database.execute(values.DECLARATIONS)
                    yield Mirror(database, "tests.contract.staged_sink:StagedSink")
                case "history":
                    yield History(database)
            drop_database(database)
        case "lake":
            request.getfixturevalue("spark")
            # With a changelog for each table if there are few tables: a commit takes a tenth of a second.
            are_many = "everything" in request.node.name
            yield (Lake if are_many else LakeWithChangelog)(tmp_path / "lake")
        case "jsonl":
            yield JsonLines(tmp_path / "files")
        case "parquet":
            yield Parquet(tmp_path / "files")
        case "recorder":
            yield RecorderFiles(tmp_path / "recorded", "Recorder")
        case "recorder of ranges":
            yield RecorderFiles(tmp_path / "recorded", "RecorderOfRanges")
        case "kafka":
            yield KafkaTopics(request.getfixturevalue("kafka_server"))
        case "rabbitmq streams":
            yield RabbitMqStreams.of(request.getfixturevalue("rabbitmq_server"), request.getfixturevalue("scenario"))
        case "rabbitmq queue":
            yield RabbitMqQueue(request.getfixturevalue("rabbitmq_server"))
        case "mysql" | "mysql staged" | "mysql history" as kind:
            with mysql_tables.make_database(server_of("mariadb")) as url:
                match kind:
                    case "mysql":
                        yield MysqlMirror(url)
                    case "mysql staged":
                        yield MysqlMirror(url, "tests.contract.staged_sink:StagedMysqlSink")
                    case "mysql history":
                        yield MysqlHistory(url)
        case "valkey hash" | "valkey json" as kind:
            yield ValkeyRows(server_of("valkey"), kind.removeprefix("valkey "))
        case "valkey stream":
            yield ValkeyStreams(server_of("valkey"))
        case "webhook":
            with HttpReceiver() as server:
                yield WebhookReceiver(server, {"start": "snapshot"})
        case "opensearch":
            indices = SearchIndices(server_of("opensearch"))
            yield indices
            indices.close()


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is divided into parts."""
    monkeypatch.setattr(stepping, "SMALL_BYTES", 0)


def test_the_scenario_itself(scenario: Scenario) -> None:
    """The rows of snapshots and the changes of the log result in PostgreSQL's rows at each mark."""
    scenario.assert_results_in_rows()


@pytest.mark.parametrize("destination", all_sinks("mysql"), indirect=True)
def test_everything_in_one_step(destination: Destination, scenario: Scenario, tmp_path: Path) -> None:
    delivering = DeliveryDriver(destination, scenario.store_of(tmp_path / "store"))
    state = delivering.deliver(scenario.end)
    delivering.assert_holds(scenario, scenario.marks[-1], state)
    assert _oids(destination, scenario.marks[-1]) <= state.tables.keys()
    before = destination.fingerprint()
    again = delivering.deliver(scenario.end)
    assert again.cursor == state.cursor
    assert again.tables.items() <= state.tables.items(), "a table that was replaced may be forgotten"
    assert destination.fingerprint() == before, "changes were delivered twice"


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize(
    "destination",
    all_sinks(
        "history", "lake", "parquet", "recorder of ranges", "webhook", "opensearch", "valkey stream", *MYSQL_VARIANTS
    ),
    indirect=True,
)
def test_everything_in_many_steps(destination: Destination, scenario: Scenario, tmp_path: Path) -> None:
    """While the log grows, each step has several parts and its own object. Tables are added with their snapshots."""
    rng = random.Random(1)
    store = scenario.store_of(tmp_path / "store", scenario.marks[0])
    # A lake opens and commits each table separately: the previous test covers all of them.
    tables = [*FEW, "public.toasted", "public.every_type"] if isinstance(destination, Lake) else ["*.*"]
    delivering = DeliveryDriver(destination, store, tables=tables)
    for mark in scenario.marks:
        scenario.store_of(tmp_path / "store", mark)
        while True:
            with delivering.stepper(parallelism=rng.randint(1, 3)) as one:
                if rng.random() < 0.5:
                    one.load_missing()
                limits = BatchLimits(rng.choice([1, 2, 5, 20]), 1 << 40)
                end = planner.next_batch(delivering.reader, one.offset(), limits).end
                if end.segment > mark.offset.segment:
                    end = mark.offset
                one.deliver(end)
                state = one.state
            if state.cursor == mark.lsn:
                break
        state = delivering.deliver(mark.offset)
        delivering.assert_holds(scenario, mark, state)
    if not isinstance(destination, Lake):
        assert _oids(destination, scenario.marks[-1]) <= state.tables.keys()
    if isinstance(destination, RecorderFiles):
        _assert_order(destination)


def _oids(destination: Destination, mark: Mark) -> set[int]:
    """The tables that the destination must have at the end."""
    without: Sequence[str] = ()
    if isinstance(destination, SearchIndices):
        without = KEYLESS
    elif isinstance(destination, ValkeyRows):
        without = destination.without
    return {table.oid for name, table in mark.tables.items() if ".".join(name) not in without}


def _assert_order(recorded: RecorderFiles) -> None:
    """Assert what the contract guarantees to each kind of sink."""
    order.assert_parts_follow_the_log(recorded.directory)
    match recorded.type:
        case "Recorder":
            order.assert_staged_in_order(recorded.directory)
            order.assert_whole_transactions(recorded.directory)
            order.assert_last_is_marked(recorded.directory)
        case "RecorderOfRanges":
            order.assert_last_is_marked(recorded.directory, in_each_part=True)
        case other:
            pytest.fail(f"nothing is known about the order of {other}")


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("destination", all_sinks("lake", "opensearch", "mysql", "mysql history"), indirect=True)
def test_steps_staged_twice_discarded_or_committed_again(
    destination: Destination, scenario: Scenario, tmp_path: Path
) -> None:
    rng = random.Random(2)
    delivering = DeliveryDriver(destination, scenario.store_of(tmp_path / "store"), tables=FEW)
    committed: list[tuple[Any, Any]] = []
    for mark in scenario.marks[1::2]:
        with pytest.raises(Crash):
            delivering.deliver(mark.offset, crash_after_staging(in_other_processes(rng)), parallelism=2)
        with delivering.stepper(in_other_processes(rng, times=2), parallelism=2) as one:
            record_commits(one, committed)
            one.load_missing()
            one.deliver(mark.offset)
            state = one.state
        delivering.assert_holds(scenario, mark, state)
    stale = [(step, receipts) for step, receipts in committed if step.before.cursor != state.cursor]
    with delivering.stepper() as one:
        assert count_refused(one, stale) == len(stale) > 0
    delivering.assert_holds(scenario, scenario.marks[-1], delivering.deliver(scenario.end))


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("destination", all_sinks("history", *MYSQL_VARIANTS), indirect=True)
def test_a_crash_before_each_durable_act(destination: Destination, scenario: Scenario, tmp_path: Path) -> None:
    """Each attempt gets one act further than the one before, unless it finds finished work."""
    delivering = DeliveryDriver(
        destination, scenario.store_of(tmp_path / "store"), tables=["public.altered", "public.twins"]
    )
    crashes = 0
    # Attempts of a lake, which calls Java, of a sink that stages everything and of one whose acts are requests are
    # slow: only every fourth act, starting from a different one at each mark.
    is_long = isinstance(destination, Lake | SearchIndices) or (
        isinstance(destination, Mirror) and "Staged" in destination.type
    )
    stride = 4 if is_long else 1
    for mark in scenario.marks[2::3]:
        for at in range(1 + crashes % stride, 1000, stride):
            try:
                with crashing(at):
                    state = delivering.deliver(mark.offset, parallelism=2)
                break
            except Crash:
                crashes += 1
        delivering.assert_holds(scenario, mark, state)
    assert crashes > 10


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize("destination", all_sinks("opensearch", "mysql", *MYSQL_VARIANTS), indirect=True)
def test_a_store_that_fails_occasionally(destination: Destination, scenario: Scenario, tmp_path: Path) -> None:
    """Whichever request fails, the progress remains, and the next attempt continues from it."""
    delivering = DeliveryDriver(destination, scenario.store_of(tmp_path / "store"), tables=FEW[:2])
    with failing(random.Random(4), 0.02) as failures:
        for mark in scenario.marks[1::2]:
            while True:
                try:
                    state = delivering.deliver(mark.offset, parallelism=2)
                    break
                except StoreError:
                    continue
    assert failures() > 1
    delivering.assert_holds(scenario, scenario.marks[-1], state)


@pytest.mark.usefixtures("all_large")
@pytest.mark.parametrize(
    "destination",
    all_sinks(
        *("history", "parquet", "recorder", "recorder of ranges", "webhook", "opensearch"),
        *("valkey json", "valkey stream", *MYSQL_VARIANTS),
    ),
    indirect=True,
)
def test_the_streaming_query_delivers_the_same(
    destination: Destination, scenario: Scenario, tmp_path: Path, spark: SparkSession
) -> None:
    tables = ["public.accounts", "public.toasted", "public.emptied_one", "public.every_type", "public.bulk"]
    store = scenario.store_of(tmp_path / "store", scenario.marks[1])
    delivering = DeliveryDriver(destination, store, tables=tables)
    for mark in (scenario.marks[1], scenario.marks[-1]):
        scenario.store_of(tmp_path / "store", mark)
        delivering.assert_holds(scenario, mark, delivering.deliver_on(spark))
    if isinstance(destination, RecorderFiles):
        _assert_order(destination)


@pytest.mark.parametrize("destination", all_sinks("opensearch", *MYSQL_VARIANTS), indirect=True)
def test_a_rewind_delivers_again_from_there(destination: Destination, scenario: Scenario, tmp_path: Path) -> None:
    """Tables are correct after a repeated delivery. Event destinations get the events again, and no others."""
    delivering = DeliveryDriver(destination, scenario.store_of(tmp_path / "store"), tables=FEW[:2])
    state = delivering.deliver(scenario.end)
    start = scenario.marks[1]
    first = next(c for p, c in scenario.changes.items() if p.commit_lsn >= start.lsn)
    state = State(state.cursor, delivering.tables)
    expected = list(expected_changes(scenario, state, delivering.began or Lsn(0)))
    for where in ("snapshot", str(start.lsn), first.committed_at.isoformat()):
        before = Counter(_positions(destination))
        with delivering.stepper() as one:
            one.rewind(where)
            assert one.state.cursor is not None
            assert one.state.cursor < scenario.end.lsn
        state = delivering.deliver(scenario.end)
        if isinstance(destination, EVENT_DESTINATIONS):
            floor = Lsn(0) if where == "snapshot" else start.lsn
            again = Counter(_positions(destination)) - before
            assert_same(again.items(), ((c.position, 1) for c in expected if c.position.commit_lsn >= floor))
        else:
            delivering.assert_holds(scenario, scenario.marks[-1], state)


@pytest.mark.parametrize("destination", all_sinks(*MYSQL_VARIANTS), indirect=True)
def test_one_table_is_reloaded(destination: Destination, scenario: Scenario, tmp_path: Path) -> None:
    """From its newest snapshot, while the others stay as they are."""
    if isinstance(destination, (*EVENT_DESTINATIONS, History, MysqlHistory)):
        pytest.skip("events are delivered once")
    store = scenario.store_of(tmp_path / "store", scenario.marks[-2])
    delivering = DeliveryDriver(destination, store, tables=["public.accounts", "public.recopied", "public.altered"])
    delivering.deliver(scenario.marks[-2].offset)
    with delivering.stepper() as one:
        before = one.state
        assert one.reload(["public.re*", "public.absent"]) == 1
        assert one.state.cursor == before.cursor
        assert one.state.tables.keys() == before.tables.keys()
        assert one.reload(["public.absent"]) == 0
        delivering.assert_holds(scenario, scenario.marks[-2], one.state)
    scenario.store_of(tmp_path / "store")
    delivering.assert_holds(scenario, scenario.marks[-1], delivering.deliver(scenario.end))


def _positions(destination: Place) -> list[Position]:
    """The positions of all events, if the destination receives events."""
    return [record.position for record in destination.records()] if isinstance(destination, EVENT_DESTINATIONS) else []


def test_changes_without_snapshots_from_a_given_start(
    destination: Destination, scenario: Scenario, tmp_path: Path
) -> None:
    if not isinstance(destination, EVENT_DESTINATIONS):
        pytest.skip("destinations that keep tables start with their rows")
    mark = scenario.marks[2]
    oid = mark.tables["public", "accounts"].oid
    changes = [c for c in scenario.changes.values() if c.relation is None or c.relation.oid == oid]
    first = next(c for c in changes if c.position.commit_lsn >= mark.lsn)
    floors = {"earliest": Lsn(0), "latest": mark.lsn, str(mark.lsn): mark.lsn, first.committed_at.isoformat(): mark.lsn}
    for number, (start, floor) in enumerate(floors.items()):
        store = scenario.store_of(tmp_path / f"store{number}", mark if start == "latest" else None)
        given = {"name": f"tested{number}", "tables": ["public.accounts"], "start": start}
        delivering = DeliveryDriver(destination.beside(str(number)), store, **given)
        with delivering.stepper():
            pass
        scenario.store_of(tmp_path / f"store{number}")
        delivering.deliver(scenario.end)
        expected = Counter(c.position for c in changes if floor <= c.position.commit_lsn < scenario.end.lsn)
        assert_same(Counter(_positions(delivering.destination)).items(), expected.items())


SHAPED = {
    "tables": ["public.accounts", "public.full_key", "public.toasted", "public.twins"],
    "exclude": ["public.twins"],
    "columns": {"public.toasted": "-other"},
    "mask": {"public.accounts.note": "hash", "public.full_key.body": "redact"},
    "where": {"public.full_key": "n > 3", "public.accounts": "id <> 7"},
    "route": "shaped.the_{table}",
}


@pytest.mark.parametrize("destination", all_sinks(*MYSQL_VARIANTS), indirect=True)
def test_selected_masked_and_routed_tables(destination: Destination, scenario: Scenario, tmp_path: Path) -> None:
    delivering = DeliveryDriver(destination, scenario.store_of(tmp_path / "store"), **SHAPED)
    for mark in (scenario.marks[1], scenario.marks[-1]):
        state = delivering.deliver(mark.offset)
        oids = {name[1]: table.oid for name, table in mark.tables.items() if name[0] == "public"}
        assert state.tables.keys() == {oids[name] for name in ("accounts", "full_key", "toasted")}
        tables = {name: _shape_rows(name, mark.tables["public", name]) for name in ("accounts", "full_key", "toasted")}
        destination.assert_shaped("shaped", {f"the_{name}": rows for name, rows in tables.items()})


def _shape_rows(name: str, table: Table) -> oracle.Rows:
    found: oracle.Rows = Counter()
    for row, count in table.rows.items():
        of = dict(zip(table.columns, row, strict=True))
        if name == "accounts":
            note = of["note"]
            of["note"] = None if note is None else hashlib.sha256(note).hexdigest().encode()
            is_selected = of["id"] != b"7"
        elif name == "full_key":
            of["body"] = None if of["body"] is None else b"***"
            is_selected = of["n"] is not None and int(of["n"]) > 3
        else:
            del of["other"]
            is_selected = True
        if is_selected:
            found[tuple(of.values())] += count
    return found
