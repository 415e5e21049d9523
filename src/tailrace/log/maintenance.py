"""Maintenance of a log while capture runs: a thread merges small segments and removes old ones."""

from __future__ import annotations

import logging
from datetime import timedelta

from tailrace.background import BackgroundThread
from tailrace.errors import TailraceError, sentences
from tailrace.log.compaction import OLDER_THAN, compact
from tailrace.log.reader import LogReader
from tailrace.log.retention import RetentionLimits, retain
from tailrace.settings import RetentionSettings
from tailrace.store import Store

_log = logging.getLogger("tailrace.log")

# A tenth of the age at which segments may be merged.
_EVERY_SECONDS = 60.0


class LogMaintenance(BackgroundThread):
    """Runs maintenance once a minute inside a `with` block. Logs failures and retries: nothing depends on it."""

    def __init__(self, store: Store, retention: RetentionSettings, older_than: timedelta = OLDER_THAN) -> None:
        super().__init__("log maintenance")
        self._store = store
        self._reader = LogReader(store)  # caches headers from pass to pass
        age = retention.max_age_hours
        self._limits = RetentionLimits(None if age is None else timedelta(hours=age), retention.max_bytes)
        self._older_than = older_than

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY_SECONDS):
            try:
                self._run_once()
            except TailraceError as error:
                _log.warning(
                    "maintenance of the log failed: %s", sentences(f"{error}; retrying in a minute", error.hint)
                )

    def _run_once(self) -> None:
        result = compact(self._store, older_than=self._older_than, stop=self._stopping.is_set, reader=self._reader)
        if result.merged:
            _log.info("merged %d objects of the log into %d", result.merged, result.written)
        if self._limits != RetentionLimits():
            plan = retain(self._store, self._limits)
            if plan.remove:
                _log.info("retention removed segments %d to %d", plan.remove[0].first, plan.remove[-1].last)
