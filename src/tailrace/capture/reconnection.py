"""What all streams from sources share: retries, and wake-ups."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

from tailrace.errors import StoreError, TailraceError
from tailrace.retry import Backoff

_log = logging.getLogger("tailrace.source")


def run_until_stopped(
    attempt: Callable[[], None], stopping: threading.Event, on_failure: Callable[[TailraceError], None]
) -> None:
    """Call `attempt` until it returns or `stopping` is set. Raises errors that a retry cannot resolve.

    `on_failure` is called with each error before anything else happens.
    """
    backoff = Backoff()
    while not stopping.is_set():
        began_at = time.monotonic()
        try:
            attempt()
            return
        except TailraceError as error:
            on_failure(error)
            if not error.retry or (stopping.is_set() and isinstance(error, StoreError)):
                raise
            if stopping.is_set():
                return  # nothing is pending, so nothing is lost
            if time.monotonic() - began_at > 60:
                backoff = Backoff()
            delay = backoff.next()
            _log.warning("%s; reconnecting in %.1f s", error, delay)
            stopping.wait(delay)


class WakePipe:
    """Lets any thread wake the one that waits for the server's socket."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._write, b"\0")

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)
