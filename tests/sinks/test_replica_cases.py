"""Cases that break other replication tools: all in one log, delivered in several ways."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests import oracle, values
from tests.contract import mysql_tables
from tests.e2e.captured_database import captured
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.sinks.mysql_replica import MysqlReplica
from tests.sinks.replicas import assert_same, rows_of, sink_to
from tests.sinks.sink_driver import deliver

from tailrace.change import Lsn
from tailrace.embedded.postgres import Postgres
from tailrace.log.decoding import ChangeFilter
from tailrace.log.planner import BatchLimits
from tailrace.sinks.database import staging
from tailrace.store import Store

_LARGE = "repeat(md5(random()::text), 200)"
_LONG = "é" * 31 + "x"  # 63 bytes

CASES: dict[str, list[str]] = {
    "toast_kept": [
        "CREATE TABLE toast_kept (id int PRIMARY KEY, n int, body text, other text)",
        "ALTER TABLE toast_kept ALTER body SET STORAGE EXTERNAL, ALTER other SET STORAGE EXTERNAL",
        f"INSERT INTO toast_kept SELECT g, g, {_LARGE}, {_LARGE} FROM generate_series(1, 9) g",
        "UPDATE toast_kept SET n = -n WHERE id < 7",
        f"UPDATE toast_kept SET body = {_LARGE} WHERE id IN (2, 3)",
        f"UPDATE toast_kept SET other = {_LARGE} WHERE id IN (3, 4)",
        "UPDATE toast_kept SET other = NULL WHERE id = 5",
        f"BEGIN; UPDATE toast_kept SET body = {_LARGE} WHERE id = 6; UPDATE toast_kept SET n = 60 WHERE id = 6; COMMIT",
    ],
    "toast_moved": [
        "CREATE TABLE toast_moved (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE toast_moved ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO toast_moved SELECT g, g, {_LARGE} FROM generate_series(1, 9) g",
        "UPDATE toast_moved SET id = id + 100 WHERE id < 4",
        "BEGIN; UPDATE toast_moved SET n = 0 WHERE id = 5; UPDATE toast_moved SET id = 205 WHERE id = 5; COMMIT",
        "BEGIN; UPDATE toast_moved SET id = 0 WHERE id = 6; UPDATE toast_moved SET id = 6 WHERE id = 7;"
        " UPDATE toast_moved SET id = 7 WHERE id = 0; COMMIT",
        f"BEGIN; INSERT INTO toast_moved VALUES (50, 1, {_LARGE});"
        " UPDATE toast_moved SET id = 51 WHERE id = 50; COMMIT",
    ],
    "identity_full": [
        "CREATE TABLE identity_full (id int PRIMARY KEY, n int, body text)",
        "ALTER TABLE identity_full REPLICA IDENTITY FULL, ALTER body SET STORAGE EXTERNAL",
        f"INSERT INTO identity_full SELECT g, g, {_LARGE} FROM generate_series(1, 9) g",
        "UPDATE identity_full SET n = 0 WHERE id < 5",
        "UPDATE identity_full SET id = id + 100 WHERE id IN (3, 4, 5)",
        "UPDATE identity_full SET id = 60 WHERE id = 6",
        "DELETE FROM identity_full WHERE id IN (1, 103)",
    ],
    "identity_deferred": [
        "CREATE TABLE identity_deferred (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, n int)",
        "ALTER TABLE identity_deferred REPLICA IDENTITY FULL",
        "INSERT INTO identity_deferred SELECT g, g FROM generate_series(1, 9) g",
        "UPDATE identity_deferred SET id = id + 1",
    ],
    "identity_index": [
        "CREATE TABLE identity_index (id int PRIMARY KEY, a int NOT NULL, b text NOT NULL, n int)",
        "CREATE UNIQUE INDEX identity_index_ab ON identity_index (b, a)",
        "ALTER TABLE identity_index REPLICA IDENTITY USING INDEX identity_index_ab",
        "INSERT INTO identity_index SELECT g, g % 2, g::text, g FROM generate_series(1, 9) g",
        "UPDATE identity_index SET n = 0 WHERE id < 5",
        "UPDATE identity_index SET a = 7, b = 'x' WHERE id = 3",
        # The key changes, and changes back.
        "ALTER TABLE identity_index REPLICA IDENTITY DEFAULT",
        "UPDATE identity_index SET b = 'y' || b, n = 1 WHERE id > 5",
        "DELETE FROM identity_index WHERE id = 9",
        "ALTER TABLE identity_index REPLICA IDENTITY USING INDEX identity_index_ab",
        "UPDATE identity_index SET id = id + 50 WHERE id IN (1, 2)",
        "DELETE FROM identity_index WHERE id = 4",
    ],
    "identity_nothing": [
        "CREATE TABLE identity_nothing (id int PRIMARY KEY, n int)",
        "ALTER TABLE identity_nothing REPLICA IDENTITY NOTHING",
        "INSERT INTO identity_nothing SELECT g, g FROM generate_series(1, 9) g",
    ],
    "swapped": [
        "CREATE TABLE swapped (a int, b text, n int, PRIMARY KEY (b, a))",
        "INSERT INTO swapped SELECT g, g::text, g FROM generate_series(1, 9) g",
        "BEGIN; UPDATE swapped SET a = 0 WHERE a = 1; UPDATE swapped SET a = 1, b = '1' WHERE a = 2;"
        " UPDATE swapped SET a = 2, b = '2' WHERE a = 0; COMMIT",
        "BEGIN; DELETE FROM swapped WHERE a = 3; INSERT INTO swapped VALUES (3, '3', 33); COMMIT",
        "BEGIN; DELETE FROM swapped WHERE a = 4; UPDATE swapped SET a = 4, b = '4' WHERE a = 5; COMMIT",
        "BEGIN; INSERT INTO swapped VALUES (10, 'x', 0); DELETE FROM swapped WHERE a = 10; COMMIT",
    ],
    "often": [
        "CREATE TABLE often (id int PRIMARY KEY, n int)",
        "INSERT INTO often VALUES (1, 0), (2, 0)",
        "DO $$ BEGIN FOR i IN 1..50 LOOP UPDATE often SET n = i WHERE id = 1; END LOOP; END $$",
        "DO $$ BEGIN FOR i IN 1..20 LOOP DELETE FROM often WHERE id = 2; INSERT INTO often VALUES (2, i);"
        " END LOOP; END $$",
    ],
    "key_alone": [
        "CREATE TABLE key_alone (id int PRIMARY KEY)",
        "INSERT INTO key_alone SELECT generate_series(1, 5)",
        "BEGIN; DELETE FROM key_alone WHERE id = 1; INSERT INTO key_alone VALUES (1); COMMIT",
        "UPDATE key_alone SET id = 10 WHERE id = 2",
    ],
    "copies": [
        "CREATE TABLE copies (a int, j json, p point, c char(5), b bool, t text)",
        "ALTER TABLE copies REPLICA IDENTITY FULL",
        "INSERT INTO copies SELECT 1, '{\"a\": 1}', '(1,2)', 'x', true, NULL FROM generate_series(1, 5)",
        "INSERT INTO copies SELECT 1, '{\"a\":1}', '(1,2)', 'x', true, '' FROM generate_series(1, 5)",
        "DELETE FROM copies WHERE ctid = (SELECT ctid FROM copies WHERE t IS NULL LIMIT 1)",
        "UPDATE copies SET t = 'new' WHERE ctid = (SELECT ctid FROM copies WHERE t = '' LIMIT 1)",
        "BEGIN; INSERT INTO copies VALUES (NULL), (NULL); DELETE FROM copies WHERE ctid ="
        " (SELECT ctid FROM copies WHERE a IS NULL LIMIT 1); COMMIT",
        "DELETE FROM copies WHERE a IS NULL",
    ],
    "full_with_dropped": [
        "CREATE TABLE full_with_dropped (a int, gone text, b text)",
        "ALTER TABLE full_with_dropped REPLICA IDENTITY FULL",
        "INSERT INTO full_with_dropped SELECT 1, 'x', 'y' FROM generate_series(1, 4)",
        "ALTER TABLE full_with_dropped DROP gone",
        "DELETE FROM full_with_dropped WHERE ctid = (SELECT ctid FROM full_with_dropped LIMIT 1)",
        "UPDATE full_with_dropped SET a = 2 WHERE ctid = (SELECT ctid FROM full_with_dropped LIMIT 1)",
    ],
    "emptied": [
        "CREATE TABLE emptied (id int PRIMARY KEY, n int)",
        "CREATE TABLE emptied_too (id int PRIMARY KEY REFERENCES emptied)",
        "INSERT INTO emptied SELECT g, g FROM generate_series(1, 9) g",
        "INSERT INTO emptied_too VALUES (1), (2)",
        "BEGIN; UPDATE emptied SET n = 0; TRUNCATE emptied RESTART IDENTITY CASCADE;"
        " INSERT INTO emptied VALUES (1, 1), (2, 2); INSERT INTO emptied_too VALUES (2); COMMIT",
        "INSERT INTO emptied VALUES (3, 3)",
    ],
    "columns_added": [
        "CREATE TABLE columns_added (id int PRIMARY KEY)",
        "INSERT INTO columns_added VALUES (1), (2)",
        "ALTER TABLE columns_added ADD plain text, ADD told text NOT NULL DEFAULT 'it''s {old}',"
        " ADD many int[] DEFAULT '{1,2}'",
        "INSERT INTO columns_added VALUES (3, 'p', 't', '{3}')",
        "ALTER TABLE columns_added ALTER told DROP NOT NULL",
        "INSERT INTO columns_added VALUES (4, NULL, NULL, NULL)",
    ],
    "columns_come_and_go": [
        "CREATE TABLE columns_come_and_go (id int PRIMARY KEY, a int, b text)",
        "INSERT INTO columns_come_and_go VALUES (1, 1, 'one'), (2, 2, 'two')",
        "ALTER TABLE columns_come_and_go DROP a",
        "ALTER TABLE columns_come_and_go ADD a text DEFAULT 'again'",
        "INSERT INTO columns_come_and_go VALUES (3, 'three', 'new')",
        "ALTER TABLE columns_come_and_go RENAME a TO c",
        "INSERT INTO columns_come_and_go VALUES (4, 'four', 'c')",
        "ALTER TABLE columns_come_and_go RENAME b TO x",
        "ALTER TABLE columns_come_and_go RENAME c TO b",
        "ALTER TABLE columns_come_and_go RENAME x TO c",
        "UPDATE columns_come_and_go SET b = 'swapped' WHERE id = 1",
        "ALTER TABLE columns_come_and_go RENAME id TO number",
        "UPDATE columns_come_and_go SET number = 20 WHERE number = 2",
    ],
    "types_change": [
        "CREATE TABLE types_change (id int PRIMARY KEY, a int, b text, c varchar(5), d float8, e bool)",
        "INSERT INTO types_change VALUES (1, 1, '12', 'x', 1.5, true), (2, NULL, '13', NULL, 2.5, false)",
        "ALTER TABLE types_change ALTER id TYPE bigint, ALTER a TYPE numeric(10,2), ALTER b TYPE int USING b::int,"
        " ALTER c TYPE text, ALTER d TYPE int, ALTER e TYPE text",
        "INSERT INTO types_change VALUES (3000000000, 3.25, 7, 'longer than before', 9, 'no bool')",
        "UPDATE types_change SET a = 0 WHERE id = 2",
    ],
    "key_changes": [
        "CREATE TABLE key_changes (id int PRIMARY KEY, code text, n int)",
        "INSERT INTO key_changes SELECT g, 'c' || g, g FROM generate_series(1, 5) g",
        "BEGIN; ALTER TABLE key_changes DROP CONSTRAINT key_changes_pkey, ADD PRIMARY KEY (code, n);"
        " ALTER TABLE key_changes ALTER id DROP NOT NULL; COMMIT",
        "UPDATE key_changes SET id = NULL WHERE code = 'c2'",
        "UPDATE key_changes SET n = 100 WHERE code = 'c3'",
        "ALTER TABLE key_changes DROP CONSTRAINT key_changes_pkey, ADD PRIMARY KEY (code)",
        "UPDATE key_changes SET n = 7 WHERE code = 'c4'",
        "ALTER TABLE key_changes DROP CONSTRAINT key_changes_pkey, REPLICA IDENTITY FULL",
        "INSERT INTO key_changes VALUES (1, 'c1', 1)",
        "DELETE FROM key_changes WHERE ctid = (SELECT ctid FROM key_changes WHERE code = 'c1' LIMIT 1)",
    ],
    "at_one_lsn": [
        "CREATE TABLE at_one_lsn (id int PRIMARY KEY, n int)",
        "INSERT INTO at_one_lsn SELECT g, g FROM generate_series(1, 500) g",
    ],
    "no_columns": [
        "CREATE TABLE no_columns ()",
        "ALTER TABLE no_columns REPLICA IDENTITY FULL",
        "INSERT INTO no_columns DEFAULT VALUES",
        "INSERT INTO no_columns DEFAULT VALUES",
        "ALTER TABLE no_columns ADD a int DEFAULT 7",
        "INSERT INTO no_columns VALUES (8)",
    ],
    "many_columns": [
        "CREATE TABLE many_columns (id int PRIMARY KEY, " + ", ".join(f"c{i} int2" for i in range(1599)) + ")",
        "INSERT INTO many_columns (id, c0, c1598) SELECT g, g, g FROM generate_series(1, 5) g",
        "UPDATE many_columns SET c7 = 7 WHERE id < 3",
        "UPDATE many_columns SET id = 10 WHERE id = 5",
    ],
    "MixedCase": [
        'CREATE TABLE "MixedCase" (id int PRIMARY KEY, "N" int, n int)',
        "CREATE TABLE mixedcase (id int PRIMARY KEY, n int)",
        'INSERT INTO "MixedCase" VALUES (1, 2, 3)',
        "INSERT INTO mixedcase VALUES (1, 1)",
        'UPDATE "MixedCase" SET "N" = 5',
    ],
    _LONG: [
        f'CREATE TABLE "{_LONG}" ("{_LONG}" int PRIMARY KEY, "a.b""c%s{{x}}" text, "🐘/.." text)',
        f"INSERT INTO \"{_LONG}\" VALUES (1, 'a', 'b'), (2, 'c', 'd')",
        f'UPDATE "{_LONG}" SET "🐘/.." = \'%s {{}}\' WHERE "{_LONG}" = 1',
        f'DELETE FROM "{_LONG}" WHERE "{_LONG}" = 2',
        f'ALTER TABLE "{_LONG}" RENAME "🐘/.." TO "e\u0301"',
        f"INSERT INTO \"{_LONG}\" VALUES (3, E'tab\\tnew\\nline\\r\\\\N', '\\N')",
    ],
    "was_renamed": [
        "CREATE TABLE to_rename (id int PRIMARY KEY, n int)",
        "INSERT INTO to_rename VALUES (1, 1)",
        "ALTER TABLE to_rename RENAME TO was_renamed",
        "INSERT INTO was_renamed VALUES (2, 2)",
        "CREATE TABLE to_rename (id int PRIMARY KEY, other text)",
        "INSERT INTO to_rename VALUES (1, 'another table')",
    ],
    "renamed_over": [
        "CREATE TABLE renamed_over (id int PRIMARY KEY, n int)",
        "CREATE TABLE renamed_next (id int PRIMARY KEY, n text)",
        "INSERT INTO renamed_over VALUES (1, 1)",
        "INSERT INTO renamed_next VALUES (2, 'two')",
        "BEGIN; ALTER TABLE renamed_over RENAME TO renamed_old;"
        " ALTER TABLE renamed_next RENAME TO renamed_over; COMMIT",
        "INSERT INTO renamed_over VALUES (3, 'three')",
        "INSERT INTO renamed_old VALUES (3, 3)",
    ],
}
ALSO = ["emptied_too", "mixedcase", "to_rename", "renamed_old"]


def every_type() -> list[str]:
    """All test values of each type, in a column of that type."""
    columns = {f"c{i}": type_ for i, type_ in enumerate(values.TYPES)}
    statements = [
        "CREATE TABLE every_type (id int PRIMARY KEY, " + ", ".join(f"{n} {t}" for n, t in columns.items()) + ")"
    ]
    rng = random.Random(4)
    for id in range(40):
        row = [values.value(rng, type_) for type_ in columns.values()]
        literals = ["NULL" if v is None else "E'" + v.replace("\\", "\\\\").replace("'", "''") + "'" for v in row]
        statements.append(f"INSERT INTO every_type VALUES ({id}, {', '.join(literals)})")
    return [*statements, "UPDATE every_type SET id = id + 100 WHERE id % 3 = 0"]


@pytest.fixture(scope="module")
def log(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Store]]:
    database = make_database(postgres)
    database.execute(values.DECLARATIONS)
    with captured(database, tmp_path_factory.mktemp("cases"), segment_bytes=64 * 1024) as found:
        for statements in [*CASES.values(), every_type()]:
            for statement in statements:
                if "ALTER" in statement:
                    found.catch_up()  # capture must read the catalogue before it changes
                found.execute(statement)
        # PostgreSQL sends a schema's new name with the next change of its tables.
        found.execute(
            "CREATE SCHEMA one", "CREATE TABLE one.moved (id int PRIMARY KEY)", "INSERT INTO one.moved VALUES (1)"
        )
        found.execute(
            "ALTER SCHEMA one RENAME TO two", "ALTER TABLE two.moved ADD n int", "INSERT INTO two.moved VALUES (2, 2)"
        )
        found.catch_up()
    database.execute("SELECT pg_drop_replication_slot('tailrace')")  # other tests use this slot name
    yield database, found.store
    drop_database(database)


@pytest.mark.parametrize("way", ["one step", "many steps", "staged", "types known"])
def test_cases(log: tuple[Database, Store], postgres: Postgres, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    database, store = log
    replica = make_database(postgres)
    if way == "staged":
        monkeypatch.setattr(staging, "INLINE_BYTES", 0)
    if way == "types known":
        replica.execute(values.DECLARATIONS)
    limits = BatchLimits(1, 1) if way == "many steps" else BatchLimits(1 << 30, 1 << 40)
    deliver(sink_to(replica), store, parts=3, limits=limits)
    tables = [*CASES, *ALSO, "every_type"]
    expected = {table: rows_of(database, "public", table) for table in tables}
    assert all(expected.values())
    wrong = [table for table, rows in expected.items() if rows_of(replica, "public", table) != rows]
    assert not wrong
    assert_same(database, replica, "moved", schema="two")
    assert replica.rows("SELECT count(*) FROM pg_class WHERE relname LIKE 'staged_%'") == [(0,)]
    drop_database(replica)


def test_keys_types_and_not_null_are_those_of_the_source(log: tuple[Database, Store], postgres: Postgres) -> None:
    database, store = log
    replica = make_database(postgres)
    deliver(sink_to(replica), store)
    query = """
        SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, coalesce(i.indisprimary, false)
        FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisprimary AND a.attnum = ANY (i.indkey)
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'r'
    """
    ours = {row[:2]: row[2:] for row in database.rows(query)}
    theirs = {row[:2]: row[2:] for row in replica.rows(query)}
    own_types = {"mood", "spot", "spot[]"}
    differing = {
        column: (declared, theirs.get(column))
        for column, declared in ours.items()
        if theirs.get(column) != declared and declared[0] not in own_types
    }
    assert differing.pop(("identity_nothing", "id"))[1] == ("integer", True, False)  # rows might be inserted twice
    identity = {c for c in differing if c[0] == "identity_index"}
    assert all(differing.pop(column) for column in identity)  # its key is the replica identity
    domains = {c: d for c, d in differing.items() if d[0][0] in ("short", "net_price", "price")}
    assert {d[1][0] for d in domains.values() if d[1]} == {"character varying(40)", "numeric(10,2)"}
    assert {c: d for c, d in differing.items() if c not in domains} == {}
    assert {theirs[c][0] for c, d in ours.items() if d[0] in own_types} == {"text"}
    drop_database(replica)


def test_row_filters_and_column_lists(database: Database, postgres: Postgres, tmp_path: Path) -> None:
    """An update may arrive as an insert or a delete."""
    replica = make_database(postgres)
    database.execute("""
        CREATE TABLE filtered (id int PRIMARY KEY, n int, t text);
        ALTER TABLE filtered REPLICA IDENTITY FULL;
        CREATE TABLE listed (id int PRIMARY KEY, shown text, hidden text);
        CREATE PUBLICATION tailrace FOR TABLE filtered WHERE (n > 10), listed (id, shown);
    """)
    with captured(database, tmp_path) as found:
        found.execute("INSERT INTO filtered SELECT g, g, 'x' FROM generate_series(1, 20) g")
        found.execute("UPDATE filtered SET n = 21 - n", "DELETE FROM filtered WHERE id IN (1, 2, 19)")
        found.execute(
            "INSERT INTO listed VALUES (1, 'a', 'b'), (2, 'c', 'd')", "UPDATE listed SET hidden = 'e', shown = 'f'"
        )
        found.catch_up()
    deliver(sink_to(replica), found.store, limits=BatchLimits(1, 1))
    with database.connect() as ours, replica.connect() as theirs:
        seen = {row for row in oracle.rows(ours, "public", "filtered") if int(row[1] or b"0") > 10}
        assert set(oracle.rows(theirs, "public", "filtered")) == seen
        assert seen
        assert oracle.rows(theirs, "public", "listed") == oracle.rows(ours, "public", "listed", ["id", "shown"])
    drop_database(replica)


@pytest.mark.parametrize(
    ("server", "way"), [("mariadb", "one step"), ("older_mariadb", "many steps"), ("mysql", "one step")]
)
def test_cases_in_mysql(
    log: tuple[Database, Store], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, server: str, way: str
) -> None:
    """All but tables with more columns than MySQL has, and types that change to others with other values there."""
    database, store = log
    refused = ("many_columns", "types_change")
    oids = {database.rows(f"SELECT '{table}'::regclass::oid::int")[0][0]: Lsn((1 << 63) - 1) for table in refused}
    limits = BatchLimits(1, 1) if way == "many steps" else BatchLimits(1 << 30, 1 << 40)
    with (
        mysql_tables.make_database(request.getfixturevalue(f"{server}_server")) as url,
        closing(MysqlReplica(url)) as replica,
    ):
        deliver(replica.sink(), store, parts=3, limits=limits, change_filter=ChangeFilter(tables=oids))
        tables = [table for table in (*CASES, *ALSO, "every_type") if table not in refused]
        replica.assert_same(database, *tables)
        replica.assert_same(database, "moved", schema="two")
