"""The sink `mysql`: what MySQL and MariaDB do differently from PostgreSQL, and what happens when others meddle."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest
from tests.contract import mysql_tables
from tests.contract.delivery_driver import DeliveryDriver
from tests.e2e.captured_database import CapturedDatabase, captured
from tests.fixtures.postgres import Database
from tests.sinks.captured_source import CapturedSource
from tests.sinks.mysql_replica import MysqlReplica
from tests.sinks.sink_driver import Driver, deliver

from tailrace.change import Lsn
from tailrace.embedded.mysql_family import MysqlFamilyServer
from tailrace.errors import FencedError, PoisonError, SinkDiverged, SinkError, SinkRefused
from tailrace.log.decoding import ChangeFilter
from tailrace.log.planner import BatchLimits
from tailrace.sinks.database import staging

_ALL = BatchLimits(1 << 30, 1 << 40)


def _digest(number: int) -> str:
    """What PostgreSQL's md5 makes of a number. MySQL 9 has no such function."""
    return hashlib.md5(str(number).encode()).hexdigest()


@pytest.fixture(params=["mariadb", "mysql"])
def replica(request: pytest.FixtureRequest) -> Iterator[MysqlReplica]:
    server: MysqlFamilyServer = request.getfixturevalue(f"{request.param}_server")
    with mysql_tables.make_database(server) as url, closing(MysqlReplica(url)) as found:
        yield found


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


def test_one_deliver_at_a_time(replica: MysqlReplica) -> None:
    first, second, other = replica.sink(), replica.sink(), replica.sink("other")
    first.open()
    with pytest.raises(SinkError, match="another process is delivering to sink replica") as raised:
        second.open()
    assert raised.value.retry
    other.open()
    other.close()
    first.close()
    second.open()
    second.close()


@pytest.mark.parametrize("inline_bytes", [0, staging.INLINE_BYTES])
def test_other_writers_are_detected(
    log: CapturedDatabase, database: Database, replica: MysqlReplica, monkeypatch: pytest.MonkeyPatch, inline_bytes: int
) -> None:
    """Whatever was deleted, inserted or dropped by others, the step has no effect."""
    monkeypatch.setattr(staging, "INLINE_BYTES", inline_bytes)
    deliver(replica.sink(), log.store)
    replica.assert_same(database, "t", "bag")
    log.execute("UPDATE t SET n = 0 WHERE id < 10", "DELETE FROM t WHERE id BETWEEN 20 AND 30")
    log.execute("UPDATE t SET id = id + 1000 WHERE id BETWEEN 40 AND 50", "INSERT INTO t VALUES (501, 0, 'x')")
    log.execute("DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag LIMIT 7)")
    log.catch_up()
    meddling = {
        "DELETE FROM t WHERE id = 7": f"INSERT INTO t VALUES (7, 7, '{_digest(7)}')",
        "DELETE FROM t WHERE id = 25": f"INSERT INTO t VALUES (25, 25, '{_digest(25)}')",
        "DELETE FROM t WHERE id = 45": f"INSERT INTO t VALUES (45, 45, '{_digest(45)}')",
        "INSERT INTO t VALUES (501, 1, NULL)": "DELETE FROM t WHERE id = 501",
        "DELETE FROM bag LIMIT 4": "INSERT INTO bag VALUES ('same'), ('same'), ('same'), ('same')",
        "RENAME TABLE t TO hidden": "RENAME TABLE hidden TO t",
        "ALTER TABLE t RENAME COLUMN n TO m": "ALTER TABLE t RENAME COLUMN m TO n",
    }
    for statement, inverse in meddling.items():
        replica.execute(statement)
        before = replica.rows("SELECT * FROM bag ORDER BY 1"), replica.rows("SELECT * FROM tailrace_sinks")
        with pytest.raises(SinkDiverged) as raised:
            deliver(replica.sink(), log.store, limits=_ALL)
        assert "sink rewind replica snapshot" in raised.value.hint
        assert (replica.rows("SELECT * FROM bag ORDER BY 1"), replica.rows("SELECT * FROM tailrace_sinks")) == before
        replica.execute(inverse)
    deliver(replica.sink(), log.store, limits=_ALL)
    replica.assert_same(database, "t", "bag")


def test_sessions_and_rows_that_are_lost_while_rows_are_staged(
    log: CapturedDatabase, database: Database, replica: MysqlReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends idle sessions, and may lose staged rows in a crash."""
    monkeypatch.setattr(staging, "INLINE_BYTES", 0)
    driver = Driver(replica.sink(), log.store)
    planned = driver.plan(1, _ALL)
    assert planned is not None
    receipts = driver.stage(planned)
    name = replica.url.rpartition("/")[2]
    others = f"SELECT id FROM information_schema.processlist WHERE db = '{name}' AND id <> connection_id()"
    for (number,) in replica.rows(others):
        replica.execute(f"KILL {number}")
    (*_, (table,)) = replica.rows("SHOW TABLES LIKE 'tailrace\\_staged\\_%'")
    replica.execute(f"DELETE FROM {table} LIMIT 1")  # as after a crash of the server
    with pytest.raises(SinkError, match="are missing at the destination"):
        driver.sink.commit(planned.step, receipts)
    receipts = driver.stage(planned)
    driver.sink.commit(planned.step, receipts)
    with pytest.raises(FencedError, match="rewound, or another process"):
        driver.sink.commit(planned.step, receipts)
    driver.sink.close()
    replica.assert_same(database, "t", "bag")


@pytest.mark.parametrize("inline_bytes", [0, staging.INLINE_BYTES])
@pytest.mark.parametrize("rows", [50, 2000])
def test_a_value_that_the_destination_does_not_accept(
    database: Database,
    replica: MysqlReplica,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inline_bytes: int,
    rows: int,
) -> None:
    """By INSERT, by LOAD DATA and in a staging table: the change's position and column, and never the value."""
    monkeypatch.setattr(staging, "INLINE_BYTES", inline_bytes)
    database.execute("CREATE TABLE m (id int PRIMARY KEY, v varchar(30))")
    with captured(database, tmp_path) as log:
        log.execute("INSERT INTO m VALUES (0, 'x')")
        log.catch_up()
        deliver(replica.sink(), log.store)
        # Somebody has made the column shorter there.
        replica.execute(f"ALTER TABLE m MODIFY v VARCHAR(10) COLLATE {replica.session.collation}")
        log.execute(
            f"INSERT INTO m SELECT g, CASE g WHEN {rows - 7} THEN 'a topsecret value' END"
            f" FROM generate_series(1, {rows}) g"
        )
        changes = log.changes("m")
    (poison,) = [c for c in changes if c.after and c.after["v"] == "a topsecret value"]
    before = replica.rows("SELECT * FROM tailrace_sinks")
    with pytest.raises((PoisonError, SinkRefused)) as raised:
        deliver(replica.sink(), log.store, limits=_ALL)
    assert "topsecret" not in "".join(traceback.format_exception(raised.value))
    if isinstance(raised.value, PoisonError):
        assert raised.value.positions == (str(poison.position),)
        assert "public.m, column v" in str(raised.value)
    assert (replica.rows("SELECT * FROM m"), replica.rows("SELECT * FROM tailrace_sinks")) == ([(0, "x")], before)


def test_an_unrepresentable_value_has_its_position(database: Database, replica: MysqlReplica, tmp_path: Path) -> None:
    database.execute("CREATE TABLE m (id int PRIMARY KEY, n numeric)")
    with captured(database, tmp_path) as log:
        log.execute("INSERT INTO m SELECT g, g FROM generate_series(1, 50) g", "UPDATE m SET n = 'NaN' WHERE id = 30")
        (*_, poison) = log.changes("m")
    with pytest.raises(PoisonError, match=r"public\.m, column n") as raised:
        deliver(replica.sink(on_unrepresentable="stop"), log.store)
    assert raised.value.positions == (str(poison.position),)
    deliver(replica.sink(on_unrepresentable={"numeric": "null"}), log.store)
    assert replica.rows("SELECT count(*), count(n) FROM m") == [(50, 49)]


def test_tables_have_keys_types_comments_and_not_null(
    database: Database, any_mysql_server: MysqlFamilyServer, tmp_path: Path
) -> None:
    database.execute("""
        CREATE TABLE described (b varchar(20) NOT NULL, a int, n numeric(9,2) NOT NULL, t text, PRIMARY KEY (b, a));
        COMMENT ON TABLE described IS 'it''s a table \\ "of" %s things';
        COMMENT ON COLUMN described.n IS 'in € 🐘';
    """)
    with (
        captured(database, tmp_path) as log,
        mysql_tables.make_database(any_mysql_server) as url,
        closing(MysqlReplica(url)) as replica,
    ):
        log.execute("INSERT INTO described VALUES ('b', 1, 2.5, NULL)")
        log.catch_up()
        deliver(replica.sink(on_unrepresentable="stop"), log.store)
        name = replica.url.rpartition("/")[2]
        where = f"WHERE table_schema = '{name}' AND table_name = 'described'"
        assert replica.rows(
            f"SELECT column_name, column_type, is_nullable, column_comment FROM information_schema.columns {where}"
            " ORDER BY ordinal_position"
        ) == [
            ("b", "varchar(20)", "NO", ""),
            (("a", "int(11)", "NO", "") if replica.session.flavour.product == "mariadb" else ("a", "int", "NO", "")),
            ("n", "decimal(9,2)", "NO", "in € \ufffd"),
            ("t", "longtext", "YES", ""),
        ]
        assert replica.rows(f"SELECT table_comment, engine FROM information_schema.tables {where}") == [
            ('it\'s a table \\ "of" %s things', "InnoDB")
        ]
        keys = f"SELECT column_name FROM information_schema.statistics {where} ORDER BY seq_in_index"
        assert replica.rows(keys) == [("b",), ("a",)]
        assert replica.rows("SELECT * FROM described") == [("b", 1, Decimal("2.50"), None)]


def test_schemas_become_prefixes_or_databases(database: Database, replica: MysqlReplica, tmp_path: Path) -> None:
    database.execute("CREATE SCHEMA a; CREATE TABLE a.b (id int PRIMARY KEY); CREATE TABLE plain (id int PRIMARY KEY)")
    with captured(database, tmp_path) as log:
        log.execute("INSERT INTO a.b VALUES (1)", "INSERT INTO plain VALUES (2)")
        log.catch_up()
        deliver(replica.sink(), log.store)
        assert (replica.rows("SELECT * FROM a_b"), replica.rows("SELECT * FROM plain")) == ([(1,)], [(2,)])
        deliver(replica.sink("apart", database="per_schema"), log.store)
        assert (replica.rows("SELECT * FROM a.b"), replica.rows("SELECT * FROM `public`.plain")) == ([(1,)], [(2,)])
        replica.execute("DROP DATABASE a", "DROP DATABASE `public`")
        log.execute("CREATE TABLE a_b (id int PRIMARY KEY)", "INSERT INTO a_b VALUES (4)")
        log.catch_up()
    with pytest.raises(SinkRefused, match=r"a\.b and public\.a_b would both be"):
        deliver(replica.sink(), log.store)


def test_tables_that_exist_already(log: CapturedDatabase, database: Database, replica: MysqlReplica) -> None:
    text = f"LONGTEXT COLLATE {replica.session.collation}"
    for declared, row, words in (
        ("id INT NOT NULL PRIMARY KEY, n INT, v LONGTEXT COLLATE utf8mb4_general_ci", "", "other columns"),
        (f"id INT NOT NULL PRIMARY KEY, n BIGINT, v {text}", "", "other columns"),
        (f"id INT NOT NULL, n INT, v {text}", "", "another primary key"),
        (f"id INT NOT NULL PRIMARY KEY, n INT, v {text}", "0, 0, ''", "has rows"),
        (f"id INT NOT NULL PRIMARY KEY, n INT, v {text}) ENGINE = MyISAM COMMENT = ('mine'", "", "InnoDB"),
    ):
        replica.execute(f"CREATE TABLE t ({declared})".replace("= ('mine')", "= 'mine'"))
        if row:
            replica.execute(f"INSERT INTO t VALUES ({row})")
        with pytest.raises(SinkRefused, match=words):
            deliver(replica.sink(), log.store)
        replica.execute("DROP TABLE t")
    replica.execute(f"CREATE TABLE t (id INT NOT NULL PRIMARY KEY, n INT, v {text}, INDEX mine (n))")
    deliver(replica.sink(), log.store)
    replica.assert_same(database, "t", "bag")
    with pytest.raises(SinkRefused, match="belongs to sink replica"):
        deliver(replica.sink("second"), log.store)


def test_a_refused_statement_is_named_and_run_again_when_its_cause_is_gone(
    log: CapturedDatabase, database: Database, replica: MysqlReplica
) -> None:
    """It is the second of its change: the table has its new name already."""
    deliver(replica.sink(), log.store)
    # An operator has added a column that depends on one which the source drops.
    replica.execute("ALTER TABLE t ADD COLUMN mine INT AS (n + 1)")
    log.execute("ALTER TABLE t DROP n", "ALTER TABLE t RENAME TO u", "INSERT INTO u VALUES (1000, 'x')")
    log.catch_up()
    for _ in range(3):
        with pytest.raises(SinkRefused, match=r"u: the server refuses .* \(\d+\): ALTER TABLE .*`n`") as raised:
            deliver(replica.sink(), log.store)
        assert "remove the cause, and start deliver again" in raised.value.hint
    # This alters the table's definition, and is not the statement.
    replica.execute("ALTER TABLE u DROP COLUMN mine")
    deliver(replica.sink(), log.store)
    replica.assert_same(database, "u", "bag")
    assert replica.rows("SELECT * FROM tailrace_definition_changes") == []


def test_a_table_whose_definition_is_refused_can_be_dropped_and_loaded_again(
    database: Database, replica: MysqlReplica, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'x')")
    database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
    source = CapturedSource(database, tmp_path / "store")
    driver = DeliveryDriver(mysql_tables.MysqlMirror(replica.url), source.given.store)

    def deliver_all() -> None:
        with driver.stepper() as stepper:
            stepper.load_missing()
            stepper.deliver(stepper.log_end())

    source.capture(snapshot=["t"])
    deliver_all()
    # An operator has added a reference to the column whose type changes.
    replica.execute("CREATE TABLE child (t INT, FOREIGN KEY (t) REFERENCES t (id)) ENGINE = InnoDB")
    source.capture("ALTER TABLE t RENAME TO u", "ALTER TABLE u ALTER id TYPE bigint", "INSERT INTO u VALUES (2, 'y')")
    with pytest.raises(SinkRefused, match="u: the server refuses") as raised:
        deliver_all()
    assert ".u at the destination, and load it with `tailrace sink reload tested" in raised.value.hint
    replica.execute("DROP TABLE child", "DROP TABLE u")
    with pytest.raises(SinkDiverged, match="is missing at the destination"):
        deliver_all()
    source.capture(snapshot=["u"])
    with driver.stepper() as stepper:
        assert stepper.reload(["public.u"]) == 1
    deliver_all()
    replica.assert_same(database, "u")


def test_type_changes_with_other_values_are_refused(database: Database, replica: MysqlReplica, tmp_path: Path) -> None:
    """MySQL would show other values than PostgreSQL. A new snapshot has them."""
    changes = {
        ("bool", "text"): "true",
        ("float8", "int"): "1.5",
        ("text", "jsonb"): '\'{"b":1, "a":2}\'',
        ("char(3)", "char(5)"): "'a'",
        ("inet", "text"): "'10.0.0.1'",
    }
    for n, (old, _) in enumerate(changes):
        database.execute(f"CREATE TABLE t{n} (id int PRIMARY KEY, v {old})")
    with captured(database, tmp_path) as log:
        log.execute(*[f"INSERT INTO t{n} VALUES (1, {value})" for n, value in enumerate(changes.values())])
        log.catch_up()
        deliver(replica.sink(), log.store)
        for n, (_, new) in enumerate(changes):
            log.execute(f"ALTER TABLE t{n} ALTER v TYPE {new} USING v::{new}", f"INSERT INTO t{n} VALUES (2, NULL)")
        log.catch_up()
    oids = [database.rows(f"SELECT 't{n}'::regclass::oid::int")[0][0] for n in range(len(changes))]
    for n, oid in enumerate(oids):
        only = ChangeFilter(tables={other: Lsn((1 << 63) - 1) for other in oids if other != oid})
        with pytest.raises(SinkRefused, match=rf"public\.t{n}, column v: its type changed at the source") as raised:
            deliver(replica.sink(), log.store, change_filter=only)
        assert "new snapshot" in raised.value.hint
        assert replica.rows(f"SELECT id FROM t{n}") == [(1,)]
