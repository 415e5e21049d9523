"""The mapping of each PostgreSQL type. The numbers in the ids refer to the project's list of hard values."""

from __future__ import annotations

import datetime
import json
import math
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pgoutput import build, read

from tailrace import text, types
from tailrace.change import Column, Type
from tailrace.errors import DecodeError
from tailrace.pgoutput.decoder import decode
from tailrace.text import SPECIAL

DECIMAL = ("numeric", build.numeric(10, 2))
DIGITS = "1234567890.12345678901234567890"
INT64 = 2**63 - 1
INT32 = 2**31 - 1


def interval(months: int, days: int, microseconds: int) -> dict[str, int]:
    return {"months": months, "days": days, "microseconds": microseconds}


def other(name: str, kind: str = "b", **more: Any) -> Column:
    return Column("c0", Type(99999, "public", name, kind, **more))


def array_of(name: str) -> Column:
    return Column("c0", build.type_(f"_{name}", element=build.type_(name)))


TWICE = Type(
    2,
    "public",
    "twice",
    "d",
    base=Type(1, "public", "once", "d", base=build.type_("numeric"), base_modifier=DECIMAL[1]),
)

# case, column, text, the value Arrow stores, the JSON form (None: a JSON string of the text)
VALUES: list[tuple[str, Any, str, Any, str | None]] = [
    ("1-nan", DECIMAL, "NaN", SPECIAL, '"NaN"'),
    ("1-unbounded-nan", "numeric", "NaN", "NaN", '"NaN"'),
    ("1-infinity", "numeric", "-Infinity", "-Infinity", '"-Infinity"'),
    ("1-decimal", DECIMAL, "-12345678.90", Decimal("-12345678.90"), "-12345678.90"),
    ("2-39-digits", ("numeric", build.numeric(39, 1)), "9" * 38 + ".9", "9" * 38 + ".9", "9" * 38 + ".9"),
    ("2-38-digits", ("numeric", build.numeric(38, 0)), "-" + "9" * 38, Decimal("-" + "9" * 38), "-" + "9" * 38),
    ("2-no-low-word", ("numeric", build.numeric(38, 0)), f"-{2**65}", Decimal(-(2**65)), f"-{2**65}"),
    ("2-negative-scale", ("numeric", build.numeric(3, -2)), "12300", "12300", "12300"),
    ("2-scale-beyond", ("numeric", build.numeric(3, 5)), "0.00012", "0.00012", "0.00012"),
    ("2-trailing-zeros", "numeric", "1.500", "1.500", "1.500"),
    ("2-wider-than-declared", DECIMAL, "123456789.00", SPECIAL, "123456789.00"),
    ("3-nan", "float8", "NaN", math.nan, '"NaN"'),
    ("3-minus-zero", "float8", "-0", -0.0, "-0"),
    ("3-infinity", "float4", "-Infinity", -math.inf, '"-Infinity"'),
    ("3-largest", "float8", "1.7976931348623157e+308", 1.7976931348623157e308, "1.7976931348623157e+308"),
    ("3-smallest", "float8", "5e-324", 5e-324, "5e-324"),
    ("3-single-largest", "float4", "3.4028235e+38", (2 - 2**-23) * 2.0**127, "3.4028235e+38"),
    ("3-single-smallest", "float4", "1e-45", 2.0**-149, "1e-45"),
    ("3-single", "float4", "0.1", 13421773 / 2**27, "0.1"),
    ("4-date", "date", "infinity", INT32, None),
    ("4-date-minus", "date", "-infinity", -INT32, None),
    ("4-timestamp", "timestamp", "infinity", INT64, None),
    ("4-timestamptz", "timestamptz", "-infinity", -INT64, None),
    ("4-beside-infinity", "timestamp", "294247-01-10 04:00:54.775806", INT64 - 1, None),
    ("4-not-infinity", "timestamp", "294247-01-10 04:00:54.775807", SPECIAL, None),
    ("5-last", "timestamptz", "294276-12-31 23:59:59.999999+00", SPECIAL, None),
    ("5-first-day", "date", "4714-11-24 BC", -2440588, None),
    ("5-last-day", "date", "5874897-12-31", 2145042905, None),
    ("5-ides-of-march", "timestamp", "0044-03-15 12:00:00.5 BC", -63517780799500000, None),
    ("5-bc-with-zone", "timestamptz", "0044-03-15 12:00:00.5+00 BC", -63517780799500000, None),
    ("5-year-10000", "date", "10000-01-01", 2932897, None),
    ("6-before-1582", "date", "1500-03-01", -171605, None),
    ("6-year-one", "timestamp", "0001-01-01 00:00:00", -62135596800000000, None),
    ("7-midnight", "time", "24:00:00", SPECIAL, None),
    ("7-time", "time", "23:59:59.999999", 86_399_999_999, None),
    ("7-timetz", "timetz", "24:00:00-08", "24:00:00-08", None),
    ("8-mixed", "interval", "-1 years -2 mons +3 days -04:05:06.789", interval(-14, 3, -14706789000), None),
    ("8-zero", "interval", "00:00:00", interval(0, 0, 0), None),
    ("8-months", "interval", "1 mon", interval(1, 0, 0), None),
    ("8-sign-after-days", "interval", "-2147483648 days +00:00:00.000001", interval(0, -(2**31), 1), None),
    ("8-most", "interval", "2562047788:00:54.775807", interval(0, 0, INT64), None),
    ("8-least", "interval", "-2562047788:00:54.775808", interval(0, 0, -(2**63)), None),
    ("8-least-months", "interval", "-178956970 years -8 mons", interval(-(2**31), 0, 0), None),
    ("8-infinity", "interval", "-infinity", SPECIAL, None),
    ("9-bounds", array_of("int4"), "[0:1][2:3]={{1,2},{3,NULL}}", "[0:1][2:3]={{1,2},{3,NULL}}", None),
    ("9-empty", array_of("text"), "{}", "{}", None),
    ("9-null-word", array_of("text"), '{NULL,"NULL",""}', '{NULL,"NULL",""}', None),
    ("10-composite", other("pair", "c"), '(1,"(2,""x, y"")",)', '(1,"(2,""x, y"")",)', None),
    ("11-enum", other("mood", "e", labels=("sad",)), "added later", "added later", None),
    ("12-domain", Column("c0", TWICE), "1.50", Decimal("1.50"), "1.50"),
    ("13-range", "int4range", "[1,)", "[1,)", None),
    ("13-empty", "int4multirange", "{}", "{}", None),
    ("14-hstore", other("hstore"), '"a"=>NULL, "b\\"c"=>"NULL"', '"a"=>NULL, "b\\"c"=>"NULL"', None),
    ("15-json", "json", '{"a":1,\r\n "a" : 1.10}', '{"a":1,\r\n "a" : 1.10}', '{"a":1,   "a" : 1.10}'),
    ("15-jsonb", "jsonb", f'{{"n": {DIGITS}}}', f'{{"n": {DIGITS}}}', f'{{"n": {DIGITS}}}'),
    ("16-empty", "bytea", "\\x", b"", None),
    ("16-nul", "bytea", "\\x00ff0a", b"\0\xff\n", None),
    ("17-bits", ("bit", 5), "00010", "00010", None),
    ("17-varbit", "varbit", "", "", None),
    ("18-money", "money", "-$92,233,720,368,547,758.08", Decimal("-92233720368547758.08"), None),
    ("18-cents", "money", "$0.07", Decimal("0.07"), None),
    ("19-xml", "xml", "<a>é</a>", "<a>é</a>", None),
    ("19-tsvector", "tsvector", "'a':1 'b''c':2", "'a':1 'b''c':2", None),
    ("19-lsn", "pg_lsn", "16/B374D848", "16/B374D848", None),
    ("19-xid8", "xid8", "18446744073709551615", "18446744073709551615", None),
    ("20-point", "point", "(Infinity,-0)", "(Infinity,-0)", None),
    ("21-inet", "inet", "192.168.0.1/24", "192.168.0.1/24", None),
    ("21-macaddr8", "macaddr8", "08:00:2b:01:02:03:04:05", "08:00:2b:01:02:03:04:05", None),
    ("22-uuid", "uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None),
    ("23-vector", other("vector"), "[1,2.5e-07]", "[1,2.5e-07]", None),
    ("24-unknown", other("thing"), 'any\t"text"\n', 'any\t"text"\n', None),
    ("24-name-of-ours", other("int4"), "twelve", "twelve", None),
    ("bool", "bool", "t", True, "true"),
    ("int2", "int2", "-32768", -32768, "-32768"),
    ("int8", "int8", "-9223372036854775808", -(2**63), "-9223372036854775808"),
    ("oid", "oid", "4294967295", 4294967295, "4294967295"),
    ("char", "char", "", "", None),
    ("bpchar", ("bpchar", 7), "a  ", "a  ", None),
]  # fmt: skip


@pytest.mark.parametrize(("column", "value", "arrow", "written"), [v[1:] for v in VALUES], ids=[v[0] for v in VALUES])
def test_value(column: Any, value: str, arrow: Any, written: str | None) -> None:
    relation = build.relation(column)
    mapping = types.mapping(relation.columns[0])
    raw = value.encode()

    plain = mapping.arrow_value(raw)
    if isinstance(arrow, float):
        assert struct.pack(">d", plain) == struct.pack(">d", arrow)
    else:
        assert plain == arrow
        assert type(plain) is type(arrow)

    new = decode(relation, pa.array([build.insert((raw,))])).new
    assert new.batch.schema.field(0).type == mapping.arrow
    assert read.image_rows(new) == [read.plain_image(relation, (raw,))]
    if arrow is SPECIAL:
        assert new.batch.column(0).null_count == 1
        assert new.special is not None
        assert new.special.to_pylist() == [[("c0", value)]]

    assert mapping.json_text(raw) == (json.dumps(value, ensure_ascii=False) if written is None else written)
    assert "\n" not in mapping.json_text(raw)
    json.loads(mapping.json_text(raw))


ARROW = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "numeric": pa.string(),
    "money": pa.decimal128(19, 2),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "time": pa.time64("us"),
    "interval": pa.struct([("months", pa.int32()), ("days", pa.int32()), ("microseconds", pa.int64())]),
} | dict.fromkeys(
    [
        "text",
        "varchar",
        "bpchar",
        "name",
        "char",
        "citext",
        "uuid",
        "json",
        "jsonb",
        "timetz",
        "xml",
        "bit",
        "varbit",
        "inet",
        "cidr",
        "macaddr",
        "macaddr8",
        "point",
        "line",
        "polygon",
        "tsvector",
        "tsquery",
        "pg_lsn",
        "xid",
        "xid8",
        "cid",
        "tid",
        "regclass",
        "int4range",
        "datemultirange",
        "unknown",
    ],
    pa.string(),
)


@pytest.mark.parametrize("name", ARROW)
def test_arrow_type(name: str) -> None:
    assert types.mapping(Column("c", build.type_(name))).arrow == ARROW[name]


@pytest.mark.parametrize(
    ("precision", "scale", "arrow"),
    [
        (1, 0, pa.decimal128(1, 0)),
        (38, 38, pa.decimal128(38, 38)),
        (39, 0, pa.string()),
        (5, -2, pa.string()),
        (3, 5, pa.string()),
        (1000, 1000, pa.string()),
        (1000, -1000, pa.string()),
    ],
)
def test_numeric_modifier(precision: int, scale: int, arrow: pa.DataType) -> None:
    modifier = build.numeric(precision, scale)
    assert types.numeric_modifier(modifier) == (precision, scale)
    assert types.mapping(Column("c", build.type_("numeric"), modifier)).arrow == arrow


def test_numeric_modifiers_are_read_as_postgres_writes_them() -> None:
    """From `pg_attribute.atttypmod` of PostgreSQL 18."""
    assert [types.numeric_modifier(m) for m in (655366, 329730, 196617)] == [(10, 2), (5, -2), (3, 5)]


@pytest.mark.parametrize(
    ("type_", "modifier", "name"),
    [
        (build.type_("numeric"), 655366, "numeric(10,2)"),
        (build.type_("numeric"), 329730, "numeric(5,-2)"),
        (build.type_("varchar"), 9, "varchar(5)"),
        (build.type_("bpchar"), 7, "bpchar(3)"),
        (build.type_("bit"), 3, "bit(3)"),
        (build.type_("timestamp"), 3, "timestamp(3)"),
        (build.type_("time"), 0, "time(0)"),
        (build.type_("interval"), 470286338, "interval day to second(2)"),
        (build.type_("interval"), 2147418114, "interval(2)"),
        (build.type_("interval"), 327679, "interval year"),
        (build.type_("char"), -1, '"char"'),
        (build.type_("_numeric", element=build.type_("numeric")), 655366, "numeric(10,2)[]"),
        (TWICE, -1, "public.twice"),
        (Type(1, 'od"d', "Mood", "e"), -1, '"od""d"."Mood"'),
    ],
)
def test_sql_name(type_: Type, modifier: int, name: str) -> None:
    assert types.sql_name(type_, modifier) == name


@pytest.mark.parametrize(
    ("name", "value", "python"),
    [
        ("bool", "f", False),
        ("int8", "-1", -1),
        ("float4", "0.1", 0.1),
        ("numeric", "1.50", Decimal("1.50")),
        ("numeric", "Infinity", Decimal("Infinity")),
        ("money", "$1,234.56", Decimal("1234.56")),
        ("bytea", "\\x00", b"\0"),
        ("json", '{"a":\n1}', '{"a":\n1}'),
        ("date", "0044-03-15 BC", "0044-03-15 BC"),
        ("text", "é", "é"),
    ],
)
def test_python_value(name: str, value: str, python: Any) -> None:
    got = types.mapping(Column("c", build.type_(name))).python_value(value.encode())
    assert got == python
    assert type(got) is type(python)


def test_null_is_null_everywhere() -> None:
    mapping = types.mapping(Column("c", build.type_("int4")))
    assert (mapping.arrow_value(None), mapping.python_value(None), mapping.json_text(None)) == (None, None, "null")


def test_invalid_utf8_is_an_error() -> None:
    mapping = types.mapping(Column("c", build.type_("text")))
    for reading in (mapping.arrow_value, mapping.python_value, mapping.json_text):
        with pytest.raises(DecodeError, match="UTF-8"):
            reading(b"caf\xe9")


fixed = settings(derandomize=True, deadline=None, max_examples=200)


@fixed
@given(st.dates())
def test_dates_equal_pythons(day: datetime.date) -> None:
    assert text.date(day.isoformat()) == (day - datetime.date(1970, 1, 1)).days


@fixed
@given(st.datetimes())
def test_timestamps_equal_pythons(moment: datetime.datetime) -> None:
    microseconds = (moment - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    assert text.timestamp(moment.isoformat(" "), None) == microseconds


@pytest.mark.parametrize("above", [True, False])
def test_float4_is_rounded_once(above: bool) -> None:
    """Next to the midpoint of two floats: the nearest double is the midpoint itself, which would round to even."""
    middle = Decimal(1 + 2.0**-24)
    beside = middle + Decimal(10) ** -26 if above else Decimal(1 + 3 * 2.0**-24) - Decimal(10) ** -26
    assert text.float32(str(beside)) == 1 + 2.0**-23
    got = decode(build.relation("float4"), pa.array([build.insert((str(beside).encode(),))])).new.batch
    assert got.column(0)[0].as_py() == 1 + 2.0**-23
