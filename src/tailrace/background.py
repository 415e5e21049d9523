"""Work in a thread of its own, for as long as a `with` block lasts."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class BackgroundThread(ABC):
    """Runs `_run` from `__enter__` to `__exit__`, which sets `_stopping` and waits until `_run` returns."""

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Work until `_stopping` is set, and look at it every second."""
