"""The lake as queries see it: all tables at one version, the newest published or an earlier one.

It needs only the warehouse, neither a catalog nor Java. The consistent point names each table's metadata file and
snapshot, and each snapshot's summary states its position.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Final, TypeVar

from tailrace.change import Lsn, Relation
from tailrace.errors import CorruptError
from tailrace.lake import point as points
from tailrace.lake.metadata import TableMetadata
from tailrace.lake.point import Kind, Point, PointTable
from tailrace.lake.warehouse import MOVED, store_key
from tailrace.query.as_of import AsOf, find_cursor
from tailrace.store import Store

# Small objects, fetched in parallel: latency dominates.
_FETCHERS: Final = 16
_MAX_CACHED: Final = 4096

Value = TypeVar("Value")


@dataclass(frozen=True)
class TableVersion:
    """One table at a version of the lake."""

    schema: str
    name: str
    kind: Kind
    oid: int
    relation: str
    """The digest of the relation that defines its columns."""
    metadata: str
    snapshot: int | None


@dataclass(frozen=True, eq=False)
class LakeVersion:
    """All tables at one position of the source. The object stays the same until a new point is published."""

    cursor: Lsn
    """The tables contain exactly the transactions that commit below this LSN."""
    committed_at: datetime | None
    published_at: datetime
    database: str
    tables: Mapping[tuple[str, str], TableVersion] = field(repr=False)
    absent: Mapping[tuple[str, str], str] = field(default_factory=dict, repr=False)
    """Current tables that this version cannot show → the reason."""

    @cached_property
    def catalog_key(self) -> frozenset[tuple[str, str, str, str]]:
        """What the system catalog depends on. Most consecutive versions share it."""
        return frozenset((t.schema, t.name, t.kind, t.relation) for t in self.tables.values())


class LakeView:
    """Reads and caches the lake's state. Thread-safe.

    Everything it fetches except the point is immutable.
    """

    def __init__(self, warehouse: Store, sink: str, root: str) -> None:
        self._warehouse = warehouse
        self._sink = sink
        self._root = root
        self._point_key = points.key(sink)
        self._lock = threading.Lock()
        self._point: tuple[bytes, LakeVersion, Point] | None = None
        self._relations: OrderedDict[Hashable, Relation] = OrderedDict()
        self._metadata: OrderedDict[Hashable, TableMetadata] = OrderedDict()
        self._earlier: OrderedDict[Hashable, LakeVersion] = OrderedDict()

    @property
    def url(self) -> str:
        return self._warehouse.url

    def version(self, as_of: AsOf | None = None) -> LakeVersion | None:
        """The newest version, or the last at or before `as_of`; None until something is published."""
        data = self._warehouse.get(self._point_key)
        if data is None:
            return None
        with self._lock:
            known = self._point
        if known is None or known[0] != data:
            point = points.parse(data, f"{self._warehouse.url}: {self._point_key}")
            known = (data, _newest_version(point), point)
            with self._lock:
                self._point = known
        return known[1] if as_of is None else self._version_at(known[2], known[1], as_of)

    def relation(self, digest: str) -> Relation:
        def fetch() -> Relation:
            return points.load_relation(self._warehouse, self._sink, digest)

        return self._get_or_fetch(self._relations, digest, fetch)

    def relations(self, digests: Iterable[str]) -> dict[str, Relation]:
        wanted = sorted(set(digests))
        with ThreadPoolExecutor(_FETCHERS, "relations") as pool:
            return dict(zip(wanted, pool.map(self.relation, wanted), strict=True))

    def metadata(self, location: str) -> TableMetadata:
        def fetch() -> TableMetadata:
            data = self._warehouse.get(self._key(location))
            if data is None:
                raise CorruptError(
                    f"{location} no longer exists", "retry: the table has advanced, or its history has expired"
                )
            return TableMetadata.parse(data, location)

        return self._get_or_fetch(self._metadata, location, fetch)

    def metadata_files(self, locations: Iterable[str]) -> dict[str, TableMetadata]:
        wanted = sorted(set(locations))
        with ThreadPoolExecutor(_FETCHERS, "metadata") as pool:
            return dict(zip(wanted, pool.map(self.metadata, wanted), strict=True))

    def _version_at(self, point: Point, newest: LakeVersion, as_of: AsOf) -> LakeVersion:
        def find() -> LakeVersion:
            found = self.metadata_files(table.metadata for table in point.tables)
            return _earlier_version(newest, [(table, found[table.metadata]) for table in point.tables], as_of)

        if as_of.covers(point.cursor, point.committed_at or point.published_at):
            return newest
        return self._get_or_fetch(self._earlier, (point.cursor, point.published_at, as_of), find)

    def _key(self, location: str) -> str:
        key = store_key(self._root, location)
        if key is None:
            raise CorruptError(f"{location} is not in the warehouse {self._root}", MOVED)
        return key

    def _get_or_fetch(self, cache: OrderedDict[Hashable, Value], key: Hashable, fetch: Callable[[], Value]) -> Value:
        with self._lock:
            if key in cache:
                cache.move_to_end(key)
                return cache[key]
        value = fetch()
        with self._lock:
            cache[key] = value
            while len(cache) > _MAX_CACHED:
                cache.popitem(last=False)
        return value


def _table_version(table: PointTable, snapshot: int | None, relation: str) -> TableVersion:
    return TableVersion(table.schema, table.table, table.kind, table.oid, relation, table.metadata, snapshot)


def _newest_version(point: Point) -> LakeVersion:
    tables = {(t.schema, t.table): _table_version(t, t.snapshot, t.relation) for t in point.tables}
    return LakeVersion(point.cursor, point.committed_at, point.published_at, point.database, tables)


def _earlier_version(newest: LakeVersion, tables: list[tuple[PointTable, TableMetadata]], as_of: AsOf) -> LakeVersion:
    """The version at or before `as_of`.

    Every batch ends at one cursor for all tables. The version is at the last such cursor that `as_of` covers, with each
    table's last snapshot up to it.
    """
    lines = [(table, metadata.ancestry(table.snapshot)) for table, metadata in tables]
    cursor, committed_at = find_cursor([line for _, line in lines], as_of, newest.cursor)
    found: dict[tuple[str, str], TableVersion] = {}
    absent: dict[tuple[str, str], str] = {}
    for table, line in lines:
        name = (table.schema, table.table)
        until = [s for s in line if s.summary is not None and s.summary.cursor <= cursor]
        if until:
            assert until[-1].summary is not None
            found[name] = _table_version(table, until[-1].id, until[-1].summary.relation or table.relation)
        elif line and (line[0].parent is not None or (table.since is not None and table.since <= cursor)):
            absent[name] = f"the history of {table.name} before {line[0].label} has expired"
        else:
            first = f"its first snapshot is of {line[0].label}" if line else "it never had a snapshot"
            absent[name] = f"{table.name} was not in the lake yet at {as_of}: {first}"
    return LakeVersion(cursor, committed_at, newest.published_at, newest.database, found, absent)
