"""Cases 1 to 25: every value in the log is the text that PostgreSQL prints, and all readers agree on it."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner
from psycopg import sql
from tests import oracle
from tests.capturing import current_lsn
from tests.e2e.captured_database import CapturedDatabase, captured, cat, column_of, relation_of
from tests.fixtures.postgres import Database, drop_database, make_database
from tests.pgoutput import read

from tailrace.change import UNCHANGED, Image, Lsn, Relation
from tailrace.cli import main
from tailrace.embedded.postgres import Postgres
from tailrace.errors import SourceRefused
from tailrace.log.reader import LogReader
from tailrace.pgoutput.decoder import decode
from tailrace.text import DATE_INFINITY, DAY_US, SPECIAL, TIMESTAMP_INFINITY
from tailrace.types import Form, mapping

DECLARATIONS = """
CREATE EXTENSION vector;
CREATE TYPE mood AS ENUM ('sad', 'it''s "fine", really', '', 'NULL');
CREATE DOMAIN price AS numeric(10, 2) CHECK (VALUE > -1000);
CREATE DOMAIN net_price AS price;
CREATE DOMAIN prices AS net_price[];
CREATE TYPE spot AS (x int, label text, at timestamptz);
CREATE TYPE line_item AS (place spot, amount net_price, tags text[], inner_spots spot[]);
CREATE TYPE text_range AS RANGE (subtype = text);
"""

_MOMENTS = (
    *("infinity", "-infinity", "4713-01-01 00:00:00 BC", "0044-03-15 12:00:00 BC", "0001-01-01 00:00:00"),
    *("1582-10-10 10:10:10.1", "1500-02-28 23:59:59.999999", "9999-12-31 23:59:59", "10000-01-01 00:00:00"),
    *("294247-01-10 04:00:54.775807", "294276-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999"),
)

SAMPLES: dict[str, tuple[str, ...]] = {
    "bool": ("t", "f"),
    "int2": ("-32768", "32767", "0"),
    "int4": ("-2147483648", "2147483647"),
    "int8": ("-9223372036854775808", "9223372036854775807"),
    "oid": ("0", "4294967295"),
    "float4": ("NaN", "Infinity", "-Infinity", "-0", "1e-45", "3.4028235e38", "0.1", "16777217"),
    "float8": ("NaN", "Infinity", "-Infinity", "-0", "5e-324", "1.7976931348623157e308", "0.1", "9007199254740993"),
    "numeric": (
        *("NaN", "Infinity", "-Infinity", "-0.00", "12345678901234567890123456789012345678901234567890.10"),
        *("1e-1000", "1e1000", "0.1"),
    ),
    "numeric(12,3)": ("NaN", "999999999.999", "-0.001", "0"),
    "numeric(38,0)": ("9" * 38, "-" + "9" * 38, "NaN"),
    "numeric(38,38)": ("0." + "9" * 38, "-0." + "0" * 37 + "1"),
    "numeric(60,5)": ("9" * 55 + ".99999", "NaN"),
    "numeric(5,-2)": ("1234567", "-50"),
    "numeric(3,5)": ("0.00999",),
    "money": ("-92233720368547758.08", "92233720368547758.07", "0", "-0.01", "1234567.89"),
    "text": ("", "NULL", "\\N", "a\tb\nc\rd\\e\"f'g", "\u2028𝄞é\x01\x7f", "e\u0301", "%s {} $1"),
    "varchar": ("", " padded "),
    "varchar(7)": ("ä𝄞", "1234567"),
    "bpchar(5)": ("", "ab", "äöüß€"),
    "bpchar": ("ab  ",),
    '"char"': ("a", "", "\\377"),
    "name": ("", "x" * 63),
    "bytea": ("\\x", "\\x00", "\\x00ff5c27", "\\x" + "5c78" * 20),
    "date": (
        *("infinity", "-infinity", "4713-01-01 BC", "0044-03-15 BC", "0001-01-01", "1582-10-04", "1582-10-05"),
        *("1582-10-15", "9999-12-31", "10000-01-01", "5874897-12-31", "1969-12-31"),
    ),
    "timestamp": _MOMENTS,
    "timestamptz": _MOMENTS,
    "timestamp(3)": ("2024-02-29 23:59:59.9996", "2024-02-29 10:00:00.120"),
    "timestamptz(0)": ("2024-02-29 23:59:59.6+05:30",),
    "time": ("24:00:00", "00:00:00", "23:59:59.999999", "12:34:56.7"),
    "time(2)": ("12:34:56.789",),
    "timetz": ("24:00:00+00", "00:00:00-15:59", "12:34:56.789+05:30", "23:59:59-00:00:01"),
    "interval": (
        *(
            "0",
            "178000000 years",
            "-178000000 years",
            "1 year 2 mons -3 days 04:05:06.789",
            "-1 mons +2 days -00:00:01",
        ),
        *("1 mon", "-1 day", "100000:00:00", "-00:00:00.000001", "2147483647 days", "2562047788:00:54.775807"),
    ),
    "interval year to month": ("14 mons",),
    "uuid": ("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "{00000000000000000000000000000000}"),
    "json": (
        '{"b": 1, "a":2,   "b": 1.00 }',
        "\n[ 1e400,\t-0.0,\r\n 1.10, 123456789012345678901234567890 ]\n",
        '"\\u00e9 \\ud834\\udd1e line\\nend"',
        "null",
    ),
    "jsonb": (
        '{"b": 1, "a": 2, "b": 1.00}',
        "[1e400, -0.0, 1.10, 123456789012345678901234567890.0987654321]",
        '"line\\nend \\u00e9"',
        "null",
    ),
    "jsonpath": ('$."a"[*] ? (@ > 1.10)',),
    "bit(7)": ("0000001", "0000000"),
    "bit": ("0",),
    "varbit": ("", "0", "0001", "111000"),
    "varbit(9)": ("000000001",),
    "inet": ("10.0.0.1/8", "::1", "192.168.1.1", "fe80::1/64", "0.0.0.0/0"),
    "cidr": ("10.0.0.0/8", "::/0", "2001:db8::/32"),
    "macaddr": ("08:00:2b:01:02:03",),
    "macaddr8": ("08-00-2b-01-02-03-04-05", "08002b010203"),
    "point": ("(Infinity,-Infinity)", "(NaN,-0)", "(1e-300,0.1)"),
    "line": ("{1,2,3}", "[(0,0),(1,1)]"),
    "lseg": ("[(0,0),(Infinity,1)]",),
    "box": ("(2,2),(1,-Infinity)",),
    "path": ("[(0,0),(1,1)]", "((0,0),(NaN,1),(2,0))"),
    "polygon": ("((0,0),(1,1),(2,-0))",),
    "circle": ("<(1,2),Infinity>",),
    "tsvector": ("", "'a':1A 'it''s':2,3B '\\\\':16383"),
    "tsquery": ("'fat' & ( 'rat' | !'cat':*AB ) <2> 'it''s'",),
    "pg_lsn": ("0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF"),
    "xid": ("4294967295",),
    "xid8": ("0", "18446744073709551615"),
    "cid": ("4294967295",),
    "tid": ("(4294967295,65535)",),
    "pg_snapshot": ("10:20:10,14,15",),
    "txid_snapshot": ("10:20:10,14,15",),
    "aclitem": ("postgres=arwdDxt/postgres",),
    "refcursor": ("some cursor",),
    "regclass": ("pg_class", "public.every"),
    "regcollation": ('"C"',),
    "regconfig": ("english",),
    "regdictionary": ("simple",),
    "regnamespace": ("public",),
    "regoper": ("pg_catalog.||/",),
    "regoperator": ("+(integer,integer)",),
    "regproc": ("now", "12345"),
    "regprocedure": ("abs(integer)",),
    "regrole": ("postgres",),
    "regtype": ("character varying", "public.mood"),
    "int4range": ("empty", "[1,5]", "(,)", "[3,)"),
    "int8range": ("[-9223372036854775808,9223372036854775807)",),
    "numrange": ("(0.10,NaN]", "[-Infinity,Infinity]"),
    "tsrange": ("[2020-01-01,infinity)", "[4713-01-01 BC,10000-01-01)"),
    "tstzrange": ("[2020-01-01 00:00+05:30,infinity)", "(,)"),
    "daterange": ("[2020-01-01,2020-02-01]", "empty"),
    "int4multirange": ("{}", "{[1,3),[5,9)}"),
    "int8multirange": ("{(,)}",),
    "nummultirange": ("{[1.10,2.20]}",),
    "tsmultirange": ("{[2020-01-01,infinity)}",),
    "tstzmultirange": ("{[2020-01-01 00:00+05:30,2021-01-01 00:00Z)}",),
    "datemultirange": ("{[2020-01-01,infinity)}",),
    "text_range": ('["a,b","c\\"d")', "(,)"),
    "int4[]": ("{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[0:2]={1,2,3}", "[-1:0][2:3]={{1,2},{3,4}}", "{{{{{{1}}}}}}"),
    "text[]": ("{}", '{NULL,"NULL",null,"",a,"a,b","q\\"q","b\\\\b"}', '{{a},{" "}}', '{"{}"}'),
    "int2vector": ("", "1 -2 3"),
    "oidvector": ("1 4294967295",),
    "box[]": ("{(2,2),(1,1);(3,3),(0,0)}",),
    "mood": ("sad", 'it\'s "fine", really', "", "NULL"),
    "mood[]": ('{NULL,"NULL","","it\'s \\"fine\\", really"}',),
    "price": ("NaN", "99999999.99"),
    "net_price": ("0.10", "-999.99", "NaN"),
    "prices": ("{0.10,NULL,NaN}",),
    "spot": ("(1,a,)", "(,,)", '(2,"q""x, y\\\\",2020-01-01 00:00+05:30)', '(,"",infinity)'),
    "spot[]": ("{}", '{"(1,\\"a b\\",)",NULL}'),
    "line_item": (
        '("(1,""a,b"",)",0.10,"{NULL,""NULL"",x}","{""(1,\\\\""y z\\\\"",)"",NULL}")',
        "(,,,)",
    ),
    "vector(3)": ("[1,-0,1e-30]",),
    "vector": ("[0.1,2]",),
    "halfvec(2)": ("[1,65504]",),
    "sparsevec(5)": ("{1:1,3:2}/5",),
}
"""Type in SQL → values as SQL expressions. `DECLARATIONS` creates enums and similar types."""

# These types have no input, but a table may still have such a column.
WITHOUT_INPUT = (
    *("gtsvector", "pg_brin_bloom_summary", "pg_brin_minmax_multi_summary", "pg_dependencies", "pg_mcv_list"),
    *("pg_ndistinct", "pg_node_tree"),
)

HOSTILE = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "lc_monetary": "C.UTF-8",
    "client_encoding": "LATIN1",
    "quote_all_identifiers": "on",
    "search_path": "public",
    "xmlbinary": "hex",
}


PROMISED = """
SET "DateStyle" = ISO; SET "IntervalStyle" = postgres; SET "TimeZone" = 'UTC'; SET extra_float_digits = 3;
SET bytea_output = hex; SET lc_monetary = 'C'; SET quote_all_identifiers = off; SET search_path = pg_catalog;
SET client_encoding = 'UTF8';
"""
"""Written out here, so that the test fails if a setting is removed from the product's list."""


class Table:
    """A table with a column for each type and its array type; together its rows contain every sample."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute(DECLARATIONS.encode())
        samples = dict(SAMPLES) | dict.fromkeys(WITHOUT_INPUT, ())
        if connection.info.server_version >= 170000:
            samples["interval"] += ("infinity", "-infinity")
        samples["xml"] = ("<a>1 &lt; 2</a>", "text <b/>") if _has_xml(connection) else ()
        # A type of several words cannot be made an array, nor can a domain over an array.
        arrays = [t for t in samples if t not in WITHOUT_INPUT and not t.endswith(("[]", "prices", "month"))]
        self.columns = {"id": "int4"}
        self.columns |= {f"c{i}": t for i, t in enumerate(samples)}
        self.columns |= {f"a{i}": f"{t}[]" for i, t in enumerate(arrays)}
        self._samples = samples
        self.count = max(len(values) for values in samples.values()) + 1
        columns = ", ".join(f"{name} {type_}" for name, type_ in self.columns.items())
        connection.execute(f"CREATE TABLE public.every ({columns}, PRIMARY KEY (id))".encode())
        connection.execute("ALTER TABLE public.every REPLICA IDENTITY FULL")

    def row(self, number: int, shift: int) -> sql.Composed:
        """Row `number`, with the samples shifted by `shift`."""
        made = [sql.SQL("{}").format(number)]
        for name, declared in list(self.columns.items())[1:]:
            type_ = declared.removesuffix("[]") if name[0] == "a" else declared
            values = (*self._samples[type_], None)
            literal = sql.SQL("{}::" + type_).format(sql.Literal(values[(number + shift) % len(values)]))
            made.append(sql.SQL("ARRAY[{}, NULL]").format(literal) if name[0] == "a" else literal)
        return sql.SQL(", ").join(made)

    def insert(self, connection: psycopg.Connection[Any]) -> None:
        for number in range(self.count):
            connection.execute(sql.SQL("INSERT INTO public.every VALUES ({})").format(self.row(number, 0)))

    def update(self, connection: psycopg.Connection[Any]) -> None:
        names = sql.SQL(", ").join(map(sql.Identifier, self.columns))
        statement = sql.SQL("UPDATE public.every SET ({}) = ROW ({}) WHERE id = {}")
        for number in range(self.count):
            connection.execute(statement.format(names, self.row(number, 1), number))


def _has_xml(connection: psycopg.Connection[Any]) -> bool:
    try:
        connection.execute("SELECT xmlparse(content 'x')")
    except psycopg.errors.FeatureNotSupported:
        print("xml: this server was built without it; the column holds NULL only")
        return False
    return True


State = dict[int, oracle.Row]
"""Rows by id."""


def read_texts(database: Database) -> State:
    """PostgreSQL's own text of every row, in a session with the settings that Tailrace guarantees."""
    with database.connect() as connection:
        connection.execute(PROMISED)
        return {int(row[0] or 0): row for row in oracle.rows(connection, "public", "every")}


def set_hostile_defaults(database: Database) -> None:
    """Apply settings that a database or a role may set for every session."""
    for number, (name, value) in enumerate(HOSTILE.items()):
        whose = f"DATABASE {database.name}" if number % 2 else f"ROLE postgres IN DATABASE {database.name}"
        database.execute(f"""ALTER {whose} SET "{name}" = {"'" + value + "'" if name != "DateStyle" else value}""")


@pytest.mark.parametrize("settings", ["plain", "hostile"])
def test_every_value_equals_postgresqls_text(any_database: Database, tmp_path: Path, settings: str) -> None:
    with any_database.connect() as connection:
        table = Table(connection)
        assert without_sample(connection) == set(), "built-in types without a column here"
    if settings == "hostile":
        set_hostile_defaults(any_database)
    with captured(any_database, tmp_path) as log:
        table.insert(log.connection)
        first = read_texts(any_database)
        table.update(log.connection)
        second = read_texts(any_database)
        binary = in_binary(log.connection, table)
        log.execute("DELETE FROM public.every")
        changes = log.changes()

    found: dict[str, State] = {"INSERT": {}, "UPDATE": {}, "DELETE": {}}
    for change in changes:
        row = change.old or change.new or ()
        id = int(bytes(row[0]))  # type: ignore[arg-type]
        if change.operation == "UPDATE":
            assert change.old == first[id]
        found[change.operation][id] = fill_unchanged(change.new or row, row)
    assert found == {"INSERT": first, "UPDATE": second, "DELETE": second}
    assert len(changes) == 3 * table.count
    relation = relation_of(changes[0])
    assert {c.relation for c in changes} == {relation}
    assert_columns_agree(log, relation, second, binary)
    assert_json_agrees(log, relation, first)


def without_sample(connection: psycopg.Connection[Any]) -> set[str]:
    """The types of pg_catalog for which the table has no column."""
    rows = connection.execute("""
        SELECT t.typname FROM pg_type t
        WHERE t.typnamespace = 'pg_catalog'::regnamespace AND t.typtype IN ('b', 'r', 'm')
          AND NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = 'public.every'::regclass AND a.attnum > 0
                          AND a.atttypid = t.oid)
    """).fetchall()
    # A table cannot have columns of cstring[], or of array types that belong to the catalogue's own tables.
    never = {"cstring", *WITHOUT_INPUT}
    return {name for (name,) in rows if name.removeprefix("_") not in never and not name.startswith("_pg_")}


def fill_unchanged(new: Image, old: Image) -> oracle.Row:
    """Take unchanged values from the old row."""
    return tuple(o if v is UNCHANGED else v for v, o in zip(new, old, strict=True))  # type: ignore[misc]


def _date(days: int) -> int:
    infinite = {2**31 - 1: DATE_INFINITY, -(2**31): -DATE_INFINITY}
    return infinite.get(days, days + 10_957)


def _moment(micros: int) -> Any:
    if micros in (2**63 - 1, -(2**63)):
        return TIMESTAMP_INFINITY if micros > 0 else -TIMESTAMP_INFINITY
    return moment if (moment := micros + 10_957 * DAY_US) < TIMESTAMP_INFINITY else SPECIAL


def _interval(micros: int, days: int, months: int) -> Any:
    ends = {(2**63 - 1, 2**31 - 1, 2**31 - 1), (-(2**63), -(2**31), -(2**31))}
    return SPECIAL if (micros, days, months) in ends else {"months": months, "days": days, "microseconds": micros}


# Type → the layout of PostgreSQL's binary format, and the value that Arrow should hold.
_BINARY: Final[dict[str, tuple[str, Callable[..., Any]]]] = {
    "bool": (">?", bool),
    "int2": (">h", int),
    "int4": (">i", int),
    "int8": (">q", int),
    "oid": (">I", int),
    "float4": (">f", lambda value: struct.pack(">d", value)),
    "float8": (">d", lambda value: struct.pack(">d", value)),
    "money": (">q", lambda cents: Decimal(cents).scaleb(-2)),
    "date": (">i", _date),
    "timestamp": (">q", _moment),
    "timestamptz": (">q", _moment),
    "time": (">q", lambda micros: micros if micros < DAY_US else SPECIAL),
    "interval": (">qii", _interval),
}


def in_binary(connection: psycopg.Connection[Any], table: Table) -> dict[str, list[Any]]:
    """Values from PostgreSQL's binary format, which involves no text; rows by id."""
    kinds = {n: re.split("[ (]", t)[0] for n, t in table.columns.items() if not t.endswith("[]")}
    names = [name for name, kind in kinds.items() if kind in (*_BINARY, "bytea")]
    query = sql.SQL("SELECT {} FROM public.every ORDER BY id").format(sql.SQL(", ").join(map(sql.Identifier, names)))
    result = connection.execute(query, binary=True).pgresult
    assert result is not None
    columns: dict[str, list[Any]] = {}
    for column, name in enumerate(names):
        layout, meaning = _BINARY.get(kinds[name], ("", bytes))
        raw = [result.get_value(row, column) for row in range(result.ntuples)]
        columns[name] = [None if v is None else meaning(*struct.unpack(layout, v)) if layout else bytes(v) for v in raw]
    return columns


def assert_columns_agree(
    log: CapturedDatabase, relation: Relation, second: State, binary: dict[str, list[Any]]
) -> None:
    """On the log's bytes, the vectorised decoder agrees with the plain one and with PostgreSQL's binary values."""
    payloads = [
        entry.payload
        for segment in LogReader(log.store).list()
        for entry in segment.entries() or ()
        if entry.relation == relation
    ]
    decoded = decode(relation, pa.array(payloads, pa.binary()))
    assert read.decoded_rows(decoded) == [read.parse_row(relation, payload) for payload in payloads]
    updates = [row for row, payload in zip(read.image_rows(decoded.new), payloads, strict=True) if payload[:1] == b"U"]
    compared = 0
    for place, column in enumerate(relation.columns):
        for id, row in enumerate(updates):
            assert row is not None
            (values, special), text = row, second[id][place]
            if column.name in binary:
                expected = binary[column.name][id]
            elif mapping(column).form is Form.DECIMAL and text is not None:
                expected = Decimal(text.decode()) if text != b"NaN" else SPECIAL
            else:
                expected = text.decode() if text is not None else None
            where = f"{column.name} {column.type.name}, row {id}"
            if values[place] is UNCHANGED:
                continue
            compared += 1
            if expected is SPECIAL:
                assert values[place] is None, where
                assert text is not None, where
                assert special[column.name] == text.decode(), where
            else:
                assert values[place] == expected, where
                assert column.name not in special, where
    assert compared > 1000


def assert_json_agrees(log: CapturedDatabase, relation: Relation, first: State) -> None:
    inserts = [line["after"] for line in cat(log.store) if line["operation"] == "INSERT"]
    assert len(inserts) == len(first)
    for line in inserts:
        assert list(line) == [c.name for c in relation.columns]
        for column, text in zip(relation.columns, first[int(line["id"])], strict=True):
            expected: Any = None if text is None else text.decode()
            match mapping(column).form:
                case Form.BOOLEAN if text is not None:
                    expected = text == b"t"
                case Form.JSON if text is not None:
                    expected = json.loads(text, parse_float=str, parse_int=str)
            assert line[column.name] == expected, f"{column.name} {column.type.name}"


def test_json_is_not_normalised(database: Database, tmp_path: Path) -> None:
    """Duplicate keys, spaces and digits are retained; line breaks are not, as they would end the output line."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, verbatim json, parsed jsonb)")
    with captured(database, tmp_path) as log:
        log.execute(
            """INSERT INTO t VALUES (1, '{"b": 1, "a":2,   "b": 1.00 }', '{"x": 1.10, "y": 1234567890123456789.00}')""",
            """INSERT INTO t VALUES (2, E'[1,\n\t2e5]', '[]')""",
        )
        log.catch_up()
    result = CliRunner().invoke(main, ["log", "cat", "--json", "--table", "public.t", "--store", log.store.url])
    first, second = result.stdout.splitlines()
    assert '"verbatim": {"b": 1, "a":2,   "b": 1.00 }' in first
    assert '"parsed": {"x": 1.10, "y": 1234567890123456789.00}' in first
    assert '"verbatim": [1, \t2e5]' in second
    changes = log.changes_now("t")
    assert [c.new and c.new[1] for c in changes] == [b'{"b": 1, "a":2,   "b": 1.00 }', b"[1,\n\t2e5]"]


def test_a_label_added_or_renamed_mid_stream_is_followed(any_database: Database, tmp_path: Path) -> None:
    any_database.execute("CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE TABLE t (id int PRIMARY KEY, m mood)")
    with captured(any_database, tmp_path) as log:
        log.execute(
            "INSERT INTO t VALUES (1, 'ok')",
            "ALTER TYPE mood ADD VALUE 'meh' BEFORE 'ok'",
            "INSERT INTO t VALUES (2, 'meh')",
            "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'",
            "INSERT INTO t VALUES (3, 'blue')",
            "UPDATE t SET m = 'blue'",
        )
        changes = log.changes("t")
        log.assert_follows("t")
    assert [(c.after or {})["m"] for c in changes] == ["ok", "meh", "blue", "blue", "blue", "blue"]
    # A new label does not make PostgreSQL describe the table again; a new stream does.
    with captured(any_database, tmp_path) as log:
        log.execute("DELETE FROM t WHERE id = 1")
        newest = relation_of(log.changes("t")[-1])
    assert column_of(newest, "m").type.labels == ("blue", "meh", "ok")


def test_latin1_is_exact(postgres18: Postgres, tmp_path: Path) -> None:
    """Case 91, including names: the catalogue is in the database's encoding."""
    database = make_database(postgres18, "LATIN1")
    try:
        with database.connect(client_encoding="UTF8") as connection:
            connection.execute('CREATE TABLE "größe" ("schlüssel" text PRIMARY KEY, note text)')
        everything = "".join(map(chr, range(1, 256)))
        with captured(database, tmp_path) as log:
            log.connection.execute('INSERT INTO "größe" VALUES (%s, %s)', ["ÿ", everything])
            log.connection.execute("SET client_encoding = 'LATIN1'")
            log.connection.execute('UPDATE "größe" SET note = %s', ["µ" + everything])
            inserted, updated = log.changes("größe")
        assert inserted.after == {"schlüssel": "ÿ", "note": everything}
        assert updated.after == {"schlüssel": "ÿ", "note": "µ" + everything}
    finally:
        drop_database(database)


def test_sql_ascii_is_exact_or_an_error(postgres18: Postgres, tmp_path: Path) -> None:
    """Case 91: PostgreSQL does not send invalid UTF-8 to a client that requests UTF-8."""
    database = make_database(postgres18, "SQL_ASCII")
    try:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
        with captured(database, tmp_path) as log:
            log.execute("INSERT INTO t VALUES (1, convert_from('\\xc3a9', 'SQL_ASCII'))")
            (fine,) = log.changes("t")
            assert fine.after == {"id": 1, "note": "é"}
            log.execute("INSERT INTO t VALUES (2, convert_from('\\xe9', 'SQL_ASCII'))")
            failure = log.running.failure()
        assert isinstance(failure, SourceRefused)
        assert re.search("invalid byte sequence .* at [0-9A-F]+/[0-9A-F]+$", str(failure))
        assert "SQL_ASCII" in failure.hint
        assert log.changes_now("t") == [fine]
    finally:
        drop_database(database)


# The server prints it as hex, which is longer than PostgreSQL's limit for text.
TOO_LARGE = "convert_to(repeat('x', 540000000), 'UTF8')"


def test_a_value_too_large_to_be_sent_stops_capture_with_its_lsn(database: Database, tmp_path: Path) -> None:
    """Case 92: retrying would not help."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v bytea); CREATE TABLE other (id int PRIMARY KEY)")
    with captured(database, tmp_path) as log:
        log.execute("INSERT INTO other VALUES (1)")
        before = current_lsn(log.connection)
        log.execute(f"INSERT INTO t VALUES (1, {TOO_LARGE})")
        failure = log.running.failure()
        after = current_lsn(log.connection)
        assert log.running.capture.reconnections == 0
    assert isinstance(failure, SourceRefused)
    assert (place := re.search("alloc.* at ([0-9A-F]+/[0-9A-F]+)$", str(failure)))
    assert before <= Lsn.parse(place[1]) < after
    assert "remove that table from the publication" in failure.hint
    assert [c.table for c in log.changes_now()] == ["other"]


@pytest.mark.skipif(
    "TAILRACE_TEST_LARGE" not in os.environ, reason="takes a minute and 8 GB of memory: set TAILRACE_TEST_LARGE=1"
)
def test_the_largest_text_that_postgresql_holds_is_captured(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    with captured(database, tmp_path) as log:
        log.execute("INSERT INTO t VALUES (1, repeat('x', 1000000000))")
        log.running.wait(lambda: LogReader(log.store).end_lsn() >= current_lsn(log.connection), 300)
        (change,) = log.changes_now("t")
        assert change.new
        assert change.new[1] == b"x" * 1_000_000_000
