"""What all streams from PostgreSQL share: waiting for a slot, and the pace of status messages."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from tailrace.errors import FencedError, SourceError
from tailrace.retry import Backoff

_log = logging.getLogger("tailrace.source")

# A walsender can miss the wake-up for a commit (seen with 18, on a busy machine). It checks again after ten seconds, or
# when it receives a message.
_NUDGE_SECONDS = 0.25
# A server that does not answer for this many status intervals is considered dead.
_SILENT_INTERVALS = 3

Stream = TypeVar("Stream")


def start_when_free(
    start: Callable[[], Stream], wal_sender_timeout_s: float | None, stopping: threading.Event, who: str
) -> Stream:
    """Call `start`, again and again if the server has not yet noticed that the slot's previous connection ended.

    `who` names the command that else uses the slot, for the error.
    """
    deadline = time.monotonic() + (wal_sender_timeout_s or 60.0) * 1.25
    backoff = Backoff(longest=1.0)
    while True:
        try:
            return start()
        except SourceError as error:
            if "is active" not in str(error):
                raise
            if time.monotonic() > deadline:
                raise FencedError(str(error), f"another {who} uses this slot: stop one of them") from error
            if backoff.failures == 0:
                _log.warning("%s; waiting for it to be released", error)
            if stopping.wait(backoff.next()):
                raise


class StatusTimer:
    """Decides when to send a standby status, and when a silent server counts as dead."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._status_at = self._sent_at = time.monotonic()

    def is_due(self, *, is_news: bool) -> tuple[bool, bool]:
        """Return whether to send a status now, and whether it should request a reply.

        `is_news` says that something became durable or that the server requested a status.
        """
        now = time.monotonic()
        wants_reply = now - self._status_at >= self._interval_s
        if not (is_news or wants_reply or now - self._sent_at >= _NUDGE_SECONDS):
            return False, False
        if is_news or wants_reply:
            self._status_at = now
        self._sent_at = now
        return True, wants_reply

    @property
    def left_s(self) -> float:
        """Seconds until the next status is due."""
        return min(self._status_at + self._interval_s, self._sent_at + _NUDGE_SECONDS) - time.monotonic()

    def check_alive(self, received_at: float) -> None:
        if time.monotonic() - received_at > self._interval_s * _SILENT_INTERVALS:
            raise SourceError("the server stopped responding", "reconnecting automatically")
