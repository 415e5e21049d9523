"""What a step writes to each table, divided where the table's definition changes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tailrace.change import Position
from tailrace.delivery.contract import Load
from tailrace.errors import SinkRefused
from tailrace.sinks.database.replica_sink import ReplicaTransaction, writes_of
from tailrace.sinks.database.staged_rows import StagedRows
from tailrace.sinks.database.table_write import TableWrite

Write = TableWrite[StagedRows]


@dataclass
class TableWork:
    """What a step writes to one table under one definition: a snapshot's rows, or changes, or both."""

    oid: int
    load: Load | None = None
    loaded: list[Write] = field(default_factory=list)
    changes: list[Write] = field(default_factory=list)

    @property
    def position(self) -> Position:
        """The position of its last change; a load's if there is none."""
        if self.changes:
            return self.changes[-1].last
        assert self.load is not None
        return Position(self.load.lsn, 0)

    def prepare(self, transaction: ReplicaTransaction) -> None:
        """Create or alter the table."""
        if self.load is not None:
            transaction.begin_load(self.load, self.loaded)
        for change in self.changes:
            transaction.prepare(change)

    def write(self, transaction: ReplicaTransaction) -> None:
        """Write the rows."""
        if self.load is not None:
            transaction.load(self.load, self.loaded)
        for change in self.changes:
            transaction.write(change)

    def continues_with(self, change: Write) -> bool:
        """Whether a change has the same definition."""
        if self.changes:
            relation, target = self.changes[-1].relation, self.changes[-1].target
        else:
            assert self.load is not None
            relation, target = self.load.relation, self.load.target
        return target == change.target and (relation is change.relation or relation == change.relation)


def table_works(
    loads: Sequence[Load], staged: Sequence[Write], progress: Mapping[int, Position]
) -> tuple[list[TableWork], list[TableWork]]:
    """What is written under definitions that change later in the step, and what is written under the last ones.

    The former is in order for each table. The latter is in the log's order, because a table may take the name of
    another one.

    A table's runs of changes end where its relation changes, however a step is divided: so a repeated step finds the
    same boundaries, and skips what precedes them if it was applied before.

    Args:
        loads: The step's loads.
        staged: Its rows.
        progress: By oid, the last change that was applied before the step was interrupted.
    """
    found: dict[int, list[TableWork]] = {}
    for load in loads:
        found[load.relation.oid] = [TableWork(load.relation.oid, load, writes_of(load, staged))]
    for change in staged:
        oid = change.relation.oid
        if change.is_load:
            continue
        # A load starts over.
        applied = progress.get(oid) if oid not in found or found[oid][0].load is None else None
        if applied is not None and change.last <= applied:
            continue
        if applied is not None and change.first <= applied:
            raise SinkRefused(
                f"{change.name}, {change.span}: part of these changes was applied before the sink was interrupted",
                "its settings have changed meanwhile: load its tables again with `tailrace sink rewind`",
            )
        works = found.setdefault(oid, [])
        if not works or not works[-1].continues_with(change):
            works.append(TableWork(oid))
        works[-1].changes.append(change)
    first = [work for works in found.values() for work in works[:-1]]
    return first, sorted((works[-1] for works in found.values()), key=lambda work: work.position)
