"""Faults of the PostgreSQL replica: crashes, other writers, values it does not accept, tables of others."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.e2e.captured_database import CapturedDatabase, captured
from tests.e2e.test_security import TOKEN, assert_nowhere
from tests.fixtures.postgres import Database, drop_database, make_database, running
from tests.sinks.replicas import assert_same, rows_of, sink_to
from tests.sinks.sink_driver import Driver, deliver

from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.errors import (
    ConfigError,
    FencedError,
    PoisonError,
    SinkDiverged,
    SinkError,
    SinkRefused,
    TailraceError,
)
from tailrace.log.planner import BatchLimits
from tailrace.settings import Secret
from tailrace.sinks.database import staging
from tailrace.sinks.postgres import PostgresSink
from tailrace.sinks.postgres.sink import PostgresOptions

_ALL = BatchLimits(1 << 30, 1 << 40)
_STAGED = "SELECT count(*) FROM pg_class WHERE relname LIKE 'staged_%' AND relkind = 'r'"


@pytest.fixture
def replica(postgres: Postgres) -> Iterator[Database]:
    database = make_database(postgres)
    yield database
    drop_database(database)


@pytest.fixture
def log(database: Database, tmp_path: Path) -> Iterator[CapturedDatabase]:
    """`t` has a key, `bag` none."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int, v text); CREATE TABLE bag (v text)")
    database.execute("ALTER TABLE bag REPLICA IDENTITY FULL")
    with captured(database, tmp_path) as found:
        found.execute("INSERT INTO t SELECT g, g, md5(g::text) FROM generate_series(1, 300) g")
        found.execute("INSERT INTO bag SELECT 'same' FROM generate_series(1, 10)")
        found.catch_up()
        yield found


@pytest.fixture(params=["inline", "staged"])
def staging_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "staged":
        monkeypatch.setattr(staging, "INLINE_BYTES", 0)
    return str(request.param)


@pytest.mark.usefixtures("staging_kind")
def test_a_crash_between_stage_and_commit(
    log: CapturedDatabase, database: Database, replica: Database, staging_kind: str
) -> None:
    deliver(sink_to(replica), log.store)
    log.execute("UPDATE t SET n = n + 1 WHERE id < 200", "UPDATE t SET id = -id WHERE id < 9")
    log.execute("DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag LIMIT 1)", "DELETE FROM t WHERE id > 250")
    log.catch_up()
    first = Driver(sink_to(replica), log.store)
    planned = first.plan(2, _ALL)
    assert planned is not None
    late = first.stage(planned)
    first.sink.close()
    assert replica.rows("SELECT max(n) FROM t WHERE id < 200") == [(199,)]
    second = Driver(sink_to(replica), log.store)
    assert (replica.rows(_STAGED), second.state) == ([(0,)], first.state)
    again = second.plan(2, _ALL)
    assert again is not None
    # An attempt whose receipt is not committed has no effect.
    second.stage_part(again, 0)
    receipts = second.stage(again)
    second.commit(again, receipts)
    assert replica.rows(_STAGED) == [(0,)]
    for stale in (receipts, late):
        with pytest.raises(FencedError, match="rewound, or another process"):
            second.sink.commit(again.step, stale)
    second.sink.close()
    assert_same(database, replica, "t", "bag")


def test_a_crash_of_the_destination_between_stage_and_commit(
    log: CapturedDatabase, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staging tables are unlogged: the commit detects that they are empty."""
    monkeypatch.setattr(staging, "INLINE_BYTES", 0)
    with running(18) as server:
        replica = make_database(server)
        driver = Driver(sink_to(replica), log.store)
        planned = driver.plan(1, _ALL)
        assert planned is not None
        receipts = driver.stage(planned)
        server.stop("immediate")
        server.start()
        with pytest.raises(SinkError) as broken:
            driver.sink.commit(planned.step, receipts)
        assert broken.value.retry
        assert driver.sink.open() == planned.step.before
        with pytest.raises(SinkError, match="are missing at the destination"):
            driver.sink.commit(planned.step, receipts)
        receipts = driver.stage(planned)
        for (name,) in replica.rows("SELECT oid::regclass::text FROM pg_class WHERE relname LIKE 'staged_%'"):
            replica.execute(f"TRUNCATE {name}")  # as after a crash that the session did not notice
        with pytest.raises(SinkError, match="are missing at the destination"):
            driver.sink.commit(planned.step, receipts)
        driver.sink.close()
        deliver(driver.sink, log.store)
        assert_same(database, replica, "t", "bag")


_CHILD = """
import sys
from tests.sinks.sink_driver import Driver
from tailrace.log.planner import BatchLimits
from tailrace.sinks.database import staging
from tailrace.sinks.postgres import PostgresSink
from tailrace.sinks.postgres.sink import PostgresOptions
from tailrace.store import Store
staging.INLINE_BYTES = int(sys.argv[3])
driver = Driver(PostgresSink("replica", PostgresOptions(url=sys.argv[1])), Store.open(sys.argv[2]))
print("ready", flush=True)
while driver.step(2, BatchLimits(2, 1 << 30)):
    pass
"""


@pytest.mark.parametrize("inline_bytes", [0, pytest.param(1 << 20, marks=pytest.mark.soak)])
def test_kill_at_any_time(log: CapturedDatabase, database: Database, replica: Database, inline_bytes: int) -> None:
    rng = random.Random(inline_bytes)
    for _ in range(60):
        a, b = rng.sample(range(1, 301), 2)
        log.execute(
            f"BEGIN; UPDATE t SET n = n + 1 WHERE id IN ({a}, {b}); UPDATE t SET id = id + 1000 WHERE id = {a};"
            f" INSERT INTO bag VALUES ('{a % 3}'); COMMIT",
            f"UPDATE t SET id = id - 1000 WHERE id > 1000; DELETE FROM bag WHERE ctid ="
            f" (SELECT ctid FROM bag WHERE v = '{b % 3}' LIMIT 1)",
        )
        log.catch_up()
    kills = 0
    while kills < 6:
        child = subprocess.Popen(
            [sys.executable, "-c", _CHILD, replica.url, log.store.url, str(inline_bytes)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        time.sleep(rng.random() * 0.4)  # a random time for the kill
        child.kill()
        child.wait()
        child.stdout.close()
        kills += 1
        _wait_for_release(replica)
    deliver(sink_to(replica), log.store, limits=BatchLimits(2, 1 << 30))
    assert_same(database, replica, "t", "bag")
    assert replica.rows(_STAGED) == [(0,)]


def _wait_for_release(replica: Database) -> None:
    """Wait until the server has detected that the child has exited."""
    query = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{replica.name}' AND pid <> pg_backend_pid()"
    assert wait_until(lambda: replica.rows(query) == [(0,)], 30)


def test_one_deliver_at_a_time(replica: Database) -> None:
    first, second = sink_to(replica), sink_to(replica)
    first.open()
    with pytest.raises(SinkError, match="another process is delivering to sink replica") as raised:
        second.open()
    assert raised.value.retry
    other = sink_to(replica, "other")
    other.open()
    other.close()
    first.close()
    second.open()
    second.close()


def test_a_broken_connection_is_retried(log: CapturedDatabase, database: Database, replica: Database) -> None:
    driver = Driver(sink_to(replica), log.store)
    planned = driver.plan(1, _ALL)
    assert planned is not None
    receipts = driver.stage(planned)
    replica.rows(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{replica.name}'"
        " AND pid <> pg_backend_pid()"
    )
    with pytest.raises(SinkError) as broken:
        driver.sink.commit(planned.step, receipts)
    assert broken.value.retry
    assert driver.sink.open() == planned.step.before
    driver.sink.commit(planned.step, receipts)
    driver.sink.close()
    assert_same(database, replica, "t", "bag")


@pytest.mark.usefixtures("staging_kind")
@pytest.mark.parametrize(
    ("meddling", "change"),
    [
        ("DELETE FROM t WHERE id = 7", "UPDATE t SET n = 0 WHERE id < 10"),
        ("DELETE FROM t WHERE id = 7", "DELETE FROM t WHERE id < 10"),
        ("DELETE FROM t WHERE id = 7", "UPDATE t SET id = id + 500 WHERE id < 10"),
        ("INSERT INTO t VALUES (501)", "INSERT INTO t VALUES (501, 0, 'x'), (502, 0, 'y')"),
        ("DELETE FROM bag", "DELETE FROM bag"),
        ("DROP TABLE t", "INSERT INTO t VALUES (501)"),
        ("ALTER TABLE t DROP n", "UPDATE t SET v = 'x' WHERE id < 10"),
        ("DROP TABLE t", "ALTER TABLE t ADD more int; INSERT INTO t VALUES (501)"),
    ],
)
def test_another_writer_is_detected(log: CapturedDatabase, replica: Database, meddling: str, change: str) -> None:
    deliver(sink_to(replica), log.store)
    replica.execute(meddling)
    before = [rows_of(replica, "public", table) for table in ("t", "bag")]
    log.execute("INSERT INTO bag VALUES ('before')", change, "INSERT INTO bag VALUES ('after')")
    log.catch_up()
    with pytest.raises(SinkDiverged) as raised:
        deliver(sink_to(replica), log.store, limits=_ALL)
    assert "sink rewind replica snapshot" in raised.value.hint
    assert [rows_of(replica, "public", table) for table in ("t", "bag")] == before


@pytest.mark.usefixtures("staging_kind")
@pytest.mark.parametrize("mode", ["mirror", "history"])
def test_a_value_that_the_destination_does_not_accept(
    database: Database, replica: Database, tmp_path: Path, mode: str
) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE m (id int PRIMARY KEY, feels mood)")
    replica.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    with captured(database, tmp_path) as log:
        log.execute("INSERT INTO m SELECT g, 'ok' FROM generate_series(1, 50) g")
        log.execute("ALTER TYPE mood ADD VALUE 'secretly glad'", "UPDATE m SET feels = 'secretly glad' WHERE id = 30")
        log.execute("UPDATE m SET feels = 'sad' WHERE id > 40")
        changes = log.changes("m")
    (poison,) = [c for c in changes if c.after and c.after["feels"] == "secretly glad"]
    with pytest.raises(PoisonError) as raised:
        deliver(sink_to(replica, mode=mode), log.store, limits=_ALL)
    assert raised.value.positions == (str(poison.position),)
    assert "public.m, column feels" in str(raised.value)
    assert "glad" not in "".join(traceback.format_exception(raised.value))
    replica.execute("ALTER TYPE mood ADD VALUE 'secretly glad'")
    deliver(sink_to(replica, mode=mode), log.store, limits=_ALL)
    if mode == "mirror":
        assert_same(database, replica, "m")


def test_a_type_change_that_values_cannot_follow(database: Database, replica: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with captured(database, tmp_path) as log:
        log.execute("INSERT INTO t VALUES (1, 'topsecret')")
        log.execute("ALTER TABLE t ALTER v TYPE int USING length(v)", "INSERT INTO t VALUES (2, 2)")
        log.catch_up()
    with pytest.raises(SinkRefused, match="column v: its type became int4") as raised:
        deliver(sink_to(replica), log.store)
    assert "new snapshot" in raised.value.hint
    assert "topsecret" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    ("declared", "row", "words"),
    [
        ("id int PRIMARY KEY, n int, v text", "1, 1, 'mine'", "has rows"),
        ("id int PRIMARY KEY, n int", "", "other columns"),
        ("id bigint PRIMARY KEY, n int, v text", "", "other columns"),
        ("id int, n int PRIMARY KEY, v text", "", "another primary key"),
        ("id int PRIMARY KEY, n int, v text", "", None),
    ],
)
def test_a_table_that_exists_already(
    log: CapturedDatabase, database: Database, replica: Database, declared: str, row: str, words: str | None
) -> None:
    replica.execute(f"CREATE TABLE t ({declared})")
    if row:
        replica.execute(f"INSERT INTO t VALUES ({row})")
    if words is None:
        replica.execute("CREATE INDEX mine ON t (v)")
        deliver(sink_to(replica), log.store)
        assert_same(database, replica, "t")
        with pytest.raises(SinkRefused, match="belongs to sink replica"):
            deliver(sink_to(replica, "second"), log.store)
        return
    with pytest.raises(SinkRefused, match=words) as raised:
        deliver(sink_to(replica), log.store)
    assert "route" in raised.value.hint
    assert replica.rows("SELECT count(*) FROM t") == [(1 if row else 0,)]


def test_a_partitioned_table_and_a_view(log: CapturedDatabase, database: Database, replica: Database) -> None:
    replica.execute("""
        CREATE TABLE t (id int PRIMARY KEY, n int, v text) PARTITION BY RANGE (id);
        CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (MINVALUE) TO (100);
        CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (100) TO (MAXVALUE);
        CREATE VIEW bag AS SELECT 'x'::text AS v WHERE false;
    """)
    with pytest.raises(SinkRefused, match="not an ordinary table"):
        deliver(sink_to(replica), log.store)
    replica.execute("DROP VIEW bag")
    log.execute("UPDATE t SET id = id + 150, n = 0 WHERE id < 20 AND id + 150 > 300")
    log.execute("UPDATE t SET id = id + 1000 WHERE id < 50", "DELETE FROM t WHERE id > 250 AND id < 290")
    log.catch_up()
    deliver(sink_to(replica), log.store, limits=BatchLimits(1, 1))
    assert_same(database, replica, "t", "bag")


def test_the_mode_of_a_sink_does_not_change(replica: Database) -> None:
    sink = sink_to(replica)
    sink.open()
    sink.close()
    with pytest.raises(SinkRefused, match="a mode other than"):
        sink_to(replica, mode="history").open()


def test_few_changes_scan_no_table(log: CapturedDatabase, replica: Database) -> None:
    log.execute("INSERT INTO t SELECT g, g, 'x' FROM generate_series(1000, 30000) g")
    log.catch_up()
    deliver(sink_to(replica), log.store)
    query = "SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 't'"
    replica.execute("ANALYZE t")
    before = replica.rows(query)
    for id in range(2000, 2010):
        log.execute(f"UPDATE t SET n = 0 WHERE id = {id}; DELETE FROM t WHERE id = {id + 100}")
        log.execute(f"UPDATE t SET id = -id WHERE id = {id + 200}")
    log.catch_up()
    deliver(sink_to(replica), log.store)  # its session has ended, so its statistics are reported
    assert replica.rows(query) == before


def test_a_password_goes_to_executors_and_nowhere_else(log: CapturedDatabase, caplog: pytest.LogCaptureFixture) -> None:
    password = f"{TOKEN} /@:%'ü\\"
    with running(18, auth="scram-sha-256", password=password, log_statement="all") as server:
        for options in (
            PostgresOptions(url=server.url, password=Secret(password)),
            PostgresOptions(url=server.url + f"?password={TOKEN}"),
        ):
            sink = PostgresSink("replica", options)
            assert_nowhere(repr(options), str(options), repr(sink), str(vars(sink)), options.url)
            with pytest.raises(TypeError, match="secret cannot be pickled"):
                pickle.dumps(options)
            arrived = pickle.loads(pickle.dumps(sink))
            assert arrived._options == options
            assert_nowhere(repr(arrived._options))
            with pytest.raises(TypeError, match="secret cannot be pickled"):
                pickle.dumps(arrived._options)
        driver = Driver(PostgresSink("replica", PostgresOptions(url=server.url, password=Secret(password))), log.store)
        planned = driver.plan(1, _ALL)
        assert planned is not None
        receipts = driver.stage(planned)
        assert_nowhere(pickle.dumps(receipts), pickle.dumps(planned.step))
        driver.commit(planned, receipts)
        driver.sink.close()
        with pytest.raises(SinkRefused, match="password authentication failed") as refused:
            sink.open()
        _assert_clean(refused.value)
        assert "sink.password_file" in refused.value.hint
        assert_nowhere(server.log.read_bytes(), caplog.text)


def _assert_clean(error: TailraceError) -> None:
    assert_nowhere(str(error), repr(error), error.hint, pickle.dumps(error), *traceback.format_exception(error))


def test_invalid_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="url is missing"):
        PostgresSink("replica", PostgresOptions())
    with pytest.raises(ConfigError, match="cannot be read"):
        PostgresSink("replica", PostgresOptions(url="postgresql://x/y", password_file=tmp_path / "none"))
    with pytest.raises(ConfigError, match="not a plain name"):
        PostgresSink("replica", PostgresOptions(url="postgresql://x/y", schema="a b"))
    (tmp_path / "secret").write_text("pass\n")
    sink = PostgresSink("replica", PostgresOptions(url="postgresql://x/y", password_file=tmp_path / "secret"))
    assert sink._options.password == Secret("pass")


def test_missing_privileges_are_reported(log: CapturedDatabase, replica: Database, postgres: Postgres) -> None:
    """A user who may not create a schema gets an error and a hint at once."""
    role = f"{replica.name}_weak"
    replica.execute(f"CREATE ROLE {role} LOGIN")
    try:
        weak = PostgresSink("replica", PostgresOptions(url=psycopg.conninfo.make_conninfo(replica.url, user=role)))
        with pytest.raises(SinkRefused, match="permission denied") as raised:
            weak.open()
        assert "create schemas" in raised.value.hint
    finally:
        replica.execute(f"DROP ROLE {role}")
    with pytest.raises(SinkRefused, match="does not exist"):
        PostgresSink("replica", PostgresOptions(url=postgres.url_of("nowhere"))).open()
