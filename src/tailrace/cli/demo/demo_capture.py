"""The demo's capture."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tailrace import settings
from tailrace.capture.capture import Capture
from tailrace.capture.source import open_snapshots
from tailrace.embedded.process import wait_until
from tailrace.errors import TailraceError
from tailrace.store import Store


class DemoCapture:
    """Runs capture in a thread, with the initial snapshots. Leaving the context seals and stops it."""

    def __init__(self, configured: settings.Settings, store: Store) -> None:
        self.source = configured.source
        self._snapshots = open_snapshots(configured, store)
        self.capture = Capture(configured, store, snapshots=self._snapshots)
        self._error: TailraceError | None = None
        self._thread = threading.Thread(target=self._run, name="capture", daemon=True)

    def __enter__(self) -> DemoCapture:
        self._thread.start()
        self.wait(lambda: self.capture.is_streaming)
        return self

    def __exit__(self, *_: object) -> None:
        self._snapshots.stop()
        self.capture.stop()
        self._thread.join()

    @property
    def has_snapshots(self) -> bool:
        """Whether every table has its snapshot. Raises if one failed."""
        if self._snapshots.error is not None:
            raise self._snapshots.error
        return not self._snapshots.is_running

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds. Raise if capture fails, or after 60 seconds."""
        done = wait_until(lambda: condition() or self._error is not None, 60)
        if self._error is not None:
            raise self._error
        if not done:
            raise TailraceError("capture makes no progress", "the machine may be overloaded; try again")

    def _run(self) -> None:
        try:
            self.capture.run()
        except TailraceError as error:
            self._error = error
