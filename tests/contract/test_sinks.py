"""One suite for every sink: whatever happens to a delivery, the destination holds what the source held there."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests import oracle
from tests.contract.destinations import Destination, JsonLines, Parquet, Recorded, Replica
from tests.contract.scenario import Mark, Scenario
from tests.fixtures.postgres import drop_database, make_database

from tailrace import settings, sinks
from tailrace.change import Lsn
from tailrace.log import plan
from tailrace.log.plan import Limits, Offset
from tailrace.log.reader import LogReader
from tailrace.sinks import stepper as stepping
from tailrace.sinks.base import Parallel, State
from tailrace.sinks.errand import Errand, Staged
from tailrace.sinks.stepper import Staff, Stepper
from tailrace.store import Store

SINKS = ["mirror", "mirror staged", "jsonl", "parquet", "recorder", "recorder of ranges", "recorder of keys"]


@pytest.fixture(params=SINKS)
def destination(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Destination]:
    match request.param:
        case "mirror" | "mirror staged":
            database = make_database(request.getfixturevalue("postgres"))
            if request.param == "mirror staged":
                monkeypatch.setattr("tailrace.sinks.postgres.staging.INLINE_BYTES", -1)
            yield Replica(database)
            drop_database(database)
        case "jsonl":
            yield JsonLines(tmp_path / "files")
        case "parquet":
            yield Parquet(tmp_path / "files")
        case "recorder":
            yield Recorded(tmp_path / "recorded", "Recorder")
        case "recorder of ranges":
            yield Recorded(tmp_path / "recorded", "RecorderOfRanges")
        case "recorder of keys":
            yield Recorded(tmp_path / "recorded", "RecorderOfKeys")


class Delivering:
    """Steppers as one deliver after the other would make them: of nothing but the settings."""

    def __init__(self, destination: Destination, store: settings.Store, **common: Any) -> None:
        self.destination = destination
        self.store = store
        self.reader = LogReader(Store.open(store.url))
        self.began: Lsn | None = None
        self._common = common

    @contextmanager
    def stepper(self, staff: Staff | None = None, hands: int = 1) -> Iterator[Stepper]:
        raw = {"name": "tested", **self.destination.settings(), **self._common}
        (configured,) = sinks.configured(settings.Settings(store=self.store, sinks=(raw,)), {})
        made = Stepper(configured, self.store, staff or elsewhere(random.Random(hands)), hands)
        try:
            made.open()
            self.began = self.began if self.began is not None else made.cursor
            yield made
        finally:
            made.sink.close()

    def deliver(self, end: Offset, staff: Staff | None = None, hands: int = 1) -> State:
        """By a new object, which is thrown away."""
        with self.stepper(staff, hands) as one:
            one.load_missing()
            one.deliver(end)
            return one.state

    def assert_holds(self, scenario: Scenario, mark: Mark, state: State) -> None:
        assert state.cursor == mark.lsn
        assert self.began is not None
        self.destination.assert_holds(scenario, mark, state, self.began)


def elsewhere(rng: random.Random) -> Staff:
    """What another process would do: work on copies, in any order where the sink allows it."""

    def carried_out(errands: Sequence[Errand], parallel: Parallel) -> list[Staged]:
        order = list(range(len(errands)))
        if parallel is Parallel.RANGES:
            rng.shuffle(order)
        copies = {number: pickle.loads(pickle.dumps(errands[number])) for number in order}
        done = {number: pickle.loads(pickle.dumps(copies[number].stage())) for number in order}
        return [done[number] for number in sorted(done)]

    return carried_out


@pytest.fixture(params=[True, False], ids=["small", "large"])
def large_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(stepping, "SMALL_BYTES", 0)


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is cut into parts."""
    monkeypatch.setattr(stepping, "SMALL_BYTES", 0)


def test_the_scenario_itself(scenario: Scenario) -> None:
    """Rows that snapshots were made from, then changes as a plain reader has them: PostgreSQL's rows at each mark."""
    floors = {s.relation.oid: s.lsn for s in scenario.snapshots}
    ahead = sorted((s for s in scenario.snapshots if s.lsn == floors[s.relation.oid]), key=lambda s: s.lsn)
    marks = list(scenario.marks)
    replica = oracle.Replica()

    def reach(lsn: Lsn) -> None:
        while ahead and ahead[0].lsn <= lsn:
            snapshot = ahead.pop(0)
            replica.load(snapshot.relation, scenario.copied[snapshot.relation.oid, snapshot.lsn].elements())
        while marks and marks[0].lsn <= lsn:
            mark = marks.pop(0)
            for name, table in mark.tables.items():
                if floors.get(table.oid, lsn) < mark.lsn:
                    assert replica.rows(*name) == table.rows, name

    for position, change in scenario.changes.items():
        reach(position.commit_lsn)
        if change.relation is not None and floors.get(change.relation.oid, scenario.end.lsn) <= position.commit_lsn:
            replica.apply(change)
    reach(scenario.end.lsn)
    assert not marks
    assert {t.oid for t in scenario.marks[-1].tables.values()} <= floors.keys(), "every table can be delivered"


def test_everything_in_one_step(destination: Destination, scenario: Scenario, tmp_path: Path) -> None:
    delivering = Delivering(destination, scenario.store_of(tmp_path / "store"))
    state = delivering.deliver(scenario.end)
    delivering.assert_holds(scenario, scenario.marks[-1], state)
    assert {t.oid for t in scenario.marks[-1].tables.values()} <= state.tables.keys()
    before = destination.fingerprint()
    again = delivering.deliver(scenario.end)
    assert again.cursor == state.cursor
    assert again.tables.items() <= state.tables.items(), "a table that was replaced may be forgotten"
    assert destination.fingerprint() == before, "nothing is delivered twice"


@pytest.mark.usefixtures("all_large")
def test_everything_in_many_steps(destination: Destination, scenario: Scenario, tmp_path: Path) -> None:
    """While the log grows, each step in several parts by an object of its own; tables join as their snapshots come."""
    rng = random.Random(1)
    store = scenario.store_of(tmp_path / "store", scenario.marks[0])
    delivering = Delivering(destination, store)
    for mark in scenario.marks:
        scenario.store_of(tmp_path / "store", mark)
        while True:
            with delivering.stepper(hands=rng.randint(1, 3)) as one:
                if rng.random() < 0.5:
                    one.load_missing()
                limits = Limits(rng.choice([1, 2, 5, 20]), 1 << 40)
                end = plan.following(delivering.reader, one.offset(), limits).end
                if end.segment > mark.offset.segment:
                    end = mark.offset
                one.deliver(end)
                state = one.state
            if state.cursor == mark.lsn:
                break
        state = delivering.deliver(mark.offset)
        delivering.assert_holds(scenario, mark, state)
    assert {t.oid for t in scenario.marks[-1].tables.values()} <= state.tables.keys()
