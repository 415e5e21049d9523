"""One Iceberg table: brought to a relation, its rows taken and added, and all of that committed at once.

Whatever a step does to a table is one transaction of Iceberg's: columns, rows that go, rows that come. Nobody sees a
part of it, and its last snapshot says which position of the source it holds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tailrace.change import Relation
from tailrace.errors import FencedError, SinkDiverged, SinkRefused
from tailrace.log.fold import has_key, key_columns
from tailrace.sinks.base import REWIND
from tailrace.sinks.iceberg import datafile, vector
from tailrace.sinks.iceberg.catalog import Catalog
from tailrace.sinks.iceberg.columns import Columns
from tailrace.sinks.iceberg.datafile import DataFile, Warehouse
from tailrace.sinks.iceberg.effect import Content, Effect, Lacking, row_prints
from tailrace.sinks.iceberg.evolution import evolution
from tailrace.sinks.iceberg.fingerprint import Prints, Seed
from tailrace.sinks.iceberg.live import Files, Live
from tailrace.sinks.iceberg.point import Held, Kind, load_relation, save_relation
from tailrace.sinks.iceberg.rewriting import rewritten
from tailrace.sinks.iceberg.schema import Shape, fresh

_log = logging.getLogger("tailrace.deliver")

_PROPERTIES: Final = {
    # Deletion vectors, default values and row lineage.
    "format-version": "3",
    # For whoever writes with Spark beside us: as we do.
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # No file is so large: each has one group, also where Spark writes it (`datafile.write`).
    "write.parquet.row-group-size-bytes": str(2**31 - 1),
    # A step makes a metadata file a second, and each holds the whole history: these stay for some minutes, so that
    # whoever read a point can read what it names.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_SINK, _OID, _KIND, _RELATION = "tailrace.sink", "tailrace.oid", "tailrace.kind", "tailrace.relation"


@dataclass(frozen=True)
class Lake:
    """What all tables of a sink share."""

    sink: str
    catalog: Catalog
    warehouse: Warehouse
    seed: Seed
    indexes: Path

    def is_ours(self, table: Any) -> bool:
        return table is not None and table.properties().get(_SINK) == self.sink


@dataclass(frozen=True)
class Staged:
    """An effect, with the rows that come in data files."""

    effect: Effect
    files: tuple[DataFile, ...] = ()
    nulls: tuple[str, ...] = ()
    has_special: bool = False
    committed_at_us: int = 0


class LakeTable:
    """From its last commit on nobody but us changes it; whoever does makes the next commit fail, and it is looked up
    again."""

    def __init__(self, lake: Lake, target: tuple[str, str], kind: Kind) -> None:
        self.target = target
        self.kind = kind
        self.held: Held | None = None
        self.snapshot: int | None = None
        self.metadata = ""
        self._lake = lake
        self._table: Any = None
        self._shape: Shape | None = None
        self._files = Files(self.planned, self._prints, lake.indexes)
        self._transaction: Any = None
        self.directory = ""

    @classmethod
    def open(cls, lake: Lake, target: tuple[str, str], kind: Kind) -> LakeTable | None:
        """A table that is there and ours; None when there is none of that name."""
        found = lake.catalog.load(target)
        if found is None:
            return None
        properties = found.properties()
        if not lake.is_ours(found):
            owner = properties.get(_SINK)
            raise SinkRefused(
                f"{'.'.join(target)} is in the catalog already, and "
                + (f"belongs to sink {owner}" if owner else "Tailrace did not make it"),
                "drop or rename it, or send the source's table elsewhere with `route`",
            )
        table = cls(lake, target, kind)
        table._table = found
        table._learn(load_relation(lake.warehouse.store, lake.sink, properties.get(_RELATION)))
        return table

    @classmethod
    def create(cls, lake: Lake, target: tuple[str, str], kind: Kind, staged: Staged, directory: str) -> LakeTable:
        """Made by its first commit."""
        relation = staged.effect.relation
        table = cls(lake, target, kind)
        shape = fresh(relation, kind, with_special=staged.has_special, nulls=staged.nulls)
        properties = _PROPERTIES | {_SINK: lake.sink, _KIND: kind} | table._about(relation)
        table._transaction = lake.catalog.create(target, shape.to_json(), directory, properties)
        table._table = table._transaction.table()
        table.directory = directory
        table._shape = table._read_shape(relation)
        return table

    @property
    def oid(self) -> int:
        return self.shape.relation.oid

    @property
    def shape(self) -> Shape:
        assert self._shape is not None
        return self._shape

    def ready(self, relation: Relation, staged: Staged, *, rows_stay: bool = True) -> None:
        """The table, such that these rows fit."""
        if self.shape.relation != relation:
            self._become(relation, rows_stay=rows_stay)
        self._fit(has_special=staged.has_special, nulls=staged.nulls)

    def _fit(self, *, has_special: bool, nulls: Sequence[str]) -> None:
        relation = self.shape.relation
        if has_special and not self.shape.has_special:
            self._columns().add_special()
            self._shape = self._read_shape(relation)
        if nulls and self.shape.key_is_required:
            self._columns().relax()
            self._shape = self._read_shape(relation)

    def empty(self) -> None:
        self._files.clear()

    def rename(self, target: tuple[str, str]) -> None:
        """Names are the catalog's: this is seen at once, and waits for what is committed under the old name."""
        assert self._transaction is None, "what is under way is committed first"
        self._lake.catalog.rename(self.target, target)
        self.target = target
        self._table = self._lake.catalog.load(target)
        self._look()

    @property
    def is_under_way(self) -> bool:
        return self._transaction is not None

    def apply(self, staged: Staged) -> None:
        """Rows go, then rows come."""
        effect = staged.effect
        if effect.is_truncate:
            self.empty()
            return
        if effect.gone is not None:
            _, numbers, _ = self._files.take(effect.gone, effect.copies)
            self._check(numbers, effect)
        for lacking in effect.lacking:
            self._complete(lacking, effect)
        for file in staged.files:
            self._add(file)

    def commit(self, held: Held) -> None:
        """What there is to commit, if anything. Seen by everybody, all at once, when it returns."""
        has_files = self._add_files(held)
        if self._transaction is None:
            return
        self._finish()
        if has_files:
            self._files.settle()
            self.held = held

    @property
    def name(self) -> str:
        return ".".join(self.target)

    @property
    def iceberg(self) -> Any:
        """Iceberg's own object, for upkeep."""
        return self._table

    def refresh(self) -> None:
        """The same rows may be in other files."""
        self._table = self._lake.catalog.load(self.target)
        self._look()
        self._files.replan()

    def replace(self, files: Sequence[Live], by: DataFile) -> None:
        """The same rows in another file."""
        assert self.held is not None
        rewrite = self._table.newRewrite().validateFromSnapshot(self.snapshot)
        for live in files:
            rewrite.deleteFile(live.data)
            if live.vector is not None:
                rewrite.deleteFile(live.vector)
        rewrite.addFile(self._data_file(by.location))
        for key, value in self.held.summary().items():
            rewrite.set(key, value)
        rewrite.commit()
        self.refresh()

    def _finish(self) -> None:
        self._transaction.commitTransaction()
        self._transaction = None
        self._table = self._lake.catalog.load(self.target)
        self._look()

    def _learn(self, relation: Relation) -> None:
        self.directory = str(self._table.location())
        self._shape = self._read_shape(relation)
        snapshot = self._look()
        while snapshot is not None and self.held is None:
            self.held = Held.of(_summary(snapshot))
            # Somebody else may write the same rows into other files.
            if self.held is None and str(snapshot.operation()) != "replace":
                raise FencedError(
                    f"{self.name}: somebody else changed its rows",
                    f"roll it back to Tailrace's last snapshot; {REWIND.format(self._lake.sink)}",
                )
            snapshot = self._table.snapshot(snapshot.parentId()) if snapshot.parentId() is not None else None

    def _look(self) -> Any:
        """Iceberg's snapshot that is current."""
        self.metadata = str(self._table.operations().current().metadataFileLocation())
        current = self._table.currentSnapshot()
        self.snapshot = None if current is None else int(current.snapshotId())
        return current

    def _begin(self) -> Any:
        if self._transaction is None:
            self._transaction = self._table.newTransaction()
        return self._transaction

    def _read_shape(self, relation: Relation) -> Shape:
        table = self._table if self._transaction is None else self._transaction.table()
        shape = Shape.read(str(self._lake.catalog.java.SchemaParser.toJson(table.schema())), relation, self.kind)
        if shape is None:
            raise SinkDiverged(
                f"{self.name}: somebody changed its columns",
                f"change them back, or {REWIND.format(self._lake.sink)}",
            )
        return shape

    def _about(self, relation: Relation) -> dict[str, str]:
        save_relation(self._lake.warehouse.store, self._lake.sink, relation)
        found = {_OID: str(relation.oid), _RELATION: relation.digest}
        return found | ({"comment": relation.comment} if relation.comment else {})

    def _check(self, numbers: Any, effect: Effect) -> None:
        if (numbers < 0).any():
            missing = int(np.count_nonzero(numbers < 0))
            raise SinkDiverged(
                f"{self.name}: {missing} rows that changed at {effect.span} are not in the lake",
                REWIND.format(self._lake.sink),
            )

    def planned(self) -> Iterator[Live]:
        """The data files that the table has."""
        if self.snapshot is None:
            return
        tasks = self._table.newScan().planFiles().iterator()
        while tasks.hasNext():
            task = tasks.next()
            data = task.file()
            live = Live(str(data.location()), int(data.recordCount()), data)
            if (deletes := task.deletes()).size():
                live.vector = delete = deletes.get(0)
                where, offset, length = delete.location(), delete.contentOffset(), delete.contentSizeInBytes()
                live.deleted = vector.parse(self._lake.warehouse.get_range(where, offset, length), where)
            yield live

    def _prints(self, live: Live) -> Prints:
        """Of a data file's rows: only the columns are read that they are found by."""
        relation, fields = self.shape.relation, self.shape.fields
        count = len(relation.columns)
        places = key_columns(relation) if has_key(relation) else list(range(count))
        if self.shape.has_special:
            places = [*places, count]
        read = datafile.read(self._lake.warehouse, live.location, [fields[place] for place in places])
        arrays = dict(zip(places, read, strict=True))
        whole = [arrays.get(place, pa.nulls(0)) for place in range(count)]
        return row_prints(whole, arrays.get(count), relation, self._lake.seed, live.rows)

    def _complete(self, lacking: Lacking, effect: Effect) -> None:
        """Rows that replace others get from those what was not sent."""
        files, numbers, rows = self._files.take(lacking.replaced)
        self._check(numbers, effect)
        fields = [self.shape.fields[place] for place in lacking.unsent]
        order = np.argsort(numbers, kind="stable")
        pieces: list[list[pa.Array]] = []
        for number in np.unique(numbers):
            wanted = rows[order][numbers[order] == number]
            pieces.append(datafile.read(self._lake.warehouse, files[number].location, fields, wanted.tolist()))
        back = pa.array(np.argsort(order, kind="stable"))
        arrays = list(lacking.content.arrays)
        for place, parts in zip(lacking.unsent, zip(*pieces, strict=True), strict=True):
            arrays[place] = pa.concat_arrays(parts).take(back)
        whole = Content(arrays, lacking.content.special, lacking.content.count)
        self._add(write(self._lake.warehouse, self.directory, self.shape, whole))

    def _add(self, file: DataFile) -> None:
        fields = self.shape.fields[: len(file.ids)]
        if file.ids != tuple([field.ids for field in fields]):
            file = datafile.renumbered(self._lake.warehouse, file, self.directory, fields)
        self._files.add(Live(file.location, file.rows))

    def _add_files(self, held: Held) -> bool:
        """As one snapshot."""
        files = self._files
        for live in files.known():
            if live.is_empty:
                files.remove(live)
        added = [live for live in files.known() if live.data is None]
        touched = [live for live in files.known() if live.is_touched]
        if not (added or touched or files.removed):
            return False
        delta = self._begin().newRowDelta()
        for live in files.removed:
            delta.removeRows(live.data)
            if live.vector is not None:
                delta.removeDeletes(live.vector)
        for live in added:
            live.data = self._data_file(live.location)
            delta.addRows(live.data)
        if touched:
            self._add_vectors(delta, touched)
        if self.snapshot is not None:
            delta.validateFromSnapshot(self.snapshot)
            there = [live.location for live in touched if live not in added]
            delta.validateDataFilesExist(self._lake.catalog.list(there)).validateDeletedFiles()
        delta.conflictDetectionFilter(self._lake.catalog.java.Expressions.alwaysTrue())
        delta.validateNoConflictingDataFiles().validateNoConflictingDeleteFiles()
        for key, value in held.summary().items():
            delta.set(key, value)
        delta.commit()
        return True

    def _data_file(self, location: str) -> Any:
        java = self._lake.catalog.java
        source = self._table.io().newInputFile(location)
        metrics = java.ParquetUtil.fileMetrics(source, java.MetricsConfig.forTable(self._table))
        builder = java.DataFiles.builder(self._table.spec()).withPath(location).withFormat("PARQUET")
        return builder.withFileSizeInBytes(source.getLength()).withMetrics(metrics).build()

    def _add_vectors(self, delta: Any, touched: Sequence[Live]) -> None:
        content, blobs = vector.puffin({live.location: live.deleted for live in touched})
        where = datafile.named(self.directory, "puffin")
        self._lake.warehouse.put(where, content)
        for live, blob in zip(touched, blobs, strict=True):
            if live.vector is not None:
                delta.removeDeletes(live.vector)
            live.vector = self._lake.catalog.delete_file(blob, where, len(content), self._table.spec())
            delta.addDeletes(live.vector)

    def _columns(self) -> Columns:
        return Columns(self._lake.catalog, self._begin(), self.shape, self.kind)

    def _become(self, relation: Relation, *, rows_stay: bool) -> None:
        old = self.shape
        is_mirror = self.kind == "mirror"
        change = evolution(old.relation, relation, rows_stay=rows_stay and is_mirror)
        self._columns().become(relation, change)
        properties = self._begin().updateProperties()
        for key, value in self._about(relation).items():
            properties.set(key, value)
        properties.commit()
        self._shape = self._read_shape(relation)
        if change.is_rewrite or (change.moves_special and old.has_special):
            self._rewrite(old)
        elif _found_by(old.relation) != _found_by(relation):
            self._files.forget_indexes()

    def _rewrite(self, old: Shape) -> None:
        """All rows anew: some values are cast as PostgreSQL casts them."""
        relation, files = self.shape.relation, self._files
        _log.warning(
            "sink %s: %s was altered in a way that Iceberg has no way for: its %s rows are written anew",
            self._lake.sink,
            self.name,
            f"{sum(live.rows - len(live.deleted) for live in files.all()):,}",
        )
        for live in files.all():
            kept = live.kept()
            arrays = datafile.read(self._lake.warehouse, live.location, old.fields, kept.tolist())
            count = len(old.relation.columns)
            special = arrays[count] if old.has_special else None
            content = rewritten(arrays[:count], special, len(kept), old.relation, relation)
            files.remove(live)
            self._fit(has_special=content.special is not None, nulls=content.nulls(relation))
            self._add(write(self._lake.warehouse, self.directory, self.shape, content))


def _summary(snapshot: Any) -> dict[str, str]:
    """What is ours of it: the rest would cost a call for each entry."""
    summary = snapshot.summary()
    found = {key: summary.get(key) for key in Held.KEYS}
    return {key: str(value) for key, value in found.items() if value is not None}


def _found_by(relation: Relation) -> object:
    """What rows are found by: the key, or every column."""
    if has_key(relation):
        return [relation.columns[i].number for i in key_columns(relation)]
    return relation.columns


def write(warehouse: Warehouse, directory: str, shape: Shape, content: Content) -> DataFile:
    """Of a shape that holds them."""
    arrays = list(content.arrays)
    if shape.has_special:
        none = pa.nulls(content.count, shape.fields[-1].arrow.type)
        arrays += [*content.more, none if content.special is None else content.special]
    return datafile.write(warehouse, directory, shape.fields, arrays)
