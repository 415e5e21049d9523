"""What Debezium and Tailrace are compared on: values of every type, and statements for everything that can happen."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Final

import psycopg
from tests import values

_UUID: Final = "00000000-0000-0000-0000-0000000000ab"

VALUES: Final[dict[str, tuple[str, ...]]] = {
    "int2": ("1", "-32768"),
    "int4": ("2147483647", "0"),
    "int8": ("-9223372036854775808", "9007199254740993"),
    "oid": ("4294967295",),
    "float4": ("1.5", "0.1", "NaN", "Infinity", "-0", "1e-40", "3.4028235e38", "100", "1e7", "0.001", "123456.79"),
    "float8": ("1.5", "NaN", "-Infinity", "-0", "5e-324", "1e308", "100", "1e7", "0.001", "0.00099", "12345678.9"),
    "numeric": ("1.50", "0", "-0.00", "1e-20", "123456789012345678901234567890.12", "-7", "1200.00", "1e30"),
    "numeric(12,3)": ("1.5", "999999999.999", "-0.001", "0"),
    "numeric(38,0)": ("9" * 38, "-1", "128", "-128", "-129", "32768"),
    "numeric(60,5)": ("-1.5", "9" * 55 + ".99999"),
    "numeric(3,5)": ("0.00123",),
    "money": ("12.50", "-92233720368547758.08", "0"),
    "bool": ("t", "f"),
    "text": ("", 'a"\\\n\t\x01é𝄞\x7f\u2028/\ufeff'),
    "varchar(20)": ("ab",),
    "char(5)": ("ab",),
    '"char"': ("a", ""),
    "bytea": ("\\x", "\\x00ff10"),
    "date": ("2024-02-29", "1970-01-01", "1600-01-01", "5874897-12-31", "10000-01-01"),
    "timestamp": (
        *("2024-02-29 12:34:56.789012", "1969-12-31 23:59:59.999999", "infinity", "-infinity", "2024-01-01 00:00:00.1"),
        *("0044-03-15 10:00:00 BC", "1500-02-28 12:00:00", "9999-12-31 23:59:59.999999", "10000-01-01 00:00:00"),
    ),
    "timestamp(3)": ("2024-02-29 12:34:56.789", "1969-12-31 23:59:59.999", "infinity"),
    "timestamp(0)": ("2024-02-29 12:34:56",),
    "timestamptz": (
        *("2024-02-29 12:34:56.789012+00", "2024-02-29 12:34:56+02", "0044-03-15 10:00:00+00 BC", "infinity"),
        *("10000-01-01 00:00:00+00", "2024-01-01 00:00:00.1+00", "294276-12-31 23:59:59.999999+00", "-infinity"),
    ),
    "timestamptz(3)": ("2024-02-29 12:34:56.789+00", "2024-02-29 12:34:56+00"),
    "timestamptz(0)": ("2024-02-29 12:34:56+00",),
    "time": ("12:34:56.789012", "24:00:00", "23:59:59.999999", "01:02:03"),
    "time(3)": ("12:34:56.789", "24:00:00"),
    "timetz": ("12:34:56.789012+00", "12:34:56+05:30", "00:30:00+02", "24:00:00+00", "24:00:00+02", "12:00:00.1-11"),
    "interval": ("0", "-1 day", "1 year 2 mons -3 days 04:05:06.789", "-00:00:00.000001", "99 years 11 mons"),
    "uuid": (_UUID,),
    "json": ('{"a": 1,  "b":[1,2]}', "null"),
    "jsonb": ('{"b":1,"a":[1.10]}',),
    "bit(1)": ("1", "0"),
    "bit(7)": ("1010101", "0000000"),
    "bit(16)": ("1000000000000001",),
    "varbit": ("", "0", "0001", "111000", "1" * 17),
    "inet": ("10.0.0.1/8", "::1"),
    "cidr": ("10.0.0.0/8",),
    "macaddr": ("08:00:2b:01:02:03",),
    "macaddr8": ("08:00:2b:01:02:03:04:05",),
    "point": ("(1,2)", "(1.5,-0)", "(NaN,1e-300)", "(Infinity,2)"),
    "int2[]": ("{1}",),
    "int4[]": ("{}", "{1,NULL,3}", "[0:2]={1,2,3}"),
    "int8[]": ("{1}",),
    "text[]": ("{}", '{NULL,"NULL","","a,b","q\\"q","b\\\\b"}', "[2:3]={a,b}"),
    "varchar(5)[]": ("{ab,NULL}",),
    "char(3)[]": ("{a}",),
    "float4[]": ("{1.5,NaN,-0,1e10}",),
    "float8[]": ("{1.5,0.1,Infinity}",),
    "bool[]": ("{t,f,NULL}",),
    "date[]": ("{2024-01-01,NULL}",),
    "timestamp[]": ('{"2024-01-01 10:00:00.123456",infinity}',),
    "timestamp(3)[]": ('{"2024-01-01 10:00:00.123"}',),
    "timestamptz[]": ('{"2024-01-01 10:00:00.123456+00",infinity}',),
    "time[]": ("{10:00:00.5}",),
    "timetz[]": ("{10:00:00+02}",),
    "uuid[]": (f"{{{_UUID},NULL}}",),
    "json[]": ('{"{\\"a\\": 1}",NULL}',),
    "jsonb[]": ('{"{\\"a\\": 1}"}',),
    "numeric[]": ("{1.50,2,NULL}",),
    "numeric(6,2)[]": ("{1.50,2}",),
    "bytea[]": ('{"\\\\x00ff",NULL}',),
    "inet[]": ("{10.0.0.1}",),
    "int4range[]": ('{"[1,2)"}',),
    "int4range": ("empty", "[1,5)", "(,)"),
    "numrange": ("[1.5,2.50)",),
    "tstzrange": ('["2020-01-01 00:00:00+00","infinity")', "(,)"),
    "daterange": ("[2020-01-01,2020-02-01)",),
    "tsvector": ("", "'a':1A 'b':2"),
    "mood": ("sad", 'it\'s "fine", really'),
    "short": ("abc",),
    "net_price": ("1.5",),
}
"""Values of which both write the same, in a snapshot and in the stream."""

STREAM_ONLY: Final[dict[str, tuple[str, ...]]] = {
    "date": ("0044-03-15 BC", "1582-10-10", "infinity", "-infinity"),
}
"""Values that Debezium writes differently in a snapshot."""

LEFT_OUT: Final[dict[str, str]] = {
    "box": "(2,2),(1,1)",
    "circle": "<(1,2),3>",
    "polygon": "((1,2),(3,4))",
    "pg_lsn": "16/B374D848",
    "xid8": "18446744073709551615",
    "tsquery": "'a' & 'b'",
    "int4multirange": "{[1,3),[5,9)}",
    "spot": "(1,a)",
    "name[]": "{a}",
}
"""Types whose columns Debezium leaves out, each with a value."""

DEFAULTS: Final[dict[str, tuple[str, ...]]] = {
    "int4": ("5", "-5", "2+3", "'7'", "nextval('numbers')"),
    "int8": ("9223372036854775807",),
    "text": ("'x'", "'it''s'", "''", "upper('a')", "'a'||'b'", "'q\"\\é'", "current_user"),
    "char(3)": ("'a'",),
    "bool": ("true", "false"),
    "numeric": ("1.5",),
    "numeric(6,2)": ("1.5", "-1.5", "0", "1.005"),
    "float8": ("1.5", "-1", "'NaN'", "1e10"),
    "date": ("'2020-01-01'", "CURRENT_DATE"),
    "timestamp": ("'2020-01-01 10:00:00.5'", "now()", "CURRENT_TIMESTAMP"),
    "timestamptz": ("'2020-01-01 10:00:00+02'", "now()"),
    "time": ("'10:00'", "LOCALTIME"),
    "timetz": ("'10:00+02'",),
    "interval": ("'1 mon 3 days'",),
    "uuid": (f"'{_UUID}'", "gen_random_uuid()"),
    "jsonb": ("""'{"a": 1}'""",),
    "bytea": ("'\\x00ff'",),
    "mood": ("'sad'",),
    "int4[]": ("'{1,2}'",),
    "bit(1)": ("B'1'",),
    "bit(3)": ("B'101'",),
    "money": ("1",),
    "point": ("'(1,2)'",),
    "short": ("'x'",),
    "price": ("1",),
}

KEYS: Final[dict[str, tuple[str, str]]] = {
    "text": ('a"b\\', "é\n"),
    "numeric": ("1.5", "2"),
    "numeric(6,2)": ("1.5", "2"),
    "timestamptz": ("2020-01-01 10:00+00", "2021-01-01 10:00+00"),
    "bytea": ("\\x00", "\\x01"),
    "float8": ("1", "1e10"),
    "mood": ("sad", "ok"),
    "bool": ("t", "f"),
}
"""Types of keys, each with a value and another."""

_TOAST: Final[dict[str, str]] = {
    "text": "repeat('x', 3000)",
    "bytea": "decode(repeat('00', 3000), 'hex')",
    "jsonb": "('\"' || repeat('x', 3000) || '\"')::jsonb",
    "text[]": "ARRAY[repeat('x', 3000)]",
    "int4[]": "array_fill(5, ARRAY[2000])",
    "uuid[]": f"array_fill('{_UUID}'::uuid, ARRAY[500])",
    "tsvector": "(SELECT string_agg('w' || i, ' ') FROM generate_series(1, 800) i)::tsvector",
}

Connection = psycopg.Connection[Any]


def _moment(rng: random.Random) -> str:
    day = f"{rng.randint(1700, 2250)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
    return f"{day} {rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}.{rng.randint(0, 999_999)}"


def random_types() -> dict[str, values.Make]:
    """The types of the random workload, and values of which both write the same."""
    differ = {"name", "box", "int4multirange", "pg_lsn", "xid8", "spot", "spot[]"}
    found = {type_: make for type_, make in values.TYPES.items() if type_ not in differ}
    for type_ in set(found) & set(VALUES):
        if "numeric" in type_ or "[]" in type_ or type_ in ("interval", "net_price"):
            found[type_] = values.one_of(*VALUES[type_])
    moments = {"date", "timestamp", "timestamptz", "timestamp(3)"}
    return {type_: _moment if type_ in moments else make for type_, make in found.items()}


def create(connection: Connection) -> None:
    """Create the tables, with the rows that are in the snapshot."""
    connection.execute(values.DECLARATIONS)
    connection.execute("CREATE SEQUENCE numbers")
    for table, condition in (("typed", ""), ("required", " NOT NULL")):
        columns = ", ".join(f"c{n} {type_}{condition}" for n, type_ in enumerate(VALUES))
        _run(connection, f"CREATE TABLE {table} (id int PRIMARY KEY, {columns})")
    _insert_typed(connection, "typed", 0, {})
    columns = ", ".join(f"c{n} {type_}" for n, type_ in enumerate(LEFT_OUT))
    _run(connection, f"CREATE TABLE left_out (id int PRIMARY KEY, {columns})")
    defaults = [(type_, default) for type_, found in DEFAULTS.items() for default in found]
    columns = ", ".join(f"a{n} {t} DEFAULT {d}, b{n} {t} NOT NULL DEFAULT {d}" for n, (t, d) in enumerate(defaults))
    _run(connection, f"CREATE TABLE defaults (id serial PRIMARY KEY, {columns}, plain int NOT NULL)")
    for n, type_ in enumerate(KEYS):
        _run(connection, f"CREATE TABLE key_{n} (n int, v {type_} PRIMARY KEY)")
    columns = ", ".join(f"c{n} {type_}" for n, type_ in enumerate(_TOAST))
    for table, identity in (("toasted", "DEFAULT"), ("toasted_full", "FULL")):
        _run(connection, f"CREATE TABLE {table} (id int PRIMARY KEY, n int, {columns})")
        apart = ", ".join(f"ALTER c{n} SET STORAGE EXTERNAL" for n in range(len(_TOAST)))
        _run(connection, f"ALTER TABLE {table} {apart}, REPLICA IDENTITY {identity}")
        _run(connection, f"INSERT INTO {table} SELECT i, i, {', '.join(_TOAST.values())} FROM generate_series(1, 3) i")
    for statement in _TABLES:
        _run(connection, statement)


_TABLES: Final = (
    "CREATE TABLE pair_key (a text, b int, c text, n int, PRIMARY KEY (c, b))",
    "CREATE TABLE by_index (a text, b int NOT NULL, c int NOT NULL, body text)",
    "CREATE UNIQUE INDEX by_index_key ON by_index (c, b)",
    "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_key",
    "CREATE TABLE keyless (a int, b text)",
    "ALTER TABLE keyless REPLICA IDENTITY FULL",
    "CREATE TABLE nothing (a int, b text)",
    "ALTER TABLE nothing REPLICA IDENTITY NOTHING",
    "CREATE TABLE parted (id int, part int, PRIMARY KEY (id, part)) PARTITION BY LIST (part)",
    "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1)",
    "CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2)",
    'CREATE SCHEMA "odd.sch ema"',
    'CREATE TABLE "odd.sch ema"."täb/le 🐘" ("I d" int PRIMARY KEY, "q""uo\'te" text)',
    "CREATE TABLE altered (id int PRIMARY KEY, a text)",
    "CREATE TABLE bulk (id int PRIMARY KEY, note text)",
    "INSERT INTO bulk SELECT i, md5(i::text) FROM generate_series(1, 500) i",
)


def stream(connection: Connection) -> None:
    """Change everything, in transactions of all kinds."""
    _insert_typed(connection, "typed", 100, STREAM_ONLY)
    connection.execute("INSERT INTO typed (id) VALUES (300)")
    connection.execute("UPDATE typed SET c0 = 5 WHERE id >= 105")
    _insert_typed(connection, "required", 0, STREAM_ONLY)
    connection.execute("DELETE FROM required")
    _run(connection, f"INSERT INTO left_out VALUES (1, {', '.join(['%s'] * len(LEFT_OUT))})", *LEFT_OUT.values())
    connection.execute("INSERT INTO defaults (plain) VALUES (1), (2)")
    count = sum(map(len, DEFAULTS.values()))
    _run(connection, f"UPDATE defaults SET {', '.join(f'a{n} = NULL' for n in range(count))} WHERE id = 1")
    connection.execute("DELETE FROM defaults")
    for n, (type_, (first, second)) in enumerate(KEYS.items()):
        _run(connection, f"INSERT INTO key_{n} VALUES (1, %s::{type_})", first)
        _run(connection, f"UPDATE key_{n} SET v = %s::{type_}", second)
        _run(connection, f"DELETE FROM key_{n}")
    for table in ("toasted", "toasted_full"):
        _run(connection, f"UPDATE {table} SET n = -1 WHERE id = 1")
        _run(connection, f"UPDATE {table} SET id = 20, n = 0 WHERE id = 2")
        _run(connection, f"UPDATE {table} SET c0 = 'short' WHERE id = 20")
        _run(connection, f"DELETE FROM {table}")
    for transaction in _TRANSACTIONS:
        with connection.transaction():
            for statement in transaction:
                _run(connection, statement)


_TRANSACTIONS: Final[tuple[tuple[str, ...], ...]] = (
    ("INSERT INTO pair_key VALUES ('a', 1, 'c', 1), ('b', 2, 'é\"', 2)",),
    ("UPDATE pair_key SET n = 2",),
    ("UPDATE pair_key SET b = b + 10", "DELETE FROM pair_key WHERE b = 11"),
    ("INSERT INTO by_index VALUES ('a', 1, 2, 'x')",),
    ("UPDATE by_index SET a = 'b'",),
    ("UPDATE by_index SET c = 3", "DELETE FROM by_index"),
    ("INSERT INTO keyless VALUES (1, 'a'), (1, 'a'), (2, NULL)",),
    ("UPDATE keyless SET b = 'c' WHERE a = 1", "DELETE FROM keyless WHERE a = 1"),
    ("INSERT INTO nothing VALUES (1, 'a')",),
    ("INSERT INTO parted VALUES (1, 1)",),
    ("UPDATE parted SET part = 2",),
    ('INSERT INTO "odd.sch ema"."täb/le 🐘" VALUES (1, \'a\')',),
    ('UPDATE "odd.sch ema"."täb/le 🐘" SET "I d" = 2',),
    (
        "INSERT INTO pair_key SELECT 'x', i, 'c', 1 FROM generate_series(1, 3) i",
        "SELECT pg_logical_emit_message(true, 'in', 'it')",
        "INSERT INTO keyless VALUES (1, 'x')",
        "UPDATE pair_key SET b = 9 WHERE b = 1",
        "TRUNCATE keyless, nothing",
        "SAVEPOINT s",
        "DELETE FROM pair_key",
        "ROLLBACK TO s",
        "SELECT pg_logical_emit_message(true, 'in', 'it \\x00ff')",
        "DELETE FROM pair_key WHERE b = 2",
    ),
    ("SELECT pg_logical_emit_message(false, 'not \"in', 'any')",),
    ("TRUNCATE keyless",),
    ("SELECT pg_logical_emit_message(true, 'alone', 'x')",),
    ("UPDATE bulk SET note = 'changed' WHERE id % 2 = 0", "INSERT INTO nothing VALUES (1, 'beside')"),
    ("DELETE FROM bulk WHERE id % 5 = 0",),
)

ALTERATIONS: Final = (
    ("ALTER TABLE altered ADD b int NOT NULL DEFAULT 7", "INSERT INTO altered (id) VALUES (1)"),
    ("ALTER TABLE altered ALTER a TYPE varchar(20), ALTER b DROP NOT NULL", "UPDATE altered SET a = 'x'"),
    ("ALTER TABLE altered RENAME a TO c", "UPDATE altered SET c = 'y'", "UPDATE altered SET id = 2"),
    ("ALTER TABLE altered DROP b", "DELETE FROM altered"),
)
"""Both have to be up to date before each: Debezium asks the database for what the stream does not say."""


def _insert_typed(connection: Connection, table: str, first: int, more: dict[str, tuple[str, ...]]) -> None:
    """Insert rows with all values of all types."""
    for row in _rows(more):
        places = ", ".join(f"%s::{type_}" for type_ in VALUES)
        _run(connection, f"INSERT INTO {table} VALUES ({first}, {places})", *row)
        first += 1


def _rows(more: dict[str, tuple[str, ...]]) -> Iterator[list[str]]:
    found = {type_: [*texts, *more.get(type_, ())] for type_, texts in VALUES.items()}
    for row in range(max(map(len, found.values()))):
        yield [texts[row % len(texts)] for texts in found.values()]


def _run(connection: Connection, statement: str, *arguments: str) -> None:
    connection.execute(statement.encode(), arguments or None)
