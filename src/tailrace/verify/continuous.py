"""Verifies sinks in the background, table after table, at a limited rate."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.errors import TailraceError
from tailrace.settings import Settings
from tailrace.store import Store
from tailrace.verify.destination import read_rows
from tailrace.verify.record import VerificationRecord
from tailrace.verify.report import SinkReport
from tailrace.verify.verification import Verification

_log = logging.getLogger("tailrace.verify")


class ContinuousVerification:
    """Runs until it is stopped. Each table has a snapshot of its own, so none is held for long."""

    def __init__(self, settings: Settings, sinks: Sequence[ConfiguredSink], stopping: threading.Event) -> None:
        self._settings = settings
        self._sinks = sinks
        self._stopping = stopping
        self._store = Store.open(settings.store.url, settings.store.options)

    def run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            for sink in self._sinks:
                self._attempt(sink)
            self._stopping.wait(max(self._settings.verify.interval_s - (time.monotonic() - began), 0))

    def run_once(self, sink: ConfiguredSink) -> VerificationRecord | None:
        """Verify all tables of a sink, and store what was found. None: it was stopped."""
        verification = Verification(self._settings, sink, is_cancelled=self._stopping.is_set)
        with read_rows(self._settings, sink) as reader:
            oids = list(reader.tables)
        reports: list[SinkReport] = []
        for oid in oids:
            began = time.monotonic()
            report = verification.run([oid])
            reports.append(report)
            for table in report.tables:
                if table.differences:
                    # Never the rows themselves: logs are read by more people than tables.
                    _log.error(
                        "sink %s: %d rows of %s differ from the source's; `tailrace verify %s --table %s` shows them",
                        *(sink.name, len(table.differences), table.table, sink.name, table.table),
                    )
            pause_s = sum(table.rows for table in report.tables) / self._settings.verify.rows_per_second
            if self._stopping.wait(max(pause_s - (time.monotonic() - began), 0)):
                return None
        if not reports:
            return None
        record = VerificationRecord.of(reports)
        record.save(self._store)
        return record

    def _attempt(self, sink: ConfiguredSink) -> None:
        if self._stopping.is_set():
            return
        try:
            record = self.run_once(sink)
        except TailraceError as error:
            if not self._stopping.is_set():
                _log.warning("sink %s could not be verified: %s. %s", sink.name, error, error.hint)
            return
        if record is not None:
            _log.info("sink %s: %d rows compared, %d differ", sink.name, record.rows, record.differences)
