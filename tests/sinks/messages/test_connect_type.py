"""PostgreSQL's values as Debezium writes them. The expected values were computed by hand, from its documentation, or
are what it wrote (tests/contract/test_debezium.py)."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.pgoutput import build

from tailrace.change import Column, Type
from tailrace.sinks.messages.connect_default import default_value
from tailrace.sinks.messages.connect_type import TypeOptions, connect_type

PRECISE = TypeOptions()


def _convert(column: Column, text: str | None, options: TypeOptions = PRECISE) -> Any:
    (found,) = connect_type(column, options).convert(pa.array([text], pa.string())).to_pylist()
    return None if found is None else json.loads(found)


def _column(name: str, modifier: int = -1) -> Column:
    return Column("c", build.type_(name), modifier)


@pytest.mark.parametrize(
    ("column", "text", "schema", "value"),
    [
        (_column("bool"), "t", {"type": "boolean"}, True),
        (_column("int2"), "-5", {"type": "int16"}, -5),
        (_column("int4"), "7", {"type": "int32"}, 7),
        (_column("int8"), "9223372036854775807", {"type": "int64"}, 2**63 - 1),
        (_column("float4"), "1.5", {"type": "float"}, 1.5),
        (_column("float8"), "NaN", {"type": "double"}, "NaN"),
        (_column("text"), 'a"é', {"type": "string"}, 'a"é'),
        (_column("bytea"), "\\x0001ff", {"type": "bytes"}, "AAH/"),
        (
            _column("json"),
            '{"a": 1.50}',
            {"type": "string", "name": "io.debezium.data.Json", "version": 1},
            '{"a": 1.50}',
        ),
        (_column("uuid"), "a0ee", {"type": "string", "name": "io.debezium.data.Uuid", "version": 1}, "a0ee"),
        (_column("inet"), "10.0.0.1/8", {"type": "string"}, "10.0.0.1/8"),
        (_column("bit", 1), "1", {"type": "boolean"}, True),
        (_column("date"), "2026-01-31", {"type": "int32", "name": "io.debezium.time.Date", "version": 1}, 20484),
        (_column("date"), "0001-01-01 BC", {"type": "int32", "name": "io.debezium.time.Date", "version": 1}, -719528),
        (_column("interval"), "1 mon 2 days 00:00:01", None, 2_629_800_000_000 + 2 * 86_400_000_000 + 1_000_000),
        (_column("timetz"), "12:00:00.5+02", None, "10:00:00.5Z"),
        (_column("timetz"), "24:00:00+00", None, "00:00:00Z"),
        (_column("date"), "infinity", None, -2_147_472_692),
        (_column("date"), "-infinity", None, -2_147_472_691),
        (_column("timestamptz"), "2026-01-31 12:00:00.5+00", None, "2026-01-31T12:00:00.500000Z"),
        (_column("timestamptz", 0), "2026-01-31 12:00:00+00", None, "2026-01-31T12:00:00Z"),
        (_column("timestamptz"), "infinity", None, "infinity"),
        (_column("timestamptz"), "10000-01-01 00:00:00+00", None, "+10000-01-01T00:00:00.000000Z"),
        (_column("timestamp"), "infinity", None, 9_223_372_036_825_200_000),
        (_column("money"), "-$1,234.50", None, base64.b64encode((-123450).to_bytes(3, "big", signed=True)).decode()),
    ],
)
def test_values_and_schemas(column: Column, text: str, schema: dict[str, Any] | None, value: Any) -> None:
    if schema is not None:
        assert connect_type(column, PRECISE).schema == schema
    assert _convert(column, text) == value
    assert _convert(column, None) is None


@pytest.mark.parametrize(
    "text", ["0", "0.00", "1.5", "-1.28", "-1.29", "127.99", "-12345678901234567890.12", "99999999.99"]
)
def test_decimals_are_exact(text: str) -> None:
    column = _column("numeric", build.numeric(22, 2))
    assert connect_type(column, PRECISE).schema == {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "22"},
    }
    unscaled = base64.b64decode(_convert(column, text))
    assert Decimal(int.from_bytes(unscaled, "big", signed=True)).scaleb(-2) == Decimal(text)
    # Java's BigInteger uses as few bytes as possible.
    assert len(unscaled) == 1 or not (unscaled[0] in (0, 255) and (unscaled[0] >> 7) == (unscaled[1] >> 7))


@pytest.mark.parametrize("text", ["0", "100", "1.50", "-0.001", "12345678901234567890123456789012345678901234567890.1"])
def test_decimals_without_a_declared_scale(text: str) -> None:
    column = _column("numeric")
    assert connect_type(column, PRECISE).schema["name"] == "io.debezium.data.VariableScaleDecimal"
    found = _convert(column, text)
    number = Decimal(int.from_bytes(base64.b64decode(found["value"]), "big", signed=True))
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    assert Decimal((sign, digits, exponent - found["scale"])) == Decimal(text)
    assert found["scale"] == len(text.rstrip("0").partition(".")[2]) if "." in text else found["scale"] == 0


def test_decimal_modes() -> None:
    column = _column("numeric", build.numeric(10, 2))
    assert _convert(column, "12.50", TypeOptions(decimal="string")) == "12.50"
    assert _convert(column, "12.50", TypeOptions(decimal="double")) == 12.5
    assert _convert(column, "NaN", TypeOptions(decimal="double")) == "NaN"
    assert _convert(column, "-Infinity", TypeOptions(decimal="string")) == "NEGATIVE_INFINITY"
    assert _convert(_column("numeric"), "9" * 400, TypeOptions(decimal="double")) == "Infinity"
    with pytest.raises(ValueError, match="Decimal"):
        _convert(column, "NaN")


@pytest.mark.parametrize(
    ("mode", "digits", "name", "value"),
    [
        ("adaptive", -1, "io.debezium.time.MicroTimestamp", 1_769_860_800_123_000),
        ("adaptive", 3, "io.debezium.time.Timestamp", 1_769_860_800_123),
        ("adaptive_time_microseconds", 3, "io.debezium.time.Timestamp", 1_769_860_800_123),
        ("connect", -1, "org.apache.kafka.connect.data.Timestamp", 1_769_860_800_123),
        ("microseconds", 3, "io.debezium.time.MicroTimestamp", 1_769_860_800_123_000),
        ("nanoseconds", 3, "io.debezium.time.NanoTimestamp", 1_769_860_800_123_000_000),
        ("isostring", 3, "io.debezium.time.IsoTimestamp", "2026-01-31T12:00:00.123Z"),
    ],
)
def test_timestamps(mode: Any, digits: int, name: str, value: int | str) -> None:
    options = TypeOptions(time=mode)
    column = _column("timestamp", digits)
    assert connect_type(column, options).schema["name"] == name
    assert _convert(column, "2026-01-31 12:00:00.123", options) == value


@pytest.mark.parametrize(
    ("mode", "digits", "name", "value"),
    [
        ("adaptive", -1, "io.debezium.time.MicroTime", 86_400_000_000),
        ("adaptive", 0, "io.debezium.time.Time", 86_400_000),
        ("adaptive_time_microseconds", 0, "io.debezium.time.MicroTime", 86_400_000_000),
        ("connect", -1, "org.apache.kafka.connect.data.Time", 86_400_000),
    ],
)
def test_times_up_to_the_end_of_the_day(mode: Any, digits: int, name: str, value: int) -> None:
    options = TypeOptions(time=mode)
    column = _column("time", digits)
    assert connect_type(column, options).schema["name"] == name
    assert _convert(column, "24:00:00", options) == value
    assert _convert(column, "00:00:01", options) == value // 86_400


@pytest.mark.parametrize(
    "number", [0, 1, -1, 127, 128, -128, -129, 255, 32767, -32768, 32768, 2**55, -(2**63), 2**63 - 1]
)
def test_numbers_are_those_of_java(number: int) -> None:
    """As many bytes as Java's BigInteger has, among numbers of all other sizes."""
    column = _column("numeric", build.numeric(38, 0))
    texts = [str(number), None, "5", str(-(2**40)), "300"]
    found = connect_type(column, PRECISE).convert(pa.array(texts, pa.string())).to_pylist()
    size = ((number if number >= 0 else ~number).bit_length() + 8) // 8
    assert json.loads(found[0]) == base64.b64encode(number.to_bytes(size, "big", signed=True)).decode()
    assert found[1:3] == [None, '"BQ=="']


def test_numbers_of_thousands_of_digits() -> None:
    digits = "9" * 9000
    unscaled = base64.b64decode(_convert(_column("numeric"), digits)["value"])
    assert int.from_bytes(unscaled, "big", signed=True) == 10**9000 - 1


@pytest.mark.parametrize(
    ("text", "json_text"),
    [
        *(("100", "100.0"), ("-0", "-0.0"), ("0.001", "0.001"), ("0.00099", "9.9E-4"), ("1e+07", "1.0E7")),
        *(("9999999", "9999999.0"), ("12345678.9", "1.23456789E7"), ("1e-40", "1.0E-40"), ("Infinity", '"Infinity"')),
        *(("123456.79", "123456.79"), ("-2.5e-05", "-2.5E-5"), ("1.7976931348623157e+308", "1.7976931348623157E308")),
    ],
)
def test_floats_look_like_those_of_java(text: str, json_text: str) -> None:
    convert = connect_type(_column("float8"), PRECISE).convert
    assert convert(pa.array([text, None, "1.5"], pa.string())).to_pylist() == [json_text, None, "1.5"]


def test_strings_are_escaped_as_java_does() -> None:
    convert = connect_type(_column("text"), PRECISE).convert
    texts = ['a"\\\x0b\n\x1f', "𝄞é", None, "plain"]
    assert convert(pa.array(texts, pa.string())).to_pylist() == [
        *('"a\\"\\\\\\u000B\\n\\u001F"', '"\\uD834\\uDD1Eé"', None, '"plain"')
    ]


@pytest.mark.parametrize(
    ("column", "default", "value"),
    [
        (_column("int4"), "'-5'::integer", "-5"),
        (_column("int4"), "(2 + 3)", None),
        (_column("int8"), "nextval('s'::regclass)", "0"),
        (_column("text"), "'it''s'::text", '"it\'s"'),
        (_column("text"), "NULL::text", None),
        (_column("numeric", build.numeric(6, 2)), "1.5", '"AJY="'),
        (_column("numeric", build.numeric(6, 2)), "1.005", None),
        (_column("numeric"), "1.5", None),
        (_column("bool"), "true", "true"),
        (_column("timestamptz"), "now()", '"1970-01-01T00:00:00.000000Z"'),
        (_column("timestamp"), "CURRENT_TIMESTAMP", "0"),
        (_column("uuid"), "gen_random_uuid()", '"00000000-0000-0000-0000-000000000000"'),
        (_column("bytea"), "'\\x00'::bytea", None),
        (_column("int4"), None, None),
    ],
)
def test_defaults(column: Column, default: str | None, value: str | None) -> None:
    assert default_value(replace(column, default=default), PRECISE) == value


def test_timestamps_before_1970_and_nulls() -> None:
    convert = connect_type(_column("timestamp", 3), PRECISE).convert
    texts = pa.array(["1969-12-31 23:59:59.999", None, "1970-01-01 00:00:00"], pa.string())
    assert convert(texts).to_pylist() == ["-1", None, "0"]
    assert convert(pa.array(["0044-03-15 12:00:00 BC", None])).to_pylist() == ["-63517780800000", None]


def test_bits_are_little_endian() -> None:
    column = _column("varbit", 33)
    assert connect_type(column, PRECISE).schema["parameters"] == {"length": "33"}
    assert base64.b64decode(_convert(column, "100000001")) == b"\x01\x01"
    assert connect_type(_column("varbit"), PRECISE).schema["parameters"] == {"length": "2147483647"}


def test_points() -> None:
    found = _convert(_column("point"), "(1.5,-2)")
    assert (found["x"], found["y"], found["srid"]) == (1.5, -2.0, None)
    assert base64.b64decode(found["wkb"])[:5] == b"\x01\x01\x00\x00\x00"


def test_enums_hstore_and_domains() -> None:
    mood = Type(1, "public", "mood", "e", labels=("sad", "ok"))
    found = connect_type(Column("c", mood), PRECISE).schema
    assert (found["name"], found["parameters"]) == ("io.debezium.data.Enum", {"allowed": "sad,ok"})
    hstore = Column("c", Type(2, "public", "hstore"))
    assert json.loads(_convert(hstore, '"a"=>"1", "b\\"c"=>NULL')) == {"a": "1", 'b"c': None}
    domain = Type(3, "public", "percent", "d", base=build.type_("int4"))
    assert connect_type(Column("c", domain), PRECISE).schema == {"type": "int32"}


def test_arrays() -> None:
    integers = Column("c", Type(4, "pg_catalog", "_int4", element=build.type_("int4")))
    assert connect_type(integers, PRECISE).schema == {"type": "array", "items": {"type": "int32", "optional": True}}
    assert _convert(integers, "{1,NULL,-3}") == [1, None, -3]
    assert _convert(integers, "{}") == []
    texts = Column("c", Type(5, "pg_catalog", "_text", element=build.type_("text")))
    assert _convert(texts, '{a,"NULL",NULL,"b,\\"\\\\{}"}') == ["a", "NULL", None, 'b,"\\{}']
    assert _convert(integers, "[0:1]={1,2}") == [1, 2]
    for text in ("{{1,2},{3,4}}", "[0:0][1:2]={{1,2}}"):
        with pytest.raises(ValueError, match="one-dimensional"):
            _convert(integers, text)


def test_unknown_types_are_text_and_never_dropped() -> None:
    column = Column("c", Type(6, "public", "strange"))
    assert connect_type(column, PRECISE).schema == {"type": "string"}
    assert _convert(column, "anything") == "anything"
