"""A table's own history, from its Iceberg metadata, and which position of it is meant by `tailrace.as_of`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from tailrace.change import Lsn
from tailrace.errors import ConfigError, CorruptError
from tailrace.log.rendering import moment
from tailrace.query.failure import Failure
from tailrace.sinks.iceberg.point import Held


@dataclass(frozen=True)
class AsOf:
    """A position or a time: transactions committed at it, or before, count."""

    lsn: Lsn | None = None
    time: datetime | None = None

    @classmethod
    def parse(cls, text: str) -> AsOf:
        try:
            if "/" in text and ":" not in text:
                return cls(lsn=Lsn.parse(text.strip()))
            time = moment(text.strip())
        except (ValueError, ConfigError):
            raise Failure(
                "22023",
                f'invalid value for parameter "tailrace.as_of": "{text}"',
                "a time such as 2026-11-15 12:00 (UTC unless it names a zone), or an LSN such as 0/1A2B3C4",
            ) from None
        return cls(time=time)

    def covers(self, cursor: Lsn, committed_at: datetime | None) -> bool:
        """Whether everything below that cursor counts."""
        if self.lsn is not None:
            return cursor <= self.lsn + 1
        assert self.time is not None
        return committed_at is not None and committed_at <= self.time

    def __str__(self) -> str:
        return str(self.lsn) if self.lsn is not None else f"{self.time:%Y-%m-%d %H:%M:%S%z}"


@dataclass(frozen=True)
class Snapshot:
    id: int
    parent: int | None
    time: datetime
    schema_id: int | None
    held: Held | None
    """None where it is none of ours."""

    @property
    def told(self) -> str:
        if self.held is None:
            return f"{self.time:%Y-%m-%d %H:%M:%S%z}"
        moment = self.held.committed_at or self.time
        return f"{self.held.cursor} ({moment:%Y-%m-%d %H:%M:%S%z})"


@dataclass(frozen=True)
class Metadata:
    """What is needed of a table's metadata file."""

    location: str
    snapshots: Mapping[int, Snapshot]
    schemas: Mapping[int, Mapping[str, Any]]
    """Id → column name → Iceberg type."""
    current_schema: int
    ids: Mapping[int, Mapping[str, int]]
    """Schema's id → column name → its own."""

    @classmethod
    def parse(cls, data: bytes, location: str) -> Metadata:
        try:
            raw = json.loads(data)
            schemas = {s["schema-id"]: {f["name"]: f["type"] for f in s["fields"]} for s in raw["schemas"]}
            snapshots = [_snapshot(s) for s in raw.get("snapshots") or ()]
            ids = {s["schema-id"]: {f["name"]: f["id"] for f in s["fields"]} for s in raw["schemas"]}
            return cls(location, {s.id: s for s in snapshots}, schemas, raw["current-schema-id"], ids)
        except (ValueError, KeyError, TypeError, ConfigError) as error:
            raise CorruptError(f"{location} is no Iceberg metadata", "is the table whole?") from error

    @cached_property
    def _lines(self) -> dict[int | None, tuple[Snapshot, ...]]:
        return {}

    def ancestry(self, snapshot: int | None) -> tuple[Snapshot, ...]:
        """From the oldest that is still there to this one."""
        if snapshot not in self._lines:
            line: list[Snapshot] = []
            at = snapshot
            while at is not None and at in self.snapshots:
                line.append(self.snapshots[at])
                at = line[-1].parent
            self._lines[snapshot] = tuple(reversed(line))
        return self._lines[snapshot]

    def columns(self, snapshot: int | None) -> Mapping[str, Any]:
        """Column name → Iceberg type, as of that snapshot."""
        return self.schemas[self._schema(snapshot)]

    def added(self, snapshot: int | None) -> frozenset[str]:
        """Columns that the table did not begin with, in lower case: there may be files without them."""
        first = set(self.ids.get(0, {}).values())
        return frozenset(name.lower() for name, id_ in self.ids[self._schema(snapshot)].items() if id_ not in first)

    def _schema(self, snapshot: int | None) -> int:
        of = self.snapshots.get(snapshot) if snapshot is not None else None
        return of.schema_id if of is not None and of.schema_id is not None else self.current_schema


def _snapshot(raw: dict[str, Any]) -> Snapshot:
    time = datetime.fromtimestamp(raw["timestamp-ms"] / 1000, UTC)
    held = Held.of(raw.get("summary") or {})
    if held is not None and held.committed_at is None:
        # Loaded before the log had a transaction: what it holds was there when it was written, at the latest.
        held = replace(held, committed_at=time)
    return Snapshot(raw["snapshot-id"], raw.get("parent-snapshot-id"), time, raw.get("schema-id"), held)


def chosen_cursor(held: Sequence[Held], as_of: AsOf, newest: Lsn) -> tuple[Lsn, datetime | None]:
    """The last cursor that tables were published at and that counts."""
    ends = [h for h in held if h.cursor <= newest and as_of.covers(h.cursor, h.committed_at)]
    if not ends:
        known = sorted((h.cursor, h.committed_at) for h in held if h.committed_at is not None)
        hint = f"what is there begins at {known[0][0]}, {known[0][1]:%Y-%m-%d %H:%M:%S%z}" if known else ""
        raise Failure("22023", f"the lake has no history at or before {as_of}", hint)
    last = max(ends, key=lambda h: h.cursor)
    return last.cursor, last.committed_at
