"""The audit trail under whatever happens to a delivery: every change is there, once, as the log has it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql
from pyspark.sql import SparkSession
from tests.contract.audited import Audited
from tests.contract.delivering import Crash, Delivering, crashing, dying, elsewhere, refused
from tests.contract.scenario import Scenario
from tests.fixtures.postgres import Database, drop_database, make_database

from tailrace.change import Lsn
from tailrace.embedded.postgres import Postgres
from tailrace.log import plan
from tailrace.log.plan import Limits
from tailrace.sinks import stepper as stepping
from tailrace.sinks.audit import pieces
from tailrace.sinks.base import Step
from tailrace.spark.delivery.staff import Executors


@pytest.fixture
def trail(postgres: Postgres) -> Iterator[Audited]:
    database = make_database(postgres)
    yield Audited(database)
    drop_database(database)


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is cut into parts, and a part into pieces."""
    monkeypatch.setattr(stepping, "SMALL_BYTES", 0)
    monkeypatch.setattr(pieces, "HELD_BYTES", 4096)


def _assert_tells(trail: Audited, scenario: Scenario, state: Any) -> None:
    trail.assert_tells(list(scenario.changes.values()), Lsn(0), state.cursor)


def test_everything_in_one_step(trail: Audited, scenario: Scenario, tmp_path: Path) -> None:
    delivering = Delivering(trail, scenario.store_of(tmp_path / "store"))
    _assert_tells(trail, scenario, delivering.deliver(scenario.end))
    before = trail.rows()
    delivering.deliver(scenario.end)
    assert trail.rows() == before, "nothing is delivered twice"


@pytest.mark.soak
@pytest.mark.usefixtures("all_large")
def test_everything_in_many_steps(trail: Audited, scenario: Scenario, tmp_path: Path) -> None:
    """While the log grows; and a step that died, or was staged twice, or is committed again."""
    rng = random.Random(1)
    delivering = Delivering(trail, scenario.store_of(tmp_path / "store", scenario.marks[0]))
    committed: list[tuple[Any, Any]] = []
    for mark in scenario.marks:
        scenario.store_of(tmp_path / "store", mark)
        with pytest.raises(Crash):
            delivering.deliver(mark.offset, dying(elsewhere(rng)), hands=2)
        while True:
            with delivering.stepper(elsewhere(rng, times=2), hands=rng.randint(1, 3)) as one:
                commit = one._commit

                def noted(step: Step, staged: Any, commit: Any = commit) -> None:
                    commit(step, staged)
                    committed.append((step, [each.receipt for each in staged]))

                one._commit = noted  # type: ignore[method-assign]
                limits = Limits(rng.choice([1, 2, 5, 20]), 1 << 40)
                end = plan.following(delivering.reader, one.offset(), limits).end
                one.deliver(end if end.segment <= mark.offset.segment else mark.offset)
                state = one.state
            if state.cursor == mark.lsn:
                break
        _assert_tells(trail, scenario, state)
    stale = [(step, receipts) for step, receipts in committed if step.before.cursor != state.cursor]
    with delivering.stepper() as one:
        assert refused(one, stale) == len(stale) > 0
    _assert_tells(trail, scenario, state)


@pytest.mark.usefixtures("all_large")
def test_a_crash_before_each_durable_act(trail: Audited, scenario: Scenario, tmp_path: Path) -> None:
    delivering = Delivering(trail, scenario.store_of(tmp_path / "store"))
    crashes = 0
    for mark in scenario.marks[2::3]:
        for at in range(1, 1000, 3):
            try:
                with crashing(at):
                    state = delivering.deliver(mark.offset, hands=2)
                break
            except Crash:
                crashes += 1
        _assert_tells(trail, scenario, state)
    assert crashes > 10


@pytest.mark.soak
@pytest.mark.usefixtures("all_large")
def test_executors_deliver_the_same(trail: Audited, scenario: Scenario, tmp_path: Path, spark: SparkSession) -> None:
    delivering = Delivering(trail, scenario.store_of(tmp_path / "store"))
    state = delivering.deliver(scenario.end, Executors(spark.sparkContext, "tested"), hands=2)
    _assert_tells(trail, scenario, state)


def test_rewound_it_tells_nothing_twice(trail: Audited, scenario: Scenario, tmp_path: Path) -> None:
    delivering = Delivering(trail, scenario.store_of(tmp_path / "store"))
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
    _assert_tells(trail, scenario, state)
    assert {p: row["id"] for p, row in trail.rows().items()} == {p: row["id"] for p, row in before.items()}


def test_by_month(database: Database, scenario: Scenario, tmp_path: Path) -> None:
    trail = Audited(database, {"partition": "month"})
    delivering = Delivering(trail, scenario.store_of(tmp_path / "store"))
    _assert_tells(trail, scenario, delivering.deliver(scenario.end))
    with database.connect() as connection:
        kind = connection.execute("SELECT relkind::text FROM pg_class WHERE relname = 'changes'").fetchone()
        assert kind == ("p",)
