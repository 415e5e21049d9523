"""A table's Iceberg metadata file: its snapshots, their order, and the columns at each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from tailrace import stored_json
from tailrace.errors import CorruptError
from tailrace.lake.point import SnapshotSummary


@dataclass(frozen=True)
class IcebergSnapshot:
    id: int
    parent: int | None
    sequence: int
    time: datetime
    schema_id: int | None
    summary: SnapshotSummary | None
    """None if Tailrace did not write the snapshot."""
    rows: int | None = None
    """Rows that are not deleted; None if the snapshot does not say."""
    bytes: int | None = None
    """The size of its data files and deletes; None if the snapshot does not say."""

    @property
    def label(self) -> str:
        """Its cursor and time, for messages."""
        if self.summary is None:
            return f"{self.time:%Y-%m-%d %H:%M:%S%z}"
        time = self.summary.committed_at or self.time
        return f"{self.summary.cursor} ({time:%Y-%m-%d %H:%M:%S%z})"


@dataclass(frozen=True)
class TableMetadata:
    """The parts of a table's metadata file that Tailrace uses."""

    location: str
    snapshots: Mapping[int, IcebergSnapshot]
    schemas: Mapping[int, Mapping[str, Any]]
    """Schema id → column name → Iceberg type."""
    current_schema: int
    ids: Mapping[int, Mapping[str, int]]
    """Schema id → column name → column id."""
    current_snapshot: int | None

    @classmethod
    def parse(cls, data: bytes, location: str) -> TableMetadata:
        try:
            raw = stored_json.parse(data)
            schemas = {s["schema-id"]: {f["name"]: f["type"] for f in s["fields"]} for s in raw["schemas"]}
            snapshots = [_snapshot(s) for s in raw.get("snapshots") or ()]
            ids = {s["schema-id"]: {f["name"]: f["id"] for f in s["fields"]} for s in raw["schemas"]}
            current = raw.get("current-snapshot-id")
            by_id = {s.id: s for s in snapshots}
            found = stored_json.typed(cls(location, by_id, schemas, raw["current-schema-id"], ids, current))
            if {found.current_schema, *(s.schema_id for s in snapshots if s.schema_id is not None)} - schemas.keys():
                raise ValueError("a schema is missing")
            return found
        except (*stored_json.ERRORS, OSError) as error:
            raise CorruptError(f"{location} is not Iceberg metadata", "check that the table is complete") from error

    @cached_property
    def _ancestries(self) -> dict[int | None, tuple[IcebergSnapshot, ...]]:
        return {}

    def ancestry(self, snapshot: int | None) -> tuple[IcebergSnapshot, ...]:
        """The snapshots that led to this one and are still present, oldest first. Some in between may have expired."""
        if snapshot not in self._ancestries:
            found: list[IcebergSnapshot] = []
            at = self.snapshots.get(snapshot) if snapshot is not None else None
            while at is not None:
                found.append(at)
                at = self._before(at)
            self._ancestries[snapshot] = tuple(reversed(found))
        return self._ancestries[snapshot]

    def _before(self, snapshot: IcebergSnapshot) -> IcebergSnapshot | None:
        if snapshot.parent is None or snapshot.parent in self.snapshots:
            return self.snapshots[snapshot.parent] if snapshot.parent is not None else None
        # What another writer added was rolled back, or the sink would have stopped.
        older = [s for s in self.snapshots.values() if s.sequence < snapshot.sequence and s.summary is not None]
        return max(older, key=lambda s: s.sequence, default=None)

    def columns(self, snapshot: int | None) -> Mapping[str, Any]:
        """Column name → Iceberg type, as of that snapshot."""
        return self.schemas[self._schema(snapshot)]

    def size(self, snapshot: int | None) -> tuple[int | None, int | None]:
        """The rows and the bytes of the table at that snapshot; None for what is not known."""
        if snapshot is None:
            return 0, 0
        found = self.snapshots.get(snapshot)
        return (found.rows, found.bytes) if found is not None else (None, None)

    def added_columns(self, snapshot: int | None) -> frozenset[str]:
        """Columns that the table did not begin with, in lower case: some files may lack them."""
        first = set(self.ids.get(0, {}).values())
        return frozenset(name.lower() for name, id_ in self.ids[self._schema(snapshot)].items() if id_ not in first)

    def _schema(self, snapshot: int | None) -> int:
        of = self.snapshots.get(snapshot) if snapshot is not None else None
        return of.schema_id if of is not None and of.schema_id is not None else self.current_schema


def _snapshot(raw: dict[str, Any]) -> IcebergSnapshot:
    time = datetime.fromtimestamp(raw["timestamp-ms"] / 1000, UTC)
    entries = raw.get("summary") or {}
    summary = SnapshotSummary.from_dict(entries)
    if summary is not None and summary.committed_at is None:
        # Loaded before the log had a transaction: its rows existed at the latest when it was written.
        summary = replace(summary, committed_at=time)
    parent, sequence = raw.get("parent-snapshot-id"), raw.get("sequence-number", 0)
    rows, size = _live_rows(entries), _total(entries, "total-files-size")
    return IcebergSnapshot(raw["snapshot-id"], parent, sequence, time, raw.get("schema-id"), summary, rows, size)


def _live_rows(summary: Mapping[str, str]) -> int | None:
    """The rows that are left, unless equality deletes remove an unknown number of them."""
    records, positions = _total(summary, "total-records"), _total(summary, "total-position-deletes")
    if records is None or positions is None or _total(summary, "total-equality-deletes") != 0:
        return None
    return records - positions if positions <= records else None


def _total(summary: Mapping[str, str], key: str) -> int | None:
    text = summary.get(key, "")
    return int(text) if text.isascii() and text.isdecimal() else None
