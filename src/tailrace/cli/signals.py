"""SIGTERM and Ctrl-C: a command is asked to end, and ends well."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType


def on_stop(stop: Callable[[], None]) -> None:
    """Call `stop` at either signal, in a thread of its own.

    A handler runs in the middle of whatever the main thread does, perhaps inside the very lock that `stop` takes.
    """

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        threading.Thread(target=stop, name="stop", daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
