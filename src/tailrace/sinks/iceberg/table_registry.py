"""The tables of a sink: found in the catalog, created, renamed, cleared for a load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor

from tailrace.change import Lsn, Relation
from tailrace.delivery.contract import Load
from tailrace.lake.point import Kind, PointTable
from tailrace.sinks.iceberg.delta import TableDelta
from tailrace.sinks.iceberg.iceberg_schema import directory_name
from tailrace.sinks.iceberg.lake_table import LakeContext, LakeTable, StagedDelta


class TableRegistry:
    """The sink's tables, by the oid of the source's table and by kind."""

    def __init__(self, context: LakeContext, generation: str) -> None:
        self._context = context
        self._generation = generation
        self._tables: dict[tuple[int, Kind], LakeTable] = {}
        self._renames: list[tuple[LakeTable, tuple[str, str]]] = []
        """Renames that wait for a commit, in order."""

    def __iter__(self) -> Iterator[LakeTable]:
        return iter(self._tables.values())

    def open(self, tables: Sequence[PointTable], pool: Executor) -> None:
        """Open the tables of a point. One that an unfinished step has renamed since is searched for in the catalog."""
        opened = pool.map(lambda one: LakeTable.open(self._context, (one.schema, one.table), one.kind), tables)
        for one, table in zip(tables, opened, strict=True):
            if table is None or table.oid != one.oid:
                table = next(self._search_catalog(one), None)
            if table is not None:
                self._tables[one.oid, one.kind] = table

    def begin_load(self, load: Load, kind: Kind) -> None:
        """Prepare a table for a load: a mirror is cleared, a changelog stays as it is."""
        if kind == "changelog" and (load.relation.oid, kind) in self._tables:
            return
        staged = StagedDelta(TableDelta(load.relation, load.target, "", ""))
        table = self.prepare(staged, kind, rows_stay=False)
        if kind == "mirror":
            table.clear()

    def prepare(self, staged: StagedDelta, kind: Kind, *, rows_stay: bool = True) -> LakeTable:
        """The table of a delta, created, renamed or altered so that the rows fit."""
        relation = staged.delta.relation
        target = catalog_name(staged.delta.target, kind)
        table = self._tables.get((relation.oid, kind)) or self._find_unpublished(relation, target, kind)
        if table is None:
            self._vacate_name(relation, target)
            name = target if self._is_free(target) else name_with_oid(target, relation.oid)
            directory = table_location(self._context.warehouse.root, relation, target, self._generation)
            table = LakeTable.create(self._context, name, kind, staged, directory)
        self._tables[relation.oid, kind] = table
        if self._final_name(table) != target:
            self._vacate_name(relation, target)
            self._rename(table, target)
        table.prepare(relation, staged, rows_stay=rows_stay)
        return table

    def apply_renames(self) -> None:
        """Rename the tables that waited for a commit, once it is done."""
        for table, target in self._renames:
            table.rename(target)
        self._renames.clear()

    def point_tables(self, since: Mapping[int, Lsn]) -> tuple[PointTable, ...]:
        """The tables as a point lists them. `since`: oid → the LSN from which on its changes are applied."""
        return tuple(
            [
                PointTable(
                    *table.target,
                    table.kind,
                    oid,
                    since.get(oid),
                    table.schema.relation.digest,
                    table.metadata,
                    table.snapshot,
                )
                for (oid, _), table in self._tables.items()
            ]
        )

    def _find_unpublished(self, relation: Relation, target: tuple[str, str], kind: Kind) -> LakeTable | None:
        """A table in the catalog that no point names: from an unfinished step, or from before a rewind."""
        for name in (target, name_with_oid(target, relation.oid)):
            table = LakeTable.open(self._context, name, kind)
            if table is not None and table.oid == relation.oid:
                return table
            if table is not None:
                self._tables.setdefault((table.oid, kind), table)
        return None

    def _vacate_name(self, relation: Relation, target: tuple[str, str]) -> None:
        """Rename another table of this name: the source renamed or dropped it, and no change has said so yet."""
        for (oid, _), table in self._tables.items():
            if self._final_name(table) == target and oid != relation.oid:
                self._rename(table, name_with_oid(target, oid))

    def _rename(self, table: LakeTable, target: tuple[str, str]) -> None:
        if self._renames or table.has_transaction:
            self._renames.append((table, target))
        else:
            table.rename(target)

    def _final_name(self, table: LakeTable) -> tuple[str, str]:
        """The table's name after all waiting renames."""
        return next((target for other, target in reversed(self._renames) if other is table), table.target)

    def _is_free(self, target: tuple[str, str]) -> bool:
        return all(table.target != target for table in self._tables.values())

    def _search_catalog(self, wanted: PointTable) -> Iterator[LakeTable]:
        for target in self._context.catalog.tables():
            if self._context.owns(self._context.catalog.load(target)):
                table = LakeTable.open(self._context, target, wanted.kind)
                if table is not None and table.oid == wanted.oid:
                    yield table


def catalog_name(target: tuple[str, str], kind: Kind) -> tuple[str, str]:
    """The namespace and name of a table in the catalog."""
    return target if kind == "mirror" else (target[0], f"{target[1]}__changelog")


def name_with_oid(target: tuple[str, str], oid: int) -> tuple[str, str]:
    """A name that no other table has."""
    return target[0], f"{target[1]}~{oid}"


def table_location(root: str, relation: Relation, target: tuple[str, str], generation: str) -> str:
    """The table's directory. The names are for people; the oid and the generation make it unique."""
    schema, table = (directory_name(name) for name in target)
    return f"{root}/{schema}/{table}-{relation.oid}-{generation}"
