"""Values of each format as columns: real ones, malformed ones, and ones that another schema wrote."""

from __future__ import annotations

import io
import json
import random
import struct
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import msgpack
import pyarrow as pa
import pytest

from tailrace.capture.slatedb.value_decoder import ValueDecoder
from tailrace.errors import ConfigError, DecodeError
from tailrace.settings.slatedb import ValueSettings

ID = UUID("12345678-1234-5678-1234-567812345678")
WHEN = datetime(2026, 2, 3, 4, 5, 6, 70000, UTC)


def decoded(settings: ValueSettings, value: bytes | None) -> dict[str, str | None]:
    values, keys = (pa.array([it], pa.large_binary()) for it in (value, b"user:7"))
    texts = ValueDecoder(settings).texts(values, keys, lambda _: "0/2A:0")
    return dict(zip(settings.columns, (column[0].as_py() for column in texts), strict=True))


def avro(tmp_path: Path, schema: Mapping[str, Any], columns: Mapping[str, str], format: str = "avro") -> ValueSettings:
    path = tmp_path / "value.avsc"
    path.write_text(json.dumps(schema))
    return ValueSettings(format, columns, path)


def avro_bytes(schema: Mapping[str, Any], value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(dict(schema)), value)
    return buffer.getvalue()


def record(*fields: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "user", "fields": list(fields)}


def test_raw_values_have_no_columns() -> None:
    assert decoded(ValueSettings(), b"\xff\x00") == {}


def test_json_numbers_stay_exact() -> None:
    columns = {"n": "numeric", "big": "int8", "text": "text", "doc": "jsonb", "f": "float8", "absent": "int4"}
    value = b"""{"n": 0.1234567890123456789012, "big": "9007199254740993", "text": 1.50, "f": 1e-7, "extra": [],
        "doc": {"a": 0.1234567890123456789012, "b": [9007199254740993, true, null, "q\\"\\u00e9"]}}"""
    assert decoded(ValueSettings("json", columns), value) == {
        "n": "0.1234567890123456789012",
        "big": "9007199254740993",
        "text": "1.50",
        "doc": '{"a": 0.1234567890123456789012, "b": [9007199254740993, true, null, "q\\"\u00e9"]}',
        "f": "1e-07",
        "absent": None,
    }


def test_messagepack() -> None:
    columns = {
        "name": "text",
        "age": "int2",
        "data": "bytea",
        "at": "timestamptz",
        "id": "uuid",
        "on": "bool",
        "tags": "jsonb",
        "f": "float4",
        "absent": "text",
    }
    value = {"name": "Ada", "age": -3, "data": b"\x00\xff", "at": WHEN, "id": ID.bytes, "on": False}
    packed = msgpack.packb(value | {"tags": {"a": [1, 2.5, None]}, "f": 0.5}, datetime=True)
    assert decoded(ValueSettings("msgpack", columns), packed) == {
        "name": "Ada",
        "age": "-3",
        "data": "\\x00ff",
        "at": "2026-02-03 04:05:06.07+00",
        "id": str(ID),
        "on": "f",
        "tags": '{"a": [1, 2.5, null]}',
        "f": "0.5",
        "absent": None,
    }


def test_avro(tmp_path: Path) -> None:
    schema = record(
        {"name": "name", "type": ["null", "string"]},
        {"name": "age", "type": "long"},
        {"name": "paid", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "level", "type": {"type": "enum", "name": "level", "symbols": ["low", "high"]}},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "double"}}},
        {"name": "data", "type": {"type": "fixed", "name": "two", "size": 2}},
    )
    types = ("text", "int8", "numeric", "timestamptz", "date", "uuid", "text", "jsonb", "bytea")
    settings = avro(tmp_path, schema, dict(zip((field["name"] for field in schema["fields"]), types, strict=True)))
    value = {
        "name": "Ada",
        "age": 2**40,
        "paid": Decimal("12345678901234567.125"),
        "at": WHEN,
        "day": date(1815, 12, 10),
        "id": ID,
        "level": "high",
        "tags": {"a": [1.5]},
        "data": b"\x01\x02",
    }
    expected = ["Ada", str(2**40), "12345678901234567.125", "2026-02-03 04:05:06.07+00", "1815-12-10", str(ID), "high"]
    assert list(decoded(settings, avro_bytes(schema, value)).values()) == [*expected, '{"a": [1.5]}', "\\x0102"]
    assert decoded(settings, avro_bytes(schema, value | {"name": None}))["name"] is None
    assert set(decoded(settings, None).values()) == {None}


def test_avro_of_another_schema_is_an_error(tmp_path: Path) -> None:
    """A value does not name its schema. One with a field more or less is noticed by its length."""
    name, age = {"name": "name", "type": "string"}, {"name": "age", "type": "int"}
    email = {"name": "email", "type": ["null", "string"], "default": None}
    value = {"name": "Ada", "age": 36, "email": "secret"}
    shorter, longer = record(name, age), record(name, age, email)
    for schema, written in ((shorter, longer), (longer, shorter)):
        with pytest.raises(DecodeError, match="0/2A:0, key user:7: the value is not avro") as raised:
            decoded(avro(tmp_path, schema, {"age": "int4"}), avro_bytes(written, value))
        assert "secret" not in str(raised.value)
        assert "written with this schema" in raised.value.hint


WRITTEN_BY_JAVA = bytes.fromhex("c3010fdf533d2e5879ed0641646148020c4c6f6e646f6e02")
"""Avro 1.12.1 for Java wrote it, with BinaryMessageEncoder and this schema."""
SCHEMA_IN_JAVA = {
    "namespace": "org.example",
    "doc": "a user",
    **record(
        {"name": "name", "type": "string", "aliases": ["n"]},
        {"name": "age", "type": {"type": "int"}, "default": 0},
        {
            "name": "home",
            "type": record({"name": "city", "type": ["null", "string"], "default": None}) | {"name": "Place"},
        },
        {"name": "level", "type": {"type": "enum", "name": "other.Level", "symbols": ["low", "high"]}},
    ),
    "name": "User",
}


def test_avro_values_with_a_fingerprint(tmp_path: Path) -> None:
    columns = {"name": "text", "age": "int4", "home": "jsonb", "level": "text"}
    settings = avro(tmp_path, SCHEMA_IN_JAVA, columns, "avro_single_object")
    expected = {"name": "Ada", "age": "36", "home": '{"city": "London"}', "level": "high"}
    assert decoded(settings, WRITTEN_BY_JAVA) == expected
    bare = avro(tmp_path, SCHEMA_IN_JAVA, columns)
    assert decoded(bare, WRITTEN_BY_JAVA[10:]) == expected
    with pytest.raises(DecodeError, match="begins with the schema's fingerprint"):
        decoded(bare, WRITTEN_BY_JAVA)


def test_avro_of_a_schema_with_the_same_layout_is_known_by_its_fingerprint(tmp_path: Path) -> None:
    first, last = {"name": "first", "type": "string"}, {"name": "last", "type": "string"}
    value = _single_object(record(last, first), {"first": "secret", "last": "x"})
    for schema in (record(first, last), record(last, first) | {"name": "member"}):
        settings = avro(tmp_path, schema, {"first": "text"}, "avro_single_object")
        for wrong in (value, value[10:], value[:7], b""):
            with pytest.raises(
                DecodeError, match="0/2A:0, key user:7: the value is not avro_single_object: it"
            ) as raised:
                decoded(settings, wrong)
            assert "secret" not in str(raised.value)
    right = avro(tmp_path, record(last, first), {"first": "text"}, "avro_single_object")
    assert decoded(right, value) == {"first": "secret"}


def _single_object(schema: Mapping[str, Any], value: Any) -> bytes:
    form = fastavro.schema.to_parsing_canonical_form(dict(schema))
    return b"\xc3\x01" + bytes.fromhex(fastavro.schema.fingerprint(form, "CRC-64-AVRO")) + avro_bytes(schema, value)


@pytest.mark.parametrize("text", ["no schema", '{"type": "no such type"}'])
def test_a_schema_that_cannot_be_read_is_a_setting(tmp_path: Path, text: str) -> None:
    path = tmp_path / "value.avsc"
    path.write_text(text)
    for wrong in (path, tmp_path / "absent.avsc"):
        with pytest.raises(ConfigError, match="is not an Avro schema"):
            ValueDecoder(ValueSettings("avro", {"a": "text"}, wrong))


EVERY_TYPE: dict[str, str] = {
    name: name
    for name in (
        *("bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "bytea"),
        *("json", "jsonb", "uuid", "date", "timestamp", "timestamptz"),
    )
}
WRONG: list[tuple[str, Any]] = [
    *((name, part) for name in EVERY_TYPE if name not in ("json", "jsonb") for part in ([1], {"a": 1})),
    *(("bool", part) for part in (0, 1, "t")),
    *((name, part) for name in ("int2", "int4", "int8") for part in (True, 1.5, 1 << 63, "1_0", "x", "", 1e300)),
    *((name, part) for name in ("float4", "float8", "numeric") for part in (True, "x")),
    ("float4", 1e300),
    ("text", "a\0b"),
    *((name, part) for name in ("json", "jsonb") for part in ({"a": "\0"}, ["\ud800"], {"\0": 1})),
    ("text", "\ud800"),
    *(("uuid", part) for part in (5, "x", 1.5, True)),
    *((name, part) for name in ("date", "timestamp", "timestamptz") for part in ("x", True, 1e300, "2026-13-01")),
    ("timestamptz", "2026-01-01T00:00:00"),
]


@pytest.mark.parametrize(("name", "part"), WRONG, ids=str)
def test_fields_of_another_type_are_errors(name: str, part: Any) -> None:
    with pytest.raises(DecodeError, match=f"key user:7: the value is not json: its field {name} is not of the column"):
        decoded(ValueSettings("json", EVERY_TYPE), json.dumps({name: part}).encode())


@pytest.mark.parametrize("number", ["1e999999999", "-1e999999999", "1e-999999999", "1" * 5000])
@pytest.mark.parametrize("name", ["int8", "numeric", "jsonb"])
def test_huge_numbers_are_errors_at_once(name: str, number: str) -> None:
    with pytest.raises(DecodeError):
        decoded(ValueSettings("json", {name: name}), f'{{"{name}": {number}}}'.encode())


@pytest.mark.parametrize("value", [b"[" * 100_000, b'{"jsonb": ' + b"[" * 5000 + b"]" * 5000 + b"}"], ids=len)
def test_values_that_are_nested_too_deeply_are_errors(value: bytes) -> None:
    with pytest.raises(DecodeError, match="key user:7"):
        decoded(ValueSettings("json", {"jsonb": "jsonb"}), value)


@pytest.mark.parametrize("format", ["json", "msgpack", "avro"])
def test_random_bytes_are_columns_or_an_error_without_the_value(format: str, tmp_path: Path) -> None:
    chance = random.Random(17)
    fields: list[dict[str, Any]] = [
        {"name": "secret", "type": "string"},
        {"name": "n", "type": ["null", "int", {"type": "map", "values": "long"}]},
    ]
    schema = record(*fields)
    columns = {"secret": "text", "n": "jsonb"}
    settings = avro(tmp_path, schema, columns) if format == "avro" else ValueSettings(format, columns)
    value = {"secret": "classified" * 3, "n": 5}
    valid = {
        "json": json.dumps(value).encode(),
        "msgpack": msgpack.packb(value),
        "avro": avro_bytes(schema, value),
    }[format]
    assert decoded(settings, valid) == {"secret": "classified" * 3, "n": "5"}
    for _ in range(3000):
        data = bytearray(valid)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.5:
            data = data[: chance.randrange(len(data))]
        elif chance.random() < 0.3:
            data += chance.randbytes(3)
        error = _error(settings, bytes(data))
        if error is not None:
            assert "0/2A:0, key user:7: the value is not" in str(error)
            assert "classified" not in str(error)


def _error(settings: ValueSettings, value: bytes) -> DecodeError | None:
    try:
        decoded(settings, value)
    except DecodeError as error:
        return error
    return None


def test_messagepack_with_unknown_extensions_is_an_error() -> None:
    packed = msgpack.packb({"a": msgpack.ExtType(42, b"x")})
    with pytest.raises(DecodeError, match="its field a is not of the column's type"):
        decoded(ValueSettings("msgpack", {"a": "text"}), packed)
    for value in (struct.pack("B", 0xC1), msgpack.packb([1]), msgpack.packb({"a": "x"}) + b"\x01"):
        with pytest.raises(DecodeError, match="key user:7: the value is not msgpack"):
            decoded(ValueSettings("msgpack", {"a": "text"}), value)
