"""Verifies a sink: takes the source's snapshot, waits for the sink to pass it, and compares table by table."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tailrace.change import Lsn, Relation
from tailrace.delivery.contract import ReadsRows, State
from tailrace.delivery.row_reader import RowReader
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.delivery.task import log_reader
from tailrace.delivery.transforms import Shaping
from tailrace.errors import ConfigError, SinkError, SinkRefused, TailraceError
from tailrace.log import source_record
from tailrace.log.reader import LogReader
from tailrace.settings import Settings
from tailrace.settings.pattern import TablePattern
from tailrace.state import log_window
from tailrace.store import Store
from tailrace.verify.report import SinkReport, TableReport
from tailrace.verify.source_snapshot import SourceSnapshot, source_snapshot
from tailrace.verify.table_comparison import TableComparison

_POLL_S: Final = 0.1

OnTable = Callable[[TableReport], None]


@dataclass(frozen=True)
class Verification:
    """Verifies one sink, as often as it is run."""

    settings: Settings
    configured: ConfiguredSink
    tables: tuple[TablePattern, ...] = ()
    """Which tables to compare; all if there are none."""
    wait_s: float = 60.0
    """How long to wait for capture and the sink to pass the source's snapshot."""
    is_cancelled: Callable[[], bool] = lambda: False
    on_table: OnTable = lambda _: None

    def __post_init__(self) -> None:
        check_verifiable(self.configured)

    def run(self, oids: Collection[int] | None = None) -> SinkReport:
        """Compare the tables, or only those with these oids."""
        began = time.monotonic()
        verified_at = datetime.now(UTC)
        store = Store.open(self.settings.store.url, self.settings.store.options)
        reader = log_reader(self.settings.store)
        record = source_record.load(store)
        shaping = Shaping(self.configured.common, str(record["database"]) if record else "")
        with source_snapshot(self.settings, store, self.is_cancelled) as source:
            deadline = time.monotonic() + self.wait_s
            self._wait_for_log(reader, source.lsn, deadline)
            with self._reader_past(reader, source.lsn, deadline) as stored:
                assert stored.state.cursor is not None
                report = SinkReport(self.configured.name, source.lsn, stored.state.cursor, verified_at, [])
                for table in self._compare(source, stored, reader, shaping, oids):
                    report.tables.append(table)
                    self.on_table(table)
        report.seconds = time.monotonic() - began
        return report

    def _compare(
        self,
        source: SourceSnapshot,
        stored: RowReader,
        log: LogReader,
        shaping: Shaping,
        oids: Collection[int] | None,
    ) -> Iterator[TableReport]:
        wanted = [
            plan.relation
            for plan in source.tables.values()
            if (oids is None or plan.relation.oid in oids) and self._is_wanted(plan.relation, shaping)
        ]
        ends = {relation.oid: _end(stored.state, relation.oid, source.lsn) for relation in wanted}
        present = {oid: end for oid, end in ends.items() if oid in stored.state.tables and oid in stored.tables}
        changes = log_window.changes_between(log, source.lsn, present)
        for relation in wanted:
            oid = relation.oid
            began = time.monotonic()
            comparison = TableReport(relation.qualified_name, oid, ends[oid])
            if oid not in present:
                comparison.error = "the sink has not loaded the table yet"
            elif ends[oid] > log.end_lsn():
                comparison.error = f"the sink has loaded it as of {ends[oid]}, and the log is not there yet"
            else:
                try:
                    comparison = TableComparison(source, stored, oid, shaping, changes.get(oid, []), ends[oid]).run()
                except TailraceError as error:
                    comparison.error, comparison.hint = str(error), error.hint
            comparison.seconds = time.monotonic() - began
            yield comparison

    def _is_wanted(self, relation: Relation, shaping: Shaping) -> bool:
        is_named = not self.tables or any(p.matches(relation.schema, relation.name) for p in self.tables)
        return is_named and shaping.load(relation) is not None

    def _wait_for_log(self, reader: LogReader, lsn: Lsn, deadline: float) -> None:
        while reader.end_lsn() < lsn:
            if time.monotonic() > deadline or self.is_cancelled():
                raise SinkError(
                    f"the log ends at {reader.end_lsn()}, and the source is at {lsn}: "
                    "capture is not running, or is behind",
                    "start `tailrace run` or `tailrace capture`, and see `tailrace status`",
                )
            time.sleep(_POLL_S)

    @contextmanager
    def _reader_past(self, log: LogReader, lsn: Lsn, deadline: float) -> Iterator[RowReader]:
        """A view of the destination, once it has everything that commits below the LSN."""
        sink = self.configured.sink
        assert isinstance(sink, ReadsRows)
        problem: SinkError | None = None
        while True:
            with ExitStack() as stack:
                try:
                    reader = stack.enter_context(sink.read_rows())
                    cursor = reader.state.cursor
                    has_passed = cursor is not None and _has_passed(log, cursor, lsn)
                except SinkError as error:
                    problem, has_passed = error, False
                if has_passed:
                    yield reader
                    return
            if problem is not None and time.monotonic() > deadline:
                raise problem
            if time.monotonic() > deadline or self.is_cancelled():
                raise SinkError(
                    f"sink {self.configured.name} is at {cursor}, and the source is at {lsn}: "
                    "it is not running, or is behind",
                    "start it with `tailrace run` or `deliver`, and see `tailrace status`; --wait waits longer",
                )
            time.sleep(_POLL_S)


def check_verifiable(configured: ConfiguredSink) -> None:
    """Raise unless the sink's rows can be compared with the source's."""
    common, sink = configured.common, configured.sink
    if common.sql or common.transform:
        raise ConfigError(
            f"sink {common.name} delivers the rows of its `{'sql' if common.sql else 'transform'}`, "
            "which the source does not have",
            "verify a sink that delivers the table itself",
        )
    if not isinstance(sink, ReadsRows):
        raise SinkRefused(
            f"sink {common.name} ({common.type}) delivers events and keeps no rows that could be compared",
            "`tailrace log verify` checks the log that it delivers from; `tailrace deadletter` lists what was rejected",
        )
    if (common.start or sink.start) != "snapshot":
        raise ConfigError(
            f"sink {common.name} starts at {common.start}: it has changes only, and not the rows from before",
            'only a sink with start = "snapshot" can be compared',
        )


def _end(state: State, oid: int, lsn: Lsn) -> Lsn:
    """The LSN as of which a table's rows are: the cursor, or the snapshot's that the table was loaded from, if the
    cursor has not reached it yet."""
    assert state.cursor is not None
    return max(state.cursor, state.tables.get(oid, Lsn(0)), lsn)


def _has_passed(log: LogReader, cursor: Lsn, lsn: Lsn) -> bool:
    """Whether no transaction is between the cursor and the LSN: a cursor only moves with changes."""
    return cursor >= lsn or not log_window.has_transactions(log, cursor, lsn)
