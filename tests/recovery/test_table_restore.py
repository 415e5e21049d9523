"""A restored table has PostgreSQL's own rows and its own definition at that moment."""

from __future__ import annotations

import logging
import subprocess
from collections import Counter
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from psycopg.errors import ForeignKeyViolation
from tests import oracle
from tests.fixtures.postgres import Database
from tests.recovery.table_scene import Scene, definition, new_database, scene
from tests.workload import Workload

from tailrace.capture.postgres.schema_recorder import SchemaRecorder
from tailrace.change import Lsn
from tailrace.cli import main
from tailrace.embedded.process import wait_until
from tailrace.errors import ConfigError, CorruptError, SinkRefused, StoreError
from tailrace.log import ddl_message, schema_record
from tailrace.recovery import log_moment, table_restore
from tailrace.recovery.log_moment import TableEvent
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.recovery.table_restore import ScriptDestination
from tailrace.settings import SourceSettings
from tailrace.store import FileStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOP = """
CREATE SCHEMA "s 1";
CREATE TYPE "s 1"."Mood" AS ENUM ('sad', 'it''s "fine"');
CREATE DOMAIN price AS numeric(10, 2) DEFAULT 1 CHECK (VALUE >= 0);
CREATE TYPE spot AS (x price, label text COLLATE "C");
CREATE TYPE span AS RANGE (subtype = float8);
CREATE SEQUENCE shared START 100;
CREATE TABLE parents (id int PRIMARY KEY, name text UNIQUE);
CREATE TABLE "s 1"."Wéird /%t" (
    id serial PRIMARY KEY, "q""c\\o'l" int GENERATED ALWAYS AS IDENTITY (START WITH 7 INCREMENT BY 3 MAXVALUE 100000),
    mood "s 1"."Mood"[] NOT NULL DEFAULT '{sad}', cost price, at spot, during span DEFAULT '[1,2)',
    twice int GENERATED ALWAYS AS (id * 2) STORED, number int DEFAULT nextval('shared'), tenant int,
    parent int CONSTRAINT "its parent" REFERENCES parents ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    self int REFERENCES "s 1"."Wéird /%t", note text COLLATE "C" CHECK (note <> ''), body text,
    CONSTRAINT "two cols" UNIQUE (note, tenant), EXCLUDE USING gist (during WITH &&) WHERE (tenant < 0)
) WITH (fillfactor = 70);
ALTER TABLE "s 1"."Wéird /%t" ADD CHECK (tenant < 1000) NOT VALID;
ALTER TABLE "s 1"."Wéird /%t" ALTER body SET STORAGE EXTERNAL;
CREATE UNIQUE INDEX "i x" ON "s 1"."Wéird /%t" (lower(note) DESC NULLS LAST) INCLUDE (tenant) WHERE id > 3;
CREATE UNIQUE INDEX ident ON "s 1"."Wéird /%t" ("q""c\\o'l");
ALTER TABLE "s 1"."Wéird /%t" REPLICA IDENTITY USING INDEX ident;
COMMENT ON TABLE "s 1"."Wéird /%t" IS 'a ''comment''';
COMMENT ON COLUMN "s 1"."Wéird /%t".note IS 'of a column';
COMMENT ON INDEX "s 1"."i x" IS 'of an index';
COMMENT ON CONSTRAINT "two cols" ON "s 1"."Wéird /%t" IS 'of a constraint';
CREATE TABLE parted (id int, k text, v int CHECK (v > 0), PRIMARY KEY (id, k), FOREIGN KEY (v) REFERENCES parents)
    PARTITION BY LIST (k);
CREATE TABLE parted_a PARTITION OF parted FOR VALUES IN ('a', 'b') PARTITION BY RANGE (id);
CREATE TABLE parted_a1 PARTITION OF parted_a FOR VALUES FROM (MINVALUE) TO (10);
CREATE TABLE parted_rest PARTITION OF parted DEFAULT;
CREATE INDEX own ON parted_rest (k);
CREATE INDEX ON parted (v);
"""
ROWS = """
INSERT INTO parents SELECT i, 'p' || i FROM generate_series(1, 9) i;
INSERT INTO "s 1"."Wéird /%t" (cost, parent, tenant, note, at, body)
SELECT i, 1 + i % 9, i % 5, 'n' || i, row(i::price, E'a\\tb\\\\' || i)::spot,
       CASE WHEN i % 50 = 0 THEN repeat(md5(i::text), 200) END
FROM generate_series(1, 300) i;
INSERT INTO parted SELECT i, chr(97 + i % 4), 1 + i % 9 FROM generate_series(1, 9) i;
"""
ODD = ("s 1", "Wéird /%t")
PARENTS = ("public", "parents")
PARTED = ("public", "parted")
_ODD = '"s 1"."Wéird /%t"'
_MARK_ROWS = 'SELECT * FROM "s 1"."Wéird /%t" WHERE {} ORDER BY id'


@pytest.fixture
def shop(any_database: Database, tmp_path: Path) -> Iterator[Scene]:
    any_database.execute(SHOP)
    any_database.execute(ROWS)
    any_database.execute(ddl_message.TRIGGER)
    with scene(any_database, tmp_path, "FOR ALL TABLES WITH (publish_via_partition_root = true)") as it:
        it.snapshot()
        it.execute(
            f"UPDATE {_ODD} SET note = note || '!', self = 1 WHERE id % 7 = 0",
            f"INSERT INTO {_ODD} (note, tenant, cost) VALUES ('last', 3, 5)",
            f"DELETE FROM {_ODD} WHERE id = (SELECT max(id) FROM {_ODD})",
            "UPDATE parted SET k = 'z' WHERE id = 2",
        )
        yield it


def test_dropped_tables_come_back_as_they_were(shop: Scene) -> None:
    names = [ODD, PARENTS, PARTED]
    texts = [_ODD, "parents", "parted", "parted_a", "parted_a1", "parted_rest"]
    shop.record_definitions()
    expected = {text: definition(shop.connection, text) for text in texts}
    generated = shop.connection.execute(f"SELECT id, twice FROM {_ODD} ORDER BY id".encode()).fetchall()
    shop.mark(*names)
    (rows,) = shop.rows.values()
    shop.execute(f"DROP TABLE {_ODD} CASCADE", "DROP TABLE parted, parents", 'DROP TYPE "s 1"."Mood"')
    shop.mark()
    (drop,) = log_moment.find_event(shop.reader, TableEvent.parse(f"drop of {_ODD}"))
    with new_database(shop.database) as other:
        planned, progress = shop.restore(other, names, drop.lsn)
        assert not [note for each in planned for note in each.table.notes]
        with other.connect(autocommit=True) as connection:
            for name in names:
                assert oracle.rows(connection, *name) == rows[name]
                assert progress.restored[name] == rows[name].total()
            for text in texts:
                assert definition(connection, text) == expected[text], text
            assert connection.execute(f"SELECT id, twice FROM {_ODD} ORDER BY id".encode()).fetchall() == generated
            # The sequences go on after the rows.
            last = connection.execute(
                f'INSERT INTO {_ODD} (note) VALUES (\'x\') RETURNING id, "q""c\\o\'l", number'.encode()
            )
            assert last.fetchone() == (301, 7 + 300 * 3, 400)
            with pytest.raises(Exception, match="its parent"), connection.transaction():
                connection.execute(f"UPDATE {_ODD} SET parent = 99".encode())
        with pytest.raises(ConfigError, match=r"s 1\.Wéird /%t exists at the destination"):
            shop.restore(other, [ODD], drop.lsn)


def test_condition_selects_the_rows_that_postgres_selects(shop: Scene) -> None:
    lsn = shop.mark(ODD)
    with new_database(shop.database) as other:
        for number, where in enumerate(
            (
                "tenant = 3",
                "tenant = 3 -- only these",
                "twice > 100 AND mood[1] = 'sad'",
                "note COLLATE \"C\" > 'n2' OR cost IS NULL",
            )
        ):
            planned, progress = shop.restore(other, [ODD], lsn, where, f"s{number}")
            expected = Counter(shop.connection.execute(_MARK_ROWS.format(where + "\n").encode()).fetchall())
            found = Counter(other.rows(f'SELECT * FROM s{number}."Wéird /%t"'))
            assert found == expected
            assert progress.restored == {(f"s{number}", ODD[1]): expected.total()}
            # The parent did not come along, and is not there.
            assert [note for note in planned[0].table.notes if "its parent is left out" in note]
        before = other.rows("SELECT oid FROM pg_class WHERE relnamespace > 16000 ORDER BY 1")
        for where, error in (
            ("1 / (tenant - 3) > 0", "division by zero"),
            ('true); DROP TABLE s0."Wéird /%t"; SELECT (1', "multiple commands"),
            ("no_such_column", "no_such_column"),
        ):
            with pytest.raises(SinkRefused, match=error):
                shop.restore(other, [ODD], lsn, where, "failed")
        assert other.rows("SELECT oid FROM pg_class WHERE relnamespace > 16000 ORDER BY 1") == before
        assert not other.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'failed'")


def test_script_does_what_a_restore_into_the_database_does(shop: Scene, tmp_path: Path) -> None:
    lsn = shop.mark(ODD, PARENTS, PARTED)
    shop.record_definitions()
    script = BytesIO()
    planned = table_restore.plan(shop.reader, [ODD, PARENTS, PARTED], lsn)
    table_restore.restore(planned, ScriptDestination(script, lsn), table_restore.direct_blocks(shop.reader))
    part = BytesIO()
    planned = table_restore.plan(shop.reader, [ODD], lsn, lambda _: ("part", "t"), is_subset=True)
    table_restore.restore(planned, ScriptDestination(part, lsn), table_restore.direct_blocks(shop.reader), "tenant = 3")
    with new_database(shop.database) as other:
        for content in (script, part):
            path = tmp_path / "script.sql"
            path.write_bytes(content.getvalue())
            command = [str(shop.database.server.bin("psql")), "-X", "-q", "-d", other.url, "-f", str(path)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
        with other.connect() as connection:
            for name, rows in shop.rows[lsn].items():
                assert oracle.rows(connection, *name) == rows
            for text in (_ODD, "parents", "parted_rest"):
                assert definition(connection, text) == definition(shop.connection, text)
            expected = Counter(shop.connection.execute(_MARK_ROWS.format("tenant = 3").encode()).fetchall())
            assert Counter(connection.execute("SELECT * FROM part.t").fetchall()) == expected


def test_a_foreign_key_is_validated_only_if_its_parent_comes_too(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE parents (id int PRIMARY KEY); INSERT INTO parents VALUES (1), (2);"
        "CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents); INSERT INTO children VALUES (7, 2)"
    )
    validated = "SELECT convalidated FROM pg_constraint WHERE contype = 'f'"
    children = ("public", "children")
    with scene(database, tmp_path) as it:
        it.snapshot()
        it.record_definitions()
        lsn = it.mark()
        with new_database(database) as both:
            it.restore(both, [children, PARENTS], lsn)
            assert both.rows(validated) == [(True,)]
        script = tmp_path / "script.sql"
        command = ["restore", "--table", "children", "--to", str(lsn), "--sql", str(script)]
        done = CliRunner().invoke(main, command, env={"TAILRACE_STORE_URL": it.store.url})
        assert done.exit_code == 0, done.output
        for use_script in (False, True):
            with new_database(database) as other:
                other.execute("CREATE TABLE parents (id int PRIMARY KEY)")  # without the parent of the row
                if use_script:
                    psql = [str(database.server.bin("psql")), "-X", "-q", "-d", other.url, "-f", str(script)]
                    subprocess.run(psql, check=True, capture_output=True, timeout=60)
                else:
                    it.restore(other, [children], lsn)
                assert other.rows("SELECT * FROM children") == [(7, 2)]
                assert other.rows(validated) == [(False,)]
                with pytest.raises(ForeignKeyViolation):
                    other.execute("INSERT INTO children VALUES (8, 3)")


def test_random_tables_at_random_positions_with_ddl(database: Database, tmp_path: Path) -> None:
    """Rows are compared column by column: a column may only be missing if the restore says so."""
    workload = Workload(database.connect, 5, ddl=True, exclusive=0.05)
    workload.create()
    workload.run(20)
    names = [(t.schema, t.name) for t in workload.tables]
    with scene(database, tmp_path) as it:
        it.snapshot()
        columns = {}
        for _ in range(4):
            workload.run(20)
            lsn = it.mark(*names)
            columns[lsn] = {name: _columns(it.connection, name) for name in names}
        workload.stop()
        for lsn in it.rows:
            with new_database(database) as other:
                planned, _ = it.restore(other, names, lsn)
                with other.connect() as connection:
                    for name, each in zip(names, planned, strict=True):
                        found = _columns(connection, name)
                        for column in set(columns[lsn][name]) - set(found):
                            assert any(f"column {column} is left out" in note for note in each.table.notes), name
                        assert set(found) <= set(columns[lsn][name]), f"{name} at {lsn}"
                        kept = [columns[lsn][name].index(column) for column in found]
                        expected = Counter({tuple(row[i] for i in kept): 0 for row in it.rows[lsn][name]})
                        for row, copies in it.rows[lsn][name].items():
                            expected[tuple(row[i] for i in kept)] += copies
                        assert oracle.rows(connection, *name) == expected, f"{name} at {lsn}"


def _columns(connection: Any, name: tuple[str, str]) -> list[str]:
    query = "SELECT attname FROM pg_attribute WHERE attrelid = format('%%I.%%I', %s::text, %s::text)::regclass"
    rows = connection.execute(f"{query} AND attnum > 0 AND NOT attisdropped ORDER BY attnum", name).fetchall()
    return [column for (column,) in rows]


def test_changed_truncated_and_renamed_tables(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t SELECT i, 'a' FROM generate_series(1, 50) i"
    )
    with scene(database, tmp_path) as it:
        it.snapshot()
        first = it.mark(("public", "t"))
        it.execute("ALTER TABLE t ADD b int DEFAULT 7", "ALTER TABLE t RENAME a TO c")
        it.record_definitions()
        second = it.mark(("public", "t"))  # no change of the table since: only the recorded definition knows
        it.execute("UPDATE t SET b = id WHERE id < 5", "ALTER TABLE t RENAME TO u", "DELETE FROM u WHERE id > 40")
        third = it.mark(("public", "u"))
        it.execute("TRUNCATE u")
        fourth = it.mark(("public", "u"))
        for lsn in (first, second, third, fourth):
            ((name, rows),) = it.rows[lsn].items()
            with new_database(database) as other:
                planned, _ = it.restore(other, [name], lsn)
                assert not planned[0].table.notes
                with other.connect() as connection:
                    assert oracle.rows(connection, *name) == rows, str(lsn)
        (truncated,) = log_moment.find_event(it.reader, TableEvent.parse("TRUNCATE of u"))
        (deleted,) = log_moment.find_event(it.reader, TableEvent.parse("delete of public.u"))
        assert third < truncated.lsn < fourth
        assert (deleted.rows, deleted.lsn < third) == (10, True)
        assert log_moment.resolve(it.reader, RecoveryTarget("xid", xid=truncated.xid)) == truncated.lsn
        with pytest.raises(ConfigError, match="has no snapshot"):
            it.restore(database, [("public", "t")], fourth)


def test_target_outside_the_log_is_refused_with_the_possible_range(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with scene(database, tmp_path) as it:
        it.snapshot()
        it.execute("INSERT INTO t VALUES (1)")
        it.mark()
        row = it.connection.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        it.execute("INSERT INTO t VALUES (2)")
        end = it.mark(("public", "t"))
        assert log_moment.resolve(it.reader, RecoveryTarget("time", time=row[0])) < end
        with new_database(database) as other:
            it.restore(other, [("public", "t")], RecoveryTarget("time", time=row[0]))
            assert other.rows("SELECT * FROM t") == [(1,)]
        for text in ("0/1", "FF/0", "2020-01-01", "2099-01-01"):
            with pytest.raises(ConfigError, match="cannot be restored") as refused:
                log_moment.resolve(it.reader, RecoveryTarget.parse(text))
            assert "the log covers" in refused.value.hint
        result = CliRunner().invoke(
            main,
            ["restore", "--table", "t", "--before", "drop of t", "--sql", str(tmp_path / "x.sql")],
            env={"TAILRACE_STORE_URL": it.store.url},
        )
        assert result.exit_code == 2
        assert "the log shows no drop of public.t" in result.output


def test_table_without_a_recorded_definition_has_its_columns_and_key(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TYPE m AS ENUM ('a'); CREATE TABLE t (id int PRIMARY KEY, m m[]); INSERT INTO t VALUES (1, '{a}')"
    )
    with scene(database, tmp_path) as it:
        it.snapshot()
        lsn = it.mark(("public", "t"))
        it.recorder.stop()
        for info in it.store.list("schema"):
            it.store.delete(info.key)
        with new_database(database) as other:
            planned, _ = it.restore(other, [("public", "t")], lsn)
            assert "its definition was not recorded" in planned[0].table.notes[0]
            assert other.rows("SELECT id, m::text FROM t") == [(1, "{a}")]
            assert other.rows("SELECT conname FROM pg_constraint WHERE conname LIKE 't%' AND contype = 'p'") == [
                ("t_pkey",)
            ]


def test_binary_rows_equal_the_sources(database: Database, tmp_path: Path) -> None:
    """Values of all types that the binary format is used for; rows with values that it cannot have go through text."""
    database.execute(
        r"""
        CREATE TYPE mood AS ENUM ('sad', 'o''k');
        CREATE TABLE wide (
            id int PRIMARY KEY, b bool, i2 int2, i8 int8, f4 float4, f8 float8, cost numeric(12,2), part numeric(4,4),
            big numeric(18,0), d date, ts timestamp, tz timestamptz, ti time, u uuid, t text, v varchar(9), c char(5),
            j json, jb jsonb, bin bytea, m mood);
        INSERT INTO wide SELECT i, i % 2 = 0, -i, i * 4294967296::int8, i / 3.0, -i / 7.0, i * 123.45 - 200,
            i / 10000.0, i * 999999999999999 - 500, date '2024-02-28' + i,
            timestamp '1999-12-31 23:59:59.9' + i * '1d 1us'::interval,
            timestamptz '1950-01-01 00:00:01+00' + i * '1s'::interval, time '00:00:00.000001' + i * '7 min'::interval,
            md5(i::text)::uuid, repeat(E'ä\t', i % 4), 'v' || i, 'c', '[1, 2]', '{"a": 1}',
            decode(md5(i::text), 'hex'),
            CASE WHEN i % 3 = 0 THEN 'sad'::mood ELSE 'o''k' END
            FROM generate_series(1, 200) i;
        INSERT INTO wide (id) SELECT generate_series(201, 230);
        INSERT INTO wide (id, d, ts, tz, f4, f8, cost, part, big, t, bin) VALUES
            (301, 'infinity', '-infinity', 'infinity', 'NaN', '-Infinity', -9999999999.99, -0.9999, -999999999999999999,
             '', ''),
            (302, '-infinity', 'infinity', '4714-11-24 00:00:00+00 BC', '-0', 5e-324, 0, 0.0001, 999999999999999999,
             E'\\N\n', '\x00ff'),
            (303, '4714-11-24 BC', '4714-11-24 BC', '-infinity', 3.4e38, 1.7e308, 0.01, 0, 1, E'\x7f', NULL)
        """
    )
    with scene(database, tmp_path) as it:
        it.snapshot()
        it.execute(
            "UPDATE wide SET i2 = NULL, t = 'changed', cost = -cost WHERE id % 5 = 0", "DELETE FROM wide WHERE id = 7"
        )
        ordinary = it.mark(("public", "wide"))
        it.execute("UPDATE wide SET ts = '294276-12-31 23:59:59.999999', cost = 'NaN' WHERE id = 3")
        special = it.mark(("public", "wide"))
        for lsn, formats in ((ordinary, {True}), (special, {True, False})):
            (planned,) = table_restore.plan(it.reader, [("public", "wide")], lsn)
            assert {block.is_binary for block in table_restore.direct_blocks(it.reader)(planned, True)} == formats
            with new_database(database) as other, other.connect() as connection:
                it.restore(other, [("public", "wide")], lsn)
                assert oracle.rows(connection, "public", "wide") == it.rows[lsn]["public", "wide"]


class EndlessSession:
    """The session of all tests, which the command must not stop."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.stops = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.spark, name)

    def stop(self) -> None:
        self.stops += 1


def test_many_rows_go_through_spark(
    database: Database, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t SELECT i, 'a' || i FROM generate_series(1, 300) i"
    )
    with scene(database, tmp_path) as it:
        it.snapshot()
        it.execute("UPDATE t SET a = 'b' WHERE id % 3 = 0", "DELETE FROM t WHERE id > 290", "INSERT INTO t VALUES (0)")
        lsn = it.mark(("public", "t"))
        session = EndlessSession(spark)
        monkeypatch.setattr("tailrace.spark.session", lambda *_: session)
        for limit, stops in ((1000, 0), (400, 1)):  # 300 rows and 111 changes
            monkeypatch.setattr("tailrace.cli.restore_table._SPARK_ROWS", limit)
            with new_database(database) as other, other.connect() as connection:
                command = ["restore", "--table", "t", "--to", str(lsn), "--into", other.url]
                result = CliRunner().invoke(main, command, env={"TAILRACE_STORE_URL": it.store.url})
                assert result.exit_code == 0, result.output
                assert oracle.rows(connection, "public", "t") == it.rows[lsn]["public", "t"]
                assert "public.t: 291 rows" in result.output
            assert session.stops == stops


def test_definitions_give_up_on_a_locked_table_before_the_server_looks_for_deadlocks(
    database: Database, tmp_path: Path
) -> None:
    """Of two sessions in a deadlock, the server cancels the one that has waited for `deadlock_timeout`."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 1 + 1); CREATE PUBLICATION tailrace FOR TABLE t"
    )
    recorder = SchemaRecorder(SourceSettings(url=database.url), FileStore(tmp_path))
    longest_wait = """SELECT coalesce(max(extract(epoch FROM clock_timestamp() - waitstart)), 0)::float8
                      FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"""
    waits = []

    def has_given_up() -> bool:
        waits.append(watcher.execute(longest_wait).fetchall()[0][0])
        return recorder.error is not None

    with database.connect(autocommit=True) as application, database.connect(autocommit=True) as watcher:
        application.execute("BEGIN")
        application.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        recorder.start()
        try:
            assert wait_until(has_given_up, 30)
            assert "lock timeout" in str(recorder.error)
            assert 0 < max(waits) < 1.0, "the server's default deadlock_timeout"
            application.execute("COMMIT")
            assert wait_until(lambda: recorder.error is None and bool(list(FileStore(tmp_path).list("schema"))), 30)
        finally:
            recorder.stop()


def test_what_ddl_changed_is_logged(database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also what happened while capture was down, and what no change of a row shows."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int DEFAULT 1, gone text, kind int)")
    database.execute("CREATE PUBLICATION tailrace FOR TABLE t")
    store = FileStore(tmp_path)
    first = SchemaRecorder(SourceSettings(url=database.url), store)
    first.start()
    first.stop()
    assert len(list(store.list("schema"))) == 1
    database.execute("ALTER TABLE t RENAME n TO m; ALTER TABLE t DROP gone; ALTER TABLE t ALTER kind TYPE bigint")
    database.execute("ALTER TABLE t ADD x text; CREATE INDEX t_x ON t (x); ALTER TABLE t REPLICA IDENTITY FULL")
    second = SchemaRecorder(SourceSettings(url=database.url), store, poll_seconds=0.02)
    with caplog.at_level("INFO", "tailrace.capture"):
        second.start()
        assert wait_until(lambda: len(caplog.messages) == 1, 30)
        database.execute("DROP TABLE t")
        assert wait_until(lambda: len(caplog.messages) == 2, 30)
        second.stop()
    assert caplog.messages == [
        "public.t: renamed column n to m; column kind is bigint instead of integer; added column x text; "
        "dropped column gone; the replica identity is full; added index t_x",
        "public.t was dropped, or removed from the publication",
    ]


class SchemaOutage(FileStore):
    """A store that does not accept definitions while `is_down`."""

    is_down = True

    def create(self, key: str, data: bytes) -> bool:
        if self.is_down and key.startswith("schema/"):
            raise StoreError(f"{key}: no answer", "retrying")
        return super().create(key, data)


def test_definitions_that_cannot_be_written_are_reported_and_do_not_stop_capture(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.capturing import CaptureThread, configured, current_lsn

    from tailrace.ops.status import CaptureStatus, Overview

    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION tailrace FOR ALL TABLES")
    store = SchemaOutage(tmp_path)
    with CaptureThread(configured(database), store) as running, database.connect(autocommit=True) as connection:
        capture = running.capture
        running.wait(lambda: capture.source.error is not None)
        (fault,) = Overview(capture=CaptureStatus.of(capture, None)).faults
        assert "no answer" in fault
        connection.execute("INSERT INTO t VALUES (1)")
        running.wait_for(current_lsn(connection))
        store.is_down = False
        running.wait(lambda: capture.source.error is None)
        assert not Overview(capture=CaptureStatus.of(capture, None)).faults
        with caplog.at_level(logging.INFO, "tailrace.capture"):
            connection.execute("ALTER TABLE t ADD note text, ADD n numeric(4,1)")
            connection.execute("INSERT INTO t VALUES (2)")
            running.wait_for(current_lsn(connection))
            running.wait(lambda: "added column note text; added column n numeric(4,1)" in caplog.text)
        assert wait_until(lambda: len(schema_record.newest_of_each(store).popitem()[1].columns) == 3, 30)
    (last,) = [table for record in list(schema_record.load_all(store))[-1:] for table in record.tables]
    assert Lsn.parse(last.changed_at or "0/0") > Lsn(0)
    key = max(info.key for info in store.list("schema"))
    content = store.get(key) or b""
    assert schema_record.SchemaRecord.from_json(content, key).tables == (last,)
    with pytest.raises(CorruptError, match="checksum"):
        schema_record.SchemaRecord.from_json(content.replace(b'"note"', b'"n0te"'), key)
