"""The engine: each sink runs independently, from its cursor, and receives each change once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession
from tests.capturing import CaptureThread, configured, current_lsn
from tests.fixtures.postgres import Database
from tests.spark.witness import MEMORIES, Memory

from tailrace import settings, sinks
from tailrace.change import Lsn, Operation, Position
from tailrace.delivery import control, cursors, pipeline, status
from tailrace.delivery.contract import State
from tailrace.delivery.pipeline import Pipeline
from tailrace.delivery.step import PlannedStep, Stepper
from tailrace.delivery.task import TaskResult, run_in_process
from tailrace.embedded.process import wait_until
from tailrace.errors import GapError, SinkError, StoreError
from tailrace.log.reader import LogReader
from tailrace.retry import Backoff
from tailrace.spark.engine import Engine
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
    """Creates the memory of a sink for this test."""
    names: list[str] = []

    def memory(name: str) -> Memory:
        names.append(name)
        MEMORIES[name] = Memory()
        return MEMORIES[name]

    yield memory
    for name in names:
        MEMORIES.pop(name).may_go.set()


@contextmanager
def delivering(spark: SparkSession, store: Store, raw: Sequence[dict[str, Any]]) -> Iterator[Engine]:
    given = settings.Settings(
        store=settings.StoreSettings(store.url), sinks=tuple({"type": KIND, **one} for one in raw)
    )
    engine = Engine(given, sinks.from_settings(given, {}), spark=spark)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()


def in_log(store: Store) -> list[Position]:
    return [c.position for c in LogReader(store).changes() if c.operation is not Operation.MESSAGE]


def insert(database: Database, captured: CaptureThread, first: int, count: int) -> None:
    """Insert each row in its own transaction."""
    with database.connect(autocommit=True) as connection:
        for id in range(first, first + count):
            connection.execute("INSERT INTO notes VALUES (%s, %s)", [id, f"note {id}"])
        captured.wait_for(current_lsn(connection))


def arrived(memory: Memory, store: Store) -> bool:
    return memory.positions == in_log(store)


def test_every_change_arrives_once_and_in_order_across_restarts(
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
            assert wait_until(lambda: (saved := status.load(store, "one")) is not None and saved.changes > 0, 30)
    assert len(memory.positions) == 80
    assert cursors.published(store, "one") == memory.state.cursor


@pytest.mark.parametrize("interval_ms", [0, 1], ids=["open", "closed"])
def test_every_delivered_change_was_read_by_a_task_of_the_batch_that_committed_it(
    spark: SparkSession,
    database: Database,
    store: Store,
    captured: CaptureThread,
    memories: Callable[[str], Memory],
    monkeypatch: pytest.MonkeyPatch,
    interval_ms: int,
) -> None:
    """Spark reports as many rows for each batch as it committed: those of several steps if the batch stays open."""
    committed: list[list[int]] = []
    deliver, commit = Pipeline.deliver, Stepper.commit

    def record_batch(self: Pipeline, run: Any) -> None:
        committed.append([])
        deliver(self, run)

    def record_step(self: Stepper, planned: PlannedStep, results: Sequence[TaskResult]) -> None:
        commit(self, planned, results)
        # A task without changes counts as one row, unless the batch stays open.
        committed[-1].append(sum(max(result.changes, interval_ms) for result in results))

    monkeypatch.setattr(Pipeline, "deliver", record_batch)
    monkeypatch.setattr(Stepper, "commit", record_step)
    memory = memories("counted")
    options = {"name": "counted", "start": "earliest", "interval_ms": interval_ms}
    with delivering(spark, store, [options]) as engine:
        for first in (0, 100, 200):
            insert(database, captured, first, 30)
            assert engine.wait(engine.end(), 180)
        (query,) = [query for query in spark.streams.active if query.name == "tailrace counted"]

        def reported() -> list[int]:
            return [p.numInputRows for p in query.recentProgress if p.numInputRows]

        def expected() -> list[int]:
            return [sum(steps) for steps in committed if sum(steps)]

        assert wait_until(lambda: reported() == expected(), 60), (reported(), expected())
        assert any(len(steps) > 1 for steps in committed) == (interval_ms == 0)
        sink = engine.sinks["counted"]
        assert wait_until(lambda: sink.status().batch_rows == sum(expected()), 60), "the listener counts the same"
        assert sink.status().batches == len(expected())
        assert sink.status().changes == len(memory.positions) == len(in_log(store)) == 90


def test_workers_killed_in_an_open_batch_lose_and_duplicate_nothing(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    """They are killed between two steps, and while a step is being committed."""
    memory = memories("open")
    with delivering(spark, store, [{"name": "open", "start": "earliest"}]) as engine:
        for first in (0, 100):
            for more in (0, 10):
                insert(database, captured, first + more, 5)
                assert wait_until(lambda: arrived(memory, store), 180)
                if not more:
                    kill_python_workers()
            memory.entered.clear()
            memory.may_go.clear()
            insert(database, captured, first + 20, 5)
            assert memory.entered.wait(180)
            kill_python_workers()
            memory.may_go.set()
            assert wait_until(lambda: arrived(memory, store), 180)
        assert wait_until(lambda: engine.sinks["open"].status().recoveries >= 2, 60)


def test_what_a_dead_task_handed_in_late_is_not_committed(
    database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    """Its step is repeated by the next batch: the late results must not be committed beside that, nor as that."""
    memory = memories("late")
    raw = {"type": KIND, "name": "late", "start": "earliest"}
    given = settings.Settings(store=settings.StoreSettings(store.url), sinks=(raw,))
    (sink,) = sinks.from_settings(given, {})
    one = Pipeline(sink, given.store, lambda: 1, open_batches=threading.Semaphore(1))
    insert(database, captured, 0, 3)

    def begun() -> tuple[int, PlannedStep]:
        assert wait_until(lambda: one.plan(0) is not None, 30)
        planned = one.plan(0)
        number = one.keep_open()
        assert planned is not None
        assert number is not None
        return number, planned

    def dies(_: PlannedStep) -> list[TaskResult]:
        raise SinkError("the worker exited")

    first, planned = begun()
    one.deliver(dies)
    second, repeated = begun()
    cursor = planned.step.after.cursor
    assert cursor is not None
    assert (cursor, first != second) == (repeated.step.after.cursor, True)

    def hands_in(_: PlannedStep) -> list[TaskResult]:
        late = run_in_process(planned.tasks)
        assert one.advance(first, cursor, late) is None
        assert memory.positions == [], "the dead task's results are not this batch's"
        one._close_batch()
        assert one.advance(second, cursor, run_in_process(repeated.tasks)) is None
        return []

    one.deliver(hands_in)
    assert arrived(memory, store)
    assert one.advance(second, cursor, run_in_process(repeated.tasks)) is None
    assert arrived(memory, store), "once"


def kill_python_workers() -> None:
    (server,) = [p for p in psutil.Process().children() if "tailrace.spark.fork_server" in p.cmdline()]
    killed = [worker for daemon in server.children() if daemon.name() == "worker" for worker in daemon.children()]
    assert killed
    for worker in killed:
        worker.kill()


def test_a_sink_with_an_interval_delivers_one_step_per_interval(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    """Otherwise it would write files as fast as it can, however few changes arrive."""
    memory = memories("interval")
    insert(database, captured, 0, 1)
    with delivering(spark, store, [{"name": "interval", "start": "earliest", "interval_ms": 60_000}]) as engine:
        assert wait_until(lambda: arrived(memory, store), 180)
        insert(database, captured, 10, 20)
        assert not engine.wait(engine.end(), 1.0), "the interval is not over"
        assert engine.sinks["interval"].status().steps == 1
    assert len(memory.positions) == 1


def test_a_sink_that_fails_waits_or_refuses_does_not_affect_the_others(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    healthy, failing, refusing, slow = (memories(name) for name in ("healthy", "failing", "refusing", "slow"))
    failing.failures = 3
    refusing.refuses = True
    slow.may_go.clear()
    raw = [{"name": name, "start": "earliest"} for name in ("healthy", "failing", "refusing", "slow")]
    with delivering(spark, store, raw) as engine:
        insert(database, captured, 0, 10)
        assert wait_until(lambda: arrived(healthy, store) and arrived(failing, store), 180)
        assert wait_until(lambda: engine.sinks["refusing"].has_failed and slow.entered.is_set(), 180)
        assert not engine.wait(engine.end(), 0.5)
        failed = engine.sinks["refusing"].status()
        assert (failed.state, failed.last_error, failed.last_error_hint) == (
            "failed",
            "the destination refused the commit",
            "grant permission",
        )
        assert engine.sinks["failing"].status().failures == 3
        assert slow.positions == refusing.positions == []
        assert wait_until(lambda: engine.sinks["slow"].status().lag_seconds is not None, 30), "the lag was not measured"
        behind = engine.sinks["slow"].status()
        first = next(c for c in LogReader(store).changes() if c.position == in_log(store)[0])
        lag = (behind.updated_at - first.committed_at).total_seconds()
        assert behind.lag_seconds == pytest.approx(lag, abs=0.001), "the lag does not include the blocked step"
        assert behind.lag_bytes
        refusing.refuses = False
        control.resume(store, "refusing")  # as another process would
        slow.may_go.set()
        assert wait_until(lambda: arrived(slow, store) and arrived(refusing, store), 180)
        assert engine.wait(engine.end(), 180)


def test_the_lag_is_known_before_the_destination_answers(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    memory = memories("down")
    raw = [{"name": "down", "start": "earliest"}]
    insert(database, captured, 0, 3)
    with delivering(spark, store, raw) as engine:
        assert engine.sinks["down"].status().lag_bytes is None
        assert engine.wait(engine.end(), 180)
    memory.is_down = True
    insert(database, captured, 10, 3)
    with delivering(spark, store, raw) as engine:
        down = engine.sinks["down"]
        assert wait_until(lambda: down.status().state == "retrying" and (down.status().lag_seconds or 0) > 0, 60)
        assert down.status().cursor == memory.state.cursor
        assert not engine.wait(engine.end(), 0), "the cursor was not confirmed"
        memory.is_down = False
        assert wait_until(lambda: arrived(memory, store), 180)


def test_a_destination_that_is_down_for_long_is_retried_until_it_is_back(
    spark: SparkSession,
    database: Database,
    store: Store,
    captured: CaptureThread,
    memories: Callable[[str], Memory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It repeatedly fails to report its state, and its maintenance becomes due meanwhile."""
    monkeypatch.setattr(pipeline, "_MAINTAIN_S", 0.05)
    monkeypatch.setattr(pipeline, "Backoff", lambda: Backoff(0.02, 0.05))
    memory = memories("down")
    with delivering(spark, store, [{"name": "down", "start": "earliest"}]) as engine:
        insert(database, captured, 0, 3)
        assert wait_until(lambda: arrived(memory, store), 180)
        memory.is_down = True
        before = memory.opened
        insert(database, captured, 10, 3)
        assert wait_until(lambda: memory.opened >= before + 8, 60), engine.sinks["down"].error
        assert engine.sinks["down"].status().state == "retrying"
        memory.is_down = False
        assert wait_until(lambda: arrived(memory, store), 60), engine.sinks["down"].error
        assert wait_until(lambda: engine.sinks["down"].status().state == "running", 60)


def test_a_sink_recovers_from_a_store_error_even_if_no_changes_arrive(
    spark: SparkSession,
    database: Database,
    store: Store,
    captured: CaptureThread,
    memories: Callable[[str], Memory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = memories("quiet")
    with delivering(spark, store, [{"name": "quiet", "start": "earliest"}]) as engine:
        insert(database, captured, 0, 3)
        assert wait_until(lambda: arrived(memory, store), 180)
        next_step, has_failed = Stepper.next_step, threading.Event()

        def fail_once(self: Stepper) -> PlannedStep | None:
            if has_failed.is_set():
                return next_step(self)
            has_failed.set()
            raise StoreError("the store is unavailable", "wait")

        monkeypatch.setattr(Stepper, "next_step", fail_once)
        assert has_failed.wait(30)
        assert wait_until(lambda: engine.sinks["quiet"].status().failures > 0, 30)
        assert wait_until(lambda: engine.sinks["quiet"].status().state == "running", 30)
        assert engine.sinks["quiet"].error is None


@pytest.mark.parametrize("interval_ms", [0, 60_000])
def test_an_idle_sink_reports_that_its_destination_went_down_and_reopens_it(
    spark: SparkSession,
    database: Database,
    store: Store,
    captured: CaptureThread,
    memories: Callable[[str], Memory],
    monkeypatch: pytest.MonkeyPatch,
    interval_ms: int,
) -> None:
    monkeypatch.setattr(pipeline, "_MAINTAIN_S", 0.1)
    memory = memories("idle")
    with delivering(spark, store, [{"name": "idle", "start": "earliest", "interval_ms": interval_ms}]) as engine:
        insert(database, captured, 0, 3)
        assert wait_until(lambda: arrived(memory, store), 180)
        memory.is_down = True
        assert wait_until(lambda: engine.sinks["idle"].status().state == "retrying", 60)
        before = memory.opened
        memory.is_down = False
        assert wait_until(lambda: engine.sinks["idle"].status().state == "running", 60)
        assert memory.opened > before
        assert engine.sinks["idle"].status().recoveries == 1
        insert(database, captured, 10, 3)
        assert interval_ms or wait_until(lambda: arrived(memory, store), 60)


def test_a_paused_sink_stays_paused_across_restarts_until_it_is_resumed(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    memory = memories("paused")
    raw = [{"name": "paused", "start": "earliest"}]
    control.pause(store, "paused")
    insert(database, captured, 0, 5)
    for _ in range(2):
        with delivering(spark, store, raw) as engine:
            assert wait_until(lambda: engine.sinks["paused"].status().state == "paused", 180)
            assert not engine.wait(engine.end(), 1.0)
            assert memory.positions == []
    with delivering(spark, store, raw) as engine:
        assert wait_until(lambda: engine.sinks["paused"].status().state == "paused", 180)
        control.resume(store, "paused")
        assert wait_until(lambda: arrived(memory, store), 180)


@pytest.mark.parametrize("interval_ms", [0, 1], ids=["open", "closed"])
def test_stopping_finishes_the_current_step(
    spark: SparkSession,
    database: Database,
    store: Store,
    captured: CaptureThread,
    memories: Callable[[str], Memory],
    interval_ms: int,
) -> None:
    """Stopping the query earlier would cancel the step's job, and the next run would have to repeat it."""
    memory = memories("stopped")
    memory.may_go.clear()
    raw = {"name": "stopped", "start": "earliest", "interval_ms": interval_ms}
    with delivering(spark, store, [raw]) as engine:
        insert(database, captured, 0, 5)
        assert memory.entered.wait(180)
        stop = threading.Thread(target=engine.stop)
        stop.start()
        pipeline = engine.sinks["stopped"]
        assert wait_until(lambda: pipeline._stopping.is_set(), 30)
        stop.join(1.0)  # longer than it takes to cancel a job
        assert stop.is_alive(), "it waits for the step"
        memory.may_go.set()
        stop.join(60)
        assert not stop.is_alive()
        stopped = pipeline.status()
    assert (stopped.state, stopped.failures, stopped.steps) == ("stopped", 0, 1)
    assert memory.positions
    assert memory.positions == in_log(store)[: len(memory.positions)]


def test_a_reload_request_is_obeyed_once_and_maintenance_continues(
    spark: SparkSession,
    database: Database,
    store: Store,
    captured: CaptureThread,
    memories: Callable[[str], Memory],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reloads: list[Sequence[str]] = []

    def reload(_: Stepper, patterns: Sequence[str]) -> int:
        reloads.append(patterns)
        return 1

    monkeypatch.setattr(Stepper, "reload", reload)
    monkeypatch.setattr(pipeline, "_MAINTAIN_S", 0.1)
    memory = memories("one")
    control.reload(store, "one", ["public.notes"])
    with delivering(spark, store, [{"name": "one", "start": "earliest"}]) as engine:
        insert(database, captured, 0, 5)
        assert wait_until(lambda: control.load(store, "one").reload == () and arrived(memory, store), 180)
        assert wait_until(lambda: memory.maintained > 2, 60)
        assert engine.wait(engine.end(), 60)
    assert reloads == [("public.notes",)]


def test_poison_stops_the_sink_or_becomes_a_dead_letter(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    stops, continues = memories("stops"), memories("continues")
    insert(database, captured, 0, 5)
    bad = in_log(store)[2]
    stops.poison = continues.poison = frozenset({bad})
    raw = [
        {"name": "stops", "start": "earliest"},
        {"name": "continues", "start": "earliest", "on_poison": "dead_letter"},
    ]
    with delivering(spark, store, raw) as engine:
        assert wait_until(lambda: engine.sinks["stops"].has_failed, 180)
        assert wait_until(lambda: len(continues.positions) == 4, 180)
        assert engine.sinks["continues"].status().dead_letters == 1
    assert continues.positions == [position for position in in_log(store) if position != bad]
    (info,) = store.list("cursors/continues/dead_letters")
    dead_letter = json.loads(store.get(info.key) or b"")
    assert dead_letter["change"]["position"] == str(bad)
    assert dead_letter["change"]["after"] == {"id": "2", "body": "note 2"}
    assert stops.positions == []


def test_rewind_delivers_again_from_there(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    memory = memories("rewound")
    insert(database, captured, 0, 10)
    with delivering(spark, store, [{"name": "rewound", "start": "earliest"}]) as engine:
        assert engine.wait(engine.end(), 180)
        everything = list(memory.positions)
        control.rewind(store, "rewound", str(everything[6].commit_lsn))
        assert wait_until(lambda: memory.positions == everything + everything[6:], 180)
        assert wait_until(lambda: not control.load(store, "rewound").rewind, 30), "it is done once"
        # A request that cannot be fulfilled stops the sink, and the next one starts it again.
        control.rewind(store, "rewound", "yesterday")
        assert wait_until(lambda: engine.sinks["rewound"].has_failed, 30)
        assert "yesterday" in str(engine.sinks["rewound"].error)
        control.rewind(store, "rewound", str(everything[9].commit_lsn))
        assert wait_until(lambda: memory.positions == everything + everything[6:] + everything[9:], 180)
    assert memory.state.cursor is not None


def test_a_cursor_before_the_beginning_of_the_log_is_refused(
    spark: SparkSession, database: Database, store: Store, captured: CaptureThread, memories: Callable[[str], Memory]
) -> None:
    """Retention may have removed changes that the sink had not read. Continuing would hide the gap."""
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
