"""The lake's own promises, beyond what every sink is held to."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.contract.delivering import Crash, Delivering, crashing
from tests.contract.lake import Both
from tests.contract.scenario import Scenario

from tailrace.log import plan
from tailrace.log.plan import Limits
from tailrace.sinks import stepper as stepping

FEW = ["public.accounts", "public.twins", "public.toasted", "public.altered", "public.reborn", "public.emptied_*"]


@pytest.mark.usefixtures("spark")
def test_both_modes_in_many_steps_and_rewound(
    scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping, "SMALL_BYTES", 0)
    rng = random.Random(7)
    delivering = Delivering(Both(tmp_path / "lake"), scenario.store_of(tmp_path / "store"), tables=FEW)
    for mark in scenario.marks:
        with delivering.stepper(hands=2) as one:
            one.load_missing()
            while one.state.cursor != mark.lsn:
                end = plan.following(delivering.reader, one.offset(), Limits(rng.choice([5, 20]), 1 << 40)).end
                one.deliver(end if end.segment <= mark.offset.segment else mark.offset)
            state = one.state
        delivering.assert_holds(scenario, mark, state)
    with delivering.stepper() as one:
        one.rewind("snapshot")
    delivering.assert_holds(scenario, scenario.marks[-1], delivering.deliver(scenario.end))


@pytest.mark.usefixtures("spark")
def test_both_modes_under_crashes(scenario: Scenario, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepping, "SMALL_BYTES", 0)
    tables = ["public.altered", "public.twins"]
    delivering = Delivering(Both(tmp_path / "lake"), scenario.store_of(tmp_path / "store"), tables=tables)
    crashes = 0
    for mark in scenario.marks[2::3]:
        for at in range(1, 1000):
            try:
                with crashing(at):
                    state = delivering.deliver(mark.offset, hands=2)
                break
            except Crash:
                crashes += 1
        delivering.assert_holds(scenario, mark, state)
    assert crashes > 10
