"""What the sinks that keep tables in a database have in common: how they stage changes, and apply those of one step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from tailrace.delivery.coalesce import coalesce
from tailrace.delivery.contract import BaseSink, Load, Parallel, Part, Receipt
from tailrace.log.decoding import TableChanges
from tailrace.sinks.database import history, mirror, row_version, table_write
from tailrace.sinks.database.history import HistoryStatements
from tailrace.sinks.database.mirror import MirrorStatements
from tailrace.sinks.database.replica import Replica
from tailrace.sinks.database.staged_rows import RowBatch, StagedRows
from tailrace.sinks.database.staging import RowWriter, StagingArea
from tailrace.sinks.database.table_write import TableWrite

MODES = ("mirror", "history")
"""`mirror`: the tables as they are. `history`: every version of every row, with the time it was valid."""


class ReplicaSink(BaseSink):
    """Derive from it, and add `open`, `commit`, `rewind` and `writers`."""

    parallel: ClassVar[Parallel] = Parallel.RANGES
    whole_transactions: ClassVar[bool] = False
    keeps_tables: ClassVar[bool] = True
    start: ClassVar[str] = "snapshot"
    is_history: bool

    @abstractmethod
    def writers(self) -> AbstractContextManager[Callable[[TableWrite[RowBatch]], RowWriter]]:
        """For an attempt at a part: what returns the writer for the rows of a net change."""

    def stage(self, part: Part) -> Receipt:
        area = StagingArea(part.step)
        found: list[TableWrite[StagedRows]] = []
        with self.writers() as writer_of:
            for run in coalesce(part.chunks):
                change = self._table_write(run, is_load=part.load is not None)
                writer = writer_of(change)
                found.append(change.with_staged_rows(lambda rows, writer=writer: area.put(rows, writer)))  # type: ignore[misc]
        return tuple(found)

    def _table_write(self, run: TableChanges, *, is_load: bool) -> TableWrite[RowBatch]:
        if run.is_truncate:
            return TableWrite.of(run, is_truncate=True, time_and_position=row_version.time_and_position(run.at, 0))
        if self.is_history:
            return row_version.of_snapshot(run) if is_load else row_version.of_changes(run)
        return table_write.of_snapshot(run) if is_load else table_write.of_changes(run)


@dataclass(frozen=True)
class ReplicaTransaction:
    """The tables and the statements of one commit: those of a mirror, or those of a history."""

    replica: Replica
    mirror: MirrorStatements[Any] | None = None
    history: HistoryStatements[Any] | None = None

    def begin_load(self, load: Load, staged: Sequence[TableWrite[StagedRows]]) -> None:
        """Create or alter the table for the rows of a snapshot."""
        self.replica.begin_load(load)
        for change in staged:
            self.prepare(change)

    def load(self, load: Load, staged: Sequence[TableWrite[StagedRows]]) -> None:
        """Replace the rows of a table that `begin_load` has prepared."""
        load = replace(load, target=self.replica.target(load.relation.oid))
        if self.history is not None:
            history.begin_load(self.history, load, staged)
        else:
            assert self.mirror is not None
            self.mirror.truncate(load.target)
        for change in staged:
            self.write(change)
        self.replica.end_load(load, sum(rows.count for change in staged for rows in change.rows()))

    def prepare(self, change: TableWrite[StagedRows]) -> None:
        """Create or alter the table for these rows."""
        self.replica.prepare(change.relation, change.target, change.nulls)

    def write(self, change: TableWrite[StagedRows]) -> None:
        """Apply a net change to a table that `prepare` has prepared."""
        change = replace(change, target=self.replica.target(change.relation.oid))
        if self.history is not None:
            history.apply(self.history, change)
        else:
            assert self.mirror is not None
            mirror.apply(self.mirror, change)


def writes_of(load: Load, staged: Sequence[TableWrite[StagedRows]]) -> list[TableWrite[StagedRows]]:
    """The rows of a load among those of a step."""
    return [change for change in staged if change.is_load and change.relation.oid == load.relation.oid]


def uses_staging_tables(staged: Sequence[TableWrite[StagedRows]]) -> bool:
    """Whether some of the rows are in staging tables, which can be dropped after the commit."""
    return any(rows.is_staged for change in staged for rows in change.rows())
