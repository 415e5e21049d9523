"""The audit trail: whatever happens to a delivery, the trail has every change of the log exactly once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql
from pyspark.sql import SparkSession
from tests.contract.audit_table import AuditTable
from tests.contract.delivery_driver import (
    Crash,
    DeliveryDriver,
    count_refused,
    crash_after_staging,
    crashing,
    in_other_processes,
    record_commits,
)
from tests.contract.scenario import Scenario
from tests.fixtures.postgres import Database, drop_database, make_database

from tailrace.change import Lsn
from tailrace.delivery import step as stepping
from tailrace.embedded.postgres import Postgres
from tailrace.log import planner
from tailrace.log.planner import BatchLimits
from tailrace.sinks.audit import staged_changes


@pytest.fixture
def trail(postgres: Postgres) -> Iterator[AuditTable]:
    database = make_database(postgres)
    yield AuditTable(database)
    drop_database(database)


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is divided into parts, and every part is copied in pieces."""
    monkeypatch.setattr(stepping, "SMALL_BYTES", 0)
    monkeypatch.setattr(staged_changes, "HELD_BYTES", 4096)


def _assert_matches(trail: AuditTable, scenario: Scenario, state: Any) -> None:
    trail.assert_matches(list(scenario.changes.values()), Lsn(0), state.cursor)


def test_everything_in_one_step(trail: AuditTable, scenario: Scenario, tmp_path: Path) -> None:
    delivering = DeliveryDriver(trail, scenario.store_of(tmp_path / "store"))
    _assert_matches(trail, scenario, delivering.deliver(scenario.end))
    before = trail.rows()
    delivering.deliver(scenario.end)
    assert trail.rows() == before, "changes were delivered twice"


@pytest.mark.soak
@pytest.mark.usefixtures("all_large")
def test_everything_in_many_steps(trail: AuditTable, scenario: Scenario, tmp_path: Path) -> None:
    """While the log grows, with steps that crash, are staged twice, or are committed again."""
    rng = random.Random(1)
    delivering = DeliveryDriver(trail, scenario.store_of(tmp_path / "store", scenario.marks[0]))
    committed: list[tuple[Any, Any]] = []
    for mark in scenario.marks:
        scenario.store_of(tmp_path / "store", mark)
        with pytest.raises(Crash):
            delivering.deliver(mark.offset, crash_after_staging(in_other_processes(rng)), parallelism=2)
        while True:
            with delivering.stepper(in_other_processes(rng, times=2), parallelism=rng.randint(1, 3)) as one:
                record_commits(one, committed)
                limits = BatchLimits(rng.choice([1, 2, 5, 20]), 1 << 40)
                end = planner.next_batch(delivering.reader, one.offset(), limits).end
                one.deliver(end if end.segment <= mark.offset.segment else mark.offset)
                state = one.state
            if state.cursor == mark.lsn:
                break
        _assert_matches(trail, scenario, state)
    stale = [(step, receipts) for step, receipts in committed if step.before.cursor != state.cursor]
    with delivering.stepper() as one:
        assert count_refused(one, stale) == len(stale) > 0
    _assert_matches(trail, scenario, state)


@pytest.mark.usefixtures("all_large")
def test_a_crash_before_each_durable_act(trail: AuditTable, scenario: Scenario, tmp_path: Path) -> None:
    delivering = DeliveryDriver(trail, scenario.store_of(tmp_path / "store"))
    crashes = 0
    for mark in scenario.marks[2::3]:
        for at in range(1, 1000, 3):
            try:
                with crashing(at):
                    state = delivering.deliver(mark.offset, parallelism=2)
                break
            except Crash:
                crashes += 1
        _assert_matches(trail, scenario, state)
    assert crashes > 10


@pytest.mark.soak
@pytest.mark.usefixtures("all_large")
def test_the_streaming_query_delivers_the_same(
    trail: AuditTable, scenario: Scenario, tmp_path: Path, spark: SparkSession
) -> None:
    delivering = DeliveryDriver(trail, scenario.store_of(tmp_path / "store"))
    _assert_matches(trail, scenario, delivering.deliver_on(spark))


def test_a_rewind_delivers_nothing_twice(trail: AuditTable, scenario: Scenario, tmp_path: Path) -> None:
    delivering = DeliveryDriver(trail, scenario.store_of(tmp_path / "store"))
    delivering.deliver(scenario.end)
    before = trail.rows()
    with delivering.stepper() as one:
        one.rewind(str(scenario.marks[1].lsn))
    with trail.database.connect() as connection:
        lost = [p for p in before if p.commit_lsn >= scenario.marks[2].lsn][:3]
        for position in lost:
            connection.execute(
                sql.SQL("DELETE FROM changes WHERE commit_position = %s AND ordinal = %s"),
                [position.commit_lsn, position.ordinal],
            )
    assert trail.rows().keys() == before.keys() - set(lost)
    state = delivering.deliver(scenario.end)
    _assert_matches(trail, scenario, state)
    assert {p: row["id"] for p, row in trail.rows().items()} == {p: row["id"] for p, row in before.items()}


def test_partitions_by_month(database: Database, scenario: Scenario, tmp_path: Path) -> None:
    trail = AuditTable(database, {"partition": "month"})
    delivering = DeliveryDriver(trail, scenario.store_of(tmp_path / "store"))
    _assert_matches(trail, scenario, delivering.deliver(scenario.end))
    with database.connect() as connection:
        kind = connection.execute("SELECT relkind::text FROM pg_class WHERE relname = 'changes'").fetchone()
        assert kind == ("p",)
