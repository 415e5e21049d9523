"""The status of capture and of each sink as one line of text, for a terminal or a log file. Formats lag."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from tailrace.cli import output
from tailrace.ops.status import CaptureStatus

if TYPE_CHECKING:
    from tailrace.delivery.status import SinkStatus

# Often enough to show progress, and not too often for a log file.
_PLAIN_SECONDS = 30.0
_LIVE_SECONDS = 0.25


def of_capture(status: CaptureStatus, rate: float) -> str:
    text = f"{status.state}: {status.changes:,} changes, {rate:,.0f}/s, durable to {status.durable_lsn}"
    text += f", {output.size(status.lag_bytes)} behind"
    if status.last_committed_at is not None:
        text += f", last change {output.duration(time.time() - status.last_committed_at.timestamp())} ago"
    if status.tables_copying:
        text += f"; copying: {status.tables_copying} tables left, {status.rows_copied:,} rows"
    return text


def of_sink(status: SinkStatus) -> str:
    text = f"{status.name}: {status.state}, {status.changes:,} changes, {status.changes_per_second:,.0f}/s"
    behind, age = sink_lag(status)
    if behind is not None:
        text += f", delivered to {status.cursor}, {behind} behind"
    if age is not None:
        text += f", oldest undelivered change {age} old"
    if status.dead_letters:
        text += f", {status.dead_letters:,} dead letters"
    if status.last_error and status.state in ("retrying", "failed"):
        text += f": {status.last_error}"
    return text


def sink_lag(status: SinkStatus) -> tuple[str | None, str | None]:
    """Return how far a sink is behind the log, and the age of its oldest undelivered change. Each may be None."""
    behind = None if status.lag_bytes is None else output.size(status.lag_bytes)
    age = output.duration(status.lag_seconds) if status.lag_seconds else None
    return behind, age


def show_until(stopping: threading.Event, lines: Callable[[], Sequence[str]], logger: str) -> None:
    """Show `lines` until `stopping` is set: live on a terminal, else logged to `logger` every 30 seconds."""
    if output.is_live():
        with output.live_line() as update:
            while not stopping.wait(_LIVE_SECONDS):
                update(escape("\n".join(lines())))
        return
    while not stopping.wait(_PLAIN_SECONDS):
        for line in lines():
            logging.getLogger(logger).info(line)
