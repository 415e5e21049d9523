"""Repeats work on the store until it succeeds."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from tailrace.errors import TailraceError
from tailrace.retry import Backoff


def run_with_retries(work: Callable[[], None], stopping: threading.Event, log: logging.Logger) -> None:
    """Call `work` until it returns or `stopping` is set. Raises errors that a retry cannot resolve."""
    backoff = Backoff()
    while not stopping.is_set():
        try:
            work()
            return
        except TailraceError as error:
            if not error.retry:
                raise
            delay = backoff.next()
            log.warning("%s; retrying in %.1f s", error, delay)
            stopping.wait(delay)
