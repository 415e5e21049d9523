"""Keeping a lake in shape, between two steps: small files are made large, rows that are gone leave their files, and
snapshots that nobody will look at any more go with what only they needed.

Nobody else writes to the tables, and no step is under way: so nothing here ever conflicts with a commit. A turn ends
when its time is over; what is left is for the next.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tailrace.sinks.iceberg import merging
from tailrace.sinks.iceberg.options import IcebergOptions
from tailrace.sinks.iceberg.table import Lake, LakeTable

_log = logging.getLogger("tailrace.deliver")

FILE_BYTES: Final = 128 * 1024 * 1024
"""A file this large is left alone: larger ones are no quicker to read, and slower to rewrite."""
_MANY_FILES: Final = 24
"""So many more files than the table's size asks for: at one step a second, half a minute's."""
_HERE_BYTES: Final = 32 * 1024 * 1024
"""Of files that are merged without Spark: less than a second's work, and no more memory than a step takes."""
_GONE_SHARE: Final = 0.25
"""Of a table's rows: so many are read and thrown away by every query."""
_FEW_ROWS: Final = 10_000
"""A table with fewer rows that are gone is quick whatever their share is."""
_TURN_S: Final = 2.0
"""After which the next step is more urgent: about as long as one thing takes."""
_EXPIRE_S: Final = 60.0
_ORPHANS_S: Final = 24 * 3600.0
_FIRST_ORPHANS_S: Final = 3600.0
_ORPHAN_AGE: Final = timedelta(days=1)
"""Longer than any step takes: a younger file may be one that is about to be committed."""


class Upkeep:
    def __init__(self, lake: Lake, options: IcebergOptions) -> None:
        self._lake = lake
        self._options = options
        self._looked_at: dict[str, int | None] = {}
        """By directory, the snapshot of each table that needed no compaction."""
        self._due: dict[tuple[str, str], float] = {}
        self._turns = 0

    def turn(self, tables: Iterable[LakeTable]) -> bool:
        """Whether a table was changed: its newest snapshot is another one now, with the same rows."""
        every, began, changed = list(tables), time.monotonic(), False
        for _ in every:
            if time.monotonic() - began > _TURN_S:
                break
            # Where the last turn ended: each table has its turn, however many there are.
            self._turns += 1
            table = every[self._turns % len(every)]
            if table.snapshot is not None:
                changed |= self._compact(table) | self._expire(table)
                self._sweep(table)
        return changed

    def _compact(self, table: LakeTable) -> bool:
        if not self._options.compact_bytes or self._looked_at.get(table.directory) == table.snapshot:
            return False
        if not is_worth_compacting(_totals(table)):
            self._looked_at[table.directory] = table.snapshot
            return False
        began = time.monotonic()
        before, after = merge(self._lake, table, self._options.compact_bytes), 1
        if not before:
            before, after = compact(self._lake, table, FILE_BYTES, self._options.compact_bytes)
        if before:
            _log.info("%s: %s files became %s in %.1f s", table.name, before, after, time.monotonic() - began)
        self._looked_at[table.directory] = table.snapshot
        return bool(before)

    def _expire(self, table: LakeTable) -> bool:
        if not self._is_due(table, "expire", _EXPIRE_S, _EXPIRE_S):
            return False
        cutoff = datetime.now(UTC) - timedelta(minutes=self._options.history_minutes)
        old = superseded(_history(self._lake.warehouse.get(table.metadata)), cutoff)
        if old:
            expire(table, old)
            _log.debug("%s: %s snapshots expired", table.name, len(old))
        return bool(old)

    def _sweep(self, table: LakeTable) -> None:
        if self._is_due(table, "sweep", _FIRST_ORPHANS_S, _ORPHANS_S):
            removed = remove_orphans(self._lake, table, datetime.now(UTC) - _ORPHAN_AGE)
            if removed:
                _log.info("%s: %s files removed that no snapshot names", table.name, removed)

    def _is_due(self, table: LakeTable, what: str, first_s: float, every_s: float) -> bool:
        now, key = time.monotonic(), (table.directory, what)
        if now < self._due.setdefault(key, now + first_s):
            return False
        self._due[key] = now + every_s
        return True


def is_worth_compacting(totals: Mapping[str, int]) -> bool:
    """By what a snapshot's summary says of the whole table."""
    files, size = totals.get("total-data-files", 0), totals.get("total-files-size", 0)
    rows, gone = totals.get("total-records", 0), totals.get("total-position-deletes", 0)
    return files - size // FILE_BYTES >= _MANY_FILES or (gone >= _FEW_ROWS and gone >= _GONE_SHARE * rows)


def superseded(history: Sequence[tuple[int, datetime]], cutoff: datetime) -> list[int]:
    """Of snapshots in their order, those that another had taken the place of when the cutoff came."""
    return [number for number, made in history if made < cutoff][:-1]


def merge(lake: Lake, table: LakeTable, limit: int) -> int:
    """Small files as one, where that is all that is wrong with a table; how many there were."""
    files = list(table.planned())
    small = merging.chosen(files, min(limit, _HERE_BYTES))
    locations = {live.location for live in small}
    others = [live for live in files if live.location not in locations]
    left = {
        "total-data-files": len(others) + 1,
        "total-files-size": sum(live.bytes for live in others),
        "total-records": sum(live.rows for live in others),
        "total-position-deletes": sum(len(live.deleted) for live in others),
    }
    if len(small) < 2 or is_worth_compacting(left):
        return 0
    table.replace(small, merging.merged(lake.warehouse, table.directory, table.shape.fields, small))
    return len(small)


def compact(lake: Lake, table: LakeTable, file_bytes: int, limit: int) -> tuple[int, int]:
    """Small files as large ones, without the rows that are gone, by Spark: how many there were, and how many they
    became."""
    assert table.held is not None
    action = lake.catalog.actions().rewriteDataFiles(table.iceberg).binPack()
    options: Mapping[str, object] = {
        "target-file-size-bytes": file_bytes,
        "max-file-group-size-bytes": limit,
        "max-concurrent-file-group-rewrites": 1,
        "partial-progress.enabled": "true",
        "delete-ratio-threshold": _GONE_SHARE / 2,
        "remove-dangling-deletes": "true",
    }
    for key, value in options.items():
        action = action.option(key, str(value))
    for key, text in table.held.summary().items():
        action = action.snapshotProperty(key, text)
    done = action.execute()
    table.refresh()
    if failed := int(done.failedDataFilesCount()):
        _log.warning(
            "%s: %s files could not be rewritten; Spark's log says why, and it is tried again", table.name, failed
        )
    return int(done.rewrittenDataFilesCount()), int(done.addedDataFilesCount())


def expire(table: LakeTable, snapshots: Iterable[int]) -> None:
    """These, and the files that only they needed."""
    update = table.iceberg.expireSnapshots()
    for number in snapshots:
        update = update.expireSnapshotId(number)
    update.cleanExpiredFiles(True).commit()
    table.refresh()


def remove_orphans(lake: Lake, table: LakeTable, before: datetime) -> int:
    """Files that nothing names: of steps that were thrown away, or never ended."""
    # Hadoop, which lists otherwise, knows no S3.
    action = lake.catalog.actions().deleteOrphanFiles(table.iceberg).usePrefixListing(lake.warehouse.is_remote)
    done = action.olderThan(int(before.timestamp() * 1000)).execute()
    return sum(1 for _ in done.orphanFileLocations())


def _totals(table: LakeTable) -> dict[str, int]:
    """What the newest snapshot says of the whole table."""
    summary = table.iceberg.currentSnapshot().summary()
    keys = ("total-data-files", "total-files-size", "total-records", "total-position-deletes")
    found = {key: summary.get(key) for key in keys}
    return {key: int(value) for key, value in found.items() if value is not None}


def _history(metadata: bytes) -> list[tuple[int, datetime]]:
    """The snapshots that lead to the current one, in their order, with when each was made."""
    raw: dict[str, Any] = json.loads(metadata)
    snapshots = {s["snapshot-id"]: s for s in raw["snapshots"]}
    found = []
    at = raw.get("current-snapshot-id")
    while at is not None and at in snapshots:
        found.append((int(at), datetime.fromtimestamp(snapshots[at]["timestamp-ms"] / 1000, UTC)))
        at = snapshots[at].get("parent-snapshot-id")
    return found[::-1]
