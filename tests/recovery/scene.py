"""A server with its archive, and restores of it, for the tests of recovery."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from tests.capturing import current_lsn

from tailrace import settings
from tailrace.change import Lsn
from tailrace.embedded.installation import unprivileged_user
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.recovery import restore
from tailrace.recovery.archive import Archive
from tailrace.recovery.backup import is_covered, take_backup
from tailrace.recovery.backup_record import BackupRecord
from tailrace.recovery.data_directory import DataDirectory
from tailrace.recovery.recovery_server import RecoveryServer
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.recovery.restore_plan import plan_restore
from tailrace.recovery.wal_archive import WalArchive
from tailrace.store import Store

Rows = list[tuple[Any, ...]]


def configured(server: Postgres, role: str = "postgres", **archive: Any) -> settings.Settings:
    source = settings.SourceSettings(url=server.url_of("postgres", role))
    return settings.Settings(source=source, archive=settings.ArchiveSettings(**archive))


class ArchiveThread:
    """A running archive. Leaving the context stops it and raises its error, if any."""

    def __init__(self, configured: settings.Settings, store: Store, **options: Any) -> None:
        self.archive = Archive(configured, store, **options)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="archive", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.archive.stop()
        self._thread.join()
        if self.error is not None and error is None:
            raise self.error

    def wait_for(self, lsn: Lsn, seconds: float = 60) -> None:
        assert wait_until(lambda: self.archive.durable_lsn >= lsn or self.error is not None, seconds), "timed out"
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def failure(self, seconds: float = 60) -> BaseException:
        """Wait for the end of the archive, and return its error."""
        assert wait_until(lambda: self.error is not None, seconds), "the archive is still running"
        error, self.error = self.error, None
        assert error is not None
        return error

    def _run(self) -> None:
        try:
            self.archive.run()
        except BaseException as error:
            self.error = error


def archive_all(server: Postgres, store: Store) -> None:
    """Archive everything written so far."""
    with server.connect() as connection:
        end = current_lsn(connection)
    with ArchiveThread(configured(server, synchronous=True), store) as thread:
        thread.wait_for(end)


def back_up(
    server: Postgres, store: Store, kind: Literal["full", "incremental"] = "full", role: str = "postgres"
) -> BackupRecord:
    """Take a backup while an archive runs, and wait until it counts."""
    assert wait_until(lambda: WalArchive.load(store) is not None, 30)
    record = take_backup(configured(server, role), store, kind)
    assert wait_until(lambda: is_covered(WalArchive.require(store), record), 60)
    return record


def assert_same_wal(server: Postgres, store: Store) -> int:
    """Compare the archive with pg_wal, byte by byte, and return the number of segments."""
    archive = WalArchive.require(store)
    for stored in archive.segments:
        expected = (server.data / "pg_wal" / stored.segment.name).read_bytes()
        size = stored.end - stored.segment.start
        content = archive.read(stored.segment)
        assert content is not None
        assert content[:size] == expected[:size], stored.segment
        assert not any(content[size:])
    assert len(list(archive.ranges())) == 1
    return len(archive.segments)


def archive_end(store: Store) -> Lsn:
    archive = WalArchive.load(store)
    return archive.last.end if archive is not None and archive.last is not None else Lsn(0)


def new_directory(parent: Path, name: str) -> Path:
    """An empty directory for the user that runs PostgreSQL."""
    path = parent / name
    path.mkdir()
    if owner := unprivileged_user():
        os.chown(path, *owner)
    return path


@dataclass
class Copy:
    """A restored server."""

    moment: restore.RestoredMoment
    chain: Sequence[BackupRecord]
    server: RecoveryServer

    def rows(self, query: str, database: str = "postgres") -> Rows:
        with self.server.connect(database) as connection:
            found: Rows = connection.execute(query.encode()).fetchall()
            return found


@contextmanager
def restored(
    server: Postgres,
    store: Store,
    target: RecoveryTarget,
    directory: Path,
    action: Literal["pause", "promote"] = "pause",
    timeline: int | None = None,
) -> Iterator[Copy]:
    """A copy of the server at a moment, while the context lasts."""
    programs = server.bin("postgres").parent
    plan = plan_restore(store, target, programs, timeline)
    spaces = {each.oid: new_directory(directory.parent, f"space-{each.oid}") for each in plan.backup.tablespaces}
    copy = DataDirectory(directory, spaces)
    restore.write_directory(store, plan, copy)
    with restore.recovering(plan, copy, programs, action) as recovery:
        yield Copy(recovery.wait(), plan.chain, recovery.server)


@contextmanager
def streaming_standby(primary: Postgres, workspace: Path, name: str) -> Iterator[Postgres]:
    """A standby that streams from the primary."""
    directory = new_directory(workspace, name)
    owner = directory.stat()
    subprocess.run(
        [primary.bin("pg_basebackup"), "-d", primary.url, "-D", directory / "data", "-R", "-c", "fast"],
        check=True,
        capture_output=True,
        user=owner.st_uid,
        group=owner.st_gid,
        extra_groups=[],
        cwd="/",
    )
    with Postgres(primary.version, directory, fsync=False, wal_keep_size="1GB") as standby:
        yield standby
        standby.stop("immediate")


def promote(standby: Postgres) -> None:
    with standby.connect() as connection:
        connection.execute("SELECT pg_promote()")
        assert wait_until(lambda: connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,), 30)
