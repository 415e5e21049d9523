"""Measures the lag of sinks by the log's end. Their processes are not asked: one that hangs reports nothing new."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tailrace.change import Lsn
from tailrace.delivery import cursors
from tailrace.delivery.lag import UNKNOWN, Backlog, LagMeter
from tailrace.delivery.status import SinkStatus
from tailrace.errors import TailraceError
from tailrace.store import Store

_log = logging.getLogger("tailrace.status")


@dataclass(frozen=True)
class MeasuredSink:
    """How far a sink is, as the store tells it."""

    cursor: Lsn | None
    backlog: Backlog


class SinkMeter:
    """Not thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._meter = LagMeter(store)

    def measure(self, sinks: Iterable[SinkStatus]) -> dict[str, MeasuredSink]:
        """Return how far each sink is, by its name. Nothing is returned while the log cannot be read."""
        try:
            self._meter.follow()
            return {sink.name: self._measure(sink) for sink in sinks}
        except TailraceError as error:
            _log.debug("the lag of sinks is not known: %s", error)
            return {}

    def _measure(self, sink: SinkStatus) -> MeasuredSink:
        cursor = sink.cursor
        if cursor is None:
            cursor = cursors.published(self._store, sink.name)
        if cursor is None and sink.state == "new":
            cursor = self._meter.begin()  # a sink that never ran has the whole log before it
        return MeasuredSink(cursor, self._meter.backlog(sink.name, cursor))


def with_lag(sink: SinkStatus, measured: MeasuredSink | None) -> SinkStatus:
    """Return a status with the lag as it is now; with an unknown lag if that was not measured."""
    if measured is None:
        return replace(sink, lag_bytes=UNKNOWN.bytes, lag_seconds=UNKNOWN.seconds)
    cursor = measured.cursor if sink.cursor is None else sink.cursor
    lag = measured.backlog.lag(cursor, time.time())
    if sink.state == "new" and (not lag.bytes or lag.seconds == 0):
        lag = UNKNOWN  # it lacks no change, but nobody knows which snapshots it has to load
    return replace(
        sink,
        cursor=None if sink.state == "new" else cursor,
        log_end=measured.backlog.log_end,
        lag_bytes=lag.bytes,
        lag_seconds=lag.seconds,
    )
