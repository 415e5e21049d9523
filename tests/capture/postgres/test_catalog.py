"""The catalogue, compared with pgoutput's descriptions on a real server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.fixtures.postgres import Database

from tailrace.capture.postgres.catalog import Connection, describe, published_oids, published_tables, relation
from tailrace.capture.postgres.source_connection import connect
from tailrace.change import Relation, Type
from tailrace.pgoutput.message import RelationMessage, TypeMessage, parse
from tailrace.settings import SourceSettings


@pytest.fixture
def session(any_database: Database) -> Iterator[Connection]:
    with connect(SourceSettings(url=any_database.url)) as connection:
        yield connection


class Stream:
    """pgoutput's messages about changes, read without a walsender."""

    def __init__(self, database: Database, publication: str = "CREATE PUBLICATION p FOR ALL TABLES") -> None:
        self.database = database
        database.execute(publication)
        database.execute(f"SELECT pg_create_logical_replication_slot('{database.name}', 'pgoutput')")

    def messages(self) -> list[object]:
        rows = self.database.rows(
            f"SELECT data FROM pg_logical_slot_get_binary_changes('{self.database.name}', NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'p')"
        )
        return [parse(row[0]) for row in rows]

    def relations(self, change: str) -> list[RelationMessage]:
        self.database.execute(change)
        return [m for m in self.messages() if isinstance(m, RelationMessage)]

    def relation(self, change: str) -> RelationMessage:
        (message,) = self.relations(change)
        return message


def test_a_relation_carries_types_defaults_comments_and_key(any_database: Database, session: Connection) -> None:
    any_database.execute("""
        CREATE SCHEMA "Shop";
        CREATE TYPE "Shop".mood AS ENUM ('sad', 'ok');
        ALTER TYPE "Shop".mood ADD VALUE 'happy' BEFORE 'ok';
        CREATE DOMAIN "Shop".money2 AS numeric(12, 2);
        CREATE DOMAIN "Shop".price AS "Shop".money2 CHECK (VALUE > 0);
        CREATE TABLE "Shop"."Orders" (
            note text DEFAULT 'it''s', id bigint, region int, price "Shop".price NOT NULL, moods "Shop".mood[],
            vector int2vector, twice bigint GENERATED ALWAYS AS (id * 2) STORED, PRIMARY KEY (region, id));
        COMMENT ON TABLE "Shop"."Orders" IS 'what people bought';
        COMMENT ON COLUMN "Shop"."Orders".note IS 'from the customer';
    """)
    stream = Stream(any_database)
    any_database.execute("""INSERT INTO "Shop"."Orders" (id, region, price) VALUES (1, 2, 3)""")
    any_database.execute(
        """ALTER TABLE "Shop"."Orders" ADD state "Shop".mood DEFAULT 'happy', ADD n int[] DEFAULT '{1,2}'"""
    )
    message = stream.relations("""INSERT INTO "Shop"."Orders" (id, region, price) VALUES (2, 2, 3)""")[-1]
    found = relation(session, message)

    assert (found.schema, found.name, found.identity) == ("Shop", "Orders", "d")
    assert found.key == ("region", "id"), "in the key's order"
    assert found.generated == ("twice",)
    assert found.comment == "what people bought"
    note, _, _, price, moods, vector, state, n = found.columns
    assert (note.default, note.comment, note.nullable, note.number) == ("'it''s'::text", "from the customer", True, 1)
    assert not price.nullable
    assert price.type.kind == "d"
    assert price.type.base
    assert price.type.base.base
    assert (price.type.name, price.type.base.name, price.type.base.base.name) == ("price", "money2", "numeric")
    assert (price.type.base_modifier, price.type.base.base_modifier) == (-1, ((12 << 16) | 2) + 4)
    assert moods.type.element is not None
    assert moods.type.element.labels == ("sad", "happy", "ok"), "in the enum's order, not in order of creation"
    assert vector.type.element is None, "the text of int2vector is not that of an array"
    assert (state.default, state.missing) == ("""'happy'::"Shop".mood""", "happy")
    assert n.missing == "{1,2}"
    assert Relation.from_json(found.to_json()) == found


def test_describing_a_table_equals_the_streams_description(any_database: Database, session: Connection) -> None:
    stream = Stream(any_database)
    any_database.execute("CREATE TABLE with_index (a int, b int NOT NULL, c varchar(7) NOT NULL, d int)")
    any_database.execute("CREATE UNIQUE INDEX chosen ON with_index (c, b) INCLUDE (d)")
    any_database.execute("ALTER TABLE with_index REPLICA IDENTITY USING INDEX chosen")
    any_database.execute(
        "CREATE TABLE whole (a int, b timestamptz(3), PRIMARY KEY (b)); ALTER TABLE whole REPLICA IDENTITY FULL"
    )
    any_database.execute("CREATE TABLE nothing (a int PRIMARY KEY); ALTER TABLE nothing REPLICA IDENTITY NOTHING")
    any_database.execute("CREATE TABLE keyless (a int)")
    any_database.execute("CREATE TABLE deferred (a int PRIMARY KEY DEFERRABLE, b int)")
    any_database.execute("CREATE TABLE gaps (x int, a int PRIMARY KEY, y int, b int); ALTER TABLE gaps DROP x, DROP y")
    any_database.execute("CREATE TABLE no_columns ()")
    keys = {
        "with_index": ("c", "b"),
        "whole": ("b",),
        "nothing": ("a",),
        "keyless": (),
        "deferred": (),
        "gaps": ("a",),
        "no_columns": (),
    }
    for table, key in keys.items():
        message = stream.relation(
            f"INSERT INTO {table} DEFAULT VALUES"
            if table in ("keyless", "no_columns")
            else {
                "with_index": "INSERT INTO with_index VALUES (1, 2, 'c', 4)",
                "whole": "INSERT INTO whole VALUES (1, now())",
            }.get(table, f"INSERT INTO {table} (a) VALUES (1)")
        )
        found = relation(session, message)
        assert found.key == key, table
        assert describe(session, [message.oid]) == {message.oid: found}, table


def test_dropped_objects_are_described_as_far_as_pgoutput_did(any_database: Database, session: Connection) -> None:
    stream = Stream(any_database)
    any_database.execute("CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE t (id int PRIMARY KEY, m mood)")
    any_database.execute("INSERT INTO t VALUES (1, 'sad')")
    any_database.execute("DROP TABLE t; DROP TYPE mood")
    messages = stream.messages()
    message = next(m for m in messages if isinstance(m, RelationMessage))
    type_messages = {m.oid: m for m in messages if isinstance(m, TypeMessage)}
    found = relation(session, message, type_messages)
    oid = message.columns[1].type_oid
    assert found.key == ("id",)
    assert found.columns[0].type == Type(23, "pg_catalog", "int4")
    assert [c.number for c in found.columns] == [None, None]
    # Even when it decodes after the drop, pgoutput reads the old catalogue, so the type's name is known.
    assert found.columns[1].type == Type(oid, "public", "mood")
    assert relation(session, message).columns[1].type == Type(oid, "", "unknown")
    assert describe(session, [message.oid]) == {}


def test_a_re_added_column_is_a_new_column(any_database: Database, session: Connection) -> None:
    stream = Stream(any_database)
    any_database.execute("CREATE TABLE t (a int DEFAULT 1, b int DEFAULT 2)")
    old = stream.relation("INSERT INTO t DEFAULT VALUES")
    any_database.execute("ALTER TABLE t DROP a, ADD a int DEFAULT 3")
    found = relation(session, old)
    assert [(c.name, c.number, c.default) for c in found.columns] == [("a", None, None), ("b", 2, "2")]
    any_database.execute("ALTER TABLE t ALTER b TYPE bigint")
    assert relation(session, old).columns[1].number is None, "another type, another column"


def test_the_key_is_that_at_the_time_of_the_change(any_database: Database, session: Connection) -> None:
    stream = Stream(any_database)
    any_database.execute("CREATE TABLE t (a int PRIMARY KEY, b int NOT NULL UNIQUE)")
    old = stream.relation("INSERT INTO t VALUES (1, 2)")
    any_database.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX t_b_key")
    assert relation(session, old).key == ("a",)
    assert relation(session, stream.relation("INSERT INTO t VALUES (2, 3)")).key == ("b",)
    assert relation(session, replace(old, identity="f")).key == ("a",)


def test_1600_columns(any_database: Database, session: Connection) -> None:
    stream = Stream(any_database)
    any_database.execute(f"CREATE TABLE wide ({', '.join(f'c{i} int' for i in range(1600))})")
    message = stream.relation("INSERT INTO wide DEFAULT VALUES")
    assert len(relation(session, message).columns) == 1600


def test_published_tables(any_database: Database, session: Connection) -> None:
    any_database.execute("""
        CREATE TABLE plain (a int, b int, c int GENERATED ALWAYS AS (a + b) STORED);
        CREATE TABLE listed (a int PRIMARY KEY, b int, c int);
        CREATE TABLE filtered (a int PRIMARY KEY);
        CREATE TABLE parts (a int) PARTITION BY RANGE (a);
        CREATE TABLE part1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
        CREATE TABLE part2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
        INSERT INTO parts SELECT generate_series(0, 19);
        INSERT INTO plain SELECT generate_series(1, 1000), 1;
        ANALYZE plain; ANALYZE part1; ANALYZE part2;
        CREATE PUBLICATION p FOR TABLE plain, listed (a, c), filtered WHERE (a > 5), parts;
    """)
    found = {table.name: table for table in published_tables(session, "p")}
    assert list(found) == ["filtered", "listed", "part1", "part2", "plain"]
    assert found["listed"].columns == ("a", "c")
    assert found["plain"].columns == ("a", "b")
    assert found["filtered"].row_filter == "(a > 5)"
    assert found["plain"].estimated_rows == 1000
    assert found["plain"].bytes > 30_000
    assert found["filtered"].estimated_rows is None
    any_database.execute("ALTER PUBLICATION p SET (publish_via_partition_root)")
    (root,) = [table for table in published_tables(session, "p") if table.name == "parts"]
    assert (root.is_partitioned, root.estimated_rows, root.bytes) == (True, 20, 2 * 8192)
    assert published_tables(session, "absent") == []
    # Tailrace's own tables are recognised by their comments; that of a partition does not matter under its root.
    any_database.execute("""
        COMMENT ON TABLE plain IS 'Tailrace: its own'; COMMENT ON TABLE part1 IS 'Tailrace: its own';
        COMMENT ON COLUMN listed.a IS 'Tailrace: no table'; COMMENT ON TABLE filtered IS 'tailrace: or so';
    """)
    assert [table.name for table in published_tables(session, "p")] == ["filtered", "listed", "parts"]
    assert [table.name for table in published_tables(session, "p", own=True)] == ["plain"]
    assert published_oids(session, "p")[0] == {table.oid for table in published_tables(session, "p")}


def test_generated_columns_are_published_on_request_since_18(database: Database) -> None:
    stream = Stream(database, "CREATE PUBLICATION p FOR ALL TABLES WITH (publish_generated_columns = stored)")
    database.execute("CREATE TABLE t (a int, b int GENERATED ALWAYS AS (a) STORED, c int GENERATED ALWAYS AS (a))")
    message = stream.relation("INSERT INTO t VALUES (1)")
    with connect(SourceSettings(url=database.url)) as session:
        found = relation(session, message)
        (table,) = published_tables(session, "p")
        assert [c.name for c in found.columns] == ["a", "b"] == list(table.columns)
        assert found.generated == ("c",), "virtual ones are never sent"
        assert found.columns[1].default is None
        assert describe(session, [table.oid], {table.oid: table.columns}) == {table.oid: found}


def test_a_not_null_that_is_not_valid_leaves_the_column_nullable(database: Database) -> None:
    database.execute("CREATE TABLE t (a int, b int NOT NULL); ALTER TABLE t ADD CONSTRAINT c NOT NULL a NOT VALID")
    (oid,) = database.rows("SELECT 't'::regclass::oid")[0]
    with connect(SourceSettings(url=database.url)) as session:
        assert [c.nullable for c in describe(session, [oid])[oid].columns] == [True, False]
