"""Decides which backups and which WAL are no longer needed, and removes them.

`keep` is a window: any moment in it can be restored. That takes the newest full backup from before the window with the
chain that leads into it, and all WAL from its start on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tailrace.recovery.backup import is_covered
from tailrace.recovery.backup_record import BackupRecord, chain, list_backups, list_ids
from tailrace.recovery.wal_archive import WalArchive
from tailrace.recovery.wal_segment import WalSegment
from tailrace.store import Store

# A backup without a record that has not grown for this long was interrupted.
_INTERRUPTED_AFTER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class ExpiryPlan:
    backups: Sequence[BackupRecord]
    """To remove, the newest first, so that no crash leaves a chain without its beginning."""
    segments: Sequence[WalSegment]
    interrupted: Sequence[str]
    """Ids of backups that were never completed."""

    @property
    def is_empty(self) -> bool:
        return not (self.backups or self.segments or self.interrupted)


def plan_expiry(
    records: Sequence[BackupRecord],
    counting: Mapping[str, bool],
    verified: Mapping[str, bool],
    begins: datetime,
) -> list[BackupRecord]:
    """The backups to remove, the newest first. Pure.

    `records` are the oldest first; `counting` and `verified` say of each id whether the archive covers the backup and
    whether it was verified. `begins` is the start of the window.
    """
    fulls = [r for r in records if r.parent is None and counting[r.id]]
    before = [r for r in fulls if r.ended_at <= begins]
    anchor = before[-1] if before else None
    if anchor is None:
        return []
    kept_full = next((r for r in reversed(fulls) if verified[r.id]), None)
    if kept_full is None:
        return []  # no full backup is known to be good, so any of them may be the one that is
    first = min(anchor.start_lsn, kept_full.start_lsn)
    removable = [r for r in records if r.start_lsn < first]
    # An incremental one that starts later may still build on an earlier chain.
    needed = {link.id for r in records if r.start_lsn >= first for link in chain(r, records)}
    return [r for r in reversed(removable) if r.id not in needed]


def find_expired(store: Store, archive: WalArchive, keep: timedelta, now: datetime) -> ExpiryPlan:
    """What lies before the window that ends now."""
    records = list_backups(store)
    counting = {r.id: is_covered(archive, r) for r in records}
    verified = {r.id: r.verified_at(store) is not None for r in records}
    removed = plan_expiry(records, counting, verified, now - keep)
    gone = {r.id for r in removed}
    stay = [r for r in records if r.id not in gone]
    oldest = min(stay, key=lambda r: r.start_lsn, default=None)
    segments = []
    if oldest is not None:  # without any backup, the WAL may be what the first one needs
        segments = [s.segment for s in archive.segments if s.segment.end <= oldest.start_lsn]
    known = {r.id for r in records}
    interrupted = [
        id
        for id, keys in list_ids(store).items()
        if id not in known and _newest(store, keys) < now - _INTERRUPTED_AFTER
    ]
    return ExpiryPlan(removed, segments, interrupted)


def remove(store: Store, plan: ExpiryPlan, progress: Callable[[str], None] = lambda _: None) -> None:
    """Remove what the plan names. A crash in between leaves nothing that seems complete and is not."""
    keys = list_ids(store)
    for id in [*(record.id for record in plan.backups), *plan.interrupted]:
        # The record sorts after the data, but must go first.
        for key in sorted(keys.get(id, ()), key=lambda key: not key.endswith("/meta.json")):
            store.delete(key)
        progress(f"backup {id}")
    for segment in plan.segments:
        store.delete(segment.key)
        for info in store.list(segment.parts_prefix):
            store.delete(info.key)
        progress(f"segment {segment}")


def _newest(store: Store, keys: Sequence[str]) -> datetime:
    times = [info.modified_at for key in keys if (info := store.head(key)) is not None]
    return max(times)
