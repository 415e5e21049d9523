"""Decides how to reach a moment: which backup to start from, and where to stop. Refuses what cannot be reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tailrace.capture.postgres.timeline import TimelineHistory
from tailrace.change import Lsn
from tailrace.errors import ConfigError, CorruptError
from tailrace.recovery.backup_record import BackupRecord, chain, find_backup, list_backups
from tailrace.recovery.recovery_target import RecoveryTarget, StopPoint
from tailrace.recovery.wal_archive import ArchivePosition, WalArchive
from tailrace.recovery.wal_scan import WalScan
from tailrace.store import Store


@dataclass(frozen=True)
class RestorePlan:
    chain: Sequence[BackupRecord]
    """A full backup, then the incremental ones that follow it."""
    archive: WalArchive
    history: TimelineHistory
    end: Lsn
    """Where the WAL ends that follows the backup without a gap."""
    known_end: Lsn
    """Where the archive's WAL ends, or ended, whatever is missing of it."""
    stop: StopPoint

    @property
    def backup(self) -> BackupRecord:
        return self.chain[-1]

    @property
    def ends_at_gap(self) -> bool:
        """Whether there was later WAL, which is missing or follows a gap."""
        return self.known_end > self.end


@dataclass(frozen=True)
class _Candidate:
    """A backup that can be restored, and how far."""

    record: BackupRecord
    end: Lsn


def plan_restore(
    store: Store,
    target: RecoveryTarget,
    bin_directory: Path,
    timeline: int | None = None,
    backup: str | None = None,
) -> RestorePlan:
    """Plan a restore.

    Args:
        store: The store with the archive and the backups.
        target: The moment.
        bin_directory: Where pg_waldump is.
        timeline: The timeline that holds the moment. Default: the newest one of the archive.
        backup: The id of the backup to start from. Default: the newest one from before the moment.
    """
    position = ArchivePosition.load(store)  # before the archive is listed, so that it is not ahead of that
    records = list_backups(store)
    for _ in range(2):  # a segment may be completed, and its parts removed, while they are listed
        archive = WalArchive.require(store)
        history, candidates = _candidates_on(archive, timeline, records)
        known_end = archive.end_of(history.timeline) or Lsn(0)
        if position is not None and position.timeline == history.timeline:
            known_end = max(known_end, position.lsn)
        is_lost = timeline is None and position is not None and position.timeline > history.timeline
        if known_end <= candidates[-1].end and not is_lost:
            break
    if is_lost and position is not None:
        raise CorruptError(
            f"the archive had WAL of timeline {position.timeline} up to {position.lsn}, and has none of it",
            f"restore the objects from a copy of the store; --timeline {history.timeline} restores the timeline before",
        )
    if backup is not None:
        record = find_backup(records, backup)
        candidates = [candidate for candidate in candidates if candidate.record == record]
        if not candidates:
            raise ConfigError(
                f"backup {backup} cannot be restored on timeline {history.timeline}",
                "`tailrace backup ls` shows what each one lacks",
            )
    is_current = position is not None and position.timeline == history.timeline
    covered_at = position.at if position is not None and is_current and position.lsn <= candidates[-1].end else None
    chooser = _Chooser(archive, history, candidates, known_end, covered_at, bin_directory)
    candidate, stop = chooser.choose(target)
    return RestorePlan(chain(candidate.record, records), archive, history, candidate.end, known_end, stop)


def restorable_ranges(store: Store) -> list[tuple[Lsn, Lsn]]:
    """The first and the last LSN that each backup of the newest timeline can be restored to, the oldest first."""
    _, candidates = _candidates_on(WalArchive.require(store), None, list_backups(store))
    return [(candidate.record.end_lsn, candidate.end) for candidate in candidates]


def _candidates_on(
    archive: WalArchive, timeline: int | None, records: Sequence[BackupRecord]
) -> tuple[TimelineHistory, Sequence[_Candidate]]:
    assert archive.last is not None
    history = archive.history(timeline or archive.last.segment.timeline)
    candidates = _candidates(archive, history, records)
    if not candidates:
        raise ConfigError(
            f"no backup can be restored on timeline {history.timeline}",
            "take one with `tailrace backup`; `tailrace backup ls` shows what each one lacks",
        )
    return history, candidates


def _candidates(archive: WalArchive, history: TimelineHistory, records: Sequence[BackupRecord]) -> Sequence[_Candidate]:
    """The backups of a history that the archive covers, the oldest first."""
    found = []
    for record in records:
        switched = history.switch_point(record.timeline)
        is_on_history = record.timeline == history.timeline or (switched is not None and record.end_lsn <= switched)
        end = archive.end_after(record.start_lsn, history)
        if is_on_history and end is not None and end >= record.end_lsn:
            found.append(_Candidate(record, end))
    return found


@dataclass(frozen=True)
class _Chooser:
    archive: WalArchive
    history: TimelineHistory
    candidates: Sequence[_Candidate]
    known_end: Lsn
    covered_at: datetime | None
    """The server's time up to which the archive has everything, as far as it is known."""
    bin_directory: Path

    def choose(self, target: RecoveryTarget) -> tuple[_Candidate, StopPoint]:
        match target.kind:
            case "latest":
                newest = self.candidates[-1]
                if self.known_end > newest.end:
                    raise ConfigError(
                        f"WAL is missing from {newest.end} on: the archive had it up to {self.known_end}",
                        f"--to {newest.end} restores what comes before the gap; to get past it, restore the missing "
                        "objects from a copy of the store, or use a backup from after the gap",
                    )
                return newest, self._end_of(newest)
            case "immediate":
                return self.candidates[-1], StopPoint(None, is_immediate=True)
            case "lsn":
                assert target.lsn is not None
                return self._by_lsn(target, target.lsn, is_inclusive=False)
            case "time":
                assert target.time is not None
                return self._by_time(target, target.time)
            case "xid":
                record = self._scan_all().find_commit(target.xid)
                if record is None:
                    hint = f"{self._range()}; `tailrace log cat` shows the ids of transactions"
                    raise ConfigError(f"the archive has no commit of transaction {target.xid}", hint)
                return self._by_lsn(target, record.lsn, is_inclusive=False)
            case "name":
                record = self._scan_all().find_restore_point(target.name)
                if record is None:
                    hint = f"{self._range()}; a time looks like 2026-11-15T12:00:00Z, an LSN like 0/1A2B3C4"
                    raise ConfigError(f"the archive has no restore point {target.name!r}", hint)
                return self._by_lsn(target, record.lsn, is_inclusive=True)

    def _by_lsn(self, target: RecoveryTarget, lsn: Lsn, *, is_inclusive: bool) -> tuple[_Candidate, StopPoint]:
        possible = [c for c in self.candidates if c.record.end_lsn <= lsn]
        if not possible or lsn > possible[-1].end:
            raise self._out_of_range(target)
        chosen = possible[-1]
        last = self._scan(chosen).last_record()
        if lsn > last.lsn:  # no record begins there, so PostgreSQL would not find the target
            return chosen, StopPoint(last.lsn, is_inclusive=True)
        return chosen, StopPoint(lsn, is_inclusive)

    def _by_time(self, target: RecoveryTarget, time: datetime) -> tuple[_Candidate, StopPoint]:
        possible = [c for c in self.candidates if c.record.ended_at <= time]
        if not possible:
            raise self._out_of_range(target)
        chosen = possible[-1]
        last = self._scan(chosen).last_commit()
        if last is not None and last.committed_at is not None and last.committed_at > time:
            return chosen, StopPoint(None, time=time)
        # The archive has no later commit. Whether the server had one depends on how far the archive was by then.
        is_complete = self.covered_at is not None and self.covered_at >= time
        if not is_complete or chosen.end != self.candidates[-1].end:
            raise self._out_of_range(target)
        return chosen, self._end_of(chosen)

    def _end_of(self, candidate: _Candidate) -> StopPoint:
        return StopPoint(self._scan(candidate).last_record().lsn, is_inclusive=True)

    def _scan(self, candidate: _Candidate) -> WalScan:
        start = candidate.record.end_lsn if candidate.record.end_lsn < candidate.end else candidate.record.start_lsn
        return WalScan(self.archive, self.history, start, candidate.end, self.bin_directory)

    def _scan_all(self) -> WalScan:
        oldest, newest = self.candidates[0], self.candidates[-1]
        return WalScan(self.archive, self.history, oldest.record.start_lsn, newest.end, self.bin_directory)

    def _out_of_range(self, target: RecoveryTarget) -> ConfigError:
        return ConfigError(f"{target} cannot be restored", self._range())

    def _range(self) -> str:
        first, last = self.candidates[0].record, self.candidates[-1]
        until = f"{self.covered_at:%Y-%m-%d %H:%M:%S%z}" if self.covered_at else "its last commit"
        return (
            f"possible is {first.end_lsn} to {last.end}, which is {first.ended_at:%Y-%m-%d %H:%M:%S%z} to {until}; "
            "--latest restores all that the archive has"
        )
