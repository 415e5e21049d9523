"""One Iceberg table: its columns and rows are changed, and everything is committed at once.

A step changes a table's columns and rows in one Iceberg transaction, so readers never see a part of it. The table's
last snapshot records which position of the source it holds.
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
from tailrace.delivery.contract import REWIND
from tailrace.errors import FencedError, SinkDiverged, SinkRefused
from tailrace.lake.point import Kind, SnapshotSummary, load_relation, save_relation
from tailrace.lake.warehouse import Warehouse
from tailrace.sinks.iceberg import datafile, deletion_vector
from tailrace.sinks.iceberg.datafile import DataFile
from tailrace.sinks.iceberg.delta import IncompleteRows, StoredRows, TableDelta, row_fingerprints
from tailrace.sinks.iceberg.fingerprint import Fingerprints, HashKey
from tailrace.sinks.iceberg.iceberg_schema import TableSchema, new_table_schema
from tailrace.sinks.iceberg.java_catalog import JavaCatalog
from tailrace.sinks.iceberg.live_file import LiveFile, LiveFiles
from tailrace.sinks.iceberg.rewrite import rewrite_rows
from tailrace.sinks.iceberg.schema_change import plan_schema_change
from tailrace.sinks.iceberg.schema_update import SchemaUpdate
from tailrace.state.fold import has_key, key_columns

_log = logging.getLogger("tailrace.deliver")

_PROPERTIES: Final = {
    # Deletion vectors, default values and row lineage.
    "format-version": "3",
    # Other writers that use Spark should delete rows the same way.
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # Larger than any file: each file has one row group, also those that Spark writes (`datafile.write`).
    "write.parquet.row-group-size-bytes": str(2**31 - 1),
    # Steps write about one metadata file a second, and each file holds the whole history. Old ones are retained for
    # some minutes, so that a reader can still open the files that its point names.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
_SINK, _OID, _KIND, _RELATION = "tailrace.sink", "tailrace.oid", "tailrace.kind", "tailrace.relation"


@dataclass(frozen=True)
class LakeContext:
    """What all tables of a sink share."""

    sink: str
    catalog: JavaCatalog
    warehouse: Warehouse
    hash_key: HashKey
    indexes: Path

    def owns(self, table: Any) -> bool:
        """Whether this sink created the table."""
        return table is not None and table.properties().get(_SINK) == self.sink


@dataclass(frozen=True)
class StagedDelta:
    """A delta whose inserted rows are in data files."""

    delta: TableDelta
    files: tuple[DataFile, ...] = ()
    null_keys: tuple[str, ...] = ()
    """Key columns that contain NULL."""
    has_special: bool = False
    committed_at_us: int = 0


class LakeTable:
    """A table that only this sink writes. A commit by another writer makes the next one fail, and the table is opened
    again."""

    def __init__(self, context: LakeContext, target: tuple[str, str], kind: Kind) -> None:
        self.target = target
        self.kind = kind
        self.summary: SnapshotSummary | None = None
        self.snapshot: int | None = None
        self.metadata = ""
        self._context = context
        self._table: Any = None
        self._schema: TableSchema | None = None
        self._files = LiveFiles(self.data_files, self._fingerprints, context.indexes)
        self._transaction: Any = None
        self.directory = ""

    @classmethod
    def open(cls, context: LakeContext, target: tuple[str, str], kind: Kind) -> LakeTable | None:
        """Open this sink's table of that name; None if there is no such table."""
        found = context.catalog.load(target)
        if found is None:
            return None
        properties = found.properties()
        if not context.owns(found):
            owner = properties.get(_SINK)
            raise SinkRefused(
                f"{'.'.join(target)} is already in the catalog, and "
                + (f"belongs to sink {owner}" if owner else "Tailrace did not create it"),
                "drop or rename it, or use another name in the lake with `route`",
            )
        table = cls(context, target, kind)
        table._table = found
        table._load(load_relation(context.warehouse.store, context.sink, properties.get(_RELATION)))
        return table

    @classmethod
    def create(
        cls, context: LakeContext, target: tuple[str, str], kind: Kind, staged: StagedDelta, directory: str
    ) -> LakeTable:
        """A new table. Its first commit creates it."""
        relation = staged.delta.relation
        table = cls(context, target, kind)
        schema = new_table_schema(relation, kind, with_special=staged.has_special, nulls=staged.null_keys)
        properties = _PROPERTIES | {_SINK: context.sink, _KIND: kind} | table._properties_of(relation)
        table._transaction = context.catalog.create(target, schema.to_json(), directory, properties)
        table._table = table._transaction.table()
        table.directory = directory
        table._schema = table._read_schema(relation)
        return table

    @property
    def oid(self) -> int:
        return self.schema.relation.oid

    @property
    def schema(self) -> TableSchema:
        assert self._schema is not None
        return self._schema

    def prepare(self, relation: Relation, staged: StagedDelta, *, rows_stay: bool = True) -> None:
        """Change the columns so that these rows fit."""
        if self.schema.relation != relation:
            self._evolve(relation, rows_stay=rows_stay)
        self._make_room(has_special=staged.has_special, null_keys=staged.null_keys)

    def _make_room(self, *, has_special: bool, null_keys: Sequence[str]) -> None:
        relation = self.schema.relation
        if has_special and not self.schema.has_special:
            self._schema_update().add_special_column()
            self._schema = self._read_schema(relation)
        if null_keys and self.schema.key_is_required:
            self._schema_update().allow_null_keys()
            self._schema = self._read_schema(relation)

    def clear(self) -> None:
        """Delete all rows."""
        self._files.clear()

    def rename(self, target: tuple[str, str]) -> None:
        """Rename the table in the catalog. Visible at once, so the current transaction must be committed first."""
        assert self._transaction is None, "commit the transaction first"
        self._context.catalog.rename(self.target, target)
        self.target = target
        self._table = self._context.catalog.load(target)
        self._read_current_snapshot()

    @property
    def has_transaction(self) -> bool:
        return self._transaction is not None

    def apply(self, staged: StagedDelta) -> None:
        """Delete rows, then insert rows."""
        delta = staged.delta
        if delta.is_truncate:
            self.clear()
            return
        if delta.deleted is not None:
            _, numbers, _ = self._files.delete_rows(delta.deleted, delta.copies)
            self._check_all_found(numbers, delta)
        for incomplete in delta.incomplete:
            self._add_incomplete(incomplete, delta)
        for file in staged.files:
            self._add(file)

    def commit(self, summary: SnapshotSummary) -> None:
        """Commit the changes, if there are any. All of them are visible when it returns."""
        has_files = self._add_files(summary)
        if self._transaction is None:
            return
        self._commit_transaction()
        if has_files:
            self._files.mark_committed()
            self.summary = summary

    @property
    def name(self) -> str:
        return ".".join(self.target)

    @property
    def iceberg(self) -> Any:
        """Iceberg's table object, for maintenance."""
        return self._table

    def refresh(self) -> None:
        """Load the table again, after its rows were moved to other files."""
        self._table = self._context.catalog.load(self.target)
        self._read_current_snapshot()
        self._files.reload()

    def replace(self, files: Sequence[LiveFile], by: DataFile) -> None:
        """Replace these files by one with the same rows."""
        assert self.summary is not None
        rewrite = self._table.newRewrite().validateFromSnapshot(self.snapshot)
        for file in files:
            rewrite.deleteFile(file.data)
            if file.vector is not None:
                rewrite.deleteFile(file.vector)
        rewrite.addFile(self._data_file(by.location))
        for key, value in self.summary.to_dict().items():
            rewrite.set(key, value)
        rewrite.commit()
        self.refresh()

    def _commit_transaction(self) -> None:
        self._transaction.commitTransaction()
        self._transaction = None
        self._table = self._context.catalog.load(self.target)
        self._read_current_snapshot()

    def _load(self, relation: Relation) -> None:
        self.directory = str(self._table.location())
        self._schema = self._read_schema(relation)
        snapshot = self._read_current_snapshot()
        while snapshot is not None and self.summary is None:
            self.summary = SnapshotSummary.from_dict(_summary(snapshot))
            # Other writers may move rows to other files, as a compaction does.
            if self.summary is None and str(snapshot.operation()) != "replace":
                raise FencedError(
                    f"{self.name}: another writer changed its rows",
                    f"roll it back to Tailrace's last snapshot; {REWIND.format(self._context.sink)}",
                )
            snapshot = self._table.snapshot(snapshot.parentId()) if snapshot.parentId() is not None else None

    def _read_current_snapshot(self) -> Any:
        """Remember the metadata file and the current snapshot; return Iceberg's object for the snapshot."""
        self.metadata = str(self._table.operations().current().metadataFileLocation())
        current = self._table.currentSnapshot()
        self.snapshot = None if current is None else int(current.snapshotId())
        return current

    def _begin(self) -> Any:
        if self._transaction is None:
            self._transaction = self._table.newTransaction()
        return self._transaction

    def _read_schema(self, relation: Relation) -> TableSchema:
        table = self._table if self._transaction is None else self._transaction.table()
        schema = TableSchema.read(
            str(self._context.catalog.java.SchemaParser.toJson(table.schema())), relation, self.kind
        )
        if schema is None:
            raise SinkDiverged(
                f"{self.name}: another writer changed its columns",
                f"change them back, or {REWIND.format(self._context.sink)}",
            )
        return schema

    def _properties_of(self, relation: Relation) -> dict[str, str]:
        save_relation(self._context.warehouse.store, self._context.sink, relation)
        found = {_OID: str(relation.oid), _RELATION: relation.digest}
        return found | ({"comment": relation.comment} if relation.comment else {})

    def _check_all_found(self, numbers: Any, delta: TableDelta) -> None:
        # A source of upserts does not say which rows exist.
        if (numbers < 0).any() and not delta.relation.is_upsert:
            missing = int(np.count_nonzero(numbers < 0))
            raise SinkDiverged(
                f"{self.name}: {missing} rows that changed at {delta.span} are not in the lake",
                REWIND.format(self._context.sink),
            )

    def data_files(self) -> Iterator[LiveFile]:
        """The table's data files, with their deletion vectors."""
        if self.snapshot is None:
            return
        tasks = self._table.newScan().planFiles().iterator()
        while tasks.hasNext():
            task = tasks.next()
            data = task.file()
            file = LiveFile(str(data.location()), int(data.recordCount()), data)
            if (deletes := task.deletes()).size():
                file.vector = delete = deletes.get(0)
                where, offset, length = delete.location(), delete.contentOffset(), delete.contentSizeInBytes()
                file.deleted = deletion_vector.decode(self._context.warehouse.get_range(where, offset, length), where)
            yield file

    def _fingerprints(self, file: LiveFile) -> Fingerprints:
        """The fingerprints of a data file's rows. Only the columns that identify rows are read."""
        relation, fields = self.schema.relation, self.schema.fields
        count = len(relation.columns)
        places = key_columns(relation) if has_key(relation) else list(range(count))
        if self.schema.has_special:
            places = [*places, count]
        read = datafile.read(self._context.warehouse, file.location, [fields[place] for place in places])
        arrays = dict(zip(places, read, strict=True))
        whole = [arrays.get(place, pa.nulls(0)) for place in range(count)]
        return row_fingerprints(whole, arrays.get(count), relation, self._context.hash_key, file.rows)

    def _add_incomplete(self, incomplete: IncompleteRows, delta: TableDelta) -> None:
        """Add rows with their unsent values taken from the rows that they replace."""
        files, numbers, rows = self._files.delete_rows(incomplete.replaced)
        self._check_all_found(numbers, delta)
        fields = [self.schema.fields[place] for place in incomplete.unsent]
        order = np.argsort(numbers, kind="stable")
        pieces: list[list[pa.Array]] = []
        for number in np.unique(numbers):
            wanted = rows[order][numbers[order] == number]
            pieces.append(datafile.read(self._context.warehouse, files[number].location, fields, wanted.tolist()))
        back = pa.array(np.argsort(order, kind="stable"))
        arrays = list(incomplete.rows.arrays)
        for place, parts in zip(incomplete.unsent, zip(*pieces, strict=True), strict=True):
            arrays[place] = pa.concat_arrays(parts).take(back)
        complete = StoredRows(arrays, incomplete.rows.special, incomplete.rows.count)
        self._add(write_rows(self._context.warehouse, self.directory, self.schema, complete))

    def _add(self, file: DataFile) -> None:
        fields = self.schema.fields[: len(file.ids)]
        if file.ids != tuple([field.ids for field in fields]):
            file = datafile.with_new_ids(self._context.warehouse, file, self.directory, fields)
        self._files.add(LiveFile(file.location, file.rows))

    def _add_files(self, summary: SnapshotSummary) -> bool:
        """Add the changed files to the transaction, as one snapshot. Returns whether there are any."""
        files = self._files
        for file in files.known_files():
            if file.is_empty:
                files.remove(file)
        added = [file for file in files.known_files() if file.data is None]
        touched = [file for file in files.known_files() if file.has_new_deletes]
        if not (added or touched or files.removed_files):
            return False
        delta = self._begin().newRowDelta()
        for file in files.removed_files:
            delta.removeRows(file.data)
            if file.vector is not None:
                delta.removeDeletes(file.vector)
        for file in added:
            file.data = self._data_file(file.location)
            delta.addRows(file.data)
        if touched:
            self._add_vectors(delta, touched)
        if self.snapshot is not None:
            delta.validateFromSnapshot(self.snapshot)
            existing = [file.location for file in touched if file not in added]
            delta.validateDataFilesExist(self._context.catalog.list(existing)).validateDeletedFiles()
        delta.conflictDetectionFilter(self._context.catalog.java.Expressions.alwaysTrue())
        delta.validateNoConflictingDataFiles().validateNoConflictingDeleteFiles()
        for key, value in summary.to_dict().items():
            delta.set(key, value)
        delta.commit()
        return True

    def _data_file(self, location: str) -> Any:
        java = self._context.catalog.java
        source = self._table.io().newInputFile(location)
        metrics = java.ParquetUtil.fileMetrics(source, java.MetricsConfig.forTable(self._table))
        builder = java.DataFiles.builder(self._table.spec()).withPath(location).withFormat("PARQUET")
        return builder.withFileSizeInBytes(source.getLength()).withMetrics(metrics).build()

    def _add_vectors(self, delta: Any, touched: Sequence[LiveFile]) -> None:
        content, blobs = deletion_vector.encode_puffin({file.location: file.deleted for file in touched})
        where = datafile.new_location(self.directory, "puffin")
        self._context.warehouse.put(where, content)
        for file, blob in zip(touched, blobs, strict=True):
            if file.vector is not None:
                delta.removeDeletes(file.vector)
            file.vector = self._context.catalog.delete_file(blob, where, len(content), self._table.spec())
            delta.addDeletes(file.vector)

    def _schema_update(self) -> SchemaUpdate:
        return SchemaUpdate(self._context.catalog, self._begin(), self.schema, self.kind)

    def _evolve(self, relation: Relation, *, rows_stay: bool) -> None:
        old = self.schema
        is_mirror = self.kind == "mirror"
        change = plan_schema_change(old.relation, relation, rows_stay=rows_stay and is_mirror)
        self._schema_update().apply(relation, change)
        properties = self._begin().updateProperties()
        for key, value in self._properties_of(relation).items():
            properties.set(key, value)
        properties.commit()
        self._schema = self._read_schema(relation)
        if change.is_rewrite or (change.moves_special and old.has_special):
            self._rewrite(old)
        elif _identifying_columns(old.relation) != _identifying_columns(relation):
            self._files.drop_indexes()

    def _rewrite(self, old: TableSchema) -> None:
        """Rewrite all rows, with values cast as PostgreSQL casts them."""
        relation, files = self.schema.relation, self._files
        _log.warning(
            "sink %s: rewriting all %s rows of %s, because Iceberg cannot alter its columns in place",
            self._context.sink,
            f"{sum(file.rows - len(file.deleted) for file in files.all()):,}",
            self.name,
        )
        for file in files.all():
            rows = file.live_rows()
            arrays = datafile.read(self._context.warehouse, file.location, old.fields, rows.tolist())
            count = len(old.relation.columns)
            special = arrays[count] if old.has_special else None
            rewritten = rewrite_rows(arrays[:count], special, len(rows), old.relation, relation)
            files.remove(file)
            self._make_room(has_special=rewritten.special is not None, null_keys=rewritten.null_keys(relation))
            self._add(write_rows(self._context.warehouse, self.directory, self.schema, rewritten))


def _summary(snapshot: Any) -> dict[str, str]:
    """Tailrace's entries only: each entry takes a call to Java."""
    summary = snapshot.summary()
    found = {key: summary.get(key) for key in SnapshotSummary.KEYS}
    return {key: str(value) for key, value in found.items() if value is not None}


def _identifying_columns(relation: Relation) -> object:
    """What identifies a row: the key, or all columns."""
    if has_key(relation):
        return [relation.columns[i].number for i in key_columns(relation)]
    return relation.columns


def write_rows(warehouse: Warehouse, directory: str, schema: TableSchema, rows: StoredRows) -> DataFile:
    """Write rows to a new data file of a schema that has room for them."""
    arrays = list(rows.arrays)
    if schema.has_special:
        none = pa.nulls(rows.count, schema.fields[-1].arrow.type)
        arrays += [*rows.change_columns, none if rows.special is None else rows.special]
    return datafile.write(warehouse, directory, schema.fields, arrays)
