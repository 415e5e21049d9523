"""`tailrace verify` as operators use it: shaped sinks, definitions that change, refusals, exit codes, the record."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.verify.running_sink import NAME, Scene, named, scene

from tailrace.change import Lsn
from tailrace.cli import main
from tailrace.delivery import control
from tailrace.delivery.repair import Repair, RepairOutcome, load_outcome
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.errors import SinkError
from tailrace.ops import prometheus
from tailrace.ops.probe import verification_records
from tailrace.ops.status import Overview
from tailrace.verify import continuous
from tailrace.verify.continuous import ContinuousVerification, seconds_until_due
from tailrace.verify.destination import read_rows
from tailrace.verify.range_hash import RangeHash
from tailrace.verify.report import TableReport

TABLE = "CREATE TABLE item (id int PRIMARY KEY, name text, secret text, n int);"
ROWS = "INSERT INTO item SELECT n, 'name ' || n, 'secret ' || n, n % 10 FROM generate_series(1, 300) n;"


@pytest.fixture
def replica(postgres: Postgres) -> Iterator[Database]:
    database = make_database(postgres)
    yield database
    drop_database(database)


def _config(own: Scene, path: Path) -> str:
    (sink,) = own.given.sinks
    lines = [f"[source]\nurl = {json.dumps(own.given.source.url)}\n[store]\nurl = {json.dumps(own.given.store.url)}"]
    lines += ["[[sink]]", *(f"{key} = {json.dumps(value)}" for key, value in sink.items())]
    path.write_text("\n".join(lines))
    return str(path)


def _tailrace(config: str, *arguments: str) -> tuple[int, Any]:
    done = CliRunner().invoke(main, ["--config", config, *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.output
    return done.exit_code, done.stdout


def test_the_command_names_differences_repairs_them_and_leaves_a_record(
    database: Database, replica: Database, tmp_path: Path
) -> None:
    database.execute(TABLE + ROWS)
    with scene(database, tmp_path, {"type": "postgres", "url": replica.url}) as own:
        own.catch_up()
        config = _config(own, tmp_path / "tailrace.toml")
        replica.execute("UPDATE item SET name = NULL WHERE id = 7")
        code, out = _tailrace(config, "verify")
        assert code == 1
        assert 'public.item (id="7"): name is "name 7" at the source and NULL at the destination' in out
        code, out = _tailrace(config, "verify", NAME, "--repair", "--json")
        assert code == 0, out
        (found,) = json.loads(out)["sinks"]
        assert (found["rows_repaired"], found["differences"], found["rows"]) == (1, 0, 300)
        assert replica.rows("SELECT name FROM item WHERE id = 7") == [("name 7",)]
        (record,) = verification_records(own.store)
        assert (record.sink, record.rows, record.differences) == (NAME, 300, 0)
        metrics = prometheus.render(Overview(verified=[record]))
        assert f'tailrace_verify_differences{{sink="{NAME}"}} 0\n' in metrics
        assert f'tailrace_verify_lsn{{sink="{NAME}"}} {int(record.position)}\n' in metrics
        code, _ = _tailrace(config, "verify", "--table", "public.nothing")
        assert code == 2, "nothing was compared, so nothing is equal"
        replica.execute("DELETE FROM item WHERE id < 4")
        again = ContinuousVerification(own.given, [own.configured], threading.Event()).run_once(own.configured)
        assert again is not None
        assert (again.differences, verification_records(own.store)) == (3, [again])
        # A restart is no reason to compare everything again.
        assert seconds_until_due(again, 3600, again.verified_at + timedelta(seconds=600)) == 3000
        assert seconds_until_due(again, 60, again.verified_at + timedelta(seconds=600)) == 0
        assert seconds_until_due(None, 3600, again.verified_at) == 0


def test_the_background_verification_says_what_is_missing_and_tries_again(
    database: Database, replica: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """A table that the sink has not loaded is not equal, and a sink that has delivered nothing is not put off."""
    monkeypatch.setattr(continuous, "_RETRY_S", 0.1)
    database.execute(TABLE + ROWS)
    with scene(database, tmp_path, {"type": "postgres", "url": replica.url}, delivers=False) as own:
        stopping = threading.Event()
        verification = ContinuousVerification(own.given, [own.configured], stopping)  # every 24 hours
        thread = threading.Thread(target=verification.run)
        thread.start()
        try:
            assert wait_until(lambda: "has delivered nothing yet" in caplog.text, 30)
            with own.running:
                own.catch_up()
                assert wait_until(lambda: bool(verification_records(own.store)), 60)
                (record,) = verification_records(own.store)
                assert (record.rows, record.tables, record.tables_not_compared) == (300, 1, 0)
                database.execute("CREATE TABLE new (id int PRIMARY KEY); INSERT INTO new VALUES (1)")
                again = verification.run_once(own.configured)
                assert again is not None
                assert (again.rows, again.tables, again.tables_not_compared) == (300, 2, 1)
        finally:
            stopping.set()
            thread.join()
    assert caplog.text.count("has delivered nothing yet") == 1


def test_a_shaped_sink_is_compared_with_what_it_should_have(
    database: Database, replica: Database, tmp_path: Path
) -> None:
    database.execute(TABLE + ROWS + "ALTER TABLE item REPLICA IDENTITY FULL")
    shaped = {
        "mask": {"public.item.secret": "hash"},
        "where": {"public.item": "n < 5"},
        "columns": {"public.item": "id, secret, n"},
        "route": "copy.{table}",
    }
    with scene(database, tmp_path, {"type": "postgres", "url": replica.url, **shaped}) as own:
        database.execute("UPDATE item SET n = 7 WHERE id = 2; UPDATE item SET n = 1 WHERE id = 9")
        own.catch_up()
        report = own.verify()
        assert (named(report), report.exit_code, report.tables[0].rows) == ([], 0, 150)
        replica.execute("UPDATE copy.item SET secret = 'x' || secret WHERE id = 3; DELETE FROM copy.item WHERE id = 9")
        ((_, kind, key, values), missing) = named(own.verify())
        assert (kind, key, list(values)) == ("changed", {"id": "3"}, ["secret"])
        assert missing == ("public.item", "missing", {"id": "9"}, {})
        repaired, _ = own.repair(own.verify())
        assert (named(repaired), repaired.exit_code) == ([], 0)


def test_a_definition_that_the_sink_does_not_know_yet_is_no_difference(
    database: Database, replica: Database, tmp_path: Path
) -> None:
    database.execute(TABLE + ROWS)
    with scene(database, tmp_path, {"type": "postgres", "url": replica.url}) as own:
        own.catch_up()
        database.execute("ALTER TABLE item ADD more int DEFAULT 5; ALTER TABLE item DROP n")
        database.execute("CREATE TABLE new (id int PRIMARY KEY)")
        report = own.verify()
        assert (named(report), report.exit_code) == ([], 2)
        remarks = {table.table: [*table.notes, table.error] for table in report.tables}
        assert remarks == {
            "public.item": [
                "column more was added at the source, and no change since has told the sink",
                "column n was dropped at the source, and no change since has told the sink",
                "",
            ],
            "public.new": ["the sink has not loaded the table yet"],
        }
        database.execute("UPDATE item SET name = 'x' WHERE id = 1")
        own.catch_up()
        assert [table.notes for table in own.verify().tables if table.table == "public.item"] == [[]]


def test_a_repair_leaves_out_rows_that_changed_since_and_never_stops_the_sink(
    database: Database, replica: Database, tmp_path: Path
) -> None:
    database.execute(TABLE + ROWS)
    with scene(database, tmp_path, {"type": "postgres", "url": replica.url}, is_idle=True) as own:
        own.catch_up()
        with read_rows(own.given, own.configured) as reader:
            ((_, stored),) = reader.tables.items()
            cursor = reader.state.cursor
        assert cursor is not None
        database.execute("UPDATE item SET name = 'later' WHERE id = 1")
        own.catch_up()

        def execute(**rows: Any) -> Any:
            repair = Repair(stored.relation, stored.target, cursor, **rows)
            repair.save(own.store, NAME)
            control.repair(own.store, NAME, [repair.id])
            assert wait_until(lambda: load_outcome(own.store, NAME, repair.id) is not None, 60)
            return load_outcome(own.store, NAME, repair.id)

        done = execute(updated=[("1", "older", None, None), ("2", "right", "secret 2", "2")])
        assert (done.applied, done.skipped, done.error) == (1, 1, "")
        assert replica.rows("SELECT name FROM item WHERE id < 3 ORDER BY id") == [("later",), ("right",)]
        # On an idle source, rows are compared at an LSN that the cursor does not reach.
        ahead = Repair(stored.relation, stored.target, Lsn(cursor + (1 << 20)), updated=[("5", "ahead", None, None)])
        ahead.save(own.store, NAME)
        control.repair(own.store, NAME, [ahead.id])
        assert wait_until(lambda: load_outcome(own.store, NAME, ahead.id) == RepairOutcome(applied=1), 60)
        # Somebody else has inserted the row meanwhile.
        assert "exists already" in execute(inserted=[("3", "again", None, None)]).error
        database.execute("UPDATE item SET name = 'delivered' WHERE id = 4")
        own.catch_up()
        assert replica.rows("SELECT name FROM item WHERE id = 4") == [("delivered",)]
        assert not own.running.pipeline.has_failed


@pytest.mark.parametrize(
    ("sink", "words"),
    [
        ({"type": "nats", "url": "nats://127.0.0.1:1"}, "delivers events and keeps no rows"),
        ({"type": "kafka", "url": "kafka://127.0.0.1:1"}, "delivers events and keeps no rows"),
        ({"type": "webhook", "url": "http://127.0.0.1:1"}, "delivers events and keeps no rows"),
        ({"type": "files", "url": "file:///nowhere"}, "delivers events and keeps no rows"),
        ({"type": "valkey", "url": "valkey://127.0.0.1:1", "mode": "stream"}, "delivers events and keeps no rows"),
        ({"type": "postgres", "url": "postgresql://h/d", "start": "latest"}, "it has changes only"),
        ({"type": "postgres", "url": "postgresql://h/d", "sql": "SELECT * FROM changes"}, "rows of its `sql`"),
        ({"type": "iceberg", "warehouse": "file:///nowhere", "mode": "changelog"}, "keeps changes, and not rows"),
    ],
)
def test_what_cannot_be_compared_is_refused(sink: dict[str, Any], words: str, tmp_path: Path) -> None:
    config = tmp_path / "tailrace.toml"
    text = ["[source]", 'url = "postgresql://h/d"', "[store]", f'url = "{tmp_path.as_uri()}"', "[[sink]]"]
    config.write_text(
        "\n".join([*text, 'name = "s"', *(f"{key} = {json.dumps(value)}" for key, value in sink.items())])
    )
    done = CliRunner().invoke(main, ["--config", str(config), "verify", "s"])
    assert done.exit_code != 0
    assert words in done.stderr


def test_a_checksum_changes_when_two_rows_exchange_values() -> None:
    hash_ = RangeHash((0,), 1, seed=0)
    keys = pa.array([str(n) for n in range(100, 200)], pa.string())
    values = np.array([f"value {n:03d}" for n in range(100)])
    before = pa.RecordBatch.from_arrays([keys, pa.array(values)], names=["k", "v"])
    values[[3, 4]] = values[[4, 3]]
    after = pa.RecordBatch.from_arrays([keys, pa.array(values)], names=["k", "v"])
    assert hash_.sums([before]) != hash_.sums([after])
    shuffled = before.take(pa.array(np.random.default_rng(1).permutation(100)))
    assert hash_.sums([before]) == hash_.sums([shuffled.slice(0, 30), shuffled.slice(30)])


def test_a_paused_sink_is_not_waited_for(database: Database, replica: Database, tmp_path: Path) -> None:
    """Waiting would only hold the source's snapshot. Once everything is delivered, it is compared, paused or not."""
    database.execute(TABLE + ROWS)
    with scene(database, tmp_path, {"type": "postgres", "url": replica.url}) as own:
        own.catch_up()
        control.pause(own.store, NAME)
        assert wait_until(lambda: own.running.pipeline.status().state == "paused", 60)
        database.execute("UPDATE item SET n = 11")
        began = time.monotonic()
        with pytest.raises(SinkError, match="it is paused") as refused:
            own.verify()
        assert f"tailrace sink resume {NAME}" in refused.value.hint
        assert time.monotonic() - began < own.verification().wait_s, "it did not wait"
        control.resume(own.store, NAME)
        report = own.verify()
        assert (named(report), report.exit_code) == ([], 0)


def test_a_sink_that_does_not_run_is_reported_and_a_stop_ends_the_wait(
    database: Database, replica: Database, tmp_path: Path
) -> None:
    database.execute(TABLE + ROWS)
    with scene(database, tmp_path, {"type": "postgres", "url": replica.url}, delivers=False) as own:
        with own.running:
            own.catch_up()
        database.execute("UPDATE item SET n = 11")
        with pytest.raises(SinkError, match="not running, or is behind"):
            replace(own.verification(), wait_s=1).run()
        stop_at = time.monotonic() + 0.5
        with pytest.raises(SinkError, match="was stopped"):
            replace(own.verification(), wait_s=600, is_cancelled=lambda: time.monotonic() > stop_at).run()


def test_a_stop_ends_what_the_servers_are_doing(database: Database, replica: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE first (id int PRIMARY KEY);" + TABLE + ROWS)
    with scene(database, tmp_path, {"type": "postgres", "url": replica.url}) as own:
        own.catch_up()
        stopping = threading.Event()
        with replica.connect() as other, ThreadPoolExecutor(1) as pool:

            def lock(report: TableReport) -> None:
                """Make reading the next table take for ever. Before, the slot would wait for this transaction."""
                assert report.table == "public.first"
                other.execute("BEGIN; LOCK TABLE item")

            running = pool.submit(replace(own.verification(), is_cancelled=stopping.is_set, on_table=lock).run)
            waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'LOCK TABLE%item%'"
            assert wait_until(lambda: running.done() or bool(replica.rows(waiting)), 60)
            stopping.set()
            with pytest.raises(SinkError, match="was stopped"):
                running.result(60)
        assert own.verify().exit_code == 0


def test_renamed_and_partitioned_tables_are_compared(database: Database, replica: Database, tmp_path: Path) -> None:
    database.execute(
        TABLE
        + ROWS
        + "CREATE TABLE log (day date, n int, note text, PRIMARY KEY (day, n)) PARTITION BY RANGE (day);"
        + "CREATE TABLE log_1 PARTITION OF log FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');"
        # A partition's columns may have another order.
        + "CREATE TABLE log_2 (note text, n int NOT NULL, day date NOT NULL);"
        + "ALTER TABLE log ATTACH PARTITION log_2 FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');"
        + "INSERT INTO log SELECT DATE '2026-01-01' + n % 50, n, 'note ' || n FROM generate_series(1, 200) n;"
        + "CREATE PUBLICATION tailrace FOR ALL TABLES WITH (publish_via_partition_root = true)"
    )
    with scene(database, tmp_path, {"type": "postgres", "url": replica.url}) as own:
        own.catch_up()
        database.execute("ALTER TABLE item RENAME TO thing; UPDATE log SET day = day + 31 WHERE n = 3")
        own.catch_up()
        report = own.verify()
        assert (named(report), report.exit_code) == ([], 0)
        assert {table.table: table.rows for table in report.tables} == {"public.thing": 300, "public.log": 200}
        database.execute("UPDATE thing SET n = 12 WHERE id = 5")
        own.catch_up()
        # Renamed or not, the sink has one table of these rows.
        with read_rows(own.given, own.configured) as reader:
            (target,) = [stored.target for stored in reader.tables.values() if stored.target[1] != "log"]
        replica.execute(f"UPDATE {'.'.join(target)} SET name = 'x' WHERE id = 7; DELETE FROM log WHERE n = 3")
        found = own.verify()
        assert [(table, kind, list(key.values())[-1]) for table, kind, key, _ in named(found)] == [
            ("public.log", "missing", "3"),
            ("public.thing", "changed", "7"),
        ]
        repaired, _ = own.repair(found)
        assert (named(repaired), repaired.exit_code) == ([], 0)


def test_the_background_verification_keeps_its_rate(database: Database, replica: Database, tmp_path: Path) -> None:
    """It rests after each table for as long as the table's rows take at that rate."""
    database.execute(TABLE + ROWS)
    with scene(database, tmp_path, {"type": "postgres", "url": replica.url}) as own:
        own.catch_up()
        given = replace(own.given, verify=replace(own.given.verify, rows_per_second=30))
        stopping = _RestlessEvent()
        record = ContinuousVerification(given, [own.configured], stopping).run_once(own.configured)
        assert record is not None
        assert record.rows == 300
        (rest_s,) = stopping.waits
        assert 0 < rest_s < 10
        assert rest_s + record.seconds == pytest.approx(10, abs=0.5)


class _RestlessEvent(threading.Event):
    """Notes how long somebody would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return self.is_set()
