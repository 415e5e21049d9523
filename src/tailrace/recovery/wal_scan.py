"""Finds records in archived WAL with pg_waldump, which comes with every server."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tailrace.capture.postgres.timeline import TimelineHistory
from tailrace.change import Lsn
from tailrace.errors import CorruptError, SourceError
from tailrace.recovery.wal_archive import WalArchive
from tailrace.recovery.wal_segment import WalSegment

_RECORD = re.compile(r"rmgr: (\w+).*? tx:\s+(\d+), lsn: ([0-9A-F]+/[0-9A-F]+), .*?desc: (.*)")
_COMMIT = re.compile(r"COMMIT(?:_PREPARED)?\b.*?(\d{4,}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+) (\S+)")
_PREPARED = re.compile(r"COMMIT_PREPARED (\d+):")
# A commit lists the objects whose statistics go with it, by kind, database and oid. For a relation, that is its drop:
# TRUNCATE and ALTER TABLE keep the oid. PostgreSQL 15 and newer write it, as do those that backups can be taken from.
_DROPPED = re.compile(r"; dropped stats:((?: \d+/\d+/\d+)+)")
_RELATION_STATISTICS = 2
_RESTORE_POINT = re.compile(r"RESTORE_POINT (.*)")
# Far more than the longest ordinary record, so that the end of a large segment is found without reading all of it.
_END_BYTES = 4 << 20

# What pg_waldump says where the WAL ends, or where its last record would continue.
_ENDS = ("error in WAL record", "could not find a valid record", "could not find file")


@dataclass(frozen=True, slots=True)
class WalRecord:
    lsn: Lsn
    xid: int
    description: str

    @property
    def committed_at(self) -> datetime | None:
        """The time of a commit; None for other records."""
        match = _COMMIT.match(self.description)
        if match is None:
            return None
        return datetime.strptime(match[1][:26], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC)

    @property
    def transaction(self) -> int:
        """The transaction that the record belongs to; of a COMMIT PREPARED, the one that was prepared."""
        match = _PREPARED.match(self.description)
        return int(match[1]) if match else self.xid

    @property
    def dropped_relations(self) -> Sequence[tuple[int, int]]:
        """Of a commit, the database and the oid of each relation that it drops, also in a savepoint's transaction."""
        match = _DROPPED.search(self.description) if self.committed_at else None
        found = [tuple(map(int, text.split("/"))) for text in match[1].split()] if match else []
        return [(database, oid) for kind, database, oid in found if kind == _RELATION_STATISTICS]

    @property
    def restore_point(self) -> str | None:
        match = _RESTORE_POINT.match(self.description)
        return match[1] if match else None


class WalScan:
    """WAL along one history, from `start` to `end`, both inside the archive."""

    def __init__(
        self, archive: WalArchive, history: TimelineHistory, start: Lsn, end: Lsn, bin_directory: Path
    ) -> None:
        self._archive = archive
        self._history = history
        self._start = start
        self._end = end
        self._program = bin_directory / "pg_waldump"

    def last_record(self) -> WalRecord:
        """The last complete record."""
        for start, end in self._windows_backwards():
            records = self._dump(max(start, Lsn(end - _END_BYTES)), end) or self._dump(start, end)
            if records:
                return records[-1]
        raise CorruptError(f"the archive has no WAL record between {self._start} and {self._end}", "take a new backup")

    def last_commit(self) -> WalRecord | None:
        return next((r for r in self._backwards("Transaction") if r.committed_at), None)

    def find_commit(self, xid: int) -> WalRecord | None:
        """The last commit of a transaction with this id."""
        return next((r for r in self._backwards("Transaction") if r.committed_at and r.transaction == xid), None)

    def find_restore_point(self, name: str) -> WalRecord | None:
        """The last restore point of this name."""
        return next((r for r in self._backwards("XLOG") if r.restore_point == name), None)

    def drops(self, database: int, relations: Collection[int]) -> Iterator[tuple[WalRecord, int]]:
        """The commits that dropped one of the relations, and its oid, the newest first."""
        for record in self._backwards("Transaction"):
            for dropped_in, oid in record.dropped_relations:
                if dropped_in == database and oid in relations:
                    yield record, oid

    def next_commit(self, lsn: Lsn) -> WalRecord | None:
        """The first commit whose record begins at `lsn` or later."""
        for start, end in reversed(list(self._windows_backwards())):
            if end > lsn:
                records = self._dump(max(start, lsn), end, "--rmgr=Transaction")
                if found := next((r for r in records if r.committed_at and r.lsn >= lsn), None):
                    return found
        return None

    def _backwards(self, *managers: str) -> Iterator[WalRecord]:
        for start, end in self._windows_backwards():
            yield from reversed(self._dump(start, end, *(f"--rmgr={manager}" for manager in managers)))

    def _windows_backwards(self) -> Iterator[tuple[Lsn, Lsn]]:
        """The segments, each cut to the range, the newest first."""
        size = self._archive.system.segment_bytes
        for number in range((self._end - 1) // size, self._start // size - 1, -1):
            yield max(self._start, Lsn(number * size)), min(self._end, Lsn((number + 1) * size))

    def _dump(self, start: Lsn, end: Lsn, *options: str) -> Sequence[WalRecord]:
        """The records that begin in a part of one segment."""
        size = self._archive.system.segment_bytes
        timeline = self._history.timeline_at(Lsn(end - 1))
        first = WalSegment.at(timeline, start, size)
        with tempfile.TemporaryDirectory(prefix="tailrace-wal-") as directory:
            # A record may continue in the next segment.
            for segment in (first, first.next):
                path = Path(directory) / segment.name
                is_found = segment.start < self._end and self._archive.read_to(segment, path)
                if not is_found:
                    path.unlink(missing_ok=True)
                if not is_found and segment == first:
                    raise CorruptError(f"segment {segment} is missing from the archive", "restore the store's copy")
            command = [
                str(self._program),
                "--path",
                directory,
                f"--timeline={timeline}",
                f"--start={start}",
                f"--end={end}",
                *options,
            ]
            # Its messages and times follow the environment.
            done = subprocess.run(command, capture_output=True, text=True, env={"TZ": "UTC", "LC_ALL": "C"})
        if done.returncode and not any(text in done.stderr for text in _ENDS):
            raise SourceError(f"pg_waldump failed: {done.stderr.strip()}", f"check that {self._program} runs")
        matches = (_RECORD.match(line) for line in done.stdout.splitlines())
        return [WalRecord(Lsn.parse(m[3]), int(m[2]), m[4]) for m in matches if m]
