"""SIGTERM and Ctrl-C, which stop a command cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType


def on_stop(stop: Callable[[], None]) -> None:
    """Call `stop` in a new thread when either signal arrives.

    Not in the handler itself: it interrupts the main thread, which may hold the lock that `stop` needs.
    """

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        threading.Thread(target=stop, name="stop", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
