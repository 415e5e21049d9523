"""The tables at the destination: which of them a commit creates, renames, alters and drops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tailrace.change import Relation
from tailrace.column_name import with_suffix
from tailrace.delivery.contract import Load
from tailrace.errors import SinkRefused


@dataclass(frozen=True)
class DestinationTable:
    """A table of the sink at the destination."""

    relation: Relation
    target: tuple[str, str]
    """Schema and name, as the sink's settings route the table."""

    @property
    def name(self) -> str:
        return ".".join(self.target)


class TableDefinitions(Protocol):
    """Creates and changes the definitions of tables, and records each change in the ledger."""

    def exists(self, target: tuple[str, str]) -> bool:
        """Whether the destination has a table of this name, whoever created it."""

    def owner(self, target: tuple[str, str]) -> str | None:
        """The other sink that owns the table of this name, if any."""

    def create(self, table: DestinationTable, *, for_load: bool) -> None:
        """Create a table. Before a load, its key may be left to `end_load`."""

    def adopt(self, table: DestinationTable) -> None:
        """Take over a table that Tailrace did not create; SinkRefused unless it is empty and as `create` makes it."""

    def alter(self, old: DestinationTable, new: DestinationTable) -> None:
        """Rename and alter a table; SinkDiverged if it or one of its columns is missing."""

    def reuse(self, old: DestinationTable, new: DestinationTable) -> bool:
        """Rename a table that is to be loaded again. Returns False, and does nothing, unless it has the columns and the
        key that `create` makes."""

    def drop(self, table: DestinationTable) -> None:
        """Drop a table; a new one takes its place in the ledger."""

    def forget(self, oid: int) -> None:
        """Remove a table from the ledger."""

    def allow_null(self, table: DestinationTable, columns: Sequence[str]) -> None:
        """Make columns nullable that the relation declares NOT NULL."""

    def end_load(self, table: DestinationTable, rows: int) -> None:
        """Finish a table that was loaded with so many rows."""


class Replica:
    """The tables of one sink, as of the last commit. A commit, which may fail, works on a `copy`."""

    def __init__(self, definitions: TableDefinitions, known: dict[int, DestinationTable], is_history: bool) -> None:
        self._definitions = definitions
        self._is_history = is_history
        self._tables = known
        self._nullable_columns: set[tuple[int, str]] = set()

    def copy(self) -> Replica:
        copy = Replica(self._definitions, dict(self._tables), self._is_history)
        copy._nullable_columns = set(self._nullable_columns)
        return copy

    def target(self, oid: int) -> tuple[str, str]:
        """Where a table is now: another table may have taken its name."""
        return self._tables[oid].target

    def prepare(self, relation: Relation, target: tuple[str, str], nulls: tuple[str, ...] = ()) -> None:
        """Create the table, or alter it to hold rows of this relation.

        Args:
            relation: The relation.
            target: Schema and name at the destination.
            nulls: Columns that contain NULL although the relation declares them NOT NULL.
        """
        known = self._tables.get(relation.oid)
        table = DestinationTable(relation, target)
        if known is None:
            self._free_target(table)
            self._create(table, for_load=False)
        elif known.target != target or (known.relation is not relation and known.relation != relation):
            if known.target != target:
                self._free_target(table)
            if known.relation != relation:
                self._forget_nullable_columns(relation.oid)
            self._definitions.alter(known, table)
            self._tables[relation.oid] = table
        if new := [name for name in nulls if (relation.oid, name) not in self._nullable_columns]:
            self._definitions.allow_null(table, new)
            self._nullable_columns |= {(relation.oid, name) for name in new}

    def begin_load(self, load: Load) -> None:
        """Create or alter the table for a snapshot. It may still have rows."""
        table = DestinationTable(load.relation, load.target)
        if self._is_history:
            self._continue(table)
        else:
            self._free_target(table)
        self._forget_nullable_columns(load.relation.oid)
        if (known := self._tables.get(load.relation.oid)) is not None and self._definitions.exists(known.target):
            if self._is_history:
                self.prepare(load.relation, load.target)
                return
            # Somebody may have added indexes, grants or views.
            if self._definitions.reuse(known, table):
                self._tables[load.relation.oid] = table
                return
            self._definitions.drop(known)
        self._create(table, for_load=True)

    def end_load(self, load: Load, rows: int) -> None:
        """Finish the table after `rows` rows were loaded."""
        self._definitions.end_load(DestinationTable(load.relation, load.target), rows)

    def _create(self, table: DestinationTable, *, for_load: bool) -> None:
        if not self._definitions.exists(table.target):
            self._definitions.create(table, for_load=for_load)
        else:
            if (owner := self._definitions.owner(table.target)) is not None:
                raise SinkRefused(f"{table.name} belongs to sink {owner}", "deliver one of them elsewhere with `route`")
            self._definitions.adopt(table)
        self._tables[table.relation.oid] = table

    def _continue(self, table: DestinationTable) -> None:
        """Continue the history of a table whose name a new table at the source has taken."""
        for oid, known in list(self._tables.items()):
            if known.target == table.target and oid != table.relation.oid:
                self._tables[table.relation.oid] = known
                del self._tables[oid]
                self._definitions.forget(oid)

    def _free_target(self, table: DestinationTable) -> None:
        """Rename the table that has this name: it was renamed or dropped at the source, without a change to show it."""
        for oid, known in list(self._tables.items()):
            if known.target == table.target and oid != table.relation.oid:
                renamed = DestinationTable(known.relation, (known.target[0], with_suffix(known.target[1], f"~{oid}")))
                self._definitions.alter(known, renamed)
                self._tables[oid] = renamed

    def _forget_nullable_columns(self, oid: int) -> None:
        self._nullable_columns = {(own, name) for own, name in self._nullable_columns if own != oid}
