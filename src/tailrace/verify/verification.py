"""Verifies a sink: takes the source's snapshot, waits for the sink to pass it, and compares table by table."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from tailrace.change import Lsn, Relation
from tailrace.delivery.contract import State
from tailrace.delivery.row_reader import RowReader
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.delivery.task import log_reader
from tailrace.delivery.transforms import Shaping
from tailrace.errors import SinkError, TailraceError
from tailrace.log import source_record
from tailrace.log.reader import LogReader
from tailrace.settings import Settings
from tailrace.settings.pattern import TablePattern
from tailrace.state import log_window
from tailrace.store import Store
from tailrace.verify.destination import check_verifiable, read_rows
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
        check_verifiable(self.settings, self.configured)

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
        problem: SinkError | None = None
        while True:
            with ExitStack() as stack:
                try:
                    reader = stack.enter_context(read_rows(self.settings, self.configured))
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


def _end(state: State, oid: int, lsn: Lsn) -> Lsn:
    """The LSN as of which a table's rows are: the cursor, or the snapshot's that the table was loaded from, if the
    cursor has not reached it yet."""
    assert state.cursor is not None
    return max(state.cursor, state.tables.get(oid, Lsn(0)), lsn)


def _has_passed(log: LogReader, cursor: Lsn, lsn: Lsn) -> bool:
    """Whether no transaction is between the cursor and the LSN: a cursor only moves with changes."""
    return cursor >= lsn or not log_window.has_transactions(log, cursor, lsn)
