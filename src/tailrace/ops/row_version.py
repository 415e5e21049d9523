"""The versions of a row, from its changes. Pure.

PostgreSQL sends a row after each change, except large values that an update left alone. These, and the row before a
change, come from the version before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tailrace.change import Change, Column, Operation

Row = Mapping[str, str | None]
"""PostgreSQL's texts by column."""


@dataclass(frozen=True)
class RowVersion:
    """A row after a change."""

    change: Change
    row: Row | None
    """None if the row was deleted."""
    unknown: tuple[str, ...] = ()
    """Columns whose values were not sent, and are not known from an earlier version either."""


def versions(changes: Sequence[Change]) -> list[RowVersion]:
    """The versions after each of these changes of one row, which are newest first, as the result is."""
    found: list[RowVersion] = []
    known: Row = {}
    for change in reversed(changes):
        if change.operation in (Operation.DELETE, Operation.TRUNCATE):
            known, version = {}, RowVersion(change, None)
        else:
            # REPLICA IDENTITY FULL sends the old row with all its values.
            before = known if change.old_is_key else {**known, **_texts(change.old_columns)}
            sent, unsent = _texts(change.new_columns), change.unchanged
            names = [column.name for column in change.relation.columns] if change.relation else []
            values = {name: before[name] for name in unsent if name in before} | sent
            known = {name: values[name] for name in names if name in values}
            version = RowVersion(change, known, tuple(name for name in unsent if name not in before))
        found.append(version)
    return found[::-1]


def _texts(columns: Sequence[tuple[Column, bytes | None]] | None) -> dict[str, str | None]:
    return {column.name: None if value is None else value.decode() for column, value in columns or ()}
