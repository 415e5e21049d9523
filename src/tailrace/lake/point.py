"""The consistent point: one position of the source, and the snapshot of each table at that position.

    <warehouse>/_tailrace/<sink>/point.json              replaced after each step: all tables at one position
    <warehouse>/_tailrace/<sink>/relations/<digest>.json relations that points and snapshots refer to

Each table is committed separately. Reading the snapshots that a point names shows all tables as of one transaction of
the source, whatever is being committed meanwhile. Each snapshot that Tailrace writes says in its summary what the table
holds (`SnapshotSummary`), so earlier points can be derived from the tables' histories.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, Literal

from tailrace import stored_json
from tailrace.change import Lsn, Relation
from tailrace.delivery.contract import REWIND
from tailrace.errors import CorruptError
from tailrace.store import Store

_VERSION: Final = 1

Kind = Literal["mirror", "changelog"]


@dataclass(frozen=True)
class PointTable:
    """One Iceberg table at the point."""

    schema: str
    table: str
    """`schema` and `table` are the namespace and name in the catalog."""
    kind: Kind
    oid: int
    """The oid of the source's table."""
    since: Lsn | None
    """Changes from this LSN on are applied: earlier ones came with the snapshot that the table was loaded from. None:
    the table was not loaded, or must be reloaded."""
    relation: str
    """The digest of the relation whose columns the table has."""
    metadata: str
    """The full location of the table's metadata file."""
    snapshot: int | None
    """The id of the Iceberg snapshot; None if the table never had one."""

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True)
class Point:
    sink: str
    cursor: Lsn
    """The tables contain exactly the transactions with a commit LSN below this."""
    committed_at: datetime | None
    """When the source committed the last of them; None if there is none yet."""
    published_at: datetime
    database: str
    tables: tuple[PointTable, ...]
    lake: str = ""
    """A random id from the sink's first start. It is part of its tables' locations, which makes them unique."""


@dataclass(frozen=True)
class SnapshotSummary:
    """What Tailrace writes into the summary of an Iceberg snapshot."""

    KEYS: ClassVar = ("last_flush_lsn", "tailrace.position", "tailrace.committed-at", "tailrace.relation")

    cursor: Lsn
    """As `last_flush_lsn`: the snapshot contains exactly the table's changes with a commit LSN below this."""
    position: str
    """As `tailrace.position`: the table's last change in the snapshot; empty after a load."""
    committed_at: datetime | None
    """As `tailrace.committed-at`: when the source committed the last transaction below the cursor."""
    relation: str
    """As `tailrace.relation`: the digest of the relation whose columns the snapshot has."""

    def to_dict(self) -> dict[str, str]:
        time = self.committed_at.isoformat() if self.committed_at else ""
        return dict(zip(self.KEYS, (str(self.cursor), self.position, time, self.relation), strict=True))

    @classmethod
    def from_dict(cls, summary: Mapping[str, str]) -> SnapshotSummary | None:
        """None for a snapshot that Tailrace did not write."""
        if "last_flush_lsn" not in summary:
            return None
        time = summary.get("tailrace.committed-at")
        return cls(
            Lsn.parse(summary["last_flush_lsn"]),
            summary.get("tailrace.position", ""),
            datetime.fromisoformat(time) if time else None,
            summary.get("tailrace.relation", ""),
        )


def load(warehouse: Store, sink: str) -> Point | None:
    """The sink's last published point; None before the first."""
    data = warehouse.get(key(sink))
    return None if data is None else parse(data, f"{warehouse.url}: {key(sink)}")


def parse(data: bytes, where: str) -> Point:
    try:
        raw = stored_json.parse(data)
        if raw["version"] != _VERSION:
            raise CorruptError(f"{where} has format version {raw['version']}", "use a newer Tailrace")
        tables = tuple([PointTable(**(table | {"since": _lsn(table["since"])})) for table in raw["tables"]])
        found = Point(
            raw["sink"],
            Lsn.parse(raw["cursor"]),
            _time(raw["committed_at"]),
            datetime.fromisoformat(raw["published_at"]),
            raw["database"],
            tables,
            raw["lake"],
        )
        return stored_json.typed(found)
    except CorruptError:
        raise
    except stored_json.ERRORS as error:
        raise CorruptError(
            f"{where} is not a consistent point", "remove it: the tables' snapshots record their positions"
        ) from error


def publish(warehouse: Store, point: Point) -> None:
    """Replace the sink's point. Durable and visible to readers when it returns."""
    raw: dict[str, Any] = {
        "version": _VERSION,
        "sink": point.sink,
        "lake": point.lake,
        "cursor": str(point.cursor),
        "committed_at": point.committed_at.isoformat() if point.committed_at else None,
        "published_at": point.published_at.isoformat(),
        "database": point.database,
        "tables": [asdict(t) | {"since": None if t.since is None else str(t.since)} for t in point.tables],
    }
    warehouse.replace(key(point.sink), json.dumps(raw, ensure_ascii=False).encode())


def save_relation(warehouse: Store, sink: str, relation: Relation) -> None:
    warehouse.create(_relation_key(sink, relation.digest), relation.to_json().encode())


def load_relation(warehouse: Store, sink: str, digest: str) -> Relation:
    data = warehouse.get(_relation_key(sink, digest))
    if data is None:
        raise CorruptError(
            f"{warehouse.url}: {_relation_key(sink, digest)} is missing, although a table refers to it",
            REWIND.format(sink),
        )
    try:
        return Relation.from_json(data.decode())
    except stored_json.ERRORS as error:
        raise CorruptError(
            f"{warehouse.url}: {_relation_key(sink, digest)} is not a relation", REWIND.format(sink)
        ) from error


def key(sink: str) -> str:
    return f"_tailrace/{sink}/point.json"


def _relation_key(sink: str, digest: str) -> str:
    return f"_tailrace/{sink}/relations/{digest}.json"


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
