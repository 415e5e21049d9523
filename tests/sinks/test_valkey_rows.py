"""Rows in Valkey: keys, unsent values, definitions that change, loads, expiry, and what readers see."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contract.delivery_driver import Crash, crashing
from tests.fixtures.postgres import Database
from tests.sinks.valkey_scene import ValkeyScene

from tailrace.delivery.contract import State
from tailrace.embedded.process import wait_until
from tailrace.embedded.valkey import ValkeyServer
from tailrace.errors import SinkDiverged, SinkRefused
from tailrace.log.reader import LogReader
from tailrace.sinks.messages import batching
from tailrace.sinks.valkey import row_store
from tailrace.sinks.valkey.command import CommandBatch
from tailrace.sinks.valkey.sink_state import Writer

_LARGE = "repeat(md5(random()::text), 200)"


@pytest.fixture
def scene(database: Database, valkey_server: ValkeyServer, tmp_path: Path) -> ValkeyScene:
    return ValkeyScene(database, valkey_server, tmp_path)


def test_keys_are_escaped_and_different_rows_have_different_keys(scene: ValkeyScene) -> None:
    scene.capture(
        'CREATE TABLE "odd: {t}" (a text, b text, n int, PRIMARY KEY (a, b))',
        'CREATE TABLE plain (id int PRIMARY KEY, "k e y" text)',
        snapshot=None,
    )
    odd = "('a:b', 'c', 1), ('a', 'b:c', 2), ('', ':', 3), (':', '', 4), ('%3A', '', 5),"
    odd += " (E'\\n', '*', 6), ('é🐘', ' ', 7)"
    scene.capture(f'INSERT INTO "odd: {{t}}" VALUES {odd}', "INSERT INTO plain VALUES (1, 'x'), (2, NULL)")
    scene.deliver()
    scene.assert_rows("odd: {t}", "a", "b")
    scene.assert_rows("plain", "id")
    assert b"public:odd%3A%20%7Bt%7D:a%3Ab:c" in scene.client.keys("*")
    scene.capture("UPDATE \"odd: {t}\" SET a = a || ':'", 'DELETE FROM "odd: {t}" WHERE n = 5')
    scene.deliver()
    scene.assert_rows("odd: {t}", "a", "b")


def test_a_template_may_name_the_columns_of_the_key(scene: ValkeyScene) -> None:
    scene.capture(
        "CREATE TABLE t (a int, b int, c int, PRIMARY KEY (a, b))", "INSERT INTO t VALUES (1, 2, 3)", snapshot=None
    )
    scene.deliver(key="row:{a}:{b}")
    scene.assert_rows("t", "a", "b", prefix="row")
    for template in ("row:{a}", "row:{key}:{c}"):
        with pytest.raises(SinkRefused, match="does not have exactly the columns"):
            scene.deliver(key=template, name=f"other{len(template)}")


def test_a_table_without_a_key_is_refused(scene: ValkeyScene) -> None:
    scene.capture("CREATE TABLE t (a int)", snapshot=None)
    with pytest.raises(SinkRefused, match=r"public\.t has no key") as caught:
        scene.deliver()
    assert "stream" in caught.value.hint


@pytest.mark.parametrize("mode", ["hash", "json"])
def test_unsent_values_come_from_the_server(
    database: Database, valkey_server: ValkeyServer, tmp_path: Path, mode: str
) -> None:
    scene = ValkeyScene(database, valkey_server, tmp_path, mode)
    scene.capture(
        "CREATE TABLE t (id int PRIMARY KEY, n numeric, body text, doc json, at timestamptz)",
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL, ALTER doc SET STORAGE EXTERNAL",
        f'INSERT INTO t SELECT g, 1.10, {_LARGE}, (\'{{"a": 1.000, "b": "\' || {_LARGE} || \'", "c": ["}}"]}}\')::json,'
        " '2024-02-29 12:00:00.5+02' FROM generate_series(1, 5) g",
        snapshot=None,
    )
    scene.capture(
        "UPDATE t SET n = 2.20 WHERE id < 4",
        "UPDATE t SET id = 20 WHERE id = 2",
        f"UPDATE t SET body = {_LARGE} WHERE id = 3",
        "BEGIN; UPDATE t SET id = 0 WHERE id = 4; UPDATE t SET id = 4 WHERE id = 5;"
        " UPDATE t SET id = 5 WHERE id = 0; COMMIT",
    )
    scene.deliver()
    if mode == "hash":
        scene.assert_rows("t", "id")
        return
    with scene.source.connect() as connection:
        rows = connection.execute(
            "SELECT id, n::text, body, doc::text, to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS') FROM t"
        ).fetchall()
    found = {key: scene.client.get(key) for key in scene.client.keys("public:t:*")}
    assert len(found) == len(rows)
    for id, n, body, doc, at in rows:
        text = f'{{"id":{id},"n":"{n}","body":"{body}","doc":{doc},"at":"{at}.5Z"}}'
        assert found[f"public:t:{id}".encode()] == text.encode()


def test_a_missing_row_is_noticed(scene: ValkeyScene) -> None:
    scene.capture(
        "CREATE TABLE t (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO t VALUES (1, 1, {_LARGE}), (2, 2, {_LARGE})",
        snapshot=None,
    )
    state = scene.deliver()
    scene.capture("UPDATE t SET n = 3")
    scene.client.delete("public:t:1")
    for _ in range(2):
        with pytest.raises(SinkDiverged, match=r"public\.t, .*: a row to update is missing") as caught:
            scene.deliver()
    assert "sink rewind tested snapshot" in caught.value.hint
    assert scene.client.hget("public:t:2", "n") == b"2", "the transaction had an effect"
    with scene.stepper() as one:
        assert one.state == state
        one.rewind("snapshot")
    scene.deliver()
    scene.assert_rows("t", "id")
    scene.capture("UPDATE t SET n = 4")
    scene.client.delete("public:t:1")
    scene.client.set("public:t:1", "not a hash")
    with pytest.raises(SinkDiverged, match="not a hash"):
        scene.deliver()


def test_a_row_that_expired_stays_absent_until_it_is_written_whole(scene: ValkeyScene) -> None:
    scene.capture(
        "CREATE TABLE t (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO t VALUES (1, 1, {_LARGE}), (2, 2, {_LARGE})",
        snapshot=None,
    )
    scene.deliver(ttl_s=1000)
    assert 990 < scene.client.ttl("public:t:1") <= 1000
    scene.client.pexpire("public:t:1", 1)
    assert wait_until(lambda: not scene.client.exists("public:t:1"), 10)
    scene.capture("UPDATE t SET n = 3")
    scene.deliver(ttl_s=1000)
    assert scene.client.keys("public:t:*") == [b"public:t:2"]
    scene.capture("UPDATE t SET body = 'whole'")
    scene.deliver(ttl_s=1000)
    scene.assert_rows("t", "id")


@pytest.mark.parametrize("mode", ["hash", "json"])
def test_a_new_definition_rewrites_all_rows_also_if_it_is_interrupted(
    database: Database, valkey_server: ValkeyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Columns exchange their names: a row that is rewritten twice would be wrong."""
    monkeypatch.setattr(row_store, "_GROUP", 3)
    scene = ValkeyScene(database, valkey_server, tmp_path, mode)
    scene.capture(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text, gone int, at timestamp, ok bool)",
        "INSERT INTO t SELECT g, 'a' || g, 'b' || g, g, '2024-01-01', g > 3 FROM generate_series(1, 10) g",
        snapshot=None,
    )
    scene.deliver()
    scene.capture(
        "ALTER TABLE t RENAME a TO c; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME c TO b",
        "ALTER TABLE t DROP gone, ADD added numeric DEFAULT 1.50",
        "UPDATE t SET at = at WHERE id = 2",  # shows the default, which is lost when the table is written again
    )
    scene.capture(
        "ALTER TABLE t ALTER at TYPE date, ALTER ok TYPE text",
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ALTER a SET NOT NULL, ADD PRIMARY KEY (a, id)",
        "ALTER TABLE t RENAME TO u",
        "UPDATE u SET added = 2 WHERE id = 1",
    )
    crashes = 0
    for at in range(1, 1000):
        try:
            with crashing(at):
                scene.deliver()
            break
        except Crash:
            crashes += 1
    assert crashes > 10
    assert not scene.client.keys("public:t:*")
    assert not scene.client.keys("tailrace:*:rewritten:*")
    if mode == "hash":
        scene.assert_rows("u", "a", "id")
        return
    expected = scene.expected("u", "a", "id", prefix="public:u")
    assert scene.place.rows().keys() == expected.keys()
    for key, row in scene.place.rows().items():
        assert {name: str(value).encode() for name, value in row.items()} == expected[key]


def test_definitions_of_two_tables_change_in_one_batch(scene: ValkeyScene) -> None:
    """The changes of one table go on while the definition of the other one changes."""
    scene.capture(
        "CREATE TABLE a (id int PRIMARY KEY, n int)", "CREATE TABLE b (id int PRIMARY KEY, n int)", snapshot=None
    )
    scene.deliver()
    scene.capture(
        *("INSERT INTO a VALUES (1, 1)", "INSERT INTO b VALUES (1, 1)"),
        *("ALTER TABLE a ADD more int", "INSERT INTO a VALUES (2, 2, 2)", "INSERT INTO b VALUES (2, 2)"),
        *("ALTER TABLE b RENAME n TO m", "INSERT INTO b VALUES (3, 3)", "UPDATE a SET more = 1 WHERE id = 1"),
    )
    scene.deliver()
    scene.assert_rows("a", "id")
    scene.assert_rows("b", "id")


def test_a_large_table_is_emptied_and_reloaded(scene: ValkeyScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "_GROUP", 7)
    monkeypatch.setattr(row_store, "_MAX_EMPTIED", 20)
    scene.capture(
        "CREATE TABLE t (id int PRIMARY KEY, n int)",
        "INSERT INTO t SELECT g, g FROM generate_series(1, 100) g",
        snapshot=None,
    )
    scene.client.set("public:t:foreign", "not the sink's")
    scene.deliver()
    scene.capture(
        "BEGIN; UPDATE t SET n = 0; TRUNCATE t; INSERT INTO t SELECT g, g FROM generate_series(90, 120) g; COMMIT"
    )
    scene.deliver()
    assert scene.client.get("public:t:foreign") == b"not the sink's"
    scene.client.delete("public:t:foreign")
    scene.assert_rows("t", "id")
    # Rows of the destination that the snapshot does not have are removed, and changes since it are applied.
    scene.capture(snapshot=["t"])
    scene.capture("DELETE FROM t WHERE id < 95", "INSERT INTO t VALUES (1, 1)")
    scene.deliver()
    key = "public:t:1000"
    scene.client.hset(key, "id", "1000")
    scene.client.sadd(next(iter(scene.client.keys("tailrace:tested:rows:*"))), key)
    scene.client.delete("public:t:100")
    with scene.stepper() as one:
        assert one.reload(["public.t"]) == 1
    scene.assert_rows("t", "id")


@pytest.mark.parametrize("mode", ["hash", "json"])
def test_a_reload_repeats_new_definitions(
    database: Database, valkey_server: ValkeyServer, tmp_path: Path, mode: str
) -> None:
    """Rows at the server have the newest definition already when the load begins with an older one."""
    scene = ValkeyScene(database, valkey_server, tmp_path, mode)
    scene.capture("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1), (2, 2)", snapshot=None)
    scene.capture(
        "ALTER TABLE t RENAME id TO no",
        "INSERT INTO t VALUES (3, 3)",
        "ALTER TABLE t DROP n, ADD note text",
        "INSERT INTO t VALUES (4, 'four')",
        "DELETE FROM t WHERE no = 1",
    )
    scene.deliver()
    before = scene.place.rows()
    with scene.stepper() as one:
        assert one.reload(["public.t"]) == 1
    assert scene.place.rows() == before
    if mode == "hash":
        scene.assert_rows("t", "no")
    assert {*before} == {"public:t:2", "public:t:3", "public:t:4"}


def test_a_table_takes_the_name_of_another(scene: ValkeyScene) -> None:
    scene.capture("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1), (2, 2)", snapshot=None)
    scene.deliver()
    scene.capture(
        "ALTER TABLE t RENAME TO old",
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (2, 20), (3, 30)",
        snapshot=["t"],
    )
    scene.deliver()
    scene.assert_rows("t", "id")
    assert len(scene.client.keys("public:t~*:*")) == 2
    scene.capture("UPDATE old SET n = 10 WHERE id = 1")
    scene.deliver()
    scene.assert_rows("old", "id")
    assert not scene.client.keys("public:t~*:*")


def test_readers_see_whole_transactions(scene: ValkeyScene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Money moves between accounts, in transactions that are larger than a segment and than a batch: the sum is the
    same after each transaction of the server."""
    monkeypatch.setattr(batching, "_BATCH_BYTES", 2000)
    scene.given = replace(scene.given, capture=replace(scene.given.capture, segment_bytes=16 * 1024))
    accounts = "INSERT INTO t SELECT g, 100, '' FROM generate_series(1, 40) g"
    scene.capture("CREATE TABLE t (id int PRIMARY KEY, n int, note text)", accounts, snapshot=None)
    scene.deliver()
    moves = "UPDATE t SET n = n + CASE WHEN id % 2 = 0 THEN {0} ELSE -{0} END, note = repeat(md5(random()::text), 100)"
    scene.capture(*[moves.format(amount) for amount in range(1, 13)])
    assert len(LogReader(scene.store).list()) > 30, "transactions fit into segments"
    seen: list[int] = []
    run = Writer.run

    def run_and_read(self: Writer, batch: CommandBatch, what: str) -> None:
        run(self, batch, what)
        balances = [int(scene.client.hget(f"public:t:{id}", "n") or 0) for id in range(1, 41)]
        assert sum(balances) == 4000
        seen.append(balances[0])

    monkeypatch.setattr(Writer, "run", run_and_read)
    scene.deliver()
    assert len(set(seen)) > 10, "there were few transactions"
    scene.assert_rows("t", "id")


def test_the_state_is_where_the_rows_are(scene: ValkeyScene) -> None:
    scene.capture("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", snapshot=None)
    state = scene.deliver()
    stored = json.loads(scene.client.hget("tailrace:tested", "state") or b"")["state"]
    assert State(state.cursor, state.tables).cursor is not None
    assert stored["cursor"] == str(state.cursor)
    with pytest.raises(SinkRefused, match="exists already at the server with mode hash"):
        scene.deliver(mode="json")
