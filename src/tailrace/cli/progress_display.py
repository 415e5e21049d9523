"""Shows how many bytes of a job are done: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType

from rich.progress import BarColumn, Progress, TextColumn

from tailrace.cli import output

_PLAIN_SECONDS = 5.0


class ProgressDisplay:
    """Shows a job while the context lasts.

    `state` returns the bytes done, about how many there are, and further text. Lines go to `logger`.
    """

    def __init__(self, state: Callable[[], tuple[int, int, str]], logger: str) -> None:
        self._state = state
        self._logger = logging.getLogger(logger)
        self._finished = threading.Event()
        self._thread = threading.Thread(target=self._bar if output.is_live() else self._lines, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finished.set()
        self._thread.join()

    def _lines(self) -> None:
        while not self._finished.wait(_PLAIN_SECONDS):
            self._logger.info(self._text())

    def _bar(self) -> None:
        columns = (BarColumn(), TextColumn("{task.percentage:>3.0f}%"), TextColumn("{task.description}"))
        with Progress(*columns, console=output.console(), transient=True) as bar:
            task = bar.add_task(self._text(), total=None)
            while not self._finished.wait(0.2):
                done, total, _ = self._state()
                bar.update(task, description=self._text(), completed=done, total=max(total, done, 1))

    def _text(self) -> str:
        done, total, rest = self._state()
        return f"{output.size(done)} of about {output.size(max(total, done))}, {rest}" if total or done else rest
