"""Stops a verification in the middle of a table, which may take hours to read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from tailrace.errors import SinkError

_POLL_S: Final = 0.2

T = TypeVar("T")


def cancelled() -> SinkError:
    return SinkError("the verification was stopped", "run it again")


def until_cancelled(items: Iterable[T], is_cancelled: Callable[[], bool]) -> Iterator[T]:
    """The items. Raises SinkError once the verification is cancelled."""
    for item in items:
        if is_cancelled():
            raise cancelled()
        yield item


@contextmanager
def cancelling(is_cancelled: Callable[[], bool], cancel: Callable[[], None]) -> Iterator[None]:
    """As long as the context lasts, cancel what others are working on once the verification is cancelled: again and
    again, because the next piece of work may have begun since."""
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.wait(_POLL_S):
            if is_cancelled():
                cancel()

    thread = threading.Thread(target=watch, name="cancellation", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
