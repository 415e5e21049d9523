"""`tailrace revert` with foreign keys, triggers and concurrent users."""

from __future__ import annotations

import json
from pathlib import Path

import psycopg
from tests import oracle
from tests.audit.trail_follower import Shell, trailing, write_config
from tests.fixtures.postgres import Database

_FAMILY = """
CREATE TABLE parents (id int PRIMARY KEY, name text);
CREATE TABLE children (id int PRIMARY KEY, parent int REFERENCES parents ON DELETE CASCADE ON UPDATE CASCADE,
                       friend int REFERENCES parents ON DELETE SET NULL ON UPDATE CASCADE);
CREATE TABLE nodes (id int PRIMARY KEY, above int REFERENCES nodes ON DELETE CASCADE);
ALTER TABLE parents REPLICA IDENTITY FULL; ALTER TABLE children REPLICA IDENTITY FULL;
ALTER TABLE nodes REPLICA IDENTITY FULL;
INSERT INTO parents VALUES (1, 'a'), (2, 'b'), (3, 'c'); INSERT INTO children VALUES (1, 1, 2), (2, 1, 1), (3, 2, 1);
INSERT INTO nodes VALUES (1, 1), (2, 1), (3, 2), (4, 3);
"""
_SUMS = """
CREATE TABLE carts (id int PRIMARY KEY, total int, touched_at timestamptz DEFAULT 'epoch');
CREATE TABLE items (id int, cart int, price int, PRIMARY KEY (id, cart)) PARTITION BY LIST (cart);
CREATE TABLE items_1 PARTITION OF items FOR VALUES IN (1);
ALTER TABLE carts REPLICA IDENTITY FULL; ALTER TABLE items_1 REPLICA IDENTITY FULL;
CREATE FUNCTION summed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    UPDATE carts SET total = (SELECT coalesce(sum(price), 0) + 1 FROM items WHERE cart = id) WHERE id = 1; RETURN NULL;
END $$;
CREATE FUNCTION touched() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    NEW.touched_at = clock_timestamp(); RETURN NEW;
END $$;
CREATE TRIGGER summed AFTER INSERT OR DELETE ON items FOR EACH ROW EXECUTE FUNCTION summed();
CREATE TRIGGER touched BEFORE UPDATE ON carts FOR EACH ROW EXECUTE FUNCTION touched();
ALTER TABLE carts ENABLE ALWAYS TRIGGER touched;
INSERT INTO carts VALUES (1, 1); INSERT INTO items VALUES (1, 1, 10);
"""
_SWITCHED_ON = "SELECT tgname, tgenabled::text FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1, 2"


def _rows(shell: Shell, *tables: str) -> dict[str, oracle.Rows]:
    return {name: oracle.rows(shell.audited.log.connection, "public", name) for name in tables}


def test_changes_by_foreign_keys_are_reverted(shell: Shell) -> None:
    """Rows are restored after those that they refer to, also if another statement changed them by CASCADE."""
    shell.audited.execute(_FAMILY)
    tables = ("parents", "children", "nodes")
    before = _rows(shell, *tables)
    for statements in (
        ["DELETE FROM parents WHERE id = 1", "DELETE FROM nodes WHERE id = 1"],
        ["UPDATE parents SET id = 9 WHERE id = 1", "UPDATE parents SET name = 'z'"],
        ["DELETE FROM children WHERE id = 3", "DELETE FROM parents WHERE id = 2", "INSERT INTO parents VALUES (2)"],
    ):
        xid = shell.transaction(*statements)
        assert _rows(shell, *tables) != before
        shell.run("revert", "--xid", str(xid), "--apply")
        assert _rows(shell, *tables) == before


def test_rows_added_since_are_not_deleted_by_cascade(shell: Shell) -> None:
    """An insert is not reverted if others refer to the row since: CASCADE would delete their rows."""
    shell.audited.execute(_FAMILY)
    xid = shell.transaction("INSERT INTO parents VALUES (5, 'e')", "INSERT INTO nodes VALUES (5, NULL)")
    shell.audited.execute("INSERT INTO children VALUES (5, NULL, 5)", "INSERT INTO nodes VALUES (6, 5)")
    before = _rows(shell, "parents", "children", "nodes")
    assert "rows were added that a CASCADE would delete" in shell.run("revert", "--xid", str(xid), "--apply", code=1)
    assert _rows(shell, "parents", "children", "nodes") == before
    shell.run("revert", "--xid", str(xid), "--apply", "--force")
    after = shell.audited.log.connection.execute("SELECT friend FROM children WHERE id = 5").fetchall()
    assert after == [(None,)]


def test_triggers_do_not_fire_during_a_revert(shell: Shell) -> None:
    """Their changes are reverted with the rest, so they are disabled meanwhile and restored afterwards."""
    connection = shell.audited.log.connection
    shell.audited.execute(_SUMS)
    before, switched_on = _rows(shell, "carts", "items"), connection.execute(_SWITCHED_ON).fetchall()
    xid = shell.transaction("INSERT INTO items VALUES (2, 1, 5)", "INSERT INTO items VALUES (3, 1, 5)")
    assert 'ALTER TABLE "public"."carts" ENABLE ALWAYS TRIGGER "touched";' in shell.run("revert", "--xid", str(xid))
    shell.run("revert", "--xid", str(xid), "--apply")
    assert _rows(shell, "carts", "items") == before
    assert connection.execute(_SWITCHED_ON).fetchall() == switched_on


def test_triggers_of_another_owner(database: Database, destination: Database, tmp_path: Path) -> None:
    """A user who may not disable them gets an error, or lets them fire with --force."""
    database.execute(_SUMS)
    role = f"{database.name}_writer"
    database.execute(f"CREATE ROLE {role} LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON carts, items TO {role}")
    with trailing(database, destination, tmp_path) as audited:
        config = write_config(tmp_path / "tailrace.toml", database, destination, audited.log.store.url)
        url = psycopg.conninfo.make_conninfo(database.url, user=role)
        config.write_text(config.read_text().replace(f'url = "{database.url}"', f'url = "{url}"', 1))
        shell = Shell(audited, config)
        xid = shell.transaction("UPDATE carts SET total = 7")
        assert "only the table's owner" in shell.run("revert", "--xid", str(xid), "--apply", code=1)
        shell.run("revert", "--xid", str(xid), "--apply", "--force")
        assert audited.log.connection.execute("SELECT total FROM carts").fetchall() == [(11,)]
    database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_row_that_was_inserted_again(shell: Shell) -> None:
    shell.audited.execute("INSERT INTO orders (id, status) VALUES (1, 'old')")
    xid = shell.transaction("DELETE FROM orders")
    shell.audited.execute("INSERT INTO orders (id, status) VALUES (1, 'new')")
    shell.run("revert", "--xid", str(xid), "--apply", code=1)
    shell.run("revert", "--xid", str(xid), "--apply", "--force")
    assert shell.audited.log.connection.execute("SELECT status FROM orders").fetchall() == [("old",)]


def test_keys_of_every_kind(shell: Shell) -> None:
    """An empty text, a key that was added later, an index with included columns."""
    connection = shell.audited.log.connection
    shell.audited.execute(
        "CREATE TABLE texts (id text PRIMARY KEY, v int)",
        "INSERT INTO texts VALUES ('', 1), ('a', 7)",
        "CREATE TABLE wide (id int, b text, PRIMARY KEY (id) INCLUDE (b))",
        "ALTER TABLE wide ALTER b SET STORAGE EXTERNAL",
        "INSERT INTO wide VALUES (1, repeat('x', 2500))",
        "UPDATE wide SET id = 2",
    )
    bare = shell.transaction("INSERT INTO bare VALUES (5, 'five')")
    before = _rows(shell, "texts", "wide")
    shell.audited.execute("ALTER TABLE bare ADD id serial PRIMARY KEY")
    xid = shell.transaction("UPDATE texts SET id = 'b', v = 2 WHERE id = ''", "UPDATE wide SET id = 3")
    shell.run("revert", "--xid", str(xid), "--apply")
    assert _rows(shell, "texts", "wide") == before
    shell.run("revert", "--xid", str(bare), "--apply")
    assert connection.execute("SELECT count(*) FROM bare").fetchone() == (0,)


def test_nulls_of_json(shell: Shell) -> None:
    """The trail does not distinguish SQL's NULL from JSON's: in a NOT NULL column, JSON's is restored."""
    shell.audited.execute(
        "CREATE TABLE docs (id int PRIMARY KEY, one jsonb NOT NULL, other json)",
        "ALTER TABLE docs REPLICA IDENTITY FULL",
        "INSERT INTO docs VALUES (1, 'null', NULL), (2, '{}', '[]')",
    )
    before = _rows(shell, "docs")
    xid = shell.transaction(
        "UPDATE docs SET one = '1', other = '[1]' WHERE id = 1",
        "DELETE FROM docs WHERE id = 2",
        "INSERT INTO docs VALUES (3, 'null', 'null')",
    )
    shell.run("revert", "--xid", str(xid), "--apply")
    assert _rows(shell, "docs") == before


def test_output_escapes_contexts(shell: Shell) -> None:
    """Applications and their users control contexts: neither SQL nor a terminal must interpret them."""
    context = {"user": "x\nDROP TABLE orders; --", "\rDROP TABLE lines; --": "\x1b[2J\x9b\u202e"}
    message = f"SELECT pg_logical_emit_message(true, '_bemi', '{json.dumps(context)}')"
    xid = shell.transaction(message, "INSERT INTO orders (id, status) VALUES (1, 'a')")
    shown = shell.run("revert", "--xid", str(xid)) + shell.run("history", "orders", "1")
    assert "DROP TABLE" in shown
    assert all(line.startswith(("--", "DELETE FROM", "20", "    ")) for line in shown.splitlines())
    assert shown.replace("\n", "").isprintable()


def test_the_trail_of_two_databases(shell: Shell) -> None:
    """Rows of another database with the same table, key, context and transaction are not reverted."""
    shell.audited.execute("INSERT INTO orders (id, status) VALUES (1, 'new')")
    xid = shell.transaction("UPDATE orders SET status = 'paid'")
    shell.audited.follow()
    shell.audited.trail.database.execute(
        "INSERT INTO changes SELECT gen_random_uuid(), 'other', schema, \"table\", operation, before, after, context,"
        " primary_key, committed_at, position, queued_at, now(), xid, commit_position + 9, ordinal, previous_key"
        " FROM changes"
    )
    assert len(shell.run("history", "orders", "1", "--json").splitlines()) == 2
    shell.run("revert", "--xid", str(xid), "--apply")
    assert "2 rows belong to other databases" in shell.run("audit", "verify")
