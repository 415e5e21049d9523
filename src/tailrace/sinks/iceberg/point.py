"""The consistent point: one position of the source, and the snapshot of every table that shows it.

    <warehouse>/_tailrace/<sink>/point.json              replaced after each step: all tables as of one position
    <warehouse>/_tailrace/<sink>/relations/<digest>.json the relations that points and snapshots name

Tables are committed one after the other, each for itself. Who reads the snapshots that a point names sees all of them
as of one transaction of the source, whatever is being committed meanwhile. Every snapshot of ours carries, in its
summary, what the table held then (`Held`): so earlier points can be told from the tables' own histories.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, Literal

from tailrace.change import Lsn, Relation
from tailrace.errors import CorruptError, TailraceError
from tailrace.sinks.base import REWIND
from tailrace.store import Store

_VERSION: Final = 1

Kind = Literal["mirror", "changelog"]


@dataclass(frozen=True)
class PointTable:
    """One Iceberg table as of the point."""

    schema: str
    table: str
    """Namespace and name, in the catalog."""
    kind: Kind
    oid: int
    """Of the source's table."""
    since: Lsn | None
    """Changes count from here on: what was before came with the snapshot that the table was loaded from. None: it was
    not loaded, or is to be loaded anew."""
    relation: str
    """The digest of the relation whose columns the table has."""
    metadata: str
    """The table's metadata file, by its full location."""
    snapshot: int | None
    """The Iceberg snapshot; None for a table that never had one."""

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True)
class Point:
    sink: str
    cursor: Lsn
    """Every transaction that commits below this is in the tables, and no other."""
    committed_at: datetime | None
    """When the last of them was committed at the source; None when there was none yet."""
    published_at: datetime
    database: str
    tables: tuple[PointTable, ...]
    lake: str = ""
    """Made up when the sink first came here: a part of its tables' locations, so that they are nobody else's."""


@dataclass(frozen=True)
class Held:
    """What one Iceberg snapshot says of itself, in its summary."""

    KEYS: ClassVar = ("last_flush_lsn", "tailrace.position", "tailrace.committed-at", "tailrace.relation")

    cursor: Lsn
    """As `last_flush_lsn`: every change of the table that commits below this is in it, and no other."""
    position: str
    """As `tailrace.position`: the table's last change that is in it; empty after a load."""
    committed_at: datetime | None
    """As `tailrace.committed-at`: when the source committed the last transaction below the cursor."""
    relation: str
    """As `tailrace.relation`: the digest of the relation whose columns it has."""

    def summary(self) -> dict[str, str]:
        moment = self.committed_at.isoformat() if self.committed_at else ""
        return dict(zip(self.KEYS, (str(self.cursor), self.position, moment, self.relation), strict=True))

    @classmethod
    def of(cls, summary: Mapping[str, str]) -> Held | None:
        """None for a snapshot that is none of ours."""
        if "last_flush_lsn" not in summary:
            return None
        when = summary.get("tailrace.committed-at")
        return cls(
            Lsn.parse(summary["last_flush_lsn"]),
            summary.get("tailrace.position", ""),
            datetime.fromisoformat(when) if when else None,
            summary.get("tailrace.relation", ""),
        )


def load(warehouse: Store, sink: str) -> Point | None:
    """None before anything was delivered."""
    data = warehouse.get(_key(sink))
    return None if data is None else parse(data, f"{warehouse.url}: {_key(sink)}")


def parse(data: bytes, where: str) -> Point:
    try:
        raw = json.loads(data)
        if raw["version"] != _VERSION:
            raise CorruptError(f"{where} has format version {raw['version']}", "use a newer Tailrace")
        tables = tuple([PointTable(**(table | {"since": _lsn(table["since"])})) for table in raw["tables"]])
        return Point(
            raw["sink"],
            Lsn.parse(raw["cursor"]),
            _moment(raw["committed_at"]),
            datetime.fromisoformat(raw["published_at"]),
            raw["database"],
            tables,
            raw["lake"],
        )
    except CorruptError:
        raise
    except (ValueError, KeyError, TypeError, TailraceError) as error:
        raise CorruptError(
            f"{where} is no consistent point", "remove it: the tables themselves say where they stand"
        ) from error


def publish(warehouse: Store, point: Point) -> None:
    """Durable, and seen by readers, when it returns."""
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
    warehouse.replace(_key(point.sink), json.dumps(raw, ensure_ascii=False).encode())


def save_relation(warehouse: Store, sink: str, relation: Relation) -> None:
    warehouse.create(_relation_key(sink, relation.digest), relation.to_json().encode())


def load_relation(warehouse: Store, sink: str, digest: str) -> Relation:
    data = warehouse.get(_relation_key(sink, digest))
    if data is None:
        raise CorruptError(
            f"{warehouse.url}: {_relation_key(sink, digest)} is missing, and a table was made of it",
            REWIND.format(sink),
        )
    return Relation.from_json(data.decode())


def _key(sink: str) -> str:
    return f"_tailrace/{sink}/point.json"


def _relation_key(sink: str, digest: str) -> str:
    return f"_tailrace/{sink}/relations/{digest}.json"


def _lsn(text: str | None) -> Lsn | None:
    return None if text is None else Lsn.parse(text)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
