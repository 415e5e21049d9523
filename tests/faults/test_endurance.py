"""Everything for an hour: `tailrace run` with five sinks and a query server, while everything is killed in turn.

`make soak MINUTES=60` runs it and prints a table. What must stay bounded is sampled all the time: the memory and the
open files of each process, the WAL that the source holds, the objects in the store. At the end the rows of all
destinations are the source's.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import linear_regression

import psutil
import psycopg
import pytest
from tests.capturing import tailrace
from tests.faults.test_delivery import Destinations, Scene, kill
from tests.fixtures.postgres import make_database, running
from tests.workload import Workload

from tailrace.change import Lsn
from tailrace.delivery import status
from tailrace.embedded.nats import NatsServer
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import free_port, wait_until
from tailrace.log.reader import LogReader

MINUTES = float(os.environ.get("MINUTES", "5"))
SAMPLE_S = 5.0
SETTLED_S = 45.0
"""A process that has run for less is still loading: its memory says nothing."""
SINKS = ("replica", "audit", "files", "lake", "bus")


@dataclass
class Series:
    """One measured quantity over time."""

    unit: str
    is_history: bool = False
    """Whether it grows with the changes, because it is their history."""
    points: list[tuple[float, float]] = field(default_factory=list)

    def add(self, at: float, value: float) -> None:
        self.points.append((at, value))

    @property
    def hourly(self) -> float:
        """The slope of the second half."""
        later = self.points[len(self.points) // 2 :]
        return linear_regression(*zip(*later, strict=True)).slope * 3600 if len(later) > 1 else 0.0

    @property
    def halves(self) -> tuple[float, float]:
        """The largest value of each half."""
        middle = len(self.points) // 2
        return max(v for _, v in self.points[:middle]), max(v for _, v in self.points[middle:])


class Machinery:
    """`tailrace run` and `tailrace query`, as processes that are killed and started again."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.query_port = free_port()
        self._env = scene.env | {
            "TAILRACE_SOURCE_URL": scene.database.url,
            "TAILRACE_SOURCE_TABLES": "*.*",
            "TAILRACE_HTTP_PORT": "0",
            "TAILRACE_QUERY_PORT": str(self.query_port),
        }
        self.run = self._start("run")
        self.query = self._start("query")

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self._scene.output.open("ab") as output:
            return subprocess.Popen(
                tailrace(*arguments), env=self._env, stdout=output, stderr=output, start_new_session=True
            )

    def processes(self) -> Iterator[tuple[str, psutil.Process]]:
        """Each process with its role."""
        for name, started in (("run", self.run), ("query", self.query)):
            with suppress(psutil.NoSuchProcess):
                top = psutil.Process(started.pid)
                yield name, top
                for child in top.children(recursive=True):
                    with suppress(psutil.NoSuchProcess):
                        yield _role(child), child

    def kill_child(self, role: str) -> None:
        for found, process in self.processes():
            if found == role:
                process.kill()

    def kill_run(self) -> None:
        kill(self.run)
        self.run = self._start("run")

    def kill_query(self) -> None:
        kill(self.query)
        self.query = self._start("query")

    def close(self) -> None:
        kill(self.run)
        kill(self.query)

    def stop(self) -> None:
        """Stop `run` as an operator does."""
        self.run.terminate()
        assert self.run.wait(120) == 0, self._scene.tail()


def _role(process: psutil.Process) -> str:
    words = process.cmdline()
    if words and Path(words[0]).name == "java":
        return "java"
    return next((word for word in ("capture", "deliver") if word in words), "python workers")


class Samples:
    """Measures everything, and says what is not bounded."""

    def __init__(self, scene: Scene, machinery: Machinery, destinations: Destinations) -> None:
        self._scene = scene
        self._machinery = machinery
        self._destinations = destinations
        self._start = time.monotonic()
        self.series: dict[str, Series] = defaultdict(lambda: Series("MB"))

    def take(self) -> None:
        at = time.monotonic() - self._start
        memory: dict[str, float] = defaultdict(float)
        workers = 0
        files: dict[str, float] = defaultdict(float)
        unsettled = set()
        for role, process in self._machinery.processes():
            with suppress(psutil.NoSuchProcess):
                if role != "python workers" and time.time() - process.create_time() < SETTLED_S:
                    unsettled.add(role)
                memory[role] += process.memory_info().rss / 1e6
                files[role] += process.num_fds()
                workers += role == "python workers"
        for role in memory.keys() - unsettled:
            self.series[f"memory, {role}"].add(at, memory[role])
            self._named(f"open files, {role}", "").add(at, files[role])
        self._named("python workers", "").add(at, workers)
        with suppress(psycopg.Error):
            held = self._scene.database.rows(
                "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::float8 FROM pg_replication_slots"
            )
            self.series["WAL held by the source"].add(at, held[0][0] / 1e6)
        objects = list(self._scene.store.list("log"))
        self._named("objects of the log", "").add(at, len(objects))
        self._named("size of the log", "MB", is_history=True).add(at, sum(info.size for info in objects) / 1e6)
        self._named("other objects in the store", "").add(at, len(list(self._scene.store.list(""))) - len(objects))
        lake = [path.stat().st_size for path in _files(self._destinations.lake.directory)]
        self._named("files of the lake", "", is_history=True).add(at, len(lake))
        self._named("size of the lake", "MB", is_history=True).add(at, sum(lake) / 1e6)

    def _named(self, name: str, unit: str, *, is_history: bool = False) -> Series:
        if name not in self.series:
            self.series[name] = Series(unit, is_history)
        return self.series[name]

    def table(self) -> str:
        lines = [f"{'':34}{'first half':>12}{'second half':>12}{'per hour':>12}"]
        for name, series in sorted(self.series.items()):
            if len(series.points) > 3:
                first, second = series.halves
                note = "  its history" if series.is_history else ""
                lines.append(f"{name:34}{first:12,.0f}{second:12,.0f}{series.hourly:+12,.0f} {series.unit}{note}")
        return "\n".join(lines)

    def unbounded(self) -> list[str]:
        """What grew. A slack allows for noise: garbage collection, and what the kills happened to interrupt."""
        grown = []
        for name, series in self.series.items():
            if series.is_history or len(series.points) < 8:
                continue
            first, second = series.halves
            slack = 100 if series.unit == "MB" else 50
            if second > 1.5 * first + slack:
                grown.append(f"{name}: {first:,.0f} → {second:,.0f}")
        return grown


def _files(directory: Path) -> Iterator[Path]:
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # maintenance removes files meanwhile
            if path.is_file():
                yield path


@contextmanager
def _machinery(scene: Scene) -> Iterator[Machinery]:
    machinery = Machinery(scene)
    try:
        yield machinery
    finally:
        machinery.close()


@pytest.mark.soak
def test_nothing_grows_and_nothing_is_lost_while_everything_is_killed(tmp_path: Path) -> None:
    with running(18) as source, running(18) as server, NatsServer() as nats_server:
        destinations = Destinations(server, nats_server, tmp_path)
        database = make_database(source)
        scene = Scene(database, tmp_path, destinations.toml())
        scene.workload = Workload(database.connect, seed=3, rest_s=0.3, ddl=True, survive=True, exclusive=0.005)
        scene.workload.create()
        database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
        scene.workload.run(20)
        with _machinery(scene) as machinery:
            kills = cycle(_kills(machinery, [source, server, nats_server]))
            samples = Samples(scene, machinery, destinations)
            assert wait_until(lambda: bool(_cursors(scene)) and _is_queried(machinery.query_port), 180), scene.tail()
            end = time.monotonic() + MINUTES * 60
            pause = min(120.0, max(MINUTES * 60 / 8, 20.0))
            next_kill = time.monotonic() + pause
            queries, killed = 0, 0
            with scene.workload:
                while time.monotonic() < end:
                    samples.take()
                    queries += _query(machinery.query_port)
                    if time.monotonic() > next_kill:
                        next(kills)()
                        killed += 1
                        next_kill = time.monotonic() + pause
                    time.sleep(SAMPLE_S)
            _wait_until_level(scene)
            machinery.stop()
            changes = sum(1 for _ in LogReader(scene.store).changes())
            print(f"\n{MINUTES:g} minutes, {killed} kills, {changes:,} changes, {queries} queries\n{samples.table()}")
            destinations.assert_match(scene)
            assert queries > 0
            if MINUTES >= 20:  # the halves of a shorter run differ by what was killed in them
                assert samples.unbounded() == []


def _kills(machinery: Machinery, servers: Sequence[Postgres | NatsServer]) -> list[Callable[[], None]]:
    def kill_server(server: Postgres | NatsServer) -> Callable[[], None]:
        def act() -> None:
            server.kill9()
            server.start()

        return act

    return [
        lambda: machinery.kill_child("deliver"),
        lambda: machinery.kill_child("capture"),
        lambda: machinery.kill_child("java"),
        *(kill_server(server) for server in servers),
        machinery.kill_run,
        machinery.kill_query,
    ]


def _cursors(scene: Scene) -> list[Lsn]:
    """The cursors of all sinks; none while one of them has not begun."""
    found = [status.load(scene.store, name) for name in SINKS]
    known = [sink.cursor for sink in found if sink is not None and sink.cursor is not None]
    return known if len(known) == len(SINKS) else []


def _wait_until_level(scene: Scene) -> None:
    """Wait until every sink has everything that is committed."""
    (lsn,) = scene.database.rows("SELECT pg_current_wal_lsn()::text")[0]
    scene.workload.run(5)
    scene.workload.stop()
    reached = Lsn.parse(lsn)
    assert wait_until(lambda: min(_cursors(scene), default=Lsn(0)) > reached, 300), scene.tail()


def _is_queried(port: int) -> bool:
    with suppress(psycopg.errors.UndefinedTable):  # the lake has no tables yet
        return _query(port) == 1
    return False


def _query(port: int) -> int:
    """Count a query that the server answers; it may have been killed a moment ago."""
    with (
        suppress(psycopg.OperationalError),
        psycopg.connect(f"host=127.0.0.1 port={port} dbname=x user=x") as connection,
    ):
        assert connection.execute("SELECT count(*) FROM simple").fetchall()
        return 1
    return 0
