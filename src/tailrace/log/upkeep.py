"""What a log needs while it grows: small segments merged, old ones removed, by a thread beside capture."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from types import TracebackType
from typing import Self

from tailrace.errors import TailraceError
from tailrace.log.compaction import OLDER_THAN, compact
from tailrace.log.reader import LogReader
from tailrace.log.retention import Limits, retain
from tailrace.settings import Retention
from tailrace.store import Store

_log = logging.getLogger("tailrace.log")

# A tenth of the age at which segments may be merged.
_EVERY_SECONDS = 60.0


class Upkeep:
    """Runs while its context lasts. A failure is told, and tried again a minute later: nothing depends on it."""

    def __init__(self, store: Store, retention: Retention, older_than: timedelta = OLDER_THAN) -> None:
        self._store = store
        self._reader = LogReader(store)  # keeps the headers it has read
        age = retention.max_age_hours
        self._limits = Limits(None if age is None else timedelta(hours=age), retention.max_bytes)
        self._older_than = older_than
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_SECONDS):
            try:
                self._once()
            except TailraceError as error:
                _log.warning("upkeep of the log: %s; it is tried again in a minute. %s", error, error.hint)

    def _once(self) -> None:
        done = compact(self._store, older_than=self._older_than, stop=self._stop.is_set, reader=self._reader)
        if done.merged:
            _log.info("merged %d objects of the log into %d", done.merged, done.written)
        if self._limits != Limits():
            plan = retain(self._store, self._limits)
            if plan.remove:
                _log.info("removed segments %d to %d by retention", plan.remove[0].first, plan.remove[-1].last)
