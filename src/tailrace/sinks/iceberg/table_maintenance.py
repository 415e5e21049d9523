"""Maintenance of the lake's tables, between two steps: merges small files, removes deleted rows from files, expires
snapshots with the files that only they need, and removes orphan files.

Nobody else writes to the tables and no step is running, so maintenance never conflicts with a commit. A run ends when
its time is up; the next one continues.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from tailrace.lake.metadata import IcebergSnapshot, TableMetadata
from tailrace.lake.options import IcebergOptions
from tailrace.sinks.iceberg import file_merge
from tailrace.sinks.iceberg.lake_table import LakeContext, LakeTable

_log = logging.getLogger("tailrace.deliver")

FILE_BYTES: Final = 128 * 1024 * 1024
"""Target file size: larger files are not faster to read, and slower to rewrite."""
_MANY_FILES: Final = 24
"""Compact a table with this many more files than its size requires: half a minute's, at one step a second."""
_DRIVER_BYTES: Final = 32 * 1024 * 1024
"""The limit for merging in the driver, without Spark: it takes less than a second and no more memory than a step."""
_DELETED_SHARE: Final = 0.25
"""Compact a table with this share of deleted rows: every query reads and discards them."""
_MIN_DELETED: Final = 10_000
"""Fewer deleted rows do not slow queries down, whatever their share."""
_RUN_S: Final = 2.0
"""The duration of a run, about that of one task. Afterwards the next step is more urgent."""
_EXPIRE_S: Final = 60.0
EVERY_STEP: Final = timedelta(minutes=10)
"""How long each step's snapshot stays: twice as long as a statement of the query server may take. Of older ones two a
minute stay. A commit writes the list of them all, so an hour of one a second would be 1.5 MB for each change."""
_ORPHANS_S: Final = 24 * 3600.0
_FIRST_ORPHANS_S: Final = 3600.0
_ORPHAN_AGE: Final = timedelta(days=1)
"""Longer than any step takes: a younger file may be about to be committed."""


class TableMaintenance:
    """Decides which maintenance is due for which table."""

    def __init__(self, context: LakeContext, options: IcebergOptions) -> None:
        self._context = context
        self._options = options
        self._checked_snapshots: dict[str, int | None] = {}
        """Directory → the snapshot of the table at the last check for compaction."""
        self._due_times: dict[tuple[str, str], float] = {}
        self._visits = 0

    def run(self, tables: Iterable[LakeTable]) -> bool:
        """Do what is due, for a limited time. Returns whether a table has a new snapshot, with the same rows."""
        every, began, changed = list(tables), time.monotonic(), False
        for _ in every:
            if time.monotonic() - began > _RUN_S:
                break
            # Continue after the last run's table, so every table is reached, however many there are.
            self._visits += 1
            table = every[self._visits % len(every)]
            if table.snapshot is not None:
                changed |= self._compact(table) | self._expire(table)
                self._remove_orphans(table)
        return changed

    def _compact(self, table: LakeTable) -> bool:
        if not self._options.compact_bytes or self._checked_snapshots.get(table.directory) == table.snapshot:
            return False
        if not is_worth_compacting(_totals(table)):
            self._checked_snapshots[table.directory] = table.snapshot
            return False
        began = time.monotonic()
        before, after = merge(self._context, table, self._options.compact_bytes), 1
        if not before:
            before, after = compact(self._context, table, FILE_BYTES, self._options.compact_bytes)
        if before:
            _log.info("%s: compacted %s files into %s in %.1f s", table.name, before, after, time.monotonic() - began)
        self._checked_snapshots[table.directory] = table.snapshot
        return bool(before)

    def _expire(self, table: LakeTable) -> bool:
        if not self._is_due(table, "expire", _EXPIRE_S, _EXPIRE_S):
            return False
        now = datetime.now(UTC)
        known = history(self._context, table)
        old = superseded_snapshots(known, now - timedelta(minutes=self._options.history_minutes))
        old = [*old, *thinned_snapshots(known[len(old) :], now - EVERY_STEP)]
        if old:
            expire(table, old)
            _log.debug("%s: expired %s snapshots", table.name, len(old))
        return bool(old)

    def _remove_orphans(self, table: LakeTable) -> None:
        if self._is_due(table, "orphans", _FIRST_ORPHANS_S, _ORPHANS_S):
            removed = remove_orphans(self._context, table, datetime.now(UTC) - _ORPHAN_AGE)
            if removed:
                _log.info("%s: removed %s orphan files", table.name, removed)

    def _is_due(self, table: LakeTable, what: str, first_s: float, every_s: float) -> bool:
        now, key = time.monotonic(), (table.directory, what)
        if now < self._due_times.setdefault(key, now + first_s):
            return False
        self._due_times[key] = now + every_s
        return True


def is_worth_compacting(totals: Mapping[str, int]) -> bool:
    """Whether to compact a table, given the totals in its newest snapshot's summary."""
    files, size = totals.get("total-data-files", 0), totals.get("total-files-size", 0)
    rows, deleted = totals.get("total-records", 0), totals.get("total-position-deletes", 0)
    return files - size // FILE_BYTES >= _MANY_FILES or (deleted >= _MIN_DELETED and deleted >= _DELETED_SHARE * rows)


def superseded_snapshots(history: Sequence[IcebergSnapshot], cutoff: datetime) -> list[int]:
    """Snapshots that had been replaced by a newer one at the cutoff. `history` is ordered by time."""
    return [snapshot.id for snapshot in history if snapshot.time < cutoff][:-1]


def thinned_snapshots(history: Sequence[IcebergSnapshot], before: datetime) -> list[int]:
    """Of snapshots older than `before`, all but the first and the last of each minute.

    A minute is one of the source's commit times, so that all tables keep the same step. With its first snapshot, it is
    known until when a table stayed as it was at the end of the minute before.
    """
    minutes = [_minute(snapshot) for snapshot in history]
    return [
        history[i].id
        for i in range(1, len(history) - 1)
        if history[i + 1].time < before and minutes[i - 1] == minutes[i] == minutes[i + 1]
    ]


def _minute(snapshot: IcebergSnapshot) -> datetime:
    committed_at = snapshot.summary.committed_at if snapshot.summary is not None else None
    return (committed_at or snapshot.time).replace(second=0, microsecond=0)


def merge(context: LakeContext, table: LakeTable, limit: int) -> int:
    """Merge a table's small files, if it needs no other compaction. Returns how many files were merged."""
    files = list(table.data_files())
    small = file_merge.select_small_files(files, min(limit, _DRIVER_BYTES))
    locations = {file.location for file in small}
    others = [file for file in files if file.location not in locations]
    left = {
        "total-data-files": len(others) + 1,
        "total-files-size": sum(file.bytes for file in others),
        "total-records": sum(file.rows for file in others),
        "total-position-deletes": sum(len(file.deleted) for file in others),
    }
    if len(small) < 2 or is_worth_compacting(left):
        return 0
    table.replace(small, file_merge.merge_files(context.warehouse, table.directory, table.schema.fields, small))
    return len(small)


def compact(context: LakeContext, table: LakeTable, file_bytes: int, limit: int) -> tuple[int, int]:
    """Compact a table with Spark: small files into large ones, without deleted rows.

    Returns how many files were rewritten, and how many were written.
    """
    assert table.summary is not None
    action = context.catalog.actions().rewriteDataFiles(table.iceberg).binPack()
    options: Mapping[str, object] = {
        "target-file-size-bytes": file_bytes,
        "max-file-group-size-bytes": limit,
        "max-concurrent-file-group-rewrites": 1,
        "partial-progress.enabled": "true",
        "delete-ratio-threshold": _DELETED_SHARE / 2,
        "remove-dangling-deletes": "true",
    }
    for key, value in options.items():
        action = action.option(key, str(value))
    for key, text in table.summary.to_dict().items():
        action = action.snapshotProperty(key, text)
    done = action.execute()
    table.refresh()
    if failed := int(done.failedDataFilesCount()):
        _log.warning("%s: failed to compact %s files; see Spark's log; retrying automatically", table.name, failed)
    return int(done.rewrittenDataFilesCount()), int(done.addedDataFilesCount())


def expire(table: LakeTable, snapshots: Iterable[int]) -> None:
    """Remove these snapshots, and the files that only they need."""
    update = table.iceberg.expireSnapshots()
    for id_ in snapshots:
        update = update.expireSnapshotId(id_)
    update.cleanExpiredFiles(True).commit()
    table.refresh()


def remove_orphans(context: LakeContext, table: LakeTable, before: datetime) -> int:
    """Remove files older than `before` that no snapshot refers to: discarded or unfinished steps left them."""
    # The default listing uses Hadoop, which has no S3 support here.
    action = context.catalog.actions().deleteOrphanFiles(table.iceberg).usePrefixListing(context.warehouse.is_remote)
    done = action.olderThan(int(before.timestamp() * 1000)).execute()
    return sum(1 for _ in done.orphanFileLocations())


def _totals(table: LakeTable) -> dict[str, int]:
    """The totals of the whole table in its newest snapshot's summary."""
    summary = table.iceberg.currentSnapshot().summary()
    keys = ("total-data-files", "total-files-size", "total-records", "total-position-deletes")
    found = {key: summary.get(key) for key in keys}
    return {key: int(value) for key, value in found.items() if value is not None}


def history(context: LakeContext, table: LakeTable) -> Sequence[IcebergSnapshot]:
    """The snapshots that led to the current one, oldest first."""
    metadata = TableMetadata.parse(context.warehouse.get(table.metadata), table.metadata)
    return metadata.ancestry(metadata.current_snapshot)
