"""Everything for an hour: `tailrace run` with five sinks and a query server, while everything is killed in turn.

`make soak MINUTES=60` runs it and prints a table. What must stay bounded is sampled all the time: the memory and the
open files of each process, the WAL that the source holds, the objects in the store, the lake's and temporary files. For
the first two thirds a process or a server is killed every two minutes. Then nothing is: a slow leak would show. At the
end the rows of all destinations and of the query server are the source's, and no process is left behind.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from tests import oracle
from tests.capturing import tailrace
from tests.contract.destinations import difference
from tests.contract.test_lake_query import rows
from tests.faults.growth import Growth
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
WARM_S = min(300.0, MINUTES * 60 / 12)
"""After the last kill, caches fill for so long."""
SINKS = ("replica", "audit", "files", "lake", "bus")


class Machinery:
    """`tailrace run` and `tailrace query`, as processes that are killed and started again."""

    def __init__(self, scene: Scene, temporary: Path) -> None:
        self._scene = scene
        self.query_port = free_port()
        self._env = scene.env | {
            "TAILRACE_SOURCE_URL": scene.database.url,
            "TAILRACE_SOURCE_TABLES": "*.*",
            "TAILRACE_HTTP_PORT": "0",
            "TAILRACE_QUERY_PORT": str(self.query_port),
            "TMPDIR": str(temporary),
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

    def left_behind(self) -> list[str]:
        """The command lines of processes that have outlived what started them."""
        own = {process.pid for _, process in self.processes()}
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid not in own and process.environ().get("TMPDIR") == self._env["TMPDIR"]:
                    found.append(" ".join(process.cmdline()))
        return found

    def kill_child(self, role: str) -> None:
        for found, process in self.processes():
            if found == role:
                with suppress(psutil.NoSuchProcess):  # it ended with one that was killed
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

    def stop(self, process: subprocess.Popen[bytes]) -> None:
        """Stop `run` or `query` as an operator does."""
        process.terminate()
        assert process.wait(120) == 0, self._scene.tail()


def _role(process: psutil.Process) -> str:
    words = process.cmdline()
    if words and Path(words[0]).name == "java":
        return "java"
    return next((word for word in ("capture", "deliver") if word in words), "python workers")


class Samples:
    """Measures everything."""

    def __init__(self, scene: Scene, machinery: Machinery, destinations: Destinations, temporary: Path) -> None:
        self._scene = scene
        self._machinery = machinery
        self._lake = destinations.lake.directory
        self._temporary = temporary
        self._start = time.monotonic()
        self.growth = Growth()

    def take(self) -> None:
        at = time.monotonic() - self._start
        self._take_processes(at)
        add = self.growth.add
        with suppress(psycopg.Error):
            held = self._scene.database.rows(
                "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::float8 FROM pg_replication_slots"
            )
            add("WAL held by the source", "MB", at, held[0][0] / 1e6)
        objects = list(self._scene.store.list("log"))
        add("objects of the log", "", at, len(objects))
        add("size of the log", "MB", at, sum(info.size for info in objects) / 1e6, is_history=True)
        everything = list(self._scene.store.list(""))
        add("other objects in the store", "", at, len(everything) - len(objects))
        lake, temporary = _sizes(self._lake), _sizes(self._temporary)
        add("files of the lake", "", at, len(lake))
        add("size of the lake", "MB", at, sum(lake) / 1e6, is_history=True)
        add("temporary files", "", at, len(temporary))
        add("size of temporary files", "MB", at, sum(temporary) / 1e6)

    def _take_processes(self, at: float) -> None:
        memory: dict[str, float] = defaultdict(float)
        files: dict[str, float] = defaultdict(float)
        workers = 0
        unsettled = set()
        for role, process in self._machinery.processes():
            with suppress(psutil.NoSuchProcess):
                if role != "python workers" and time.time() - process.create_time() < SETTLED_S:
                    unsettled.add(role)
                # Each process's part of the pages that several share.
                memory[role] += process.memory_full_info().pss / 1e6
                files[role] += process.num_fds()
                workers += role == "python workers"
        for role in memory.keys() - unsettled:
            self.growth.add(f"memory, {role}", "MB", at, memory[role])
            self.growth.add(f"open files, {role}", "", at, files[role])
        self.growth.add("python workers", "", at, workers)
        self.growth.add("processes left behind", "", at, len(self._machinery.left_behind()))

    def end_of_kills(self) -> None:
        at = time.monotonic() - self._start
        self.growth.end_of_kills(at, at + WARM_S)


def _sizes(directory: Path) -> list[int]:
    found = []
    for folder, _, names in os.walk(directory):
        for name in names:
            with suppress(FileNotFoundError):  # it is removed meanwhile
                found.append(os.stat(f"{folder}/{name}").st_size)
    return found


@contextmanager
def _machinery(scene: Scene, temporary: Path) -> Iterator[Machinery]:
    machinery = Machinery(scene, temporary)
    try:
        yield machinery
    finally:
        machinery.close()


@pytest.mark.soak
def test_nothing_grows_and_nothing_is_lost_while_everything_is_killed(tmp_path: Path) -> None:
    with (
        running(18) as source,
        running(18) as server,
        NatsServer() as nats_server,
        tempfile.TemporaryDirectory(prefix="soak-") as short,  # sockets have short paths
    ):
        temporary = Path(short)
        destinations = Destinations(server, nats_server, tmp_path)
        database = make_database(source)
        # So short a history that most of the run shows what its end removes.
        scene = Scene(database, tmp_path, destinations.toml(history_minutes=max(int(MINUTES / 6), 1)))
        scene.workload = Workload(database.connect, seed=3, rest_s=0.3, ddl=True, survive=True, exclusive=0.005)
        scene.workload.create()
        database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
        scene.workload.run(20)
        with _machinery(scene, temporary) as machinery:
            assert wait_until(lambda: bool(_cursors(scene)) and _is_queried(machinery.query_port), 180), scene.tail()
            samples = Samples(scene, machinery, destinations, temporary)
            with scene.workload:
                killed, queries = _disturb(machinery, samples, [source, server, nats_server])
                assert wait_until(lambda: _is_queried(machinery.query_port), 60), scene.tail()
                samples.end_of_kills()
                undisturbed = _watch(machinery, samples, MINUTES * 60 / 3)
                queries += undisturbed
            _wait_until_level(scene)
            machinery.stop(machinery.run)
            changes = sum(1 for _ in LogReader(scene.store).changes())
            counts = f"{killed} kills, {changes:,} changes, {scene.workload.redefinitions} of definitions"
            print(f"\n{MINUTES:g} minutes, {counts}, {queries[True]} queries\n{samples.growth.table()}")
            assert queries[True] > 0
            assert undisturbed[False] == 0, "only a server that is being killed refuses a query"
            destinations.assert_match(scene)
            _assert_queries_match(scene, destinations, machinery.query_port)
            machinery.stop(machinery.query)
            assert wait_until(lambda: not machinery.left_behind(), 60), machinery.left_behind()
            if MINUTES >= 20:  # the parts of a shorter run differ by what was killed in them
                assert samples.growth.unbounded() == []


def _disturb(
    machinery: Machinery, samples: Samples, servers: Sequence[Postgres | NatsServer]
) -> tuple[int, Counter[bool]]:
    """Kill everything in turn for two thirds of the time. Returns the number of kills, and `_watch`'s."""
    kills = cycle(_kills(machinery, servers))
    end = time.monotonic() + MINUTES * 60 * 2 / 3
    pause = min(120.0, max(MINUTES * 60 / 12, 20.0))
    killed, queries = 0, Counter[bool]()
    while time.monotonic() + pause < end:
        queries += _watch(machinery, samples, pause)
        next(kills)()
        killed += 1
    return killed, queries


def _watch(machinery: Machinery, samples: Samples, seconds: float) -> Counter[bool]:
    """Take samples for some time. Returns how many queries were answered, and how many were not."""
    end = time.monotonic() + seconds
    queries = Counter[bool]()
    while time.monotonic() < end:
        samples.take()
        queries[_query(machinery.query_port)] += 1
        time.sleep(SAMPLE_S)
    return queries


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
        lambda: machinery.kill_child("python workers"),
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
    with scene.database.connect(autocommit=True) as connection:
        found = connection.execute("SELECT pg_current_wal_lsn()::text").fetchone()
        connection.execute("SELECT pg_logical_emit_message(true, 'end', '')")  # cursors pass only what is in the log
    assert found is not None
    last = Lsn.parse(found[0])
    assert wait_until(lambda: min(_cursors(scene), default=Lsn(0)) > last, 300), scene.tail()


def _assert_queries_match(scene: Scene, destinations: Destinations, port: int) -> None:
    """Assert that the query server returns the source's rows, except times that it refuses: DuckDB cannot hold them."""
    lake = destinations.lake
    tables = {(t.schema, t.table): t for t in lake.point().tables}
    compared, refused = 0, 0
    with scene.database.connect() as source, _connect(port) as ours:
        for table in scene.workload.tables:
            for column in lake.relation(tables[table.schema, table.name]).columns:
                columns = list(dict.fromkeys([table.lane, column.name]))
                expected = oracle.rows(source, table.schema, table.name, columns)
                try:
                    found = rows(ours, table.schema, table.name, columns)
                except psycopg.errors.DatetimeFieldOverflow:
                    refused += 1
                    continue
                assert found == expected, f"{table.name}.{column.name}: {difference(found, expected)}"
                compared += 1
    assert compared > 3 * refused


def _connect(port: int) -> psycopg.Connection[Any]:
    return psycopg.connect(f"host=127.0.0.1 port={port} dbname=x user=x", autocommit=True)


def _is_queried(port: int) -> bool:
    with suppress(psycopg.errors.UndefinedTable):  # the lake has no tables yet
        return _query(port)
    return False


def _query(port: int) -> bool:
    """Whether the server answers a query; it may have been killed a moment ago."""
    with suppress(psycopg.OperationalError), _connect(port) as connection:
        assert connection.execute("SELECT count(*) FROM simple").fetchall()
        return True
    return False
