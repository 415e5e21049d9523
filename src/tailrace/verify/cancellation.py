"""Stops a verification in the middle of a table, which may take hours to read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from tailrace.background import BackgroundThread
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


class Cancelling(BackgroundThread):
    """As long as the context lasts, cancels what others are working on once the verification is cancelled: again and
    again, because the next piece of work may have begun since."""

    def __init__(self, is_cancelled: Callable[[], bool], cancel: Callable[[], None]) -> None:
        super().__init__("cancellation")
        self._is_cancelled = is_cancelled
        self._cancel = cancel

    def _run(self) -> None:
        while not self._stopping.wait(_POLL_S):
            if self._is_cancelled():
                self._cancel()
