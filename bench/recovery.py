"""Recovery: WAL received, a backup taken and WAL replayed, each in turns with PostgreSQL's own program for it.

- Receive: the archive, and pg_receivewal without compression and with gzip:1, each in a process of its own, from the
  same LSN to the same LSN. pg_receivewal writes files; the archive compresses, hashes and fsyncs objects. It is so much
  WAL that the start of the process, which an archive has once, is a fraction of the time.
- Backup: `tailrace backup`'s work, and pg_basebackup in tar format with gzip:1 on the client, which has no zstd here.
- Replay: the same server recovering from the archive through the spool, and from local files by `cp`.
- Table: one table restored from its snapshot and the log, and the same rows piped from one psql's COPY to another's.
  Both end with the primary key.
- Commit: with synchronous_standby_names, one client's commits confirmed by the archive and by pg_receivewal, each in a
  process of its own.
- Standby: from a commit until a standby shows its row, fed from the store by a synchronous archive, and streaming.
- Backup and restore beside pgBackRest: see `bench.pgbackrest`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench import pgbackrest
from bench.report import Report
from tailrace.capture.capture import Capture
from tailrace.capture.postgres.bootstrap import Bootstrap
from tailrace.change import Lsn
from tailrace.embedded.installation import unprivileged_user
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.recovery import restore
from tailrace.recovery.archive import Archive
from tailrace.recovery.backup import is_covered, take_backup
from tailrace.recovery.data_directory import DataDirectory
from tailrace.recovery.recovery_server import RecoveryServer
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.recovery.restore_plan import RestorePlan, plan_restore
from tailrace.recovery.standby import Standby, Upstream, lay_out
from tailrace.recovery.wal_archive import WalArchive
from tailrace.settings import ArchiveSettings, Settings, SourceSettings, StoreSettings
from tailrace.store import Store

_LOAD = """
DO $$ BEGIN FOR i IN 0..799 LOOP
    INSERT INTO t SELECT g, md5(g::text), now(), g % 1000 FROM generate_series(i * 5000 + 1, i * 5000 + 5000) g; COMMIT;
END LOOP; END $$
"""
_COMMITS = 300
_LOADS_TO_RECEIVE = 4


def run(report: Report, rounds: int = 3) -> None:
    report.title("Recovery: the archive, backups and replay, compared with PostgreSQL's own programs")
    with tempfile.TemporaryDirectory(prefix="tailrace-bench-") as name:
        work = Path(name)
        work.chmod(0o755)
        with Postgres(max_wal_size="16GB", wal_keep_size="16GB", checkpoint_timeout="1h") as server:
            bench = _Bench(server, work, report, rounds)
            bench.load()
            bench.receive()
            bench.back_up()
            bench.replay()
            bench.table()
            bench.commit()
            bench.standby()
        pgbackrest.compare(report, work, rounds)


class _Bench:
    def __init__(self, server: Postgres, work: Path, report: Report, rounds: int) -> None:
        self._server = server
        self._work = work
        self._report = report
        self._rounds = rounds
        self._start = self._end = Lsn(0)
        self._number = 0
        self._store = Store.open(str(work / "store"))
        self._settings = Settings(
            source=SourceSettings(url=server.url), archive=ArchiveSettings(synchronous=True, slot="bench")
        )

    def load(self) -> None:
        """Take a backup that replay starts from, then write the WAL that everything else reads."""
        with self._server.connect() as connection, self._archiving(self._store):
            connection.execute("CREATE TABLE t (id bigint, note text, at timestamptz, n int)")
            assert wait_until(lambda: (a := WalArchive.load(self._store)) is not None and bool(a.segments), 60)
            take_backup(self._settings, self._store)
            self._start = self._flushed(connection)
            connection.execute(_LOAD.encode())
            connection.execute("SELECT pg_switch_wal()")
            connection.execute("INSERT INTO t VALUES (0)")
            self._end = self._flushed(connection)
            assert wait_until(lambda: self._archive_end() >= self._end, 600)

    def receive(self) -> None:
        with self._server.connect(autocommit=True) as connection:
            for _ in range(_LOADS_TO_RECEIVE - 1):
                connection.execute("CREATE TABLE more (LIKE t)")
                connection.execute(_LOAD.replace("INTO t", "INTO more").encode())
                connection.execute("DROP TABLE more")
            end = self._flushed(connection)
        end = Lsn(end - end % (16 << 20))  # both programs finish segments
        size = end - self._start
        times = self._in_turns(
            {
                "archive": lambda: self._receive_ours(end),
                "pg_receivewal": lambda: self._receive_theirs(end),
                "pg_receivewal, gzip:1": lambda: self._receive_theirs(end, "--compress=gzip:1"),
            }
        )
        self._report.section(f"receive {size / 1e6:,.0f} MB of WAL")
        self._lines(times, size)
        self._ratio(times, "archive", "pg_receivewal", 0.6)
        self._ratio(times, "archive", "pg_receivewal, gzip:1", 1.1)

    def back_up(self) -> None:
        stores = iter(range(10**6))

        def ours() -> float:
            """A backup needs an archive in its store, so it has this one's."""
            store = Store.open(str(self._work / f"backup{next(stores)}"))
            shutil.copytree(self._work / "store" / "wal", Path(store.url.removeprefix("file://")) / "wal")
            began = time.monotonic()
            take_backup(self._settings, store)
            return time.monotonic() - began

        def theirs() -> float:
            target = self._directory("basebackup")
            return self._run("pg_basebackup", "-d", self._server.url, "-D", target, "-F", "tar", "-X", "none",
                             "-c", "fast", "--compress=client-gzip:1", "--manifest-checksums=SHA256")  # fmt: skip

        with self._server.connect() as connection:
            row = connection.execute("SELECT sum(pg_database_size(oid))::int8 FROM pg_database").fetchone()
            assert row is not None
        times = self._in_turns({"backup": ours, "pg_basebackup, gzip:1": theirs})
        self._report.section(f"back up {row[0] / 1e6:,.0f} MB")
        self._lines(times, row[0])
        self._ratio(times, "backup", "pg_basebackup, gzip:1", 0.85)

    def replay(self) -> None:
        programs = self._server.bin("postgres").parent
        plan = plan_restore(self._store, RecoveryTarget("lsn", lsn=self._end), programs)
        files = self._directory("wal")
        for stored in plan.archive.segments:
            content = plan.archive.read(stored.segment)
            assert content is not None
            (files / stored.segment.name).write_bytes(content)
            (files / stored.segment.name).chmod(0o644)

        def recover(copy_files: bool) -> float:
            copy = DataDirectory(self._directory("copy"))
            restore.write_directory(self._store, plan, copy)
            began = time.monotonic()
            with _copying(plan, copy, programs, files) if copy_files else _spooling(plan, copy, programs) as server:
                while (state := server.state()) is None or not state.is_paused:
                    time.sleep(0.005)
            return time.monotonic() - began

        times = self._in_turns({"spool": lambda: recover(False), "cp": lambda: recover(True)})
        size = self._end - self._start
        self._report.section(f"replay {size / 1e6:,.0f} MB of WAL, with the start and stop of the server")
        self._lines(times, size)
        self._ratio(times, "spool", "cp", 0.8)

    def table(self) -> None:
        rows = 2_000_000
        self._server.create_database("shop", "UTF8")
        url = self._server.url_of("shop")
        settings = Settings(
            source=SourceSettings(url=url, slot="shop"), store=StoreSettings(str(self._directory("shop")))
        )
        store = Store.open(settings.store.url)
        with self._server.connect("shop", autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id bigint PRIMARY KEY, note text, at timestamptz, n int)")
            connection.execute(
                f"INSERT INTO t SELECT g, md5(g::text), now(), g % 1000 FROM generate_series(1, {rows}) g"
            )
            connection.execute("CREATE PUBLICATION tailrace FOR TABLE t")
            snapshots = Bootstrap(settings, store)
            capture = Capture(settings, store, snapshots=snapshots)
            thread = threading.Thread(target=capture.run, daemon=True)
            thread.start()
            assert wait_until(lambda: capture.is_streaming, 60)
            assert snapshots.wait(600)
            connection.execute(f"UPDATE t SET n = -n WHERE id <= {rows // 100}")
            end = self._flushed(connection)
            assert wait_until(lambda: capture.durable_lsn >= end, 60)
            capture.stop()
            thread.join()
            snapshots.stop()
            self._server.create_database("copy", "UTF8")
            copy = self._server.url_of("copy")
            psql = str(self._server.bin("psql"))

            def clean() -> None:
                with self._server.connect("copy", autocommit=True) as connection:
                    connection.execute("DROP TABLE IF EXISTS t")
                    connection.execute("CHECKPOINT")

            def ours() -> float:
                clean()
                began = time.monotonic()
                command = [
                    sys.executable,
                    "-m",
                    "tailrace",
                    "restore",
                    "--table",
                    "t",
                    "--to",
                    "latest",
                    "--into",
                    copy,
                ]
                subprocess.run(
                    command, env=os.environ | {"TAILRACE_STORE_URL": store.url}, check=True, capture_output=True
                )
                return time.monotonic() - began

            def theirs() -> float:
                clean()
                began = time.monotonic()
                create = "CREATE TABLE t (id bigint, note text, at timestamptz, n int)"
                subprocess.run([psql, "-q", copy, "-c", create], check=True)
                with subprocess.Popen([psql, "-q", url, "-c", "COPY t TO STDOUT"], stdout=subprocess.PIPE) as out:
                    subprocess.run([psql, "-q", copy, "-c", "COPY t FROM STDIN"], stdin=out.stdout, check=True)
                subprocess.run([psql, "-q", copy, "-c", "ALTER TABLE t ADD PRIMARY KEY (id)"], check=True)
                return time.monotonic() - began

            times = self._in_turns({"restore --table": ours, "COPY out and in": theirs})
            row = connection.execute("SELECT pg_table_size('t')").fetchone()
            assert row is not None
        self._report.section(f"restore a table of {rows:,} rows, {row[0] / 1e6:,.0f} MB")
        self._lines(times, row[0])
        self._ratio(times, "restore --table", "COPY out and in", 0.65)

    def commit(self) -> None:
        def ours() -> float:
            environment = self._environment("commit") | {"TAILRACE_ARCHIVE_SYNCHRONOUS": "true"}
            slot = environment["TAILRACE_ARCHIVE_SLOT"]
            command = [sys.executable, "-m", "tailrace", "archive"]
            with self._running(command, os.environ | environment):
                seconds = self._commit(slot)
            self._drop_slot(slot)
            return seconds

        def theirs() -> float:
            target = self._directory("receive")
            command = ["-d", f"{self._server.url}?application_name=receiver", "-D", target, "--synchronous", "-n"]
            with self._running([str(self._server.bin("pg_receivewal")), *map(str, command)], os.environ):
                return self._commit("receiver")

        times = self._in_turns({"archive": ours, "pg_receivewal": theirs})
        self._report.section(f"a synchronous commit, median of {_COMMITS} in each of {self._rounds} rounds")
        for name, found in times.items():
            self._report.line(name, f"{statistics.median(found) * 1000:,.2f} ms")
        ratio = statistics.median(times["archive"]) / statistics.median(times["pg_receivewal"])
        self._report.line("archive / pg_receivewal", f"{ratio:.2f}×", "want ≤ 2", ratio <= 2)

    def standby(self) -> None:
        store = Store.open(str(self._directory("standby-store")))
        programs = self._server.bin("postgres").parent
        with self._archiving(store):
            assert wait_until(lambda: (a := WalArchive.load(store)) is not None and bool(a.segments), 60)
            record = take_backup(self._settings, store)
            assert wait_until(lambda: is_covered(WalArchive.require(store), record), 60)
            upstream = Upstream.prepare(self._settings.source, "streamed", store)
            self._report.section(
                f"a standby's lag after a commit, {_COMMITS // 3} commits in each of {self._rounds} rounds"
            )
            plan = plan_restore(store, RecoveryTarget("latest"), programs)
            copies = {name: DataDirectory(self._directory("copy")) for name in ("from the store", "streaming")}
            with contextlib.ExitStack() as stack:
                running = {}
                for name, copy in copies.items():
                    laid_out = lay_out(store, plan, copy, lambda _: None)
                    feed = upstream if name == "streaming" else None
                    running[name] = stack.enter_context(Standby(store, copy, laid_out, programs, feed))
                for each in running.values():
                    assert wait_until(lambda s=each: s.poll() is not None, 120)  # type: ignore[misc]
                assert wait_until(
                    lambda: running["streaming"].poll() is not None and running["streaming"].is_streaming, 120
                )
                lags: dict[str, list[float]] = {name: [] for name in running}
                for _ in range(self._rounds):
                    for name, each in running.items():
                        lags[name] += self._lags(each)
        self._drop_slot("streamed")
        for name, found in lags.items():
            middle, late = statistics.median(found), statistics.quantiles(found, n=20)[-1]
            is_store = name == "from the store"
            want = ("want p95 ≤ 300 ms", late <= 0.3) if is_store else ()
            self._report.line(name, f"p50 {middle * 1000:,.0f} ms, p95 {late * 1000:,.0f} ms", *want)

    def _lags(self, standby: Standby) -> list[float]:
        """How long each of some commits takes until the standby shows it."""
        seconds = []
        query = "SELECT max(id) FROM lag"
        with self._server.connect() as connection, standby.server.connect() as reader:
            connection.execute("CREATE TABLE IF NOT EXISTS lag (id serial PRIMARY KEY)")
            for _ in range(_COMMITS // 3):
                row = connection.execute("INSERT INTO lag DEFAULT VALUES RETURNING id").fetchone()
                began = time.monotonic()

                def is_shown(row: Any = row) -> bool:
                    try:
                        return bool(reader.execute(query).fetchone() == row)
                    except psycopg.errors.UndefinedTable:
                        return False

                assert wait_until(is_shown, 60)
                seconds.append(time.monotonic() - began)
        return seconds

    def _commit(self, standby: str) -> float:
        with self._server.connect() as connection:
            query = "SELECT count(*) FROM pg_stat_replication WHERE application_name = %s AND state = 'streaming'"
            assert wait_until(lambda: connection.execute(query, [standby]).fetchone() == (1,), 60)
            self._server.conf(synchronous_standby_names=standby)
            try:
                seconds = []
                for number in range(_COMMITS):
                    began = time.monotonic()
                    connection.execute("INSERT INTO t VALUES (%s)", [number])
                    seconds.append(time.monotonic() - began)
                return statistics.median(seconds)
            finally:
                self._server.conf(synchronous_standby_names="")

    def _receive_ours(self, end: Lsn) -> float:
        settings = self._environment("received")
        self._create_slot(settings["TAILRACE_ARCHIVE_SLOT"])
        began = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", "tailrace", "archive", "--until-lsn", str(end)],
            env=os.environ | settings,
            check=True,
            capture_output=True,
        )
        seconds = time.monotonic() - began
        self._drop_slot(settings["TAILRACE_ARCHIVE_SLOT"])
        shutil.rmtree(settings["TAILRACE_STORE_URL"])
        return seconds

    def _environment(self, name: str) -> dict[str, str]:
        """The settings of an archive with a store and a slot of its own."""
        self._number += 1
        return {
            "TAILRACE_SOURCE_URL": self._server.url,
            "TAILRACE_STORE_URL": str(self._work / f"{name}{self._number}"),
            "TAILRACE_ARCHIVE_SLOT": f"{name}{self._number}",
        }

    def _receive_theirs(self, end: Lsn, *options: str) -> float:
        self._number += 1
        slot = f"received{self._number}"
        self._create_slot(slot)
        target = self._directory("received")
        seconds = self._run("pg_receivewal", "-d", self._server.url, "-D", target, "-S", slot,
                            f"--endpos={end}", "-n", *options)  # fmt: skip
        self._drop_slot(slot)
        shutil.rmtree(target)
        return seconds

    def _create_slot(self, name: str) -> None:
        """Create a slot that begins before the load, as the slot `origin` does."""
        with self._server.connect() as connection:
            connection.execute("SELECT pg_copy_physical_replication_slot('origin', %s)", [name])

    def _drop_slot(self, name: str) -> None:
        with self._server.connect() as connection:
            connection.execute("SELECT pg_drop_replication_slot(%s)", [name])

    @contextmanager
    def _archiving(self, store: Store) -> Iterator[None]:
        with self._server.connect() as connection:
            connection.execute(
                "SELECT pg_create_physical_replication_slot('origin', true) WHERE NOT EXISTS"
                " (SELECT FROM pg_replication_slots WHERE slot_name = 'origin')"
            )
        archive = Archive(self._settings, store)
        thread = threading.Thread(target=archive.run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            archive.stop()
            thread.join()
            self._drop_slot("bench")

    def _archive_end(self) -> Lsn:
        archive = WalArchive.load(self._store)
        return archive.last.end if archive and archive.last else Lsn(0)

    def _flushed(self, connection: Any) -> Lsn:
        return Lsn.parse(connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()[0])

    def _directory(self, kind: str) -> Path:
        self._number += 1
        path = self._work / f"{kind}{self._number}"
        path.mkdir()
        if owner := unprivileged_user():
            os.chown(path, *owner)
        return path

    def _run(self, name: str, *arguments: object) -> float:
        began = time.monotonic()
        subprocess.run([str(self._server.bin(name)), *map(str, arguments)], check=True, capture_output=True)
        return time.monotonic() - began

    @contextmanager
    def _running(self, command: list[str], environment: Mapping[str, str]) -> Iterator[None]:
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()
            process.wait()

    def _in_turns(self, ways: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
        times: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(self._rounds):
            for name, way in ways.items() if number % 2 == 0 else reversed(list(ways.items())):
                times[name].append(way())
        return times

    def _lines(self, times: dict[str, list[float]], size: int) -> None:
        for name, found in times.items():
            seconds = statistics.median(found)
            self._report.line(name, f"{seconds:.2f} s, {size / seconds / 1e6:,.0f} MB/s")

    def _ratio(self, times: dict[str, list[float]], ours: str, theirs: str, want: float) -> None:
        ratio = statistics.median(t / o for o, t in zip(times[ours], times[theirs], strict=True))
        self._report.line(f"speed of {ours} / {theirs}", f"{ratio:.2f}×", f"want ≥ {want}", ratio >= want)


@contextmanager
def _spooling(plan: RestorePlan, copy: DataDirectory, programs: Path) -> Iterator[RecoveryServer]:
    with restore.recovering(plan, copy, programs, "pause") as recovery:
        yield recovery.server


@contextmanager
def _copying(plan: RestorePlan, copy: DataDirectory, programs: Path, files: Path) -> Iterator[RecoveryServer]:
    settings = plan.stop.settings(plan.history.timeline, "pause") | {"restore_command": f"cp {files}/%f %p"}
    with RecoveryServer(copy, programs, plan.backup.role, settings, copy.path / "server.log") as server:
        yield server
