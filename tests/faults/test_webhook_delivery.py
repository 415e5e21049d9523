"""Kills deliveries to a receiver of webhooks, and the receiver: it has every change, in order for each key.

Real `tailrace deliver` processes run while a workload runs and capture writes. `DELIVERY_KILLS` is the number of kills.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from tests.faults.test_delivery import KILLS, Scene, kill
from tests.fixtures.postgres import Database
from tests.sinks.webhook_example import ExampleReceiver

from tailrace.embedded.process import wait_until
from tailrace.log.reader import LogReader


def _toml(receiver: ExampleReceiver) -> str:
    given = {**receiver.settings(), "name": "hook", "batch": 5, "timeout_s": 5}
    return "[[sink]]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in given.items())


@pytest.mark.soak
def test_killed_deliveries_and_receivers_lose_nothing(database: Database, tmp_path: Path) -> None:
    """The receiver, the deliveries, or both are killed at any time, or just after the receiver stored something."""
    rng = random.Random(1)
    with ExampleReceiver(tmp_path) as receiver:
        scene = Scene(database, tmp_path, _toml(receiver))
        with scene.captured():
            for number in range(KILLS):
                process = scene.start()
                try:
                    before = len(receiver.changes())
                    assert wait_until(lambda b=before: len(receiver.changes()) > b, 120), scene.tail()  # type: ignore[misc]
                    if number % 2:
                        time.sleep(rng.uniform(0, 1.0))
                    if number % 4 < 3:
                        receiver.kill9()
                        if number % 4 == 2:
                            # The same process delivers again when the receiver is back.
                            receiver.start()
                            after = len(receiver.changes())
                            assert wait_until(lambda a=after: len(receiver.changes()) > a, 120), scene.tail()  # type: ignore[misc]
                finally:
                    kill(process)
                if number % 4 < 2:
                    receiver.start()
        scene.deliver_all()
        receiver.assert_matches(LogReader(scene.store).changes())
