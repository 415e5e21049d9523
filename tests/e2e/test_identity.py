"""Cases 26 to 37: the row that a change belongs to, and large values that PostgreSQL does not send again."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from tests import values
from tests.capturing import environment
from tests.e2e.captured_database import captured, cat, operation_and_rows, relation_of
from tests.fixtures.postgres import Database

from tailrace.cli import main
from tailrace.log.reader import LogReader
from tailrace.pgoutput.decoder import decode

BULKY = values.bulky(random.Random(5))
APART = "ALTER TABLE t ALTER body SET STORAGE EXTERNAL"


def test_a_large_value_that_an_update_did_not_touch_is_unchanged_and_never_null(
    any_database: Database, tmp_path: Path
) -> None:
    any_database.execute(f"CREATE TABLE t (id int PRIMARY KEY, n int, body text); {APART}")
    with captured(any_database, tmp_path) as log:
        log.execute(
            f"INSERT INTO t VALUES (1, 1, '{BULKY}'), (2, 1, NULL)",
            "UPDATE t SET n = 2",
            "UPDATE t SET body = NULL WHERE id = 1",
            f"UPDATE t SET body = '{BULKY}' WHERE id = 2",
            "UPDATE t SET n = 3",
        )
        changes = log.changes("t")
        log.assert_follows("t")
    large, null = changes[2:4]
    assert (large.after, large.unchanged) == ({"id": 1, "n": 2}, ("body",))
    assert (null.after, null.unchanged) == ({"id": 2, "n": 2, "body": None}, ())
    assert [c.unchanged for c in changes[-2:]] == [(), ("body",)]
    (line,) = cat(log.store, "--from", str(large.position), "--to", str(null.position))
    assert (line["after"], line["unchanged"], line["before"]) == ({"id": "1", "n": "2"}, ["body"], None)

    payloads = [e.payload for s in LogReader(log.store).list() for e in s.entries() or () if e.relation]
    new = decode(relation_of(large), pa.array(payloads, pa.binary())).new
    assert list(new.unchanged) == [2]
    assert np.flatnonzero(new.unchanged[2]).tolist() == [2, len(changes) - 1]


def test_a_large_value_survives_a_change_of_its_key(any_database: Database, tmp_path: Path) -> None:
    any_database.execute(f"CREATE TABLE t (id int PRIMARY KEY, body text); {APART}")
    with captured(any_database, tmp_path) as log:
        log.execute(f"INSERT INTO t VALUES (1, '{BULKY}')", "UPDATE t SET id = 2", "UPDATE t SET id = 3")
        moved = log.changes("t")[1]
        log.assert_follows("t")
        assert (moved.before, moved.after, moved.unchanged) == ({"id": 1}, {"id": 2}, ("body",))
        # With replica identity FULL, the change contains the value.
        log.execute("ALTER TABLE t REPLICA IDENTITY FULL", "UPDATE t SET id = 4")
        full = log.changes("t")[-1]
        log.assert_follows("t")
    assert full.before == {"id": 3, "body": BULKY}


def test_a_large_key_is_known(any_database: Database, tmp_path: Path) -> None:
    """PostgreSQL sends the old key if the new row has it only as unchanged."""
    key = BULKY[:2600].replace("é", "e")
    any_database.execute(f"CREATE TABLE t (body text PRIMARY KEY, n int); {APART}")
    with captured(any_database, tmp_path) as log:
        log.execute(f"INSERT INTO t VALUES ('{key}', 1), ('short', 1)", "UPDATE t SET n = 2", "DELETE FROM t")
        changes = log.changes("t")
        log.assert_follows("t")
    assert [c.key for c in changes] == [{"body": key}, {"body": "short"}] * 3
    assert changes[2].unchanged == ("body",)


def test_each_replica_identity_gives_its_own_key(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("""
        CREATE TABLE by_default (n int, b int, a int, PRIMARY KEY (a, b));
        CREATE TABLE by_index (a int PRIMARY KEY, n int, u text NOT NULL);
        CREATE UNIQUE INDEX chosen ON by_index (u);
        ALTER TABLE by_index REPLICA IDENTITY USING INDEX chosen;
        CREATE TABLE by_full (a int PRIMARY KEY, n int);
        ALTER TABLE by_full REPLICA IDENTITY FULL;
        CREATE TABLE by_full_without_key (a int, n int);
        ALTER TABLE by_full_without_key REPLICA IDENTITY FULL;
    """)
    with captured(any_database, tmp_path) as log:
        log.execute(
            "INSERT INTO by_default VALUES (1, 2, 3)",
            "INSERT INTO by_index VALUES (1, 1, 'x')",
            "INSERT INTO by_full VALUES (1, 1)",
            "INSERT INTO by_full_without_key VALUES (1, 1)",
        )
        tables = ("by_default", "by_index", "by_full", "by_full_without_key")
        for table in tables:
            log.execute(f"UPDATE {table} SET n = 5", f"DELETE FROM {table}")
        found = {table: log.changes(table) for table in tables}
        log.assert_follows(*tables)
    images = {table: [(c.key, c.before) for c in changes] for table, changes in found.items()}
    assert images == {
        "by_default": [({"a": 3, "b": 2}, None)] * 2 + [({"a": 3, "b": 2}, {"b": 2, "a": 3})],
        "by_index": [({"u": "x"}, None)] * 2 + [({"u": "x"}, {"u": "x"})],
        "by_full": [({"a": 1}, None), ({"a": 1}, {"a": 1, "n": 1}), ({"a": 1}, {"a": 1, "n": 5})],
        "by_full_without_key": [(None, None), (None, {"a": 1, "n": 1}), (None, {"a": 1, "n": 5})],
    }
    assert list(found["by_default"][0].key or {}) == ["a", "b"], "in the key's order"


def test_without_an_identity_inserts_are_captured_and_check_warns(
    any_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    any_database.execute("""
        CREATE TABLE t (id int PRIMARY KEY, n int);
        ALTER TABLE t REPLICA IDENTITY NOTHING;
        CREATE PUBLICATION tailrace FOR TABLE t WITH (publish = 'insert, truncate');
    """)
    with captured(any_database, tmp_path) as log:
        log.execute("INSERT INTO t VALUES (1, 1)", "UPDATE t SET n = 2", "DELETE FROM t", "INSERT INTO t VALUES (1, 3)")
        log.execute("TRUNCATE t")
        changes = log.changes("t")
        assert [operation_and_rows(c) for c in changes] == [
            ("INSERT", None, {"id": 1, "n": 1}),
            ("INSERT", None, {"id": 1, "n": 3}),
            ("TRUNCATE", None, None),
        ]
        monkeypatch.chdir(tmp_path)
        result = CliRunner(env=environment(any_database, log.store.url)).invoke(main, ["check"])
    assert "table public.t" in result.output
    assert "only its inserts are captured" in result.output


def test_a_changed_identity_is_the_key_from_then_on(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL CONSTRAINT other UNIQUE, n int)")
    with captured(any_database, tmp_path) as log:
        log.execute(
            "INSERT INTO t VALUES (1, 10, 0), (2, 20, 0)",
            "DELETE FROM t WHERE a = 1",
            "ALTER TABLE t REPLICA IDENTITY USING INDEX other",
            "UPDATE t SET b = 21",
            "ALTER TABLE t REPLICA IDENTITY FULL",
            "UPDATE t SET n = 1",
            "ALTER TABLE t REPLICA IDENTITY DEFAULT",
            "DELETE FROM t",
        )
        changes = log.changes("t")[2:]
        log.assert_follows("t")
    assert [(relation_of(c).identity, c.key, c.before) for c in changes] == [
        ("d", {"a": 1}, {"a": 1}),
        ("i", {"b": 20}, {"b": 20}),
        ("f", {"a": 2}, {"a": 2, "b": 21, "n": 0}),
        ("d", {"a": 2}, {"a": 2}),
    ]


def test_a_key_update_is_one_change_with_both_keys(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    with captured(any_database, tmp_path) as log:
        log.execute("INSERT INTO t VALUES (1, 1), (2, 2)", "UPDATE t SET id = id + 10, n = 0")
        changes = log.changes("t")[2:]
        log.assert_follows("t")
    assert [(str(c.operation), c.key, c.before, c.after) for c in changes] == [
        ("UPDATE", {"id": 1}, {"id": 1}, {"id": 11, "n": 0}),
        ("UPDATE", {"id": 2}, {"id": 2}, {"id": 12, "n": 0}),
    ]


def test_keys_can_be_swapped_in_one_transaction(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("""
        CREATE TABLE t (id int PRIMARY KEY, who text);
        CREATE TABLE deferred (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, who text);
        ALTER TABLE deferred REPLICA IDENTITY FULL;
    """)
    with captured(any_database, tmp_path) as log:
        log.execute(
            "INSERT INTO t VALUES (1, 'a'), (2, 'b'); INSERT INTO deferred VALUES (1, 'a'), (2, 'b')",
            "UPDATE t SET id = 0 WHERE id = 1; UPDATE t SET id = 1 WHERE id = 2; UPDATE t SET id = 2 WHERE id = 0",
            "UPDATE deferred SET id = 3 - id",
        )
        swap = [c for c in log.changes("t") if c.operation == "UPDATE"]
        log.assert_follows("t", "deferred")
    assert {c.position.commit_lsn for c in swap} == {swap[0].position.commit_lsn}
    assert [c.position.ordinal for c in swap] == [0, 1, 2]


def test_many_changes_of_one_key_are_ordered_by_position(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    work = "INSERT INTO t VALUES (1, 0);"
    work += "".join(f"UPDATE t SET n = {n} WHERE id = 1;" for n in range(1, 60))
    work += "DELETE FROM t WHERE id = 1; INSERT INTO t VALUES (1, 1000); UPDATE t SET n = 1001 WHERE id = 1;"
    with captured(any_database, tmp_path) as log:
        log.execute(work, "UPDATE t SET n = n + 1")
        changes = log.changes("t")
        log.assert_follows("t")
    assert [(c.after or {}).get("n") for c in changes] == [*range(60), None, 1000, 1001, 1002]
    positions = [c.position for c in changes]
    assert positions == sorted(set(positions))
    assert max(changes, key=lambda c: c.position).after == {"id": 1, "n": 1002}


def test_a_delete_removes_exactly_one_of_identical_rows(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("CREATE TABLE bag (a int, b text); ALTER TABLE bag REPLICA IDENTITY FULL")
    one = "ctid = (SELECT min(ctid) FROM bag WHERE b IS NULL)"
    with captured(any_database, tmp_path) as log:
        log.execute("INSERT INTO bag SELECT 1, NULL FROM generate_series(1, 5)", "INSERT INTO bag VALUES (1, '')")
        log.execute(f"DELETE FROM bag WHERE {one}", f"UPDATE bag SET a = 2 WHERE {one}")
        changes = log.changes("bag")[6:]
        log.assert_follows("bag")
    assert [operation_and_rows(c) for c in changes] == [
        ("DELETE", {"a": 1, "b": None}, None),
        ("UPDATE", {"a": 1, "b": None}, {"a": 2, "b": None}),
    ]


def test_full_rows_match_after_columns_were_dropped_or_added(any_database: Database, tmp_path: Path) -> None:
    """Older rows retain the dropped value on disk, and lack the added one."""
    any_database.execute("CREATE TABLE bag (gone text, a int, b text); ALTER TABLE bag REPLICA IDENTITY FULL")
    with captured(any_database, tmp_path) as log:
        log.execute(
            "INSERT INTO bag VALUES ('x', 1, 'one'), ('y', 1, 'one'), ('z', 2, 'two')",
            "ALTER TABLE bag DROP gone",
            "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)",
            "ALTER TABLE bag ADD late int DEFAULT 7",
            "UPDATE bag SET a = 5 WHERE b = 'one'",
            "DELETE FROM bag WHERE b = 'two'",
            "INSERT INTO bag VALUES (6, 'six', NULL)",
        )
        changes = log.changes("bag")[3:]
        log.assert_follows("bag")
    assert [operation_and_rows(c) for c in changes] == [
        ("DELETE", {"a": 1, "b": "one"}, None),
        ("UPDATE", {"a": 1, "b": "one", "late": 7}, {"a": 5, "b": "one", "late": 7}),
        ("DELETE", {"a": 2, "b": "two", "late": 7}, None),
        ("INSERT", None, {"a": 6, "b": "six", "late": None}),
    ]
