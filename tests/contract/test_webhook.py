"""A receiver of webhooks: whatever happens to a delivery, it accepts every change, in order for each key."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.delivery_driver import Crash, DeliveryDriver, crash_after_staging, in_other_processes
from tests.contract.scenario import Scenario
from tests.contract.webhook_receiver import HttpReceiver, WebhookReceiver

from tailrace.delivery import step as stepping
from tailrace.log import planner
from tailrace.log.planner import BatchLimits


@pytest.fixture
def all_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is divided into parts."""
    monkeypatch.setattr(stepping, "SMALL_BYTES", 0)


@pytest.fixture
def server() -> Iterator[HttpReceiver]:
    with HttpReceiver() as server:
        yield server


def _assert_matches(receiver: WebhookReceiver, scenario: Scenario, state: Any, *, again: bool = False) -> None:
    changes = [c for p, c in scenario.changes.items() if p.commit_lsn < state.cursor]
    receiver.assert_changes(changes, again=again)


@pytest.mark.parametrize("more", [{"batch": 7, "gzip": True}, {"batch": 100, "connections": 1}], ids=str)
def test_everything_in_one_step(server: HttpReceiver, scenario: Scenario, tmp_path: Path, more: dict[str, Any]) -> None:
    receiver = WebhookReceiver(server, more)
    delivering = DeliveryDriver(receiver, scenario.store_of(tmp_path / "store"))
    _assert_matches(receiver, scenario, delivering.deliver(scenario.end))
    before = len(server.requests)
    delivering.deliver(scenario.end)
    assert len(server.requests) == before, "changes were delivered twice"
    for request in server.accepted:
        single = [change["msg_id"] for change in request.changes]
        assert request.id.partition("+")[0] == single[0]
        assert len(single) <= more.get("batch", 1)


@pytest.mark.usefixtures("all_large")
def test_everything_in_many_steps(server: HttpReceiver, scenario: Scenario, tmp_path: Path) -> None:
    """While the log grows, each step has several parts and its own object. Drivers crash after they sent it: what was
    sent is in the progress, and not sent again."""
    receiver = WebhookReceiver(server, {"batch": 3})
    rng = random.Random(1)
    delivering = DeliveryDriver(receiver, scenario.store_of(tmp_path / "store", scenario.marks[0]))
    for mark in scenario.marks:
        scenario.store_of(tmp_path / "store", mark)
        with pytest.raises(Crash):
            delivering.deliver(mark.offset, crash_after_staging(in_other_processes(rng)), parallelism=2)
        while True:
            with delivering.stepper(in_other_processes(rng, times=2), parallelism=rng.randint(1, 3)) as one:
                limits = BatchLimits(rng.choice([1, 2, 5, 20]), 1 << 40)
                end = planner.next_batch(delivering.reader, one.offset(), limits).end
                one.deliver(end if end.segment <= mark.offset.segment else mark.offset)
                state = one.state
            if state.cursor == mark.lsn:
                break
    _assert_matches(receiver, scenario, state)
