"""The history of metrics: bounded, and unknown where nobody knew."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from tailrace.delivery.status import SinkStatus
from tailrace.ops.metric_history import INTERVAL_S, MetricHistory
from tailrace.ops.status import Overview


def _overview(at: float, **known: Any) -> Overview:
    sink = SinkStatus.initial("lake", "iceberg", "running")
    return Overview(sinks=[replace(sink, updated_at=datetime.fromtimestamp(at, UTC), **known)])


def _series(history: MetricHistory, name: str, seconds: float = 3600) -> list[float | None]:
    found: list[float | None] = history.to_json(seconds)["series"][f"sinks/lake/{name}"]
    return found


def test_unknown_stays_unknown() -> None:
    history, now = MetricHistory(Overview), time.time() - 60
    samples: list[dict[str, Any]] = [
        {"changes": 100, "steps": 1, "lag_seconds": 1.5, "latency_seconds": 0.2, "seal_latency_seconds": 0.1},
        {"changes": 150, "steps": 2, "lag_seconds": None, "latency_seconds": 0.3, "seal_latency_seconds": 0.2},
        {"changes": 150, "steps": 2, "lag_seconds": 0.0, "latency_seconds": 0.3},
        {"changes": 10, "steps": 1, "lag_seconds": 0.0, "latency_seconds": 0.4},
    ]
    for number, known in enumerate(samples):
        at = now + number * INTERVAL_S
        history.add(_overview(at, **known), at)
    assert _series(history, "changes_per_second") == [None, 10.0, 0.0, None], "the first, and after a restart"
    assert _series(history, "lag_seconds") == [1.5, None, 0.0, 0.0]
    assert _series(history, "latency_seconds") == [None, 0.3, None, None], "only where a step was delivered"
    assert _series(history, "seal_latency_seconds") == [None, 0.2, None, None]
    silent = _overview(now - 100, changes=10, steps=1)
    history.add(silent, now + 5 * INTERVAL_S)
    assert _series(history, "changes_per_second")[-1] is None, "its process reports nothing"


def test_memory_is_bounded_and_a_day_is_kept_by_the_minute() -> None:
    history, now = MetricHistory(Overview), time.time()
    count = 17_400
    for number in range(count):
        at = now - (count - 1 - number) * INTERVAL_S
        history.add(_overview(at, changes=number * 10, steps=number, lag_seconds=float(number % 12)), at)
    hour, day = history.to_json(3600), history.to_json(86400)
    assert 710 <= len(hour["at"]) <= 721
    assert 1430 <= len(day["at"]) <= 1441
    assert set(_series(history, "lag_seconds", 86400)[:-1]) == {11.0}, "the highest of a minute"
    rates = _series(history, "changes_per_second", 86400)
    assert all(rate is not None and abs(rate - 2.0) < 1e-6 for rate in rates[1:])
