"""Capture and sinks in a line each, for a terminal and for a log file."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from tailrace.cli import reporting
from tailrace.ops.status import CaptureStatus

if TYPE_CHECKING:
    from tailrace.sinks.status import SinkStatus

# Often enough to see that it lives, seldom enough for a log file.
_PLAIN_SECONDS = 30.0
_LIVE_SECONDS = 0.25


def of_capture(status: CaptureStatus, rate: float) -> str:
    text = f"{status.state}: {status.changes:,} changes, {rate:,.0f}/s, durable to {status.durable_lsn}"
    text += f", {reporting.size(status.lag_bytes)} behind"
    if status.last_committed_at is not None:
        text += f", last change {reporting.duration(time.time() - status.last_committed_at.timestamp())} ago"
    if status.tables_copying:
        text += f"; copying: {status.tables_copying} tables left, {status.rows_copied:,} rows"
    return text


def of_sink(status: SinkStatus) -> str:
    text = f"{status.name}: {status.state}, {status.changes:,} changes, {status.changes_per_second:,.0f}/s"
    if status.lag_bytes is not None:
        text += f", delivered to {status.cursor}, {reporting.size(status.lag_bytes)} behind"
    if status.lag_seconds:
        text += f", oldest change not delivered {reporting.duration(status.lag_seconds)} old"
    if status.set_aside:
        text += f", {status.set_aside:,} set aside"
    if status.last_error and status.state in ("retrying", "failed"):
        text += f": {status.last_error}"
    return text


def shown(lines: Callable[[], Sequence[str]], over: threading.Event, logger: str) -> None:
    """Until it is over: lines that are kept up to date on a terminal, elsewhere lines now and then."""
    if sys.stderr.isatty():
        with reporting.status_line() as update:
            while not over.wait(_LIVE_SECONDS):
                update(escape("\n".join(lines())))
        return
    while not over.wait(_PLAIN_SECONDS):
        for line in lines():
            logging.getLogger(logger).info(line)
