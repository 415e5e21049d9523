"""Verifies a sink: takes the source's snapshot, waits for the sink to pass it, and compares table by table."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from tailrace.change import Lsn, Relation
from tailrace.delivery import control
from tailrace.delivery.contract import State
from tailrace.delivery.row_reader import RowReader
from tailrace.delivery.sink_settings import ConfiguredSink
from tailrace.delivery.task import log_reader
from tailrace.delivery.transforms import Shaping
from tailrace.errors import ConfigError, SinkError, TailraceError
from tailrace.log import source_record
from tailrace.log.reader import LogReader
from tailrace.settings import Settings
from tailrace.settings.pattern import TablePattern
from tailrace.state import log_window
from tailrace.store import Store
from tailrace.verify.cancellation import cancelled
from tailrace.verify.destination import check_verifiable, read_rows
from tailrace.verify.document_comparison import DocumentComparison
from tailrace.verify.report import SinkReport, TableReport
from tailrace.verify.row_scan import SparkOnDemand
from tailrace.verify.source_snapshot import SourceSnapshot, published_relations, source_snapshot
from tailrace.verify.table_comparison import TableComparison

_POLL_S: Final = 0.1
_MAX_POLL_S: Final = 1.0
_MAX_ROUNDS: Final = 5
"""How often documents that changed while they were read are looked up again."""

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
    spark: SparkOnDemand | None = None
    """Reads large tables, where the destination can be read with Spark. None: everything is read in this process."""

    def __post_init__(self) -> None:
        check_verifiable(self.settings, self.configured)

    def run(self, oids: Collection[int] | None = None) -> SinkReport:
        """Compare the tables, or only those with these oids."""
        began = time.monotonic()
        verified_at = datetime.now(UTC)
        store = Store.open(self.settings.store.url, self.settings.store.options)
        reader = log_reader(self.settings.store)
        shaping = self._shaping(store)
        with source_snapshot(self.settings, store, self.is_cancelled) as source:
            deadline = time.monotonic() + self.wait_s
            self._wait_for_log(reader, source.lsn, deadline)
            with self._reader_past(reader, source.lsn, deadline) as stored:
                assert stored.state.cursor is not None
                report = SinkReport(self.configured.name, source.lsn, stored.state.cursor, verified_at, [])
                compare = self._compare if stored.is_snapshot else self._compare_documents
                for table in compare(source, stored, reader, shaping, oids):
                    report.tables.append(table)
                    self.on_table(table)
        report.seconds = time.monotonic() - began
        return report

    def wanted_oids(self) -> list[int]:
        """The published tables that the sink should have, whether it has loaded them or not."""
        store = Store.open(self.settings.store.url, self.settings.store.options)
        shaping = self._shaping(store)
        relations = published_relations(self.settings.source)
        return [relation.oid for relation in relations if self._is_wanted(relation, shaping)]

    def _shaping(self, store: Store) -> Shaping:
        record = source_record.load(store)
        return Shaping(self.configured.common, str(record["database"]) if record else "")

    def _compare(
        self,
        source: SourceSnapshot,
        stored: RowReader,
        log: LogReader,
        shaping: Shaping,
        oids: Collection[int] | None,
    ) -> Iterator[TableReport]:
        wanted = self._wanted(source, shaping, oids)
        ends = {relation.oid: _end(stored.state, relation.oid, source.lsn) for relation in wanted}
        present = {oid: end for oid, end in ends.items() if oid in stored.state.tables and oid in stored.tables}
        changes = log_window.changes_between(log, source.lsn, present)
        for relation in wanted:
            oid = relation.oid
            began = time.monotonic()
            report = TableReport(relation.qualified_name, oid, ends[oid])
            if oid not in present:
                report.error = "the sink has not loaded the table yet"
            elif ends[oid] > log.end_lsn():
                report.error = f"the sink has loaded it as of {ends[oid]}, and the log is not there yet"
            else:
                own = changes.get(oid, [])
                comparison = TableComparison(
                    source, stored, oid, shaping, own, ends[oid], self.spark, self.is_cancelled
                )
                report = self._guarded(comparison)
            report.seconds = time.monotonic() - began
            yield report

    def _compare_documents(
        self,
        source: SourceSnapshot,
        stored: RowReader,
        log: LogReader,
        shaping: Shaping,
        oids: Collection[int] | None,
    ) -> Iterator[TableReport]:
        """Compare tables of a destination without snapshots, then the rows that changed meanwhile, until they rest."""
        reports: list[TableReport] = []
        changed: dict[int, pa.RecordBatch] = {}
        for relation in self._wanted(source, shaping, oids):
            began = time.monotonic()
            report = TableReport(relation.qualified_name, relation.oid, source.lsn)
            if relation.oid not in stored.state.tables or relation.oid not in stored.tables:
                report.error = "the sink has not loaded the table yet"
            elif stored.state.tables[relation.oid] > source.lsn:
                report.error = f"the sink has loaded it as of {stored.state.tables[relation.oid]}: verify it again"
            else:
                comparison = self._of_documents(source, stored, relation.oid, shaping, log)
                report = self._guarded(comparison)
                if comparison.changed is not None:
                    changed[relation.oid] = comparison.changed
            report.seconds = time.monotonic() - began
            reports.append(report)
        for _ in range(_MAX_ROUNDS):
            if not changed:
                break
            changed = self._look_up_again(log, shaping, reports, changed)
        for report in reports:
            if report.oid in changed and not report.error:
                count = len(changed[report.oid])
                report.notes.append(f"{count:,} rows changed whenever they were read, and were not compared")
        yield from reports

    def _look_up_again(
        self, log: LogReader, shaping: Shaping, reports: Sequence[TableReport], keys: Mapping[int, pa.RecordBatch]
    ) -> dict[int, pa.RecordBatch]:
        """Compare rows that changed while they were read, with a new snapshot. Returns those that changed again."""
        changed = {}
        store = Store.open(self.settings.store.url, self.settings.store.options)
        with source_snapshot(self.settings, store, self.is_cancelled) as source:
            deadline = time.monotonic() + self.wait_s
            self._wait_for_log(log, source.lsn, deadline)
            with self._reader_past(log, source.lsn, deadline) as stored:
                for report in reports:
                    if report.oid not in keys or report.error:
                        continue
                    if report.oid not in source.tables or report.oid not in stored.tables:
                        report.error = "the table was dropped while it was compared"
                        continue
                    comparison = self._of_documents(source, stored, report.oid, shaping, log)
                    comparison.only = keys[report.oid]
                    again = self._guarded(comparison)
                    report.differences += again.differences
                    report.error, report.hint, report.position = again.error, again.hint, again.position
                    if comparison.changed is not None:
                        changed[report.oid] = comparison.changed
        return changed

    def _of_documents(
        self, source: SourceSnapshot, stored: RowReader, oid: int, shaping: Shaping, log: LogReader
    ) -> DocumentComparison:
        return DocumentComparison(source, stored, oid, shaping, [], source.lsn, is_cancelled=self.is_cancelled, log=log)

    def _guarded(self, comparison: TableComparison) -> TableReport:
        """What fails of one table does not keep the others from being compared."""
        try:
            return comparison.run()
        except TailraceError as error:
            if self.is_cancelled():
                raise cancelled() from error
            comparison.report.error, comparison.report.hint = str(error), error.hint
            return comparison.report

    def _wanted(self, source: SourceSnapshot, shaping: Shaping, oids: Collection[int] | None) -> list[Relation]:
        relations = [plan.relation for plan in source.tables.values()]
        wanted = [r for r in relations if (oids is None or r.oid in oids) and self._is_wanted(r, shaping)]
        if not wanted and oids is None:
            named = f" matches {', '.join(p.text for p in self.tables)} and" if self.tables else ""
            raise ConfigError(
                f"there is nothing to compare: no published table{named} is delivered to sink {self.configured.name}",
                "`tailrace check` lists the published tables; `tables` and `exclude` of a sink choose among them",
            )
        return wanted

    def _is_wanted(self, relation: Relation, shaping: Shaping) -> bool:
        is_named = not self.tables or any(p.matches(relation.schema, relation.name) for p in self.tables)
        return is_named and shaping.load(relation) is not None

    def _wait_for_log(self, reader: LogReader, lsn: Lsn, deadline: float) -> None:
        while reader.end_lsn() < lsn:
            if self.is_cancelled():
                raise cancelled()
            if time.monotonic() > deadline:
                raise SinkError(
                    f"the log ends at {reader.end_lsn()}, and the source is at {lsn}: "
                    "capture is not running, or is behind",
                    "start `tailrace run` or `tailrace capture`, and see `tailrace status`",
                )
            time.sleep(_POLL_S)

    @contextmanager
    def _reader_past(self, log: LogReader, lsn: Lsn, deadline: float) -> Iterator[RowReader]:
        """A view of the destination, once it has everything that commits below the LSN."""
        poll_s = _POLL_S
        while True:
            cursor: Lsn | None = None
            problem: SinkError | None = None
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
            if self.is_cancelled():
                raise cancelled()
            if self._is_paused() or time.monotonic() > deadline:
                raise problem or self._behind(cursor, lsn)
            time.sleep(poll_s)
            poll_s = min(poll_s * 1.5, _MAX_POLL_S)  # each attempt is a connection

    def _behind(self, cursor: Lsn | None, lsn: Lsn) -> SinkError:
        name = self.configured.name
        where = f"sink {name} is at {cursor}, and the source is at {lsn}"
        if self._is_paused():
            return SinkError(f"{where}: it is paused", f"`tailrace sink resume {name}` resumes it")
        return SinkError(
            f"{where}: it is not running, or is behind",
            "start it with `tailrace run` or `deliver`, and see `tailrace status`; --wait waits longer",
        )

    def _is_paused(self) -> bool:
        """A paused sink is not waited for: that would only hold the source's snapshot."""
        return control.load(
            Store.open(self.settings.store.url, self.settings.store.options), self.configured.name
        ).is_paused


def _end(state: State, oid: int, lsn: Lsn) -> Lsn:
    """The LSN as of which a table's rows are: the cursor, or the snapshot's that the table was loaded from, if the
    cursor has not reached it yet."""
    assert state.cursor is not None
    return max(state.cursor, state.tables.get(oid, Lsn(0)), lsn)


def _has_passed(log: LogReader, cursor: Lsn, lsn: Lsn) -> bool:
    """Whether no transaction is between the cursor and the LSN: a cursor only moves with changes."""
    return cursor >= lsn or not log_window.has_transactions(log, cursor, lsn)
