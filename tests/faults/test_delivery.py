"""Kills deliveries and their destinations: no change is lost or duplicated.

Real `tailrace deliver` processes run while a workload runs and capture writes. `DELIVERY_KILLS` is the number of kills.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest
from tests import oracle
from tests.capturing import CaptureThread, tailrace
from tests.contract.audit_table import AuditTable
from tests.contract.lake import Lake, engine
from tests.contract.nats_stream import NatsStream
from tests.contract.scenario import Scenario, take_mark
from tests.fixtures.postgres import Database, make_database, running
from tests.workload import Workload

from tailrace import settings
from tailrace.capture.postgres.bootstrap import Bootstrap
from tailrace.change import Lsn
from tailrace.delivery import cursors
from tailrace.embedded.cluster import Cluster
from tailrace.embedded.nats import NatsServer
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.log.change_text import to_json
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader
from tailrace.store import Store

KILLS = int(os.environ.get("DELIVERY_KILLS", "8"))
WINDOW_S = 0.1
"""The stream's duplicate window: the minimum that a server accepts, shorter than any pause here."""


class Scene:
    """A source with a workload and capture, and `tailrace deliver` processes."""

    def __init__(self, database: Database, directory: Path, sinks: str) -> None:
        self.database = database
        self.settings = settings.Settings(
            source=settings.SourceSettings(url=database.url, tables=("*.*",)),
            store=settings.StoreSettings((directory / "store").as_uri()),
            capture=settings.CaptureSettings(seal_after_ms=100, segment_bytes=64 * 1024),
        )
        self.store = Store.open(self.settings.store.url)
        self.scenario = Scenario(directory / "store")
        """What was captured, with PostgreSQL's rows before and after the workload."""
        self.workload = Workload(database.connect, seed=3, rest_s=0.5)
        config = directory / "tailrace.toml"
        config.write_text(f'[store]\nurl = "{self.settings.store.url}"\n{sinks}')
        self.output = directory / "output"
        self.env = os.environ | {"TAILRACE_CONFIG": str(config)}

    @contextmanager
    def captured(self) -> Iterator[None]:
        """Capture changes in the meantime. At the end the log has all of them."""
        self.workload.create()
        self.database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
        self.workload.run(20)
        bootstrap = Bootstrap(self.settings, self.store)
        with CaptureThread(self.settings, self.store, snapshots=bootstrap) as capture:
            assert bootstrap.wait(120)
            assert bootstrap.error is None
            bootstrap.stop()
            with self.database.connect(client_encoding="UTF8") as connection:
                self.scenario.marks.append(take_mark(connection, self.store, capture))
                with self.workload:
                    yield
                self.scenario.marks.append(take_mark(connection, self.store, capture))

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        # Its own session, so that everything is killed, including Spark's Java and its workers.
        with self.output.open("ab") as output:
            return subprocess.Popen(
                tailrace("deliver", *arguments), env=self.env, stdout=output, stderr=output, start_new_session=True
            )

    def tail(self) -> str:
        """The end of the deliveries' output."""
        return self.output.read_text(errors="replace")[-3000:]

    def state_of(self, sink: str) -> Callable[[], object]:
        """Returns what reads the stored state of a sink."""
        return lambda: self.store.get(f"cursors/{sink}/state.json")

    def deliver_all(self, *arguments: str) -> None:
        process = self.start("--once", *arguments)
        try:
            assert process.wait(600) == 0, self.tail()
        finally:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and everything that it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Progress:
    """The progress of some sinks."""

    def __init__(self, scene: Scene, *cursors: Callable[[], object]) -> None:
        """Each of `cursors` returns something that changes whenever a sink advances; None if there is none yet."""
        self._scene = scene
        self._cursors = cursors
        self._seen = self._now()

    def _now(self) -> list[object]:
        return [cursor() for cursor in self._cursors]

    def wait(self, process: subprocess.Popen[bytes], seconds: float = 300) -> None:
        """Wait until all have advanced since the last call. The process must not end."""
        have_advanced = wait_until(lambda: process.poll() is not None or self._have_advanced(), seconds)
        assert process.poll() is None, self._scene.tail()
        assert have_advanced, f"nothing was delivered: {self._scene.tail()}"
        self._seen = self._now()

    def _have_advanced(self) -> bool:
        return all(now not in (None, before) for now, before in zip(self._now(), self._seen, strict=True))


class Destinations:
    """One destination of each kind, and the settings of their sinks."""

    def __init__(self, server: Postgres, nats_server: NatsServer, directory: Path) -> None:
        self.files, self.lake = directory / "files", Lake(directory / "lake", "lake")
        self.replica, self.trail = make_database(server), AuditTable(make_database(server))
        self.bus = NatsStream(nats_server)
        self.bus.make(duplicate_window=WINDOW_S)

    def toml(self, history_minutes: int = 60) -> str:
        bus = "\n".join(f"{key} = {json.dumps(value)}" for key, value in self.bus.settings().items())
        return f"""
            [[sink]]
            name = "replica"
            type = "postgres"
            url = "{self.replica.url}"
            [[sink]]
            name = "audit"
            type = "audit"
            url = "{self.trail.database.url}"
            [[sink]]
            name = "files"
            type = "files"
            url = "{self.files.as_uri()}"
            interval_ms = 200
            [[sink]]
            name = "lake"
            type = "iceberg"
            warehouse = "{self.lake.directory.as_uri()}"
            mode = "both"
            history_minutes = {history_minutes}
            interval_ms = 200
            [[sink]]
            name = "bus"
            {bus}
            """

    def progress(self, scene: Scene) -> Progress:
        """That of the replica and of the stream."""
        return Progress(scene, self._replica_cursor, scene.state_of("bus"))

    def _replica_cursor(self) -> object:
        with suppress(psycopg.Error), self.replica.connect() as connection:
            return connection.execute("SELECT cursor::text FROM tailrace.sinks").fetchone()
        return None

    def assert_match(self, scene: Scene) -> None:
        """Assert that each has every change once, or the source's rows."""
        _assert_replica(scene, self.replica)
        changes = list(LogReader(scene.store).changes())
        self.trail.assert_matches(changes, Lsn(0), Lsn(2**63))
        with scene.database.connect() as source:
            self.bus.assert_matches(changes, Lsn(2**63), oracle.type_names(source))
        _assert_files(scene, self.files)
        _assert_lake(scene, self.lake)


@pytest.mark.soak
def test_killed_deliveries_and_destinations_lose_and_duplicate_nothing(database: Database, tmp_path: Path) -> None:
    """One process for all sinks. First its destinations are killed, then repeatedly the process itself, at any time or
    just after it published something, every other time together with the NATS server."""
    rng = random.Random(1)
    with running(18, autovacuum=False) as server, NatsServer() as nats_server:
        destinations = Destinations(server, nats_server, tmp_path)
        bus = destinations.bus
        scene = Scene(database, tmp_path, destinations.toml())
        with scene.captured():
            progress = destinations.progress(scene)
            process = scene.start()
            try:
                for killed in (server, nats_server) * 2:
                    progress.wait(process)
                    if killed is server:
                        time.sleep(rng.uniform(0, 0.5))
                    else:
                        bus.wait_for_more()
                    killed.kill9()
                    time.sleep(2 * WINDOW_S)
                    killed.start()
                progress.wait(process)
            finally:
                kill(process)
            unrecorded = 0
            for number in range(KILLS):
                process = scene.start()
                try:
                    progress.wait(process)
                    if number % 4 < 2:
                        bus.wait_for_more()
                    else:
                        time.sleep(rng.uniform(0, 1.0))
                finally:
                    if number % 2:
                        nats_server.kill9()
                    kill(process)
                if number % 2:
                    nats_server.start()
                state = cursors.load(scene.store, "bus")
                unrecorded += state is None or state.place < bus.state().last_seq
            assert unrecorded, "none was killed after it published and before it recorded that"
        scene.deliver_all()
        destinations.assert_match(scene)


@pytest.mark.soak
def test_all_sinks_on_a_cluster_whose_workers_are_killed(cluster: Cluster, database: Database, tmp_path: Path) -> None:
    """The batches of all sinks run on two workers, each of which is killed under load and replaced."""
    with running(18, autovacuum=False) as server, NatsServer() as nats_server:
        destinations = Destinations(server, nats_server, tmp_path)
        scene = Scene(database, tmp_path, destinations.toml())
        with scene.captured():
            progress = destinations.progress(scene)
            process = scene.start("--master", cluster.url)
            try:
                for _ in range(3):
                    progress.wait(process)
                    destinations.bus.wait_for_more()
                    cluster.kill_worker(cluster.workers[0])
                    progress.wait(process)
                    cluster.add_worker()
                progress.wait(process)
            finally:
                kill(process)
        scene.deliver_all("--master", cluster.url)
        destinations.assert_match(scene)


def _assert_replica(scene: Scene, replica: Database) -> None:
    with scene.database.connect() as source, replica.connect() as destination:
        for table in scene.workload.tables:
            expected = oracle.rows(source, table.schema, table.name)
            assert oracle.rows(destination, table.schema, table.name) == expected, table.name


def _assert_lake(scene: Scene, lake: Lake) -> None:
    """Assert that the rows are the source's, and that the changelog has each change once."""
    tables = {(t.schema, t.table): t for t in lake.point().tables}
    with scene.database.connect() as source:
        for table in scene.workload.tables:
            expected = oracle.rows(source, table.schema, table.name)
            assert lake.rows(tables[table.schema, table.name]) == expected, table.name
    found_changes = Counter[str]()
    for named in tables.values():
        if named.kind == "changelog" and named.snapshot is not None:
            scan = f"iceberg_scan('{named.metadata}', snapshot_from_id = {named.snapshot})"
            found = engine().execute(f"SELECT _position FROM {scan} WHERE _operation <> 'SNAPSHOT'").fetchall()
            found_changes.update(position for (position,) in found)
    since = _since(scene)
    expected_changes = Counter[str]()
    for change in LogReader(scene.store).changes():
        if change.relation is not None and change.position.commit_lsn >= since[change.relation.oid]:
            expected_changes[str(change.position)] += 1
    assert found_changes == expected_changes


def _since(scene: Scene) -> dict[int, Lsn]:
    return {s.relation.oid: s.lsn for s in SnapshotReader(scene.store).list()}


def _assert_files(scene: Scene, files: Path) -> None:
    """Assert that the files have exactly the changes of the log, each once."""
    found: dict[str, str] = {}
    for path in files.rglob("*.jsonl"):
        for line in path.read_text().split("\n")[:-1]:
            if '"operation": "SNAPSHOT"' not in line:
                position = json.loads(line)["position"]
                assert position not in found, f"{position} is delivered twice"
                found[position] = line.rpartition(', "is_last"')[0] + "}"
    since = min(Lsn(int(key.split("/")[2][:16], 16)) for key in _snapshots(scene))
    changes = [c for c in LogReader(scene.store).changes() if c.position.commit_lsn >= since]
    assert found == {str(change.position): to_json(change) for change in changes}


def _snapshots(scene: Scene) -> Sequence[str]:
    return [info.key for info in scene.store.list("snapshots") if info.key.endswith("/meta.json")]
