"""A history: every version of every row, with the times and positions between which it was valid."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from tailrace.change import Lsn, Relation
from tailrace.delivery.contract import Load
from tailrace.errors import SinkRefused
from tailrace.sinks.database.mirror import Source
from tailrace.sinks.database.staged_rows import StagedRows
from tailrace.sinks.database.table_write import RowGroup, TableWrite

COLUMNS: Final = ("_valid_from", "_valid_to", "_valid_from_position", "_valid_to_position", "_operation")
"""What a history adds to the table's own columns."""
STAGED: Final = ("from_time", "to_time", "from_position", "to_position", "operation")
"""The fields of staged rows that have the values of `COLUMNS`."""


class HistoryStatements(Protocol[Source]):
    """The statements of one transaction. Each raises SinkDiverged unless it affects exactly the expected versions."""

    def source(self, change: TableWrite[StagedRows], rows: StagedRows) -> Source:
        """Make rows available to statements."""

    def complete(self, change: TableWrite[StagedRows], group: RowGroup[StagedRows], source: Source) -> Source:
        """Return versions whose unsent values come from the current versions with the old keys."""

    def end(self, change: TableWrite[StagedRows], rows: StagedRows) -> None:
        """End the current versions of keys, or of rows of a table without a key."""

    def end_all(self, target: tuple[str, str], time: str | None, position: str) -> None:
        """End all current versions, at a position and its time; None is the current time."""

    def insert(self, change: TableWrite[StagedRows], rows: StagedRows, source: Source) -> None:
        """Insert versions."""

    def restore(self, target: tuple[str, str], lsn: Lsn) -> None:
        """Restore the table to before this commit LSN: changes from there on are delivered again."""


def apply(statements: HistoryStatements[Source], change: TableWrite[StagedRows]) -> None:
    """End versions first, then insert new ones."""
    if change.is_truncate:
        assert change.time_and_position is not None
        statements.end_all(change.target, *change.time_and_position)
        return
    inserts = []
    for group in change.versions:
        source = statements.source(change, group.rows)
        if group.unsent:
            source = statements.complete(change, group, source)
        inserts.append((group.rows, source))
    if change.ended is not None:
        statements.end(change, change.ended)
    for rows, source in inserts:
        statements.insert(change, rows, source)


def begin_load(statements: HistoryStatements[Source], load: Load, staged: Sequence[TableWrite[StagedRows]]) -> None:
    """Undo the history from the snapshot's LSN on, and end what was valid then."""
    statements.restore(load.target, load.lsn)
    times = (change.time_and_position for change in staged if change.time_and_position)
    statements.end_all(load.target, *next(times, (None, f"{load.lsn}:0")))


def check_names(relation: Relation, table: str) -> None:
    """Raise SinkRefused if the table has columns with the names that a history adds."""
    if taken := [column.name for column in relation.columns if column.name in COLUMNS]:
        raise SinkRefused(
            f"{table}: the table has columns that a history adds: {', '.join(taken)}",
            "exclude them with `columns`, or mirror the table",
        )
