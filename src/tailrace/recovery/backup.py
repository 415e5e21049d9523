"""Takes base backups: straight from the server into the store, with nothing on the local disk."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

import psycopg
from psycopg.pq.abc import PGconn

from tailrace.capture.postgres.source_connection import classify, connect_replication, run_command, text_value
from tailrace.change import Lsn
from tailrace.errors import ConfigError, SourceError, SourceRefused, TailraceError
from tailrace.recovery import compressed_object
from tailrace.recovery.backup_record import (
    PREFIX,
    BackupFile,
    BackupRecord,
    list_backups,
    manifest_key,
    read_manifest,
)
from tailrace.recovery.backup_writer import CHUNK_BYTES, BackupWriter
from tailrace.recovery.base_backup import ArchiveBegin, BackupEnd, BaseBackup, ManifestBegin, upload_manifest
from tailrace.recovery.tar_stream import TarMember, TarStream
from tailrace.recovery.wal_archive import System, WalArchive
from tailrace.settings import Settings
from tailrace.store import Store

# `tailrace archive & tailrace backup` in one script: the archive needs about a second to begin.
_ARCHIVE_SECONDS = 10.0
# Longer than an idle server's WAL may take to be written as a part, by default.
_FIRST_WAL_SECONDS = 30.0
_POLL_SECONDS = 0.2
OLDEST_VERSION: Final = 150000
_OLDEST_INCREMENTAL: Final = 170000


@dataclass(slots=True)
class BackupProgress:
    """How much of a backup is written, verified or restored."""

    bytes: int = 0
    estimated_bytes: int = 0
    files: int = 0
    is_waiting: bool = False
    """Whether the archive has no WAL yet, without which no backup counts."""

    def add(self, file: BackupFile) -> None:
        self.bytes += file.size
        self.files += 1

    def state(self) -> tuple[int, int, str]:
        """The bytes done, about how many there are, and further text."""
        rest = "waiting for the first WAL of the archive" if self.is_waiting else f"{self.files:,} files"
        return self.bytes, self.estimated_bytes, rest


def take_backup(
    settings: Settings,
    store: Store,
    kind: Literal["full", "incremental"] = "full",
    progress: BackupProgress | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> BackupRecord:
    """Take a backup and return its record. It counts once the archive covers it: see `is_covered`."""
    progress = progress or BackupProgress()
    archive = _await_archive(store, progress, is_cancelled)
    connection = connect_replication(settings.source)
    try:
        facts = _ServerFacts.read(connection)
        archive.system.check(facts.system)
        parent = _parent(store, archive, facts) if kind == "incremental" else None
        if parent is not None:
            upload_manifest(connection, read_manifest(store, parent.id))
        backup = BaseBackup(connection, "tailrace", incremental=parent is not None, is_cancelled=is_cancelled)
        _check_start(archive, backup.start.lsn, backup.start.timeline)
        progress.estimated_bytes = backup.start.estimated_bytes
        id = f"{facts.clock:%Y%m%dT%H%M%SZ}-{backup.start.lsn:016X}"
        if next(store.list(f"{PREFIX}/{id}"), None) is not None:  # possible on a standby, whose checkpoints are shared
            raise SourceError("another backup began at the same moment", "take the backup again")
        try:
            return _store_backup(connection, store, backup, facts, parent, id, progress)
        except BaseException:
            _remove_incomplete(store, id)
            raise
    except psycopg.Error as error:
        raise classify(error) from error
    finally:
        connection.finish()


def _await_archive(store: Store, progress: BackupProgress, is_cancelled: Callable[[], bool]) -> WalArchive:
    """The archive. One that has just been started gets a moment to begin, and to write its first WAL."""
    began = time.monotonic()
    while (archive := WalArchive.load(store)) is None or not archive.segments:
        progress.is_waiting = True
        if is_cancelled():
            raise SourceError("the backup was cancelled")
        if time.monotonic() - began > (_FIRST_WAL_SECONDS if archive is not None else _ARCHIVE_SECONDS):
            break
        time.sleep(_POLL_SECONDS)
    progress.is_waiting = False
    return WalArchive.require(store)


def is_covered(archive: WalArchive, record: BackupRecord) -> bool:
    """Whether the archive holds all WAL from the backup's start to its end, without which it cannot be restored."""
    end = archive.end_after(record.start_lsn, archive.history(record.timeline))
    return end is not None and end >= record.end_lsn


@dataclass(frozen=True, slots=True)
class _ServerFacts:
    system: System
    version: int
    block_bytes: int
    role: str
    clock: datetime

    @classmethod
    def read(cls, connection: PGconn) -> _ServerFacts:
        identity = run_command(connection, "IDENTIFY_SYSTEM")
        settings = run_command(
            connection,
            "SELECT (SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_segment_size'),"
            " pg_catalog.current_setting('server_version_num'), pg_catalog.current_setting('block_size'), current_user",
        )
        version = int(text_value(settings, 1))
        if version < OLDEST_VERSION:
            raise SourceRefused(
                f"the server is PostgreSQL {version // 10000}: backups need {OLDEST_VERSION // 10000} or newer",
                "use pg_basebackup",
            )
        system = System(text_value(identity, 0), int(text_value(settings, 0)))
        return cls(system, version, int(text_value(settings, 2)), text_value(settings, 3), _clock(connection))


def _clock(connection: PGconn) -> datetime:
    query = "SELECT extract(epoch FROM pg_catalog.clock_timestamp())"
    return datetime.fromtimestamp(float(text_value(run_command(connection, query), 0)), UTC)


def _parent(store: Store, archive: WalArchive, facts: _ServerFacts) -> BackupRecord:
    """The newest backup that counts."""
    if facts.version < _OLDEST_INCREMENTAL:
        raise SourceRefused(
            f"the server is PostgreSQL {facts.version // 10000}: incremental backups need 17 or newer",
            "take a full backup",
        )
    counting = [record for record in list_backups(store) if is_covered(archive, record)]
    if not counting:
        raise ConfigError("there is no backup that an incremental one could build on", "take a full backup first")
    return counting[-1]


def _check_start(archive: WalArchive, start: Lsn, timeline: int) -> None:
    ranges = [r for r in archive.ranges() if r.timeline == timeline]
    begins = ranges[-1].start if ranges else None
    if begins is None or start < begins:
        raise SourceError(
            f"the backup would begin at {start}, before the archive, which has WAL of timeline {timeline} from "
            f"{begins or 'nowhere'} on",
            "wait until `tailrace archive` has begun, then take the backup again",
        )


def _store_backup(
    connection: PGconn,
    store: Store,
    backup: BaseBackup,
    facts: _ServerFacts,
    parent: BackupRecord | None,
    id: str,
    progress: BackupProgress,
) -> BackupRecord:
    manifest = bytearray()
    tar, directory, is_manifest = TarStream(), "", False
    end: BackupEnd | None = None
    with BackupWriter(store, id) as writer:
        for event in backup.events():
            match event:
                case ArchiveBegin(tablespace):
                    _check_complete(tar)
                    tar = TarStream()
                    directory = "" if tablespace is None else f"pg_tblspc/{tablespace}/"
                    is_manifest = False
                case ManifestBegin():
                    is_manifest = True
                case BackupEnd():
                    end = event
                case data if is_manifest:
                    manifest += data
                case data:
                    for piece in tar.feed(data):
                        if isinstance(piece, TarMember):
                            writer.add_member(directory + piece.path, piece)
                            progress.files = len(writer.files)
                        else:
                            writer.add_content(piece)
                    progress.bytes = writer.size
        _check_complete(tar)
        assert end is not None
        writer.finish()
        stored = writer.stored_bytes + compressed_object.create(store, manifest_key(id), bytes(manifest))
    connection.nonblocking = 0
    record = BackupRecord(
        id=id,
        system_id=facts.system.system_id,
        server_version=facts.version,
        timeline=backup.start.timeline,
        start_lsn=backup.start.lsn,
        end_lsn=end.lsn,
        started_at=facts.clock,
        ended_at=_clock(connection),
        parent=parent.id if parent else None,
        chunk_bytes=CHUNK_BYTES,
        block_bytes=facts.block_bytes,
        size=writer.size,
        stored_bytes=stored,
        files=sum(file.kind == "file" for file in writer.files),
        role=facts.role,
        tablespaces=backup.start.tablespaces,
    )
    record.create(store)
    return record


def _check_complete(tar: TarStream) -> None:
    if not tar.is_complete:
        raise SourceError("the server ended an archive in the middle of a file", "take the backup again")


def _remove_incomplete(store: Store, id: str) -> None:
    """Remove what a failed backup wrote. If that fails too, `backup expire` removes it later."""
    with contextlib.suppress(TailraceError):
        for info in store.list(f"{PREFIX}/{id}"):
            store.delete(info.key)
