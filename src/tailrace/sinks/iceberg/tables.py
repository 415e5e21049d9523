"""The tables of a lake: which is whose, made, moved, emptied for a load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor

from tailrace.change import Lsn, Relation
from tailrace.sinks.base import Load
from tailrace.sinks.iceberg.effect import Effect
from tailrace.sinks.iceberg.point import Kind, PointTable
from tailrace.sinks.iceberg.schema import directory_name
from tailrace.sinks.iceberg.table import Lake, LakeTable, Staged


class Tables:
    """By the oid of the source's table, and the kind."""

    def __init__(self, lake: Lake, generation: str) -> None:
        self._lake = lake
        self._generation = generation
        self._known: dict[tuple[int, Kind], LakeTable] = {}
        self._renames: list[tuple[LakeTable, tuple[str, str]]] = []
        """Those that wait for a commit, in their order."""

    def __iter__(self) -> Iterator[LakeTable]:
        return iter(self._known.values())

    def open(self, named: Sequence[PointTable], hands: Executor) -> None:
        """Those that a point names; one that was renamed since, by a step that did not end, is looked for."""
        found = hands.map(lambda one: LakeTable.open(self._lake, (one.schema, one.table), one.kind), named)
        for one, table in zip(named, found, strict=True):
            if table is None or table.oid != one.oid:
                table = next(self._elsewhere(one), None)
            if table is not None:
                self._known[one.oid, one.kind] = table

    def begin_load(self, load: Load, kind: Kind) -> None:
        """A mirror without rows; a changelog as it is."""
        if kind == "changelog" and (load.relation.oid, kind) in self._known:
            return
        staged = Staged(Effect(load.relation, load.target, "", ""))
        table = self.ready(staged, kind, rows_stay=False)
        if kind == "mirror":
            table.empty()

    def ready(self, staged: Staged, kind: Kind, *, rows_stay: bool = True) -> LakeTable:
        """The table of an effect, such that its rows fit."""
        relation = staged.effect.relation
        target = place(staged.effect.target, kind)
        table = self._known.get((relation.oid, kind)) or self._found(relation, target, kind)
        if table is None:
            self._clear_the_way(relation, target)
            free = target if self._is_free(target) else aside(target, relation.oid)
            directory = location(self._lake.warehouse.root, relation, target, self._generation)
            table = LakeTable.create(self._lake, free, kind, staged, directory)
        self._known[relation.oid, kind] = table
        if self._name(table) != target:
            self._clear_the_way(relation, target)
            self._rename(table, target)
        table.ready(relation, staged, rows_stay=rows_stay)
        return table

    def settle(self) -> None:
        """What was under way is committed: tables get the names that they are to have."""
        for table, target in self._renames:
            table.rename(target)
        self._renames.clear()

    def point(self, since: Mapping[int, Lsn]) -> tuple[PointTable, ...]:
        return tuple(
            [
                PointTable(
                    *table.target,
                    table.kind,
                    oid,
                    since.get(oid),
                    table.shape.relation.digest,
                    table.metadata,
                    table.snapshot,
                )
                for (oid, _), table in self._known.items()
            ]
        )

    def _found(self, relation: Relation, target: tuple[str, str], kind: Kind) -> LakeTable | None:
        """One that is in the catalog though no point names it: made by a step that did not end, or before a rewind."""
        for name in (target, aside(target, relation.oid)):
            table = LakeTable.open(self._lake, name, kind)
            if table is not None and table.oid == relation.oid:
                return table
            if table is not None:
                self._known.setdefault((table.oid, kind), table)
        return None

    def _clear_the_way(self, relation: Relation, target: tuple[str, str]) -> None:
        """A table of ours that has this name was renamed at the source, or dropped: no change of it has told us."""
        for (oid, _), table in self._known.items():
            if self._name(table) == target and oid != relation.oid:
                self._rename(table, aside(target, oid))

    def _rename(self, table: LakeTable, target: tuple[str, str]) -> None:
        if self._renames or table.is_under_way:
            self._renames.append((table, target))
        else:
            table.rename(target)

    def _name(self, table: LakeTable) -> tuple[str, str]:
        """The name that it is to have."""
        return next((target for other, target in reversed(self._renames) if other is table), table.target)

    def _is_free(self, target: tuple[str, str]) -> bool:
        return all(table.target != target for table in self._known.values())

    def _elsewhere(self, named: PointTable) -> Iterator[LakeTable]:
        for target in self._lake.catalog.tables():
            if self._lake.is_ours(self._lake.catalog.load(target)):
                table = LakeTable.open(self._lake, target, named.kind)
                if table is not None and table.oid == named.oid:
                    yield table


def place(target: tuple[str, str], kind: Kind) -> tuple[str, str]:
    """Where in the catalog a table goes."""
    return target if kind == "mirror" else (target[0], f"{target[1]}__changelog")


def aside(target: tuple[str, str], oid: int) -> tuple[str, str]:
    """A name that no other table has."""
    return target[0], f"{target[1]}~{oid}"


def location(root: str, relation: Relation, target: tuple[str, str], generation: str) -> str:
    """Names are for people: the oid and what follows it make it unique."""
    schema, table = (directory_name(name) for name in target)
    return f"{root}/{schema}/{table}-{relation.oid}-{generation}"
