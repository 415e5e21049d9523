"""The lake as a reader sees it: all tables at one moment, the newest that was published or an earlier one.

Needs the warehouse alone, neither a catalog nor Java: the consistent point names each table's metadata and snapshot,
and each snapshot says what it holds.
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
from tailrace.query.history import AsOf, Metadata, chosen_cursor
from tailrace.sinks.iceberg import point as points
from tailrace.sinks.iceberg.point import Kind, Point, PointTable
from tailrace.store import Store

# Small objects of an object store, fetched side by side: what counts is how long one takes.
_FETCHERS: Final = 16
_REMEMBERED: Final = 4096

Value = TypeVar("Value")


@dataclass(frozen=True)
class Table:
    """One table of a moment."""

    schema: str
    name: str
    kind: Kind
    oid: int
    relation: str
    """The digest of the relation whose columns it has."""
    metadata: str
    snapshot: int | None


@dataclass(frozen=True, eq=False)
class Moment:
    """One position of the source, and every table there. The same one while nothing new is published."""

    cursor: Lsn
    """Every transaction that commits below this is in the tables, and no other."""
    committed_at: datetime | None
    published_at: datetime
    database: str
    tables: Mapping[tuple[str, str], Table] = field(repr=False)
    absent: Mapping[tuple[str, str], str] = field(default_factory=dict, repr=False)
    """Tables that there are now and that cannot be shown as of then, each with the reason."""

    @cached_property
    def shape(self) -> frozenset[tuple[str, str, str, str]]:
        """What a catalogue tells of it: equal for most moments that follow each other."""
        return frozenset((t.schema, t.name, t.kind, t.relation) for t in self.tables.values())


class Lake:
    """Thread-safe. What it fetches never changes, once written, but for the point itself."""

    def __init__(self, warehouse: Store, sink: str, root: str) -> None:
        self._warehouse = warehouse
        self._sink = sink
        self._root = root
        self._point_key = f"_tailrace/{sink}/point.json"
        self._lock = threading.Lock()
        self._point: tuple[bytes, Moment, Point] | None = None
        self._relations: OrderedDict[Hashable, Relation] = OrderedDict()
        self._metadata: OrderedDict[Hashable, Metadata] = OrderedDict()
        self._earlier: OrderedDict[Hashable, Moment] = OrderedDict()

    @property
    def url(self) -> str:
        return self._warehouse.url

    def moment(self, as_of: AsOf | None = None) -> Moment | None:
        """The newest moment, or the last at or before `as_of`; None before anything was published."""
        data = self._warehouse.get(self._point_key)
        if data is None:
            return None
        with self._lock:
            known = self._point
        if known is None or known[0] != data:
            point = points.parse(data, f"{self._warehouse.url}: {self._point_key}")
            known = (data, _newest(point), point)
            with self._lock:
                self._point = known
        return known[1] if as_of is None else self._at(known[2], known[1], as_of)

    def relation(self, digest: str) -> Relation:
        def fetch() -> Relation:
            return points.load_relation(self._warehouse, self._sink, digest)

        return self._remembered(self._relations, digest, fetch)

    def relations(self, digests: Iterable[str]) -> dict[str, Relation]:
        wanted = sorted(set(digests))
        with ThreadPoolExecutor(_FETCHERS, "relations") as pool:
            return dict(zip(wanted, pool.map(self.relation, wanted), strict=True))

    def metadata(self, location: str) -> Metadata:
        def fetch() -> Metadata:
            data = self._warehouse.get(self._key(location))
            if data is None:
                raise CorruptError(
                    f"{location} is gone", "ask again: the table has moved on, or its history has expired"
                )
            return Metadata.parse(data, location)

        return self._remembered(self._metadata, location, fetch)

    def _at(self, point: Point, newest: Moment, as_of: AsOf) -> Moment:
        def find() -> Moment:
            with ThreadPoolExecutor(_FETCHERS, "metadata") as pool:
                found = list(pool.map(lambda table: self.metadata(table.metadata), point.tables))
            return _earlier(newest, list(zip(point.tables, found, strict=True)), as_of)

        if as_of.covers(point.cursor, point.committed_at or point.published_at):
            return newest
        return self._remembered(self._earlier, (point.cursor, point.published_at, as_of), find)

    def _key(self, location: str) -> str:
        path = location.removeprefix("file://") if self._root.startswith("/") else location
        if not path.startswith(f"{self._root}/"):
            raise CorruptError(f"{location} does not lie in the warehouse {self._root}", "was it moved?")
        return path.removeprefix(f"{self._root}/")

    def _remembered(self, memory: OrderedDict[Hashable, Value], key: Hashable, fetch: Callable[[], Value]) -> Value:
        with self._lock:
            if key in memory:
                memory.move_to_end(key)
                return memory[key]
        value = fetch()
        with self._lock:
            memory[key] = value
            while len(memory) > _REMEMBERED:
                memory.popitem(last=False)
        return value


def _table(table: PointTable, snapshot: int | None, relation: str) -> Table:
    return Table(table.schema, table.table, table.kind, table.oid, relation, table.metadata, snapshot)


def _newest(point: Point) -> Moment:
    tables = {(t.schema, t.table): _table(t, t.snapshot, t.relation) for t in point.tables}
    return Moment(point.cursor, point.committed_at, point.published_at, point.database, tables)


def _earlier(newest: Moment, tables: list[tuple[PointTable, Metadata]], as_of: AsOf) -> Moment:
    """Every step ended at one cursor for all tables: of those, the last that counts, and each table's last up to it."""
    lines = [(table, metadata.ancestry(table.snapshot)) for table, metadata in tables]
    held = [snapshot.held for _, line in lines for snapshot in line if snapshot.held is not None]
    cursor, committed_at = chosen_cursor(held, as_of, newest.cursor)
    found: dict[tuple[str, str], Table] = {}
    absent: dict[tuple[str, str], str] = {}
    for table, line in lines:
        name = (table.schema, table.table)
        until = [s for s in line if s.held is not None and s.held.cursor <= cursor]
        if until:
            assert until[-1].held is not None
            found[name] = _table(table, until[-1].id, until[-1].held.relation or table.relation)
        elif line and (line[0].parent is not None or (table.since is not None and table.since <= cursor)):
            absent[name] = f"the history of {table.name} before {line[0].told} has expired"
        else:
            first = f"its first snapshot is of {line[0].told}" if line else "it never had a snapshot"
            absent[name] = f"{table.name} was not in the lake yet at {as_of}: {first}"
    return Moment(cursor, committed_at, newest.published_at, newest.database, found, absent)
