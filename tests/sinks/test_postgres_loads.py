"""The PostgreSQL replica loads snapshots: of existing, new, recreated and reloaded tables."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.sinks.captured_source import CapturedSource
from tests.sinks.replicas import assert_same, rows_of, sink_to
from tests.stepping import DrivenStepper

from tailrace.delivery import step
from tailrace.delivery.contract import Parallel
from tailrace.delivery.sink_settings import ConfiguredSink, SinkSettings
from tailrace.delivery.task import Task, TaskResult
from tailrace.embedded.postgres import Postgres
from tailrace.errors import SinkDiverged
from tailrace.log import planner
from tailrace.log.reader import LogReader
from tailrace.sinks.database import staging


class Scene(CapturedSource):
    """A source with its log, and a sink that is driven as in production."""

    def __init__(self, source: Database, replica: Database, directory: Path) -> None:
        super().__init__(source, directory)
        self.replica = replica

    def stepper(self, mode: str = "mirror") -> DrivenStepper:
        common = SinkSettings(type="postgres", name="replica")
        return DrivenStepper(
            ConfiguredSink(common, sink_to(self.replica, mode=mode)),
            self.given.store,
            _run_pickled,
            parallelism=lambda: 2,
        )

    def deliver(self, mode: str = "mirror", rewind: str | None = None) -> None:
        stepper = self.stepper(mode)
        if rewind is not None:
            stepper.rewind(rewind)
        try:
            stepper.open()
            self.catch_up(stepper)
        finally:
            stepper.close()

    def catch_up(self, stepper: DrivenStepper) -> None:
        stepper.look_for_loads()
        stepper.load_missing()
        reader = LogReader(self.store)
        while (batch := planner.next_batch(reader, stepper.offset())).slices:
            stepper.deliver(batch.end)


def _run_pickled(tasks: Sequence[Task], parallel: Parallel) -> list[TaskResult]:
    return [pickle.loads(pickle.dumps(task)).run() for task in tasks]


@pytest.fixture
def scene(database: Database, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    monkeypatch.setattr(staging, "INLINE_BYTES", 3000)  # some in receipts, most in tables of their own
    database.execute("""
        CREATE TABLE t (id int PRIMARY KEY, n int NOT NULL, body text);
        INSERT INTO t SELECT g, g, repeat(md5(g::text), 100) FROM generate_series(1, 100) g;
        CREATE TABLE bag (v text, j json);
        ALTER TABLE bag REPLICA IDENTITY FULL;
        INSERT INTO bag SELECT 'x', '{"a": 1}' FROM generate_series(1, 50);
        CREATE TABLE empty (id int PRIMARY KEY);
        CREATE PUBLICATION tailrace FOR ALL TABLES;
    """)
    replica = make_database(postgres)
    yield Scene(database, replica, tmp_path / "store")
    drop_database(replica)


def test_snapshots_then_changes(scene: Scene) -> None:
    scene.capture("UPDATE t SET n = -n WHERE id < 50", snapshot=None)
    scene.capture("UPDATE t SET n = 0 WHERE id < 10", "DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag LIMIT 1)")
    scene.deliver()
    assert_same(scene.source, scene.replica, "t", "bag", "empty")
    # A table that is added when the sink has already advanced.
    scene.capture("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)", "UPDATE t SET n = 1")
    scene.deliver()
    assert rows_of(scene.replica, "public", "late") is None
    scene.capture("INSERT INTO late VALUES (2)", snapshot=["late"])
    scene.capture("INSERT INTO late VALUES (3)", "UPDATE late SET id = 10 WHERE id = 1")
    scene.deliver()
    assert_same(scene.source, scene.replica, "t", "bag", "empty", "late")


def test_a_sink_that_stays_open_loads_what_is_copied_later(scene: Scene) -> None:
    """It remembers snapshots that it has read, and must not take them for all that there are."""
    scene.capture(snapshot=None)
    stepper = scene.stepper()
    stepper.open()
    try:
        scene.catch_up(stepper)
        scene.capture("CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1), (2)", snapshot=["late"])
        scene.capture("INSERT INTO late VALUES (3)", "UPDATE late SET id = 10 WHERE id = 1")
        scene.catch_up(stepper)
        assert_same(scene.source, scene.replica, "t", "bag", "empty", "late")
        # Reloaded from the newest snapshot, not from the one that it has read before.
        scene.replica.execute("DELETE FROM late WHERE id = 2")
        scene.capture("UPDATE late SET id = 20 WHERE id = 2", snapshot=["late"])
        scene.capture("INSERT INTO late VALUES (4)")
        assert stepper.reload(["public.late"]) == 1
        scene.catch_up(stepper)
        assert_same(scene.source, scene.replica, "t", "bag", "empty", "late")
    finally:
        stepper.close()


def test_small_tables_are_loaded_in_one_step_and_large_ones_in_their_own(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes a tenth of a second however little it loads, and a database may have thousands of tables."""
    monkeypatch.setattr(step, "SMALL_BYTES", 20_000)
    small = [f"small_{number}" for number in range(40)]
    create = [f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1), (2)" for name in small]
    noise = (
        "INSERT INTO t SELECT g, g, string_agg(md5(random()::text), '')"
        " FROM generate_series(200, 250) g, generate_series(1, 30) GROUP BY g"
    )
    scene.capture(*create, noise, snapshot=None)
    scene.capture("UPDATE small_3 SET id = 300 WHERE id = 1", "DELETE FROM small_4")
    stepper = scene.stepper()
    stepper.open()
    stepper.look_for_loads()
    steps = []
    while (planned := stepper.next_step()) is not None and planned.is_load:
        steps.append([load.target[1] for load in planned.step.loads])
        stepper.finish(planned)
    stepper.close()
    assert sorted(name for names in steps for name in names) == sorted([*small, "t", "bag", "empty"])
    assert ["t"] in steps
    assert len(steps) <= 6, steps
    scene.deliver()
    assert_same(scene.source, scene.replica, *small, "t", "bag", "empty")


def test_loading_again_repairs_a_diverged_table(scene: Scene) -> None:
    scene.capture(snapshot=None)
    scene.deliver()
    scene.replica.execute("DELETE FROM t WHERE id = 7; INSERT INTO bag VALUES ('mine'); CREATE INDEX mine ON t (n)")
    scene.replica.execute("CREATE VIEW of_t AS SELECT n FROM t; DROP TABLE empty")
    scene.capture("UPDATE t SET n = 0", "INSERT INTO empty VALUES (1)")
    with pytest.raises(SinkDiverged):
        scene.deliver()
    scene.deliver(rewind="snapshot")
    assert_same(scene.source, scene.replica, "t", "bag", "empty")
    assert scene.replica.rows("SELECT to_regclass('mine') IS NOT NULL, (SELECT count(*) FROM of_t)") == [(True, 100)]
    # A snapshot with older columns than the table has now.
    scene.capture("ALTER TABLE t ADD more int DEFAULT 5, ALTER n DROP NOT NULL", "INSERT INTO t (id) VALUES (500)")
    scene.deliver()
    scene.replica.execute("DROP VIEW of_t")
    scene.deliver(rewind="snapshot")
    assert_same(scene.source, scene.replica, "t", "bag", "empty")


def test_a_recreated_table(scene: Scene) -> None:
    scene.capture(snapshot=None)
    scene.deliver()
    scene.capture(
        "DROP TABLE t",
        "CREATE TABLE t (code text PRIMARY KEY, id bigint)",
        "INSERT INTO t VALUES ('a', 1), ('b', 2)",
        snapshot=["t"],
    )
    scene.capture("UPDATE t SET id = 5 WHERE code = 'a'")
    scene.deliver()
    assert_same(scene.source, scene.replica, "t", "bag", "empty")


def test_another_table_takes_the_name_of_a_renamed_one(scene: Scene) -> None:
    """The usual way to replace a table. The old table must not lose its rows with its name."""
    scene.capture(snapshot=None)
    scene.deliver()
    swap = "ALTER TABLE t RENAME TO old; CREATE TABLE t (LIKE old INCLUDING ALL); INSERT INTO t SELECT * FROM old"
    scene.capture(swap, "UPDATE t SET n = 0 WHERE id < 10", snapshot=["t"])
    scene.deliver()
    assert_same(scene.source, scene.replica, "t", "bag", "empty")
    scene.capture("INSERT INTO old VALUES (1000, 1, 'late')", "UPDATE t SET n = 1 WHERE id > 90")
    scene.deliver()
    assert_same(scene.source, scene.replica, "t", "old", "bag", "empty")
    scene.deliver(rewind="snapshot")
    assert_same(scene.source, scene.replica, "t", "old", "bag", "empty")


def test_a_history_begins_with_snapshots(scene: Scene) -> None:
    scene.capture(snapshot=None)
    scene.capture("UPDATE t SET n = 0 WHERE id < 10", "DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag LIMIT 1)")
    scene.deliver("history")
    count = "SELECT count(*), count(_valid_to) FROM"
    assert scene.replica.rows(f"{count} t") == [(109, 9)]
    assert scene.replica.rows(f"{count} bag") == [(50, 1)]
    # Changes that are delivered again are not duplicated.
    versions = "SELECT id, n, _valid_from, _valid_to, _operation FROM t ORDER BY 1, 3"
    before = scene.replica.rows(versions)
    scene.deliver("history", rewind="snapshot")
    assert scene.replica.rows(versions) == before
    # A later snapshot ends the valid versions and starts new ones; so does a recreated table.
    scene.capture("UPDATE t SET n = 7 WHERE id = 1", snapshot=["t"])
    scene.deliver("history")
    scene.deliver("history", rewind="snapshot")
    assert scene.replica.rows(f"{count} t") == [(210, 110)]
    scene.capture(
        "DROP TABLE t",
        "CREATE TABLE t (id int PRIMARY KEY, n int, other text)",
        "INSERT INTO t VALUES (1, 1, 'o')",
        snapshot=["t"],
    )
    scene.deliver("history")
    assert scene.replica.rows("SELECT id, n, other FROM t WHERE _valid_to IS NULL") == [(1, 1, "o")]
    assert scene.replica.rows("SELECT count(*) FROM t WHERE body IS NOT NULL") > [(200,)]
