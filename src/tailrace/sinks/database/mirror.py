"""A mirror: the order in which the net change of a table is applied to its copy, many rows at a time."""

from __future__ import annotations

from typing import Protocol, TypeVar

from tailrace.sinks.database.staged_rows import StagedRows
from tailrace.sinks.database.table_write import RowGroup, TableWrite

Source = TypeVar("Source")
"""Where statements find staged rows, such as the name of a table."""


class MirrorStatements(Protocol[Source]):
    """The statements of one transaction. Each raises SinkDiverged unless it affects exactly the expected rows."""

    def source(self, change: TableWrite[StagedRows], rows: StagedRows) -> Source:
        """Make rows available to statements."""

    def truncate(self, target: tuple[str, str]) -> None:
        """Remove all rows of a table."""

    def remove_copies(self, change: TableWrite[StagedRows], rows: StagedRows) -> None:
        """Delete the given number of copies of each row, of a table without a key."""

    def delete(self, change: TableWrite[StagedRows], rows: StagedRows, source: Source) -> None:
        """Delete the rows with the given old keys."""

    def complete(self, change: TableWrite[StagedRows], group: RowGroup[StagedRows], source: Source) -> Source:
        """Return rows whose unsent values come from the rows with the old keys, which must still be there."""

    def update(self, change: TableWrite[StagedRows], group: RowGroup[StagedRows]) -> None:
        """Set the sent values of the rows with the same keys."""

    def insert(self, change: TableWrite[StagedRows], rows: StagedRows, source: Source) -> None:
        """Insert rows."""


def apply(statements: MirrorStatements[Source], change: TableWrite[StagedRows]) -> None:
    """Deletes first, then updates, then inserts."""
    if change.is_truncate:
        statements.truncate(change.target)
        return
    if change.removed_copies is not None:
        statements.remove_copies(change, change.removed_copies)
    if change.deleted is not None:
        statements.delete(change, change.deleted, statements.source(change, change.deleted))
    inserts = []
    for group in change.rekeyed:
        source = statements.source(change, group.rows)
        inserts.append((group.rows, statements.complete(change, group, source)))
        statements.delete(change, group.rows, source)
    for group in change.updated:
        statements.update(change, group)
    if change.inserted is not None:
        inserts.append((change.inserted, statements.source(change, change.inserted)))
    for rows, source in inserts:
        statements.insert(change, rows, source)
