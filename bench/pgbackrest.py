"""Backups and restores beside pgBackRest's, where Debian's `pgbackrest` and `postgresql-15` are installed.

Debian's pgBackRest knows no newer PostgreSQL. Both write zstd of level 1 with one process, neither waits for WAL, and a
restore lays out the files without replay.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.report import Report
from tailrace.embedded.installation import unprivileged_user
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.recovery.archive import Archive
from tailrace.recovery.backup import take_backup
from tailrace.recovery.backup_record import list_backups
from tailrace.recovery.data_directory import DataDirectory
from tailrace.recovery.wal_archive import WalArchive
from tailrace.settings import ArchiveSettings, Settings, SourceSettings
from tailrace.store import Store

_VERSION: Final = 15
_ROWS: Final = "INSERT INTO t SELECT g, md5(g::text), now(), g % 1000 FROM generate_series(1, 4000000) g"


def compare(report: Report, work: Path, rounds: int) -> None:
    report.section("against pgBackRest")
    if shutil.which("pgbackrest") is None or not Path(f"/usr/lib/postgresql/{_VERSION}/bin/postgres").exists():
        report.line("skipped", "needs Debian's pgbackrest and postgresql-15")
        return
    sockets = _directory(work, "sockets")
    with Postgres(_VERSION, _directory(work, "server"), unix_socket_directories=str(sockets)) as server:
        with server.connect() as connection:
            connection.execute("CREATE TABLE t (id bigint, note text, at timestamptz, n int)")
            connection.execute(_ROWS.encode())
            connection.execute("CHECKPOINT")
        _Comparison(report, work, rounds, server, sockets).run()


class _Comparison:
    def __init__(self, report: Report, work: Path, rounds: int, server: Postgres, sockets: Path) -> None:
        self._report = report
        self._work = work
        self._rounds = rounds
        self._server = server
        self._sockets = sockets
        self._number = 0
        self._store = Store.open(str(work / "pgbackrest-store"))
        self._settings = Settings(
            source=SourceSettings(url=server.url), archive=ArchiveSettings(synchronous=True, slot="pgbackrest")
        )
        self._program = [
            "pgbackrest",
            "--stanza=bench",
            "--config=/dev/null",
            f"--repo1-path={_directory(work, 'repository')}",
            f"--lock-path={_directory(work, 'lock')}",
            f"--log-path={_directory(work, 'log')}",
            "--log-level-file=off",
        ]

    def run(self) -> None:
        """A backup of ours needs an archive in its store; pgBackRest is told not to look for one."""
        data = [
            f"--pg1-path={self._server.data}",
            f"--pg1-port={self._server.port}",
            f"--pg1-socket-path={self._sockets}",
            "--pg1-user=postgres",
        ]
        self._pgbackrest(*data, "--no-online", "stanza-create")
        archive = Archive(self._settings, self._store)
        with _archiving(archive, self._store):
            options = ["--type=full", "--start-fast", "--no-archive-check", "--compress-type=zst", "--compress-level=1"]
            self._in_turns(
                "backup",
                lambda: self._time(lambda: take_backup(self._settings, self._store)),
                lambda: self._time(lambda: self._pgbackrest(*data, *options, "backup")),
            )
        self._in_turns("restore", self._restore_ours, self._restore_theirs)

    def _restore_ours(self) -> float:
        copy = DataDirectory(self._next_directory())
        copy.prepare()
        return self._time(lambda: copy.write(self._store, [list_backups(self._store)[-1]]))

    def _restore_theirs(self) -> float:
        target = self._next_directory()
        return self._time(lambda: self._pgbackrest(f"--pg1-path={target}", "--type=none", "restore"))

    def _in_turns(self, what: str, ours: Callable[[], float], theirs: Callable[[], float]) -> None:
        pairs = [(ours(), theirs()) for _ in range(self._rounds)]
        for name, found in zip((what, f"pgBackRest's {what}"), zip(*pairs, strict=True), strict=True):
            self._report.line(name, f"{statistics.median(found):.2f} s")
        ratio = statistics.median(their / our for our, their in pairs)
        self._report.line(f"speed of {what} / pgBackRest", f"{ratio:.2f}×", "want ≥ 0.9", ratio >= 0.9)

    def _next_directory(self) -> Path:
        self._number += 1
        return _directory(self._work, f"pgbackrest-copy{self._number}")

    def _pgbackrest(self, *arguments: str) -> None:
        done = subprocess.run([*self._program, *arguments], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"pgbackrest {arguments[-1]}: {done.stdout}{done.stderr}")

    @staticmethod
    def _time(work: Callable[[], object]) -> float:
        began = time.monotonic()
        work()
        return time.monotonic() - began


@contextmanager
def _archiving(archive: Archive, store: Store) -> Iterator[None]:
    thread = threading.Thread(target=archive.run, daemon=True)
    thread.start()
    try:
        assert wait_until(lambda: (a := WalArchive.load(store)) is not None and bool(a.segments), 120)
        yield
    finally:
        archive.stop()
        thread.join()


def _directory(work: Path, name: str) -> Path:
    path = work / name
    path.mkdir()
    if owner := unprivileged_user():
        os.chown(path, *owner)
    return path
