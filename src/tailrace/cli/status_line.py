"""The status of capture and of each sink as one line of text, for a terminal or a log file. Formats lag."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.markup import escape

from tailrace.cli import output
from tailrace.ops.status import ArchiveStatus, CaptureStatus
from tailrace.quantity import count

if TYPE_CHECKING:
    from tailrace.delivery.status import SinkStatus

# Often enough to show progress, and not too often for a log file.
_PLAIN_SECONDS = 30.0
_LIVE_SECONDS = 0.25


@dataclass(frozen=True)
class StatusLine:
    text: str
    event: Hashable
    """It is the same as before if nothing has happened since: then a log file does not get the line again."""


def of_capture(status: CaptureStatus, rate: float) -> StatusLine:
    text = f"{status.state}: {count(status.changes, 'change')}, {rate:,.0f}/s, durable to {status.durable_lsn}"
    if status.lag_bytes is not None:
        text += f", {output.size(status.lag_bytes)} behind"
    text += _silence(status)
    if status.last_committed_at is not None:
        text += f", last change {output.duration(time.time() - status.last_committed_at.timestamp())} ago"
    if status.tables_copying:
        text += f"; {copying(status)}"
    event = (status.state, status.changes, status.tables_copying, status.rows_copied, status.silent_seconds)
    return StatusLine(text, event)


def _silence(status: CaptureStatus | ArchiveStatus) -> str:
    silent_s = status.silent_seconds
    return "" if silent_s is None else f", has reported nothing for {output.duration(silent_s)}"


def copying(status: CaptureStatus) -> str:
    """How far the copies of tables are."""
    tables = count(status.tables_copying, "table")
    return f"copying {tables}: {_rows_of_rows(status.rows_copied, status.rows_to_copy, status.copy_seconds_left)}"


def loading(status: SinkStatus) -> str | None:
    """How far a sink's loads are; None if it loads nothing."""
    if status.load_rows is None:
        return None
    return f"loading {_rows_of_rows(status.load_rows, status.load_total_rows, status.load_seconds_left)}"


def _rows_of_rows(rows: int, total: int | None, seconds_left: float | None) -> str:
    text = count(rows, "row") if total is None else f"{rows:,} of {count(total, 'row')}"
    return text if seconds_left is None else f"{text}, {output.duration(seconds_left)} left"


def of_archive(status: ArchiveStatus, rate: float) -> StatusLine:
    """`rate` is in bytes per second."""
    text = f"{status.state}: {output.size(status.received_bytes)} of WAL, {output.size(rate)}/s"
    text += f", durable to {status.durable_lsn}"
    text += _silence(status) if status.lag_bytes is None else f", {output.size(status.lag_bytes)} behind"
    if status.last_error and status.state != "streaming":
        text += f": {status.last_error}"
    return StatusLine(text, (status.state, status.segments, status.lag_bytes != 0))


def of_sink(status: SinkStatus) -> StatusLine:
    text = f"{status.name}: {status.state}, {count(status.changes, 'change')}, {status.changes_per_second:,.0f}/s"
    behind, age = sink_lag(status)
    if (load := loading(status)) is not None:
        text += f", {load}"
    elif status.cursor is not None:
        text += f", delivered to {status.cursor}"
        text += "" if behind is None else f", {behind} behind"
    if age is not None:
        text += f", oldest undelivered change {age} old"
    if status.dead_letters:
        text += f", {count(status.dead_letters, 'dead letter')}"
    if status.last_error and status.state in ("retrying", "failed"):
        text += f": {status.last_error}"
    # A sink that is behind and does not get on is worth a line each time.
    event = (status.state, status.changes, status.load_rows, status.dead_letters, age)
    return StatusLine(text, event)


def sink_lag(status: SinkStatus) -> tuple[str | None, str | None]:
    """Return how far a sink is behind the log, and the age of its oldest undelivered change. Each may be None."""
    behind = None if status.lag_bytes is None else output.size(status.lag_bytes)
    age = output.duration(status.lag_seconds) if status.lag_seconds else None
    return behind, age


@contextlib.contextmanager
def shown(lines: Callable[[], Sequence[StatusLine]], logger: str) -> Iterator[None]:
    """Show `lines` as `show_until` does, in a thread of its own, while the context lasts."""
    finished = threading.Event()
    display = threading.Thread(target=lambda: show_until(finished, lines, logger), name="display", daemon=True)
    display.start()
    try:
        yield
    finally:
        finished.set()
        display.join()


def show_until(stopping: threading.Event, lines: Callable[[], Sequence[StatusLine]], logger: str) -> None:
    """Show `lines` until `stopping` is set: live on a terminal, else logged to `logger` every 30 seconds, each only if
    something has happened since."""
    if output.is_live():
        with output.live_line() as update:
            while not stopping.wait(_LIVE_SECONDS):
                update(escape("\n".join(line.text for line in lines())))
        return
    logged: list[Hashable] = [line.event for line in lines()]
    while not stopping.wait(_PLAIN_SECONDS):
        found = lines()
        for number, line in enumerate(found):
            if number >= len(logged) or line.event != logged[number]:
                logging.getLogger(logger).info(line.text)
        logged = [line.event for line in found]
