"""The engine: every sink for itself, from the cursor on, each change once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.capturing import CaptureThread, configured, current_lsn
from tests.fixtures.postgres import Database
from tests.spark.witness import MEMORIES, Memory

from tailrace import settings, sinks
from tailrace.change import Lsn, Operation, Position
from tailrace.embedded.process import wait_until
from tailrace.errors import GapError, StoreError, TailraceError
from tailrace.log.plan import Batch, Offset
from tailrace.log.reader import LogReader
from tailrace.retry import Backoff
from tailrace.sinks import status
from tailrace.sinks.base import State
from tailrace.sinks.cursor import mirrored
from tailrace.sinks.stepper import Stepper
from tailrace.spark.delivery import Engine, delivery
from tailrace.store import Store

KIND = "tests.spark.witness:Witness"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(str(tmp_path / "store"))


@pytest.fixture
def captured(database: Database, store: Store) -> Iterator[CaptureThread]:
    database.execute("CREATE TABLE notes (id int PRIMARY KEY, body text)")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    with CaptureThread(configured(database), store) as thread:
        yield thread


@pytest.fixture
def memories() -> Iterator[Callable[[str], Memory]]:
    """The memory of a sink, new for this test."""
    made: list[str] = []

    def memory(name: str) -> Memory:
        made.append(name)
        MEMORIES[name] = Memory()
        return MEMORIES[name]

    yield memory
    for name in made:
        MEMORIES.pop(name).may_go.set()


@contextmanager
def delivering(spark: SparkSession, store: Store, raw: Sequence[dict[str, Any]]) -> Iterator[Engine]:
    given = settings.Settings(store=settings.Store(store.url), sinks=tuple({"type": KIND, **one} for one in raw))
    engine = Engine(given, sinks.configured(given, {}), spark=spark)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def in_log(store: Store) -> list[Position]:
    return [c.position for c in LogReader(store).changes() if c.operation is not Operation.MESSAGE]


def insert(database: Database, captured: CaptureThread, first: int, count: int) -> None:
    """Each row in a transaction of its own."""
    with database.connect(autocommit=True) as connection:
        for id in range(first, first + count):
            connection.execute("INSERT INTO notes VALUES (%s, %s)", [id, f"note {id}"])
        captured.wait_for(current_lsn(connection))


def arrived(memory: Memory, store: Store) -> bool:
    return memory.positions == in_log(store)


def test_every_change_arrives_once_and_in_order_over_restarts(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    memory = memories("one")
    for round in range(2):
        with delivering(spark, store, [{"name": "one", "start": "earliest"}]) as engine:
            insert(database, captured, 100 * round, 20)
            assert engine.wait(engine.end(), 180), engine.sinks["one"].status()
            assert arrived(memory, store)
            insert(database, captured, 100 * round + 50, 20)
            assert wait_until(lambda: arrived(memory, store), 180)
            assert wait_until(lambda: (told := status.load(store, "one")) is not None and told.changes > 0, 30)
    assert len(memory.positions) == 80
    assert mirrored(store, "one") == memory.state.cursor


def test_a_load_that_never_ends_does_not_keep_the_query_from_being_the_clock(
    spark: SparkSession,
    database: Database,
    store: Store,
    captured: CaptureThread,
    memories: Callable[[str], Memory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a sink that gathers would make steps, and files, as fast as it can."""
    deliver, ids = Stepper.deliver, iter(range(1_000_000))

    def and_more_comes(self: Stepper, end: Offset) -> None:
        deliver(self, end)
        insert(database, captured, next(ids), 1)

    monkeypatch.setattr(Stepper, "deliver", and_more_comes)
    memory = memories("gathers")
    insert(database, captured, next(ids), 1)
    with delivering(spark, store, [{"name": "gathers", "start": "earliest", "interval_ms": 500}]) as engine:
        assert wait_until(engine.sinks["gathers"]._has_ticked.is_set, 60)
        assert wait_until(lambda: len(memory.positions) > 3, 60)
    assert memory.positions == in_log(store)[: len(memory.positions)]


def test_one_sink_that_fails_waits_or_refuses_changes_nothing_for_the_others(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    well, away, refusing, slow = (memories(name) for name in ("well", "away", "refusing", "slow"))
    away.failures = 3
    refusing.refuses = True
    slow.may_go.clear()
    raw = [{"name": name, "start": "earliest"} for name in ("well", "away", "refusing", "slow")]
    with delivering(spark, store, raw) as engine:
        insert(database, captured, 0, 10)
        assert wait_until(lambda: arrived(well, store) and arrived(away, store), 180)
        assert wait_until(lambda: engine.sinks["refusing"].has_failed and slow.entered.is_set(), 180)
        assert not engine.wait(engine.end(), 0.5)
        told = engine.sinks["refusing"].status()
        assert (told.state, told.last_error, told.last_error_hint) == (
            "failed",
            "the destination says no",
            "ask it nicely",
        )
        assert engine.sinks["away"].status().failures == 3
        assert slow.positions == refusing.positions == []
        assert wait_until(lambda: engine.sinks["slow"].status().lag_seconds is not None, 30), "the log was looked at"
        behind = engine.sinks["slow"].status()
        first = next(c for c in LogReader(store).changes() if c.position == in_log(store)[0])
        waited = (behind.updated_at - first.committed_at).total_seconds()
        assert behind.lag_seconds == pytest.approx(waited, abs=0.001), "a step that takes for ever is a lag"
        assert behind.lag_bytes
        refusing.refuses = False
        status.resume(store, "refusing")  # from another process, say
        slow.may_go.set()
        assert wait_until(lambda: arrived(slow, store) and arrived(refusing, store), 180)
        assert engine.wait(engine.end(), 180)


def test_how_far_behind_a_sink_is_is_known_before_its_destination_answers(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    memory = memories("away")
    raw = [{"name": "away", "start": "earliest"}]
    insert(database, captured, 0, 3)
    with delivering(spark, store, raw) as engine:
        assert engine.sinks["away"].status().lag_bytes is None
        assert engine.wait(engine.end(), 180)
    memory.is_away = True
    insert(database, captured, 10, 3)
    with delivering(spark, store, raw) as engine:
        away = engine.sinks["away"]
        assert wait_until(lambda: away.status().state == "retrying" and (away.status().lag_seconds or 0) > 0, 60)
        assert away.status().cursor == memory.state.cursor
        assert not engine.wait(engine.end(), 0), "where it stands was not confirmed"
        memory.is_away = False
        assert wait_until(lambda: arrived(memory, store), 180)


def test_a_destination_that_is_away_for_long_is_asked_until_it_is_back(
    spark: SparkSession,
    database: Database,
    store: Store,
    captured: CaptureThread,
    memories: Callable[[str], Memory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It cannot be asked where it stands, again and again, and its upkeep is due meanwhile."""
    monkeypatch.setattr(delivery, "_LOOK_S", 0.05)
    monkeypatch.setattr(delivery, "Backoff", lambda: Backoff(0.02, 0.05))
    memory = memories("gone")
    with delivering(spark, store, [{"name": "gone", "start": "earliest"}]) as engine:
        insert(database, captured, 0, 3)
        assert wait_until(lambda: arrived(memory, store), 180)
        memory.is_away = True
        before = memory.opened
        insert(database, captured, 10, 3)
        assert wait_until(lambda: memory.opened >= before + 8, 60), engine.sinks["gone"].error
        assert engine.sinks["gone"].status().state == "retrying"
        memory.is_away = False
        assert wait_until(lambda: arrived(memory, store), 60), engine.sinks["gone"].error
        assert wait_until(lambda: engine.sinks["gone"].status().state == "running", 60)


def test_a_store_that_did_not_answer_once_is_forgotten_without_a_change(
    spark: SparkSession,
    database: Database,
    store: Store,
    captured: CaptureThread,
    memories: Callable[[str], Memory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = memories("calm")
    with delivering(spark, store, [{"name": "calm", "start": "earliest"}]) as engine:
        insert(database, captured, 0, 3)
        assert wait_until(lambda: arrived(memory, store), 180)
        ahead, asked = Stepper.ahead, threading.Event()

        def failing(self: Stepper) -> Batch:
            if asked.is_set():
                return ahead(self)
            asked.set()
            raise StoreError("the store is away", "wait")

        monkeypatch.setattr(Stepper, "ahead", failing)
        assert asked.wait(30)
        assert wait_until(lambda: engine.sinks["calm"].status().failures > 0, 30)
        assert wait_until(lambda: engine.sinks["calm"].status().state == "running", 30)
        assert engine.sinks["calm"].error is None


@pytest.mark.parametrize("interval_ms", [0, 60_000])
def test_a_destination_that_goes_away_from_an_idle_sink_is_told_of_and_opened_again(
    spark: SparkSession,
    database: Database,
    store: Store,
    captured: CaptureThread,
    memories: Callable[[str], Memory],
    monkeypatch: pytest.MonkeyPatch,
    interval_ms: int,
) -> None:
    monkeypatch.setattr(delivery, "_LOOK_S", 0.1)
    memory = memories("idle")
    with delivering(spark, store, [{"name": "idle", "start": "earliest", "interval_ms": interval_ms}]) as engine:
        insert(database, captured, 0, 3)
        assert wait_until(lambda: arrived(memory, store), 180)
        assert wait_until(lambda: engine.sinks["idle"]._has_ticked.is_set(), 60)
        memory.is_away = True
        assert wait_until(lambda: engine.sinks["idle"].status().state == "retrying", 60)
        before = memory.opened
        memory.is_away = False
        assert wait_until(lambda: engine.sinks["idle"].status().state == "running", 60)
        assert memory.opened > before
        assert engine.sinks["idle"].status().recoveries == 1
        insert(database, captured, 10, 3)
        assert interval_ms or wait_until(lambda: arrived(memory, store), 60)


def test_a_paused_sink_stays_paused_over_restarts_until_it_is_resumed(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    memory = memories("rests")
    status.pause(store, "rests")
    with delivering(spark, store, [{"name": "rests", "start": "earliest"}]) as engine:
        assert wait_until(lambda: engine.sinks["rests"].status().state == "paused", 180)
        insert(database, captured, 0, 5)
        assert not engine.wait(engine.end(), 1.0)
        assert memory.positions == []
        status.resume(store, "rests")
        assert wait_until(lambda: arrived(memory, store), 180)


def test_a_wish_to_load_tables_anew_is_heeded_once_and_upkeep_goes_on(
    spark: SparkSession,
    database: Database,
    store: Store,
    captured: CaptureThread,
    memories: Callable[[str], Memory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Sequence[str]] = []

    def reload(_: Stepper, patterns: Sequence[str]) -> int:
        asked.append(patterns)
        return 1

    monkeypatch.setattr(Stepper, "reload", reload)
    monkeypatch.setattr(delivery, "_LOOK_S", 0.1)
    memory = memories("one")
    status.reload(store, "one", ["public.notes"])
    with delivering(spark, store, [{"name": "one", "start": "earliest"}]) as engine:
        insert(database, captured, 0, 5)
        assert wait_until(lambda: status.wish(store, "one").reload == () and arrived(memory, store), 180)
        assert wait_until(lambda: memory.tended > 2, 60)
        assert engine.wait(engine.end(), 60)
    assert asked == [("public.notes",)]


def test_poison_stops_the_sink_or_is_set_aside(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    stops, goes_on = memories("stops"), memories("goes_on")
    insert(database, captured, 0, 5)
    bad = in_log(store)[2]
    stops.poison = goes_on.poison = frozenset({bad})
    raw = [
        {"name": "stops", "start": "earliest"},
        {"name": "goes_on", "start": "earliest", "on_poison": "set_aside"},
    ]
    with delivering(spark, store, raw) as engine:
        assert wait_until(lambda: engine.sinks["stops"].has_failed, 180)
        assert wait_until(lambda: len(goes_on.positions) == 4, 180)
        assert engine.sinks["goes_on"].status().set_aside == 1
    assert goes_on.positions == [position for position in in_log(store) if position != bad]
    (aside,) = store.list("cursors/goes_on/set_aside")
    kept = json.loads(store.get(aside.key) or b"")
    assert kept["change"]["position"] == str(bad)
    assert kept["change"]["after"] == {"id": "2", "body": "note 2"}
    assert stops.positions == []


def test_rewinding_tells_again_from_there(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    memory = memories("again")
    insert(database, captured, 0, 10)
    with delivering(spark, store, [{"name": "again", "start": "earliest"}]) as engine:
        assert engine.wait(engine.end(), 180)
        everything = list(memory.positions)
        engine.sinks["again"].rewind(str(everything[6].commit_lsn))
        assert wait_until(lambda: memory.positions == everything + everything[6:], 180)
        with pytest.raises(TailraceError):
            engine.sinks["again"].rewind("yesterday")
    assert memory.state.cursor is not None


def test_a_cursor_before_the_logs_beginning_is_refused(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    """After retention removed what the sink had not read, say: going on would be a gap nobody sees."""
    memory = memories("late")
    insert(database, captured, 0, 3)
    first = in_log(store)[0]
    trimmed = {"first_id": 1, "previous": "0" * 64, "end": f"{Lsn(first.commit_lsn + 1)}:0"}
    store.replace("log/trimmed.json", json.dumps(trimmed).encode())
    memory.state = State(Lsn(first.commit_lsn), {})
    with delivering(spark, store, [{"name": "late", "start": "earliest"}]) as engine:
        assert wait_until(lambda: engine.sinks["late"].has_failed, 180)
        assert isinstance(engine.sinks["late"].error, GapError)
    assert memory.positions == []
