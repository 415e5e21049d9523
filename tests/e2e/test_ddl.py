"""Cases 39 to 51 and 90: changed table definitions, and unusual tables."""

from __future__ import annotations

import json
import subprocess
import unicodedata
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner
from psycopg import sql
from tests import oracle
from tests.capturing import CaptureThread, configured, current_lsn, environment, tailrace
from tests.e2e.captured_database import captured, cat, column_of, operation_and_rows, relation_of
from tests.fixtures.postgres import Database
from tests.fixtures.store import StoreAddress
from tests.workload import Workload

from tailrace.change import Operation
from tailrace.cli import main
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader
from tailrace.store import Store


def test_old_rows_have_the_default_of_an_added_column(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE TYPE mood AS ENUM ('it''s, \"ok\"', 'sad')")
    with captured(any_database, tmp_path) as log:
        log.execute("INSERT INTO t VALUES (1)")
        log.execute("""ALTER TABLE t ADD n numeric(5,2) DEFAULT 1.5, ADD m mood DEFAULT 'it''s, "ok"', ADD plain int""")
        log.execute(
            "ALTER TABLE t ADD at timestamptz DEFAULT '2020-01-01 00:00+05:30', ADD tags text[] DEFAULT '{a,NULL}'"
        )
        log.execute("INSERT INTO t (id, n) VALUES (2, 7)")
        last = relation_of(log.changes("t")[-1])
        log.assert_follows("t")
        # Later rows have another default; older rows retain theirs.
        log.execute("ALTER TABLE t ALTER n SET DEFAULT 9", "INSERT INTO t (id) VALUES (3)", "UPDATE t SET plain = 1")
        later = log.changes("t")[-1]
        log.assert_follows("t")
    assert {c.name: c.missing for c in last.columns} == {
        "id": None,
        "n": "1.50",
        "m": 'it\'s, "ok"',
        "plain": None,
        "at": "2019-12-31 18:30:00+00",
        "tags": "{a,NULL}",
    }
    number = column_of(relation_of(later), "n")
    assert (number.missing, number.default) == ("1.50", "9")


def test_a_re_added_column_is_another_column(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, a text)")
    with captured(any_database, tmp_path) as log:
        log.execute("INSERT INTO t VALUES (1, 'old')")
        first = relation_of(log.changes("t")[-1])
        log.execute("ALTER TABLE t DROP a, ADD a text", "INSERT INTO t VALUES (2, 'new')")
        second = relation_of(log.changes("t")[-1])
        log.assert_follows("t")
        log.execute("UPDATE t SET a = 'both'")
        log.assert_follows("t")
    assert first.oid == second.oid
    assert [column_of(r, "a").number for r in (first, second)] == [2, 3]


@pytest.mark.parametrize("together", [True, False], ids=["one transaction", "apart"])
def test_renamed_columns_tables_and_schemas_are_followed(
    any_database: Database, tmp_path: Path, together: bool
) -> None:
    any_database.execute("CREATE SCHEMA s; CREATE TABLE s.t (id int PRIMARY KEY, a text)")
    steps = [
        "INSERT INTO s.t VALUES (1, 'x')",
        "ALTER TABLE s.t RENAME a TO b",
        "INSERT INTO s.t VALUES (2, 'x')",
        "ALTER TABLE s.t RENAME id TO key",
        "INSERT INTO s.t VALUES (3, 'x')",
        "ALTER TABLE s.t RENAME TO u",
        "INSERT INTO s.u VALUES (4, 'x')",
        "ALTER SCHEMA s RENAME TO z",
        "UPDATE z.u SET key = 5 WHERE key = 1",
        "ALTER TABLE z.u SET SCHEMA public",
        "DELETE FROM public.u WHERE key = 2",
    ]
    with captured(any_database, tmp_path) as log:
        log.execute(*(["BEGIN", *steps, "COMMIT"] if together else steps))
        changes = log.changes()
        log.assert_follows("u")
    assert [(c.schema, c.table, c.key, c.after) for c in changes] == [
        ("s", "t", {"id": 1}, {"id": 1, "a": "x"}),
        ("s", "t", {"id": 2}, {"id": 2, "b": "x"}),
        ("s", "t", {"key": 3}, {"key": 3, "b": "x"}),
        ("s", "u", {"key": 4}, {"key": 4, "b": "x"}),
        ("z", "u", {"key": 1}, {"key": 5, "b": "x"}),
        ("public", "u", {"key": 2}, None),
    ]
    assert len({relation_of(c).oid for c in changes}) == 1


def test_a_rewrite_creates_a_new_version_and_no_rows(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    with captured(any_database, tmp_path) as log:
        log.execute(
            "INSERT INTO t SELECT i, i FROM generate_series(1, 100) i",
            "ALTER TABLE t ALTER n TYPE bigint",
            "INSERT INTO t VALUES (101, 9223372036854775807)",
            "VACUUM FULL t",
            "CLUSTER t USING t_pkey",
            "BEGIN; INSERT INTO t VALUES (102, 1); ALTER TABLE t ALTER n TYPE text",
            "INSERT INTO t VALUES (103, 'x'); COMMIT",
            "DELETE FROM t WHERE id = 1",
        )
        changes = log.changes()
        log.assert_follows("t")
    assert Counter(map(str, (c.operation for c in changes))) == {"INSERT": 103, "DELETE": 1}
    assert {c.table for c in changes} == {"t"}
    assert [column_of(relation_of(c), "n").type.name for c in changes[99:]] == ["int4", "int8", "int8", "text", "text"]


def test_a_re_created_table_is_a_new_generation(any_database: Database, tmp_path: Path) -> None:
    make = "CREATE TABLE t (id int PRIMARY KEY, n int)"
    any_database.execute(make)
    with captured(any_database, tmp_path) as log:
        log.execute("INSERT INTO t VALUES (1, 1)", "DROP TABLE t", make, "INSERT INTO t VALUES (1, 2)")
        log.execute(f"BEGIN; INSERT INTO t VALUES (2, 2); DROP TABLE t; {make}; INSERT INTO t VALUES (1, 3); COMMIT")
        changes = log.changes("t")
        log.assert_follows("t")
    assert [(c.after or {})["n"] for c in changes] == [1, 2, 2, 3]
    oids = [relation_of(c).oid for c in changes]
    assert oids[0] < oids[1] == oids[2] < oids[3]


@pytest.mark.parametrize("via_root", [True, False], ids=["as the root", "as partitions"])
def test_partitions(any_database: Database, tmp_path: Path, via_root: bool) -> None:
    any_database.execute(f"""
        CREATE TABLE p (id int, part int, note text, PRIMARY KEY (part, id)) PARTITION BY LIST (part);
        CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
        CREATE TABLE p2 (note text, gone int, part int NOT NULL, id int NOT NULL, PRIMARY KEY (part, id));
        ALTER TABLE p2 DROP gone;
        ALTER TABLE p ATTACH PARTITION p2 FOR VALUES IN (2);
        CREATE TABLE p3 (id int, part int, note text, PRIMARY KEY (part, id));
        CREATE PUBLICATION tailrace FOR TABLE p WITH (publish_via_partition_root = {via_root});
    """)
    with captured(any_database, tmp_path) as log:
        log.execute(
            "INSERT INTO p VALUES (1, 1, 'a'), (2, 2, 'b')",
            "UPDATE p SET part = 2 WHERE id = 1",
            "UPDATE p SET note = 'moved' WHERE id = 1",
            "INSERT INTO p3 VALUES (0, 3, 'nobody publishes it yet')",
            "DELETE FROM p3",
            "ALTER TABLE p ATTACH PARTITION p3 FOR VALUES IN (3)",
            "INSERT INTO p VALUES (3, 3, 'c')",
            "UPDATE p SET part = 3 WHERE id = 2",
            "ALTER TABLE p DETACH PARTITION p1",
            "INSERT INTO p1 VALUES (9, 1, 'nobody publishes it any more')",
            "DELETE FROM p WHERE id = 3",
        )
        changes = log.changes()
        log.assert_follows(*(["p"] if via_root else ["p2", "p3"]))
        log.execute("TRUNCATE p")
        truncated = log.changes()[len(changes) :]
        log.assert_follows(*(["p"] if via_root else ["p2", "p3"]))
    at = [("p" if via_root else leaf) for leaf in ("p1", "p2", "p1", "p2", "p2", "p3", "p2", "p3", "p3")]
    operations = ["INSERT", "INSERT", "DELETE", "INSERT", "UPDATE", "INSERT", "DELETE", "INSERT", "DELETE"]
    assert [(str(c.operation), c.table) for c in changes] == list(zip(operations, at, strict=True))
    assert [c.table for c in truncated] == (["p"] if via_root else ["p2", "p3"])
    moved = changes[2:4]
    assert moved[0].position.commit_lsn == moved[1].position.commit_lsn, "a row moves in one transaction"
    assert [c.key for c in moved] == [{"part": 1, "id": 1}, {"part": 2, "id": 1}]


def test_generated_columns_are_computed_or_listed(any_database: Database, tmp_path: Path) -> None:
    is_18 = any_database.server.version >= 18
    virtual = ", v int GENERATED ALWAYS AS (a + 1) VIRTUAL" if is_18 else ""
    any_database.execute(f"""
        CREATE TABLE t (a int PRIMARY KEY, s int GENERATED ALWAYS AS (a * 2) STORED{virtual}, b text DEFAULT 'x');
        CREATE PUBLICATION tailrace FOR TABLE t;
    """)
    with captured(any_database, tmp_path) as log:
        log.execute("INSERT INTO t (a) VALUES (1)", "UPDATE t SET a = 2")
        plain = log.changes("t")
        assert [operation_and_rows(c) for c in plain] == [
            ("INSERT", None, {"a": 1, "b": "x"}),
            ("UPDATE", {"a": 1}, {"a": 2, "b": "x"}),
        ]
        assert relation_of(plain[0]).generated == (("s", "v") if is_18 else ("s",))
        log.assert_follows("t")
        if is_18:
            log.execute("ALTER PUBLICATION tailrace SET (publish_generated_columns = stored)")
            log.execute("UPDATE t SET a = 3")
            with_stored = log.changes("t")[-1]
            assert with_stored.after == {"a": 3, "s": 6, "b": "x"}
            assert relation_of(with_stored).generated == ("v",)


def test_names_that_differ_only_in_case_are_distinct(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("""
        CREATE TABLE "T" ("A" int PRIMARY KEY, a int); CREATE TABLE t (a int PRIMARY KEY, "A" int);
        CREATE SCHEMA "Public"; CREATE TABLE "Public".t (a int PRIMARY KEY);
    """)
    with captured(any_database, tmp_path) as log:
        log.execute("""INSERT INTO "T" VALUES (1, 2)""", "INSERT INTO t VALUES (3, 4)")
        log.execute("""INSERT INTO "Public".t VALUES (5)""")
        changes = log.changes()
    assert [(c.schema, c.table, c.after, c.key) for c in changes] == [
        ("public", "T", {"A": 1, "a": 2}, {"A": 1}),
        ("public", "t", {"a": 3, "A": 4}, {"a": 3}),
        ("Public", "t", {"a": 5}, {"a": 5}),
    ]
    assert [line["after"] for line in cat(log.store, "--table", "PUBLIC.T")] == [{"a": "3", "A": "4"}]
    assert [line["after"] for line in cat(log.store, "--table", 'public."T"')] == [{"A": "1", "a": "2"}]


def test_no_columns_and_1600_columns(any_database: Database, tmp_path: Path) -> None:
    names = [f"c{n}" for n in range(1600)]
    any_database.execute(f"""
        CREATE TABLE bare ();
        ALTER TABLE bare REPLICA IDENTITY FULL;
        CREATE TABLE wide ({", ".join(f"{name} int2" for name in names)}, PRIMARY KEY (c1599));
        CREATE TABLE hollowed (id int PRIMARY KEY, a int);
    """)
    with captured(any_database, tmp_path) as log:
        log.execute(
            "INSERT INTO bare DEFAULT VALUES; INSERT INTO bare DEFAULT VALUES",
            "DELETE FROM bare WHERE ctid = (SELECT min(ctid) FROM bare)",
            f"INSERT INTO wide VALUES ({', '.join(map(str, range(1600)))})",
            "UPDATE wide SET c1599 = -1, c0 = NULL",
            "INSERT INTO hollowed VALUES (1, 1)",
            "ALTER TABLE hollowed DROP id, DROP a; ALTER TABLE hollowed REPLICA IDENTITY FULL",
            "INSERT INTO hollowed DEFAULT VALUES",
        )
        log.assert_follows("bare", "wide", "hollowed")
        bare, wide = log.changes("bare"), log.changes("wide")
    assert [operation_and_rows(c) for c in bare] == [("INSERT", None, {}), ("INSERT", None, {}), ("DELETE", {}, None)]
    assert wide[1].after == dict(zip(names, [None, *range(1, 1599), -1], strict=True))
    assert wide[1].key == {"c1599": 1599}


def test_what_cannot_be_captured_is_left_out_and_reported(
    any_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    any_database.execute("""
        CREATE TABLE kept (id int PRIMARY KEY);
        CREATE UNLOGGED TABLE unlogged (id int PRIMARY KEY);
        CREATE MATERIALIZED VIEW materialised AS SELECT 1 AS id;
        CREATE VIEW seen AS SELECT * FROM kept;
        CREATE FOREIGN DATA WRAPPER nothing; CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing;
        CREATE FOREIGN TABLE distant (id int) SERVER nowhere;
        CREATE TABLE keyless (id int);
        CREATE SEQUENCE counter;
    """)
    store = Store.open(str(tmp_path / "store"))
    with CaptureThread(configured(any_database), store) as run, any_database.connect() as connection:
        connection.execute("CREATE TEMPORARY TABLE passing (id int PRIMARY KEY)")
        for table in ("passing", "unlogged", "seen", "keyless"):
            connection.execute(f"INSERT INTO {table} VALUES (1)".encode())
        connection.execute("REFRESH MATERIALIZED VIEW materialised")
        connection.execute("SELECT nextval('counter')")
        connection.execute("UPDATE keyless SET id = 2")
        connection.execute("INSERT INTO kept VALUES (2)")
        run.wait_for(current_lsn(connection))
    assert [(c.table, c.after) for c in LogReader(store).changes()] == [("kept", {"id": 1}), ("kept", {"id": 2})]
    monkeypatch.chdir(tmp_path)
    result = CliRunner(env=environment(any_database, store.url)).invoke(main, ["check"])
    for words in ("public.unlogged", "is unlogged", "public.materialised", "public.distant", "public.keyless"):
        assert words in result.output


NAMES = [
    ("a.b", "c"),
    ("a", "b.c"),
    ('q"uo', "te'd"),
    ("..", "../../x"),
    ("/etc", "a/b\\c"),
    ("🐘" * 15, "é" * 31),
    ("x%2F", "\n\t {0} %s"),
    ("n", unicodedata.normalize("NFC", "é")),
    ("n", unicodedata.normalize("NFD", "é")),
    ("*", "?"),
]


def test_names_of_every_kind(database: Database, file_address: StoreAddress) -> None:
    """Case 90: through publication, capture, snapshots and `log cat --table`, each name is a distinct table."""
    columns = ['"', "a.b", "%s", "{}", "é" * 31, "é", "e\u0301"]
    publication = "we\"ird, pub's 🐘"
    with database.connect() as connection:
        for number, (schema, name) in enumerate(NAMES):
            declared = sql.SQL(", ").join(sql.SQL("{} int").format(sql.Identifier(c)) for c in columns)
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
            make = sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}))")
            connection.execute(make.format(sql.Identifier(schema, name), declared, sql.Identifier(columns[0])))
            _insert(connection, schema, name, number)
        env = environment(database, *file_address) | {
            "TAILRACE_SOURCE_PUBLICATION": publication,
            "TAILRACE_SOURCE_TABLES": "*.*",
            "TAILRACE_SNAPSHOT_ON_START": "true",
        }
        capture = tailrace("capture", "--until-lsn", "current")
        done = subprocess.run(capture, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        for number, (schema, name) in enumerate(NAMES):
            _insert(connection, schema, name, 100 + number)
        done = subprocess.run(capture, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr

        store = Store.open(*file_address)
        for number, (schema, name) in enumerate(NAMES):
            (snapshot,) = SnapshotReader(store).list(schema, name)
            assert (snapshot.relation.schema, snapshot.relation.name) == (schema, name)
            assert [row[0] for row in oracle.typed_rows(snapshot.chunks())] == [number]
            pattern = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, name))
            (line,) = cat(store, "--table", pattern)
            assert (line["schema"], line["table"], line["key"]) == (schema, name, {'"': str(100 + number)})
            assert list(line["after"]) == columns
    keys = [info.key for info in store.list("")]
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.%~/")
    assert all(set(key) <= allowed and ".." not in key for key in keys)


def _insert(connection: oracle.Connection, schema: str, name: str, number: int) -> None:
    statement = sql.SQL("INSERT INTO {} SELECT {}, 2, 3, 4, 5, 6, 7").format(sql.Identifier(schema, name), number)
    connection.execute(statement)


def test_the_log_alone_describes_a_table(any_database: Database, tmp_path: Path) -> None:
    """The database may no longer exist when the log is read."""
    any_database.execute("""
        CREATE TYPE mood AS ENUM ('sad', 'ok');
        CREATE DOMAIN price AS numeric(12, 2);
        CREATE DOMAIN net_price AS price CHECK (VALUE > 0);
        CREATE TABLE orders (
            note text DEFAULT 'it''s', id bigint, region int, price net_price NOT NULL, moods mood[],
            label varchar(7), PRIMARY KEY (region, id));
        COMMENT ON TABLE orders IS 'what people bought';
        COMMENT ON COLUMN orders.note IS 'from the customer';
    """)
    with captured(any_database, tmp_path) as log:
        log.execute("INSERT INTO orders (id, region, price) VALUES (1, 2, 3)", "TRUNCATE orders")
        log.catch_up()
    inserted, truncated = [c for c in LogReader(log.store.url).changes() if c.relation]
    relation = relation_of(inserted)
    assert truncated.operation is Operation.TRUNCATE
    assert truncated.relation == relation
    assert (relation.key, relation.comment, relation.identity) == (("region", "id"), "what people bought", "d")
    note, id_, _, price, moods, label = relation.columns
    assert (note.default, note.comment, note.nullable) == ("'it''s'::text", "from the customer", True)
    assert (id_.nullable, id_.is_identity, price.nullable) == (False, True, False)
    names = []
    type_ = price.type
    while type_:
        names.append((type_.kind, type_.name))
        type_ = type_.base  # type: ignore[assignment]
    assert names == [("d", "net_price"), ("d", "price"), ("b", "numeric")]
    assert moods.type.element is not None
    assert (moods.type.element.name, moods.type.element.labels) == ("mood", ("sad", "ok"))
    assert label.modifier == 11
    assert json.loads(relation.to_json())["name"] == "orders"


@pytest.mark.parametrize("seed", [1, 2])
def test_a_random_workload_with_ddl_is_followed(any_database: Database, tmp_path: Path, seed: int) -> None:
    workload = Workload(any_database.connect, seed=seed, ddl=True, exclusive=0.1)
    tables = workload.create()
    with captured(any_database, tmp_path, segment_bytes=64 * 1024) as log, ExitStack() as at_the_end:
        at_the_end.callback(workload.stop)
        for _ in range(3):
            workload.run(60)
            replica = oracle.replay(log.changes())
            for table in tables:
                expected = oracle.rows(log.connection, table.schema, table.name)
                assert replica.rows(table.schema, table.name) == expected, table.name
