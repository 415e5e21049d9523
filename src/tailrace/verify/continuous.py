"""Verifies sinks in the background, table after table, at a limited rate."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.errors import TailraceError
from tailrace.settings import Settings
from tailrace.store import Store
from tailrace.verify.destination import read_rows
from tailrace.verify.record import VerificationRecord, load_records
from tailrace.verify.report import SinkReport
from tailrace.verify.row_scan import SparkOnDemand
from tailrace.verify.verification import Verification

_log = logging.getLogger("tailrace.verify")

_RETRY_S: Final = 60.0
"""A sink that could not be verified, such as one that has delivered nothing yet, does not wait for a whole interval."""


class ContinuousVerification:
    """Runs until it is stopped. Each table has a snapshot of its own, so none is held for long."""

    def __init__(
        self,
        settings: Settings,
        sinks: Sequence[ConfiguredSink],
        stopping: threading.Event,
        spark: SparkOnDemand | None = None,
    ) -> None:
        self._settings = settings
        self._spark = spark
        self._sinks = sinks
        self._stopping = stopping
        self._store = Store.open(settings.store.url, settings.store.options)

    def run(self) -> None:
        due = self._first_due()
        reasons: dict[str, str] = {}
        while not self._stopping.is_set():
            for sink in self._sinks:
                if self._stopping.is_set() or (began := time.monotonic()) < due[sink.name]:
                    continue
                reason = self._attempt(sink)
                wait_s = self._settings.verify.interval_s
                due[sink.name] = began + (min(wait_s, _RETRY_S) if reason else wait_s)
                if reason and reason != reasons.get(sink.name) and not self._stopping.is_set():
                    _log.warning("%s", reason)
                reasons[sink.name] = reason
            self._stopping.wait(max(min(due.values(), default=_RETRY_S) - time.monotonic(), 0))

    def run_once(self, sink: ConfiguredSink) -> VerificationRecord | None:
        """Verify all tables of a sink, and store what was found. None: it was stopped."""
        verification = Verification(self._settings, sink, is_cancelled=self._stopping.is_set, spark=self._spark)
        with read_rows(self._settings, sink):
            pass  # it raises if the sink has delivered nothing yet
        oids = verification.wanted_oids()
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

    def _first_due(self) -> dict[str, float]:
        """When each sink is due: a restart is no reason to verify it again."""
        records: dict[str, VerificationRecord] = {}
        with contextlib.suppress(TailraceError):  # without them, all are verified now, which writes the records anew
            records = {record.sink: record for record in load_records(self._store)}
        now, interval_s = datetime.now(UTC), self._settings.verify.interval_s
        waits = {sink.name: seconds_until_due(records.get(sink.name), interval_s, now) for sink in self._sinks}
        return {name: time.monotonic() + wait_s for name, wait_s in waits.items()}

    def _attempt(self, sink: ConfiguredSink) -> str:
        """Verify a sink. Returns why it could not be, or nothing."""
        try:
            record = self.run_once(sink)
        except TailraceError as error:
            return f"sink {sink.name} could not be verified: {error.with_hint}"
        finally:
            if self._spark is not None:
                self._spark.close()
        if record is not None:
            incomplete = f", {record.tables_not_compared} tables not compared" if record.tables_not_compared else ""
            _log.info("sink %s: %d rows compared, %d differ%s", sink.name, record.rows, record.differences, incomplete)
        return ""


def seconds_until_due(record: VerificationRecord | None, interval_s: float, now: datetime) -> float:
    """How long a sink with this record of its last verification is not due."""
    if record is None:
        return 0.0
    return min(max((record.verified_at - now).total_seconds() + interval_s, 0.0), interval_s)
