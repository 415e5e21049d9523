"""The sink `iceberg`: commits each table of the lake atomically, and publishes a point that makes them consistent.

A table's last snapshot records what the table holds. A step that was committed for some tables only is finished without
repeating anything: changes that a table already has are skipped.
"""

from __future__ import annotations

import secrets
from collections.abc import Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Literal

from tailrace.change import Lsn
from tailrace.delivery.coalesce import coalesce
from tailrace.delivery.contract import BaseSink, Parallel, Part, State, Step
from tailrace.delivery.sink_settings import SinkContext
from tailrace.errors import FencedError
from tailrace.finding import Finding
from tailrace.lake import point
from tailrace.lake.options import IcebergOptions
from tailrace.lake.point import Kind, Point, SnapshotSummary
from tailrace.lake.warehouse import Warehouse
from tailrace.log import source_record
from tailrace.log.decoding import TableChanges
from tailrace.owned_directory import OwnedDirectory
from tailrace.sinks.iceberg import delta, properties
from tailrace.sinks.iceberg.catalog_check import catalog_findings
from tailrace.sinks.iceberg.fingerprint import HashKey
from tailrace.sinks.iceberg.iceberg_schema import TableSchema, new_table_schema
from tailrace.sinks.iceberg.java_catalog import JavaCatalog
from tailrace.sinks.iceberg.java_error import translate_java_errors
from tailrace.sinks.iceberg.lake_table import LakeContext, LakeTable, StagedDelta, write_rows
from tailrace.sinks.iceberg.table_maintenance import TableMaintenance
from tailrace.sinks.iceberg.table_registry import TableRegistry, catalog_name, table_location
from tailrace.store import Store

_KINDS: Final[Mapping[str, tuple[Kind, ...]]] = {
    "mirror": ("mirror",),
    "changelog": ("changelog",),
    "both": ("mirror", "changelog"),
}
_THREADS: Final = 4
"""Tables that are opened or committed in parallel: most of the time is spent waiting for the catalog and the store."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class WriteTarget:
    """What a task needs to know of a table to write data files for it, in any process."""

    schema: TableSchema
    directory: str
    floor: Lsn = Lsn(0)  # noqa: RUF009 (an immutable value)
    """The table already has all changes with a commit LSN below this, from an unfinished step."""


class IcebergSink(BaseSink):
    Options: ClassVar[type] = IcebergOptions
    values: ClassVar[Literal["text", "typed"]] = "typed"
    parallel: ClassVar[Parallel] = Parallel.RANGES
    whole_transactions: ClassVar[bool] = False
    keeps_tables: ClassVar[bool] = True
    start: ClassVar[str] = "snapshot"
    interval_ms: ClassVar[int] = 1_000
    """Each step adds a snapshot and a few small files to each table that changed: one a second is fresh enough for
    queries, and few enough to maintain."""

    def __init__(self, name: str, options: IcebergOptions, context: SinkContext) -> None:
        options.check()
        self.name = name
        self._options = options
        self._context = context
        self._lake: _OpenLake | None = None
        self._cached_warehouse: Warehouse | None = None
        self._generation = ""
        self._hash_key: HashKey = (0, 0)
        self._targets: Mapping[tuple[int, Kind], WriteTarget] = {}

    @property
    def packages(self) -> tuple[str, ...]:  # type: ignore[override]
        return properties.packages(self._options)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_lake": None, "_cached_warehouse": None, "_options": self._options.without_catalog()}

    @property
    def _warehouse(self) -> Warehouse:
        if self._cached_warehouse is None:
            self._cached_warehouse = Warehouse(self._options)
        return self._cached_warehouse

    def check(self) -> Iterator[Finding]:
        """Write and remove an object in the warehouse, and log in to the catalog."""
        self._warehouse.store.probe()
        yield from catalog_findings(self._options)

    def open(self) -> State:
        self.close()
        with translate_java_errors(f"sink {self.name}"):
            found = point.load(self._warehouse.store, self.name)
            source = source_record.load(Store.open(self._context.store.url, self._context.store.options))
            self._generation = found.lake if found else secrets.token_hex(4)
            self._hash_key = secrets.randbits(64), secrets.randbits(64)
            catalog = JavaCatalog(self._options)
            indexes = OwnedDirectory("lake")
            context = LakeContext(self.name, catalog, self._warehouse, self._hash_key, indexes.path)
            tables = TableRegistry(context, self._generation)
            pool = ThreadPoolExecutor(_THREADS, f"lake {self.name}")
            database = str(source["database"]) if source else ""
            self._lake = _OpenLake(
                context, indexes, tables, TableMaintenance(context, self._options), pool, database, found
            )
            tables.open(found.tables if found else (), pool)
            self._update_targets()
        if found is None:
            return State()
        return State(found.cursor, {t.oid: t.since for t in found.tables if t.since is not None})

    def stage(self, part: Part) -> tuple[tuple[Kind, StagedDelta], ...]:
        loaded = {load.relation.oid for load in part.step.loads}
        deltas = [
            (kind, self._stage(run, kind, loaded, is_load=part.load is not None))
            for run in coalesce(part.chunks)
            for kind in self._kinds()
        ]
        return tuple([(kind, staged) for kind, staged in deltas if staged is not None])

    def commit(self, step: Step, receipts: Sequence[tuple[tuple[Kind, StagedDelta], ...]]) -> None:
        lake = self._require_open()
        staged = [one for receipt in receipts for one in receipt]
        with translate_java_errors(f"sink {self.name}"):
            self._check_fence(lake, step)
            for load in step.loads:
                for kind in self._kinds():
                    lake.tables.begin_load(load, kind)
            for kind, one in staged:
                lake.tables.prepare(one, kind).apply(one)
            committed_at = self._committed_at(lake.point, staged)
            last = {(one.delta.relation.oid, kind): one.delta.last for kind, one in staged}

            def commit(table: LakeTable) -> None:
                position = last.get((table.oid, table.kind), "")
                table.commit(
                    SnapshotSummary(step.after.cursor or Lsn(0), position, committed_at, table.schema.relation.digest)
                )

            # After a failure, commits that are running still finish, and `close` waits for them. They are not repeated.
            for _ in lake.pool.map(commit, lake.tables):
                pass
            lake.tables.apply_renames()
            self._publish(step.after, committed_at)
            self._update_targets()

    def rewind(self, state: State) -> None:
        lake = self._require_open()
        self._publish(state, lake.point.committed_at if lake.point else None)
        self._update_targets()

    def maintain(self) -> None:
        lake = self._require_open()
        if lake.point is None:
            return
        with translate_java_errors(f"sink {self.name}: maintenance"):
            if lake.maintenance.run(lake.tables):
                since = {table.oid: table.since for table in lake.point.tables if table.since is not None}
                self._publish(State(lake.point.cursor, since), lake.point.committed_at)

    def close(self) -> None:
        lake, self._lake = self._lake, None
        if lake is not None:
            lake.pool.shutdown()
            lake.indexes.remove()
            lake.context.catalog.close()
        self._cached_warehouse = None

    def _kinds(self) -> tuple[Kind, ...]:
        return _KINDS[self._options.mode]

    def _stage(self, run: TableChanges, kind: Kind, loaded: Container[int], *, is_load: bool) -> StagedDelta | None:
        target = self._targets.get((run.relation.oid, kind))
        # A load replaces a mirror whatever it holds; a changelog must not repeat changes that it already has.
        skips_known = kind == "changelog" or run.relation.oid not in loaded
        if target is not None and skips_known and (run.at.commit_lsn < target.floor).any():
            run = run.take(run.at.commit_lsn >= target.floor)
            if not len(run):
                return None
        full = (
            delta.mirror_delta(run, self._hash_key, is_load=is_load) if kind == "mirror" else delta.changelog_delta(run)
        )
        has_special = any(rows.special is not None for rows in full.contents)
        null_keys = tuple(dict.fromkeys(name for rows in full.contents for name in rows.null_keys(run.relation)))
        committed_at_us = int(run.at.committed_at_us.max(initial=0))
        staged = StagedDelta(replace(full, inserted=None), (), null_keys, has_special, committed_at_us)
        if full.inserted is None:
            return staged
        schema, relation = self._expected_schema(target, kind, staged), run.relation
        if target is None:
            directory = table_location(self._options.root, relation, catalog_name(run.target, kind), self._generation)
        else:
            directory = target.directory
        return replace(staged, files=(write_rows(self._warehouse, directory, schema, full.inserted),))

    def _expected_schema(self, target: WriteTarget | None, kind: Kind, staged: StagedDelta) -> TableSchema:
        """The columns that the table will probably have when this is committed."""
        relation, special, null_keys = staged.delta.relation, staged.has_special, staged.null_keys
        if target is not None and target.schema.relation == relation:
            schema = target.schema
            if (schema.has_special or not special) and not (null_keys and schema.key_is_required):
                return schema
        return new_table_schema(relation, kind, with_special=special, nulls=null_keys)

    def _check_fence(self, lake: _OpenLake, step: Step) -> None:
        found = point.load(lake.context.warehouse.store, self.name)
        if found != lake.point or (found is not None and found.cursor != step.before.cursor):
            raise FencedError(
                f"sink {self.name} is at {found.cursor if found else 'no position'}, but this step starts at "
                f"{step.before.cursor}",
                "check whether another deliver is running with a sink of this name",
            )

    def _publish(self, state: State, committed_at: datetime | None) -> None:
        lake = self._require_open()
        assert state.cursor is not None
        tables = lake.tables.point_tables(state.tables)
        published = Point(
            self.name, state.cursor, committed_at, datetime.now(UTC), lake.database, tables, self._generation
        )
        point.publish(lake.context.warehouse.store, published)
        lake.point = published

    def _committed_at(self, before: Point | None, staged: Sequence[tuple[Kind, StagedDelta]]) -> datetime | None:
        newest = max((one.committed_at_us for _, one in staged), default=0)
        times = [before.committed_at] if before and before.committed_at else []
        if newest:
            times.append(_EPOCH + timedelta(microseconds=newest))
        return max(times, default=None)

    def _update_targets(self) -> None:
        """Collect what the next tasks need to know of the tables."""
        lake = self._require_open()
        cursor = lake.point.cursor if lake.point else Lsn(0)
        targets = {}
        for table in lake.tables:
            floor = table.summary.cursor if table.summary else Lsn(0)
            if table.kind == "mirror" and floor <= cursor:
                floor = Lsn(0)
            targets[table.oid, table.kind] = WriteTarget(table.schema, table.directory, floor)
        self._targets = targets

    def _require_open(self) -> _OpenLake:
        assert self._lake is not None, "call open() first"
        return self._lake


@dataclass
class _OpenLake:
    """What the driver has between `open` and `close`."""

    context: LakeContext
    indexes: OwnedDirectory
    tables: TableRegistry
    maintenance: TableMaintenance
    pool: ThreadPoolExecutor
    database: str
    """The name of the source's database."""
    point: Point | None
