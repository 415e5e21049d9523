"""Debezium's events in Avro are what Kafka Connect's Avro converter makes of the same events in JSON."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.pgoutput import build
from tests.sinks.messages import avro_reader, runs
from tests.sinks.messages.avro_reader import BareAvro

from tailrace import maven
from tailrace.change import UNCHANGED, Column, Type
from tailrace.errors import ConfigError
from tailrace.log.decoding import Chunk
from tailrace.sinks.messages import connect_avro
from tailrace.sinks.messages.connect_avro import adjusted_name, avro_schema
from tailrace.sinks.messages.connect_time import TimeMode
from tailrace.sinks.messages.connect_type import DecimalMode, TypeOptions
from tailrace.sinks.messages.debezium_envelope import DebeziumEnvelope
from tailrace.sinks.messages.encoder import MessageEncoder, PositionIds
from tailrace.sinks.messages.message import Message
from tailrace.sinks.messages.routing import DestinationTemplate

Random = random.Random

_TABLES = 40
_JAVA = shutil.which("javac") and shutil.which("java")


def _type(name: str, modifier: int = -1, **more: Any) -> Column:
    return Column("c", build.type_(name, **more), modifier)


def _one_of(*texts: str) -> Callable[[Random], str]:
    return lambda rng: rng.choice(texts)


TYPES: list[tuple[Column, Callable[[Random], str]]] = [
    (_type("int2"), lambda rng: str(rng.randint(-(2**15), 2**15 - 1))),
    (_type("int4"), lambda rng: str(rng.randint(-(2**31), 2**31 - 1))),
    (_type("int8"), lambda rng: str(rng.randint(-(2**63), 2**63 - 1))),
    (_type("oid"), lambda rng: str(rng.randint(0, 2**32 - 1))),
    (_type("bool"), _one_of("t", "f")),
    # Not -0, NaN and Infinity, which Connect's JSON converter reads as 0.
    (_type("float4"), _one_of("1.5", "0.1", "3.4028235e+38")),
    (_type("float8"), _one_of("1.5", "0.1", "5e-324")),
    (_type("text"), lambda rng: "".join(rng.choices('ab"\\\n é€𝄞\x01', k=rng.randint(0, 40)))),
    (_type("numeric"), _one_of("1.50", "-0.001", "0", "100", "123456789012345678901234567890.123")),
    (_type("numeric", build.numeric(10, 2)), _one_of("0.00", "-1.28", "-1.29", "127.99", "-99999999.99")),
    (_type("numeric", build.numeric(38, 0)), lambda rng: str(rng.randint(-(10**38) + 1, 10**38 - 1))),
    (_type("numeric", build.numeric(60, 5)), _one_of("9" * 55 + ".99999", "-1.50000")),
    (_type("numeric", build.numeric(5, -2)), _one_of("1234500", "-100")),
    (_type("money"), _one_of("$1,234.50", "-$0.01")),
    (_type("bytea"), lambda rng: "\\x" + rng.randbytes(rng.randint(0, 9)).hex()),
    (_type("uuid"), _one_of("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")),
    (_type("date"), _one_of("2026-01-31", "0044-03-15 BC")),
    (_type("time"), _one_of("12:34:56.789", "00:00:00", "24:00:00")),
    (_type("time", 3), _one_of("12:34:56.789")),
    (_type("timestamp"), _one_of("2026-01-31 12:00:00.5", "infinity", "1969-12-31 23:59:59.999999")),
    (_type("timestamp", 3), _one_of("2026-01-31 12:00:00.123")),
    (_type("timestamptz"), _one_of("2026-01-31 12:00:00.5+00", "infinity")),
    (_type("timetz"), _one_of("12:00:00+02")),
    (_type("interval"), _one_of("1 mon 2 days 00:00:01")),
    (_type("jsonb"), _one_of('{"a": [1, 2.50]}', "null", '"x"')),
    (_type("bit", 1), _one_of("0", "1")),
    (_type("bit", 7), _one_of("0000000", "1010101")),
    (_type("varbit"), _one_of("", "0001")),
    (_type("point"), _one_of("(1,-2.5)")),
    (_type("_int4", element=build.type_("int4")), _one_of("{}", "{1,NULL,3}")),
    (_type("_text", element=build.type_("text")), _one_of("{}", '{NULL,"a,b"}')),
    (_type("_numeric", element=build.type_("numeric")), _one_of("{1.5,NULL}")),
    (Column("c", Type(1, "public", "mood", "e", labels=("sad", "ok"))), _one_of("sad", "ok")),
    (_type("inet"), _one_of("10.0.0.1")),
    (_type("xml"), _one_of("<a/>")),
]
_DEFAULTS = {
    **dict.fromkeys(("int2", "int4", "int8"), "5"),
    "bool": "true",
    "text": "'a \"b\" é'::text",
    "numeric": "1.5",
    "float8": "0.5",
    "jsonb": "'{}'::jsonb",
    "timestamptz": "now()",
    "timestamp": "'2026-01-31 12:00:00'::timestamp without time zone",
    "uuid": "gen_random_uuid()",
    "date": "CURRENT_DATE",
    "interval": "'1 day'::interval",
    "mood": "'ok'::public.mood",
    "bit": "'1'::\"bit\"",
}
"""The defaults of some columns, as PostgreSQL prints them."""
_LARGE = ("text", "bytea", "jsonb", "xml", "_text", "_int4")
"""Types with a placeholder for values that PostgreSQL did not send."""


def _chunk(rng: Random) -> Chunk:
    """Random changes of a table with random columns, and a logical message."""
    kinds = [TYPES[2], *rng.choices(TYPES, k=rng.randint(0, 9))]
    columns = []
    for place, (column, _) in enumerate(kinds):
        is_nullable = place > 0 and rng.random() < 0.7
        # The converter replaces null by the default, unless ignore.default.for.nullables is set.
        default = None if is_nullable or rng.random() < 0.5 else _DEFAULTS.get(column.type.name)
        name = f"c{place}" if place else "id"
        columns.append(replace(column, name=name, nullable=is_nullable, default=default))
    table = runs.table(*columns)

    def row() -> tuple[bytes | None, ...]:
        return tuple(
            None if column.nullable and rng.random() < 0.2 else make(rng).encode()
            for column, (_, make) in zip(columns, kinds, strict=True)
        )

    def new_row() -> tuple[Any, ...]:
        is_large = [column.type.name in _LARGE for column in columns]
        return tuple(UNCHANGED if large and rng.random() < 0.3 else v for large, v in zip(is_large, row(), strict=True))

    nothing = (None,) * (len(columns) - 1)
    make = [
        lambda: build.insert(row()),
        lambda: build.update(new_row(), (row()[0], *nothing), b"K"),
        lambda: build.update(new_row(), row()),
        lambda: build.update(new_row()),
        lambda: build.delete((row()[0], *nothing)),
        lambda: build.delete(row(), letter=b"O"),
    ]
    changes = [rng.choice(make)() for _ in range(rng.randint(1, 20))]
    return [runs.changes(table, *changes), runs.logical_messages(("app", b"\x00\xff"))]


def _messages(envelope: DebeziumEnvelope, chunk: Chunk) -> list[Message]:
    encoder = MessageEncoder(envelope, DestinationTemplate.parse("orders"), lambda _: "messages")
    return [message for found in encoder.encode(chunk, PositionIds()) for message in found.messages()]


@pytest.fixture(scope="module")
def class_path() -> str:
    if _JAVA is None:
        pytest.skip("no JDK on this machine")
    try:
        jars = maven.fetch_all(maven.read_pins(Path(__file__).with_name("connect_avro.txt")), 30)
    except OSError as error:
        pytest.skip(f"Connect's converters cannot be fetched: {error}")
    return ":".join(map(str, jars))


def test_schemas_and_bytes_are_those_of_connects_avro_converter(class_path: str) -> None:
    rng = Random(11)
    lines: list[str] = []
    ours: list[tuple[Any, str]] = []
    decimals: list[DecimalMode] = ["precise", "precise", "string", "double"]
    times: list[TimeMode] = ["adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds"]
    for _ in range(_TABLES):
        types = TypeOptions(rng.choice(decimals), rng.choice(times))
        envelope = DebeziumEnvelope("server", "shop", types=types, now_us=lambda: 1_769_860_800_123_456)
        for part in _chunk(rng):
            encoding = BareAvro()
            in_json = _messages(replace(envelope, has_schemas=True), [part])
            in_avro = _messages(replace(envelope, encoding=encoding), [part])
            for wanted, found in zip(in_json, in_avro, strict=True):
                assert wanted.headers.keys() == found.headers.keys()
                for schema, text, data in (
                    (encoding.key, wanted.key, found.key),
                    (encoding.value, wanted.value, found.value),
                ):
                    assert (text is None) == (data is None)
                    if text is not None and data is not None:
                        lines.append(text.decode())
                        ours.append((schema, data.hex()))
    assert _JAVA is not None
    program = str(Path(__file__).with_name("ConnectAvro.java"))
    command = [_JAVA, "-XX:TieredStopAtLevel=1", "-cp", class_path, program]
    done = subprocess.run(command, input="\n".join(lines).encode(), capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    theirs = [line.split("\t") for line in done.stdout.decode().splitlines()]
    assert len(theirs) == len(ours) > 1000
    for (schema, encoded), (expected, expected_bytes) in zip(ours, theirs, strict=True):
        # As texts: a registry takes properties in another order for another schema.
        assert json.dumps(_with_full_names(schema)) == json.dumps(_with_full_names(json.loads(expected)))
        assert encoded == expected_bytes


def _with_full_names(schema: Any, namespace: str = "") -> Any:
    """The schema with namespaces in the names of records, as they are written in different ways."""
    if isinstance(schema, list):
        return [_with_full_names(branch, namespace) for branch in schema]
    if isinstance(schema, str):
        is_name = schema not in (
            "null",
            "boolean",
            "int",
            "long",
            "float",
            "double",
            "bytes",
            "string",
            "record",
            "array",
        )
        return f"{namespace}.{schema}" if is_name and "." not in schema else schema
    if schema.get("type") != "record":
        return {k: _with_full_names(v, namespace) if k in ("type", "items") else v for k, v in schema.items()}
    own = schema.get("namespace", namespace)
    name = schema["name"] if "." in schema["name"] or not own else f"{own}.{schema['name']}"
    fields = [_with_full_names(field, name.rpartition(".")[0]) for field in schema["fields"]]
    others = {k: v for k, v in schema.items() if k not in ("type", "name", "namespace", "fields")}
    return {"type": "record", "name": name, "fields": fields, **others}


def test_floats_that_json_does_not_have() -> None:
    table = runs.table(("id", "int8"), ("x", "float8"), ("y", "float4"))
    encoding = BareAvro()
    envelope = DebeziumEnvelope("server", "shop", encoding=encoding)
    rows = [build.insert((b"1", text, text)) for text in (b"-0", b"NaN", b"-Infinity")]
    messages = _messages(envelope, [runs.changes(table, *rows)])
    found = [avro_reader.read(encoding.value, message.value or b"")["after"] for message in messages]
    assert [(str(after["x"]), str(after["y"])) for after in found] == [("-0.0",) * 2, ("nan",) * 2, ("-inf",) * 2]


def test_defaults_are_the_first_branch() -> None:
    fields = [
        {"type": "int32", "optional": True, "default": 5, "field": "a"},
        {"type": "bytes", "optional": False, "default": "AP8=", "field": "b"},
        {"type": "string", "optional": False, "field": "c"},
    ]
    connect = {"type": "struct", "fields": fields, "optional": False, "name": "x.T"}
    schema = avro_schema(connect)
    assert schema["fields"] == [
        {"name": "a", "type": [{"type": "int", "connect.default": 5}, "null"], "default": 5},
        {"name": "b", "type": {"type": "bytes", "connect.default": "\x00\xff"}, "default": "\x00\xff"},
        {"name": "c", "type": "string"},
    ]
    for value in ({"a": None, "b": "AA==", "c": "é"}, {"a": 7, "b": "", "c": ""}):
        found = avro_reader.read(schema, connect_avro.encoded_value(connect, value))
        assert found["a"] == value["a"]


@pytest.mark.parametrize(
    ("name", "adjusted"),
    [
        ("server.public.orders.Value", "server.public.orders.Value"),
        ("my-server.public.straße.Value", "my_server.public.stra_e.Value"),
        ("server.public.1st.Value", "server.public._1st.Value"),
    ],
)
def test_names_are_adjusted_as_by_debezium(name: str, adjusted: str) -> None:
    assert adjusted_name(name) == adjusted


def test_columns_whose_names_become_the_same_are_refused() -> None:
    table = runs.table(("id", "int8"), ("a-b", "text"), ("a b", "text"))
    envelope = DebeziumEnvelope("server", "shop", encoding=BareAvro())
    with pytest.raises(ConfigError, match=r"fields a-b and a b of .* have the same name in Avro, a_b"):
        _messages(envelope, [runs.changes(table, build.insert((b"1", b"x", b"y")))])
