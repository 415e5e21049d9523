"""A JetStream stream under whatever happens to a delivery: every change is there, once, in order, field for field."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.contract.delivering import Crash, Delivering, crashing, dying, elsewhere
from tests.contract.scenario import Scenario
from tests.contract.streamed import Streamed

from tailrace.embedded.nats import NatsServer
from tailrace.log import plan
from tailrace.log.plan import Limits
from tailrace.sinks import stepper as stepping
from tailrace.sinks.nats import wire


@pytest.fixture(params=["msgpack", "json"])
def stream(request: pytest.FixtureRequest, nats_server: NatsServer) -> Streamed:
    return Streamed(nats_server, request.param)


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is cut into parts; and few messages are on their way at a time."""
    monkeypatch.setattr(stepping, "SMALL_BYTES", 0)
    monkeypatch.setattr(wire, "WINDOW", 3)


def _assert_tells(stream: Streamed, scenario: Scenario, state: Any) -> None:
    stream.assert_tells(list(scenario.changes.values()), state.cursor)


def test_everything_in_one_step(stream: Streamed, scenario: Scenario, tmp_path: Path) -> None:
    delivering = Delivering(stream, scenario.store_of(tmp_path / "store"))
    _assert_tells(stream, scenario, delivering.deliver(scenario.end))
    before = len(stream.messages())
    delivering.deliver(scenario.end)
    assert len(stream.messages()) == before, "nothing is delivered twice"


@pytest.mark.usefixtures("all_large")
def test_everything_in_many_steps(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    """While the log grows, each step in several parts by an object of its own; drivers die when all is published."""
    stream = Streamed(nats_server)
    rng = random.Random(1)
    delivering = Delivering(stream, scenario.store_of(tmp_path / "store", scenario.marks[0]))
    for mark in scenario.marks:
        scenario.store_of(tmp_path / "store", mark)
        with pytest.raises(Crash):
            delivering.deliver(mark.offset, dying(elsewhere(rng)), hands=2)
        while True:
            with delivering.stepper(elsewhere(rng, times=2), hands=rng.randint(1, 3)) as one:
                limits = Limits(rng.choice([1, 2, 5, 20]), 1 << 40)
                end = plan.following(delivering.reader, one.offset(), limits).end
                one.deliver(end if end.segment <= mark.offset.segment else mark.offset)
                state = one.state
            if state.cursor == mark.lsn:
                break
    _assert_tells(stream, scenario, state)


@pytest.mark.usefixtures("all_large")
def test_a_crash_before_each_durable_act(nats_server: NatsServer, scenario: Scenario, tmp_path: Path) -> None:
    stream = Streamed(nats_server)
    delivering = Delivering(stream, scenario.store_of(tmp_path / "store"))
    crashes = 0
    for mark in scenario.marks[2::3]:
        for at in range(1, 1000, 2):
            try:
                with crashing(at):
                    state = delivering.deliver(mark.offset, hands=2)
                break
            except Crash:
                crashes += 1
    assert crashes > 10
    _assert_tells(stream, scenario, state)
