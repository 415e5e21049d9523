"""Throughput, lag and latency of the last 24 hours, in the memory of the process that serves them.

So a dashboard has a past when it is opened. A value that nobody knew stays unknown (None), and never becomes 0. What
needs more than a day, or must survive a restart, scrapes `/metrics`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tailrace.background import BackgroundThread
from tailrace.errors import TailraceError
from tailrace.ops.status import Overview

_log = logging.getLogger("tailrace.http")

INTERVAL_S: Final = 5.0
"""A sample costs one request for the next segment of the log, and one for each sink that does not run."""
_SAMPLES: Final = 720
"""An hour."""
_SAMPLES_PER_MINUTE: Final = int(60 / INTERVAL_S)
_MINUTES: Final = 1440
"""A day. With ten sinks, all samples take about 3 MB."""

Series = Mapping[str, float | None]
"""Values by the name of a series: `capture/…` or `sinks/<name>/…`."""


@dataclass(frozen=True)
class Sample:
    at: float
    """Seconds since 1970."""
    values: Series


@dataclass(frozen=True)
class _Counter:
    at: float
    count: int

    def rate(self, previous: _Counter | None) -> float | None:
        """The rate since an earlier reading; None if there is none, or the process has restarted and counts anew."""
        if previous is None or self.count < previous.count or self.at <= previous.at:
            return None
        return (self.count - previous.count) / (self.at - previous.at)


class MetricHistory(BackgroundThread):
    """Samples an overview every few seconds between `__enter__` and `__exit__`."""

    def __init__(self, overview: Callable[[], Overview]) -> None:
        """`overview` must be cheap: it is called all the time, whether anybody looks or not."""
        super().__init__("metric history")
        self._overview = overview
        self._recent: deque[Sample] = deque(maxlen=_SAMPLES)
        self._minutes: deque[Sample] = deque(maxlen=_MINUTES)
        self._minute: list[Sample] = []
        """The samples of the minute that is not over."""
        self._counters: dict[str, _Counter] = {}
        self._lock = threading.Lock()

    def add(self, overview: Overview, now_s: float) -> None:
        """Add a sample of an overview that was read at a time."""
        values = dict(self._values(overview, now_s))
        with self._lock:
            sample = Sample(now_s, values)
            self._recent.append(sample)
            self._minute.append(sample)
            if len(self._minute) == _SAMPLES_PER_MINUTE:
                self._minutes.append(_summarize(self._minute))
                self._minute = []

    def to_json(self, seconds: float) -> dict[str, Any]:
        """The samples of the last `seconds`, as columns; those of a minute each if it is more than an hour."""
        with self._lock:
            is_recent = seconds <= _SAMPLES * INTERVAL_S
            samples = list(self._recent) if is_recent else [*self._minutes, *self._minute[-1:]]
        since = time.time() - seconds
        samples = [sample for sample in samples if sample.at >= since]
        names = dict.fromkeys(name for sample in samples for name in sample.values)
        return {
            "interval_seconds": INTERVAL_S if is_recent else 60.0,
            "at": [round(sample.at, 3) for sample in samples],
            "series": {name: [sample.values.get(name) for sample in samples] for name in names},
        }

    def _values(self, overview: Overview, now_s: float) -> Sequence[tuple[str, float | None]]:
        values: list[tuple[str, float | None]] = []
        if overview.capture is not None:
            rate = self._rate("capture", overview.capture.changes, now_s)
            is_known = overview.capture.silent_seconds is None
            values += [
                ("capture/changes_per_second", rate if is_known else None),
                ("capture/lag_bytes", overview.capture.lag_bytes if rate is not None else None),
            ]
        for sink in overview.sinks:
            name = f"sinks/{sink.name}"
            has_stepped = self._rate(f"{name}/steps", sink.steps, now_s)
            rate = self._rate(name, sink.changes, now_s)
            is_known = not sink.is_silent(now_s) and sink.state != "new"
            values += [
                (f"{name}/changes_per_second", rate if is_known else None),
                (f"{name}/lag_bytes", sink.lag_bytes),
                (f"{name}/lag_seconds", sink.lag_seconds),
                (f"{name}/latency_seconds", sink.latency_seconds if is_known and has_stepped else None),
                (f"{name}/seal_latency_seconds", sink.seal_latency_seconds if is_known and has_stepped else None),
            ]
        return values

    def _rate(self, name: str, count: int, now_s: float) -> float | None:
        counter = _Counter(now_s, count)
        rate = counter.rate(self._counters.get(name))
        self._counters[name] = counter
        return rate

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.add(self._overview(), time.time())
            except TailraceError as error:
                # The gap in the charts shows it, and `/status` says why.
                _log.debug("the metrics could not be sampled: %s", error)
            self._stopping.wait(INTERVAL_S)


def _summarize(samples: Sequence[Sample]) -> Sample:
    """A minute's samples as one: mean rates, and the highest of all other values."""
    names = dict.fromkeys(name for sample in samples for name in sample.values)
    values: dict[str, float | None] = {}
    for name in names:
        known = [value for sample in samples if (value := sample.values.get(name)) is not None]
        is_rate = name.endswith("_per_second")
        values[name] = None if not known else sum(known) / len(known) if is_rate else max(known)
    return Sample(samples[-1].at, values)
