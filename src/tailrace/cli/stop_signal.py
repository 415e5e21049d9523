"""SIGTERM and Ctrl-C, which stop a command cleanly."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

_SAME_STOP_SECONDS: Final = 1.0
"""A signal to a process group often arrives twice: from who sent it, and from a parent that passes it on."""


def on_stop(stop: Callable[[], None]) -> None:
    """Call `stop` in a new thread when either signal arrives. Signals shortly after one another are one.

    Not in the handler itself: it interrupts the main thread, which may hold the lock that `stop` needs.
    """
    arrived_at = float("-inf")

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        nonlocal arrived_at
        now = time.monotonic()
        if now - arrived_at >= _SAME_STOP_SECONDS:
            arrived_at = now
            threading.Thread(target=stop, name="stop", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
