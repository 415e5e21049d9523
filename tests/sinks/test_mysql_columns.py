"""Names, keys and sizes of tables: MySQL and MariaDB accept them, and keep apart what PostgreSQL does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pymysql
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sinks import mysql_values

from tailrace.change import Column, Relation, Type
from tailrace.embedded.mysql_family import MysqlFamilyServer
from tailrace.errors import ConfigError, PoisonError, SinkRefused
from tailrace.sinks.database.staged_rows import Positions
from tailrace.sinks.mysql import load_data
from tailrace.sinks.mysql.column_mapping import ColumnMapping, map_relation
from tailrace.sinks.mysql.flavour import Flavour
from tailrace.sinks.mysql.identifier import MAX_CHARACTERS, column_names, identifier, quote
from tailrace.sinks.mysql.loading_connection import LoadingConnection
from tailrace.sinks.mysql.unrepresentable import UnrepresentablePolicy

MARIADB = Flavour("mariadb", (11, 4, 5))
TEXT = Type(25, "pg_catalog", "text")
VARCHAR = Type(1043, "pg_catalog", "varchar")


@pytest.fixture(scope="module")
def connection(any_mysql_server: MysqlFamilyServer) -> Iterator[LoadingConnection]:
    with mysql_values.connect(any_mysql_server) as connection:
        yield connection


def table(*columns: Column, key: tuple[str, ...] = ()) -> Relation:
    return Relation(1, "public", "things", "d", columns, key)


def typed(name: str, type_: str, modifier: int = -1, schema: str = "pg_catalog") -> Column:
    return Column(name, Type(0, schema, type_), modifier)


def sql_types(*columns: Column, key: tuple[str, ...] = ()) -> list[str]:
    return [m.type.sql for m in map_relation(table(*columns, key=key), MARIADB, UnrepresentablePolicy())]


def load(connection: LoadingConnection, mappings: tuple[ColumnMapping, ...], *columns: list[str]) -> None:
    mysql_values.create(connection, mappings)
    encoded = [m.encode(pa.array(column)) for m, column in zip(mappings, columns, strict=True)]
    mysql_values.load(connection, mappings, encoded)


def test_keys_that_differ_in_postgresql_differ(connection: LoadingConnection) -> None:
    """In case, accents, blanks at the end, normalisation or what a collation ignores; also the empty text."""
    keys = ["a", "A", "ä", "a ", "a\t", "", " ", "é", "e\u0301", "\u200b", "ss", "ß", "𝄞", "𝄟", "a\x01", "\\", "'"]
    for column in (Column("k", TEXT), Column("k", VARCHAR, 24), typed("k", "citext", schema="public")):
        mappings = mysql_values.mapped(connection, table(column, key=("k",)))
        load(connection, mappings, keys)
        assert mysql_values.read(connection, mappings) == [keys]
        name = quote(mappings[0].name)
        for number, key in enumerate(keys):
            literal = load_data.row_literals([pa.array([key])])[0].decode()
            found = mysql_values.query(connection, f"SELECT `#` FROM t WHERE {name} = {literal}")
            assert found == [(number,)], repr(key)


def test_a_text_key_holds_768_characters(connection: LoadingConnection) -> None:
    """Of four bytes each. A key with more is refused, with its position."""
    mappings = mysql_values.mapped(connection, table(Column("k", TEXT), key=("k",)))
    longest = ["𝄞" * 768, "𝄞" * 767 + "𝄟"]
    load(connection, mappings, longest)
    assert mysql_values.read(connection, mappings) == [longest]
    positions = Positions(np.array([0x10, 0x20]), np.array([0, 7]))
    with pytest.raises(PoisonError, match=r"public.things, column k at 0/20:7: VARCHAR\(768\) cannot hold") as caught:
        mappings[0].encode(pa.array(["x" * 768, "x" * 769]), positions)
    assert "key" in caught.value.hint


def test_columns_of_a_key_share_its_bytes(connection: LoadingConnection) -> None:
    columns = (
        typed("a", "int8"),
        typed("b", "text"),
        typed("c", "bytea"),
        typed("d", "varchar", 14),
        typed("e", "uuid"),
        typed("f", "timestamptz"),
        typed("g", "numeric"),
    )
    key = tuple(c.name for c in columns)
    mappings = mysql_values.mapped(connection, table(*columns, key=key))
    values = ["1", "b" * 368, "\\x" + "00" * 1475, "0123456789", "00000000-0000-0000-0000-000000000000"]
    values += ["2026-01-31 12:00:00.5+00", "-1.5"]
    load(connection, mappings, *[[value] for value in values])
    assert [column for (column,) in mysql_values.read(connection, mappings)] == values
    with pytest.raises(PoisonError):
        mappings[1].encode(pa.array(["b" * 369]))
    with pytest.raises(PoisonError):
        mappings[2].encode(pa.array(["\\x" + "00" * 1476]))
    assert [m.can_be_key for m in mappings] == [True] * len(mappings)


def test_the_key_leaves_room_for_a_history(connection: LoadingConnection) -> None:
    flavour = mysql_values.flavour_of(connection)
    relation = table(Column("k", TEXT), key=("k",))
    mappings = map_relation(relation, flavour, UnrepresentablePolicy(), reserved_key_bytes=16)
    assert mappings[0].type.sql == "VARCHAR(764)"


def test_a_key_that_cannot_be_held_is_refused() -> None:
    wide = [typed(f"c{i}", "numeric") for i in range(33)]
    with pytest.raises(SinkRefused, match="has 33 columns") as caught:
        sql_types(*wide, key=tuple(c.name for c in wide))
    assert "REPLICA IDENTITY" in caught.value.hint
    with pytest.raises(SinkRefused, match="does not fit into 3072 bytes"):
        map_relation(table(Column("k", TEXT), key=("k",)), MARIADB, UnrepresentablePolicy(), reserved_key_bytes=3070)


@pytest.mark.parametrize(
    "columns",
    [
        [Column(f"c{i}", VARCHAR, 4 + 255) for i in range(90)],
        [Column(f"c{i}", VARCHAR, 4 + 50) for i in range(190)],
        [Column(f"c{i}", TEXT) for i in range(180)],
        [typed(f"c{i}", "int4") for i in range(1016)],
    ],
    ids=["varchar(255)", "varchar(50)", "text", "int4"],
)
def test_wide_tables_fit(connection: LoadingConnection, columns: list[Column]) -> None:
    mappings = mysql_values.mapped(connection, table(*columns))
    mysql_values.create(connection, mappings)
    one_more = mysql_values.mapped(connection, table(*columns, Column("last", VARCHAR, 4 + 255)))
    assert one_more[:-1] == mappings


def test_too_many_columns_are_refused() -> None:
    with pytest.raises(SinkRefused, match="1018 columns"):
        sql_types(*[typed(f"c{i}", "int4") for i in range(1018)])


def test_names_that_mysql_does_not_have(connection: LoadingConnection) -> None:
    """Names that differ in case only, with a blank at the end, with rare characters, or like a shortened one."""
    names = ["a", "A", "É", "é", "ends ", "tab\t", "𝄞", "back`tick", "per%cent", "x~0123456789abcdef", "é" * 31, "."]
    mappings = mysql_values.mapped(connection, table(*[Column(name, TEXT) for name in names]))
    load(connection, mappings, *[[name] for name in names])
    assert [column for (column,) in mysql_values.read(connection, mappings)] == names
    listed = "SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 't'"
    found = {name for (name,) in mysql_values.query(connection, listed)}
    assert {m.name for m in mappings} == found - {"#"}
    assert [m.name for m in mappings if m.name == m.column.name] == ["a", "é", "back`tick", "per%cent", "é" * 31, "."]


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), unique=True))
def test_names_stay_different(names: list[str]) -> None:
    assert len({name.casefold() for name in column_names(names)}) == len(names)
    assert all(len(identifier(name)) <= MAX_CHARACTERS for name in names)
    assert len({identifier(identifier(name)) for name in names}) == len(names)


def test_long_names_are_shortened() -> None:
    assert identifier("x" * 64) == "x" * 64
    one, other = identifier("x" * 65), identifier("x" * 66)
    assert one != other
    assert len(one) == len(other) == 64
    assert one.startswith("x" * 47 + "~")


def test_load_data_turns_errors_into_warnings(connection: LoadingConnection) -> None:
    """Which is why a caller counts them: values that a type cannot hold become others, even in strict mode."""
    mysql_values.query(connection, "DROP TABLE IF EXISTS t")
    mysql_values.query(connection, "CREATE TABLE t (a DECIMAL(65,30), b VARCHAR(3), c DATE, d INT PRIMARY KEY)")
    lines = b"NaN\tlong\tinfinity\t1\n1\tx\t2026-01-31\t1\n"
    assert connection.load("t", ["a", "b", "c", "d"], [lines]) == (1, 4)
    mysql_values.query(connection, "DELETE FROM t")
    # It rounds, and calls that a note, as INSERT does too.
    assert connection.load("t", ["a", "d"], [b"0." + b"0" * 30 + b"9\t1\n"]) == (1, 1)
    assert mysql_values.query(connection, "SELECT a FROM t") == [(Decimal("1e-30"),)]


def test_the_server_cannot_read_files(connection: LoadingConnection) -> None:
    """A statement that names a file gets nothing, whether the server asks for it or somebody in its place."""
    mysql_values.query(connection, "DROP TABLE IF EXISTS t")
    mysql_values.query(connection, "CREATE TABLE t (line LONGTEXT)")
    mysql_values.query(connection, "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE t")
    assert mysql_values.query(connection, "SELECT COUNT(*) FROM t") == [(0,)]


def test_a_load_that_fails_halfway_leaves_nothing(any_mysql_server: MysqlFamilyServer) -> None:
    def lines() -> Iterator[bytes]:
        yield b"1\n" * 100_000
        raise RuntimeError("no more rows")

    with mysql_values.connect(any_mysql_server) as other:
        mysql_values.query(other, "DROP TABLE IF EXISTS t")
        mysql_values.query(other, "CREATE TABLE t (a INT) ENGINE = InnoDB")
        connection = mysql_values.connect(any_mysql_server)
        connection.begin()
        with pytest.raises(RuntimeError, match="no more rows"):
            connection.load("t", ["a"], lines())
        assert not connection.open
        with pytest.raises(pymysql.err.InterfaceError):
            connection.commit()
        # The lock shows that the server has ended the transaction.
        mysql_values.query(other, "ALTER TABLE t ADD b INT")
        assert mysql_values.query(other, "SELECT COUNT(*) FROM t") == [(0,)]


def test_the_policy_is_by_column_then_by_type() -> None:
    policy = UnrepresentablePolicy.parse(
        {
            "default": "clamp",
            "numeric": "text",
            "timestamp with time zone": "null",
            "public.things.b": "stop",
            "shop.*.c": "null",
        }
    )
    columns = (typed("a", "numeric"), typed("b", "numeric"), typed("c", "timestamptz"), typed("d", "float8"))
    relation = table(*columns)
    assert [policy.of(relation, column) for column in columns] == ["text", "stop", "null", "clamp"]
    assert policy.of(replace(relation, schema="shop"), columns[1]) == "text"
    assert [m.type.sql for m in map_relation(relation, MARIADB, policy)] == [
        "LONGTEXT",
        "DECIMAL(65,30)",
        "DATETIME(6)",
        "DOUBLE",
    ]
    domain = Column("e", Type(0, "public", "price", "d", Type(0, "pg_catalog", "numeric"), 655366))
    assert policy.of(relation, domain) == "text"
    assert map_relation(table(domain), MARIADB, policy)[0].type.sql == "VARCHAR(13)"


@pytest.mark.parametrize("setting", ["skip", {"default": "skip"}, {"integer": "null"}, {"a.b": "null"}])
def test_an_invalid_policy(setting: str | dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        UnrepresentablePolicy.parse(setting)


@pytest.mark.parametrize(
    ("version", "flavour", "collation"),
    [
        ("11.4.5-MariaDB-log", MARIADB, "utf8mb4_nopad_bin"),
        ("8.4.8", Flavour("mysql", (8, 4, 8)), "utf8mb4_0900_bin"),
    ],
)
def test_flavours(version: str, flavour: Flavour, collation: str) -> None:
    assert Flavour.parse(version) == flavour
    assert flavour.collation == collation
    with pytest.raises(SinkRefused):
        Flavour.parse("unknown")
