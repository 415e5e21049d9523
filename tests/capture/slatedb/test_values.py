"""Values and expiries end to end: columns of the mirror and texts of messages, from snapshot and stream alike."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
import msgpack
import pyarrow as pa
import pytest
from tests.capture.slatedb.database_writer import MERGE_OPERATOR, DatabaseWriter
from tests.capture.slatedb.test_capture import Scene, directory, scene  # noqa: F401 (fixtures)
from tests.contract.delivery_driver import DeliveryDriver
from tests.contract.destinations import JsonLines, Mirror
from tests.fixtures.postgres import Database

from tailrace.capture.slatedb.expiry import expiry_ms, expiry_texts
from tailrace.settings.slatedb import ValueSettings

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "user",
    "fields": [
        {"name": "name", "type": "string"},
        {"name": "age", "type": ["null", "int"]},
        {"name": "ratio", "type": "double"},
        {"name": "small", "type": "float"},
        {"name": "data", "type": "bytes"},
        {"name": "active", "type": "boolean"},
        {"name": "seen", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}
COLUMNS = {
    "name": "text",
    "age": "int4",
    "ratio": "float8",
    "small": "float4",
    "data": "bytea",
    "active": "bool",
    "seen": "timestamptz",
    "tags": "jsonb",
}

Encode = Callable[[Mapping[str, Any]], bytes]


def as_json(fields: Mapping[str, Any]) -> bytes:
    texts = {"data": fields["data"].decode(), "seen": fields["seen"].isoformat()}
    return json.dumps({**fields, **texts}).encode()


def as_msgpack(fields: Mapping[str, Any]) -> bytes:
    packed: bytes = msgpack.packb(fields, datetime=True)
    return packed


def as_avro(fields: Mapping[str, Any]) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(SCHEMA), fields)
    return buffer.getvalue()


def as_single_object(fields: Mapping[str, Any]) -> bytes:
    form = fastavro.schema.to_parsing_canonical_form(SCHEMA)
    return b"\xc3\x01" + bytes.fromhex(fastavro.schema.fingerprint(form, "CRC-64-AVRO")) + as_avro(fields)


ENCODINGS: dict[str, Encode] = {
    "json": as_json,
    "msgpack": as_msgpack,
    "avro": as_avro,
    "avro_single_object": as_single_object,
}


def user(chance: random.Random) -> dict[str, Any]:
    return {
        "name": chance.choice(["Ada", "Bo\u00e9 'q' \\", "", "\U0001f418"]),
        "age": chance.choice([None, 0, -5, 2**31 - 1]),
        "ratio": chance.choice([0.0, 36.0, 0.1, 1e23, -1e-7, chance.random()]),
        "small": chance.choice([0.5, 36.0, 1048576.0, 16777216.0, 3.0e38]),
        "data": b"bytes %d" % chance.randrange(99),
        "active": chance.random() < 0.5,
        "seen": datetime(2026, 2, 3, tzinfo=UTC) + timedelta(microseconds=chance.randrange(0, 10**12, 10)),
        "tags": chance.sample(["x", "y'", 'z"'], 2),
    }


@pytest.mark.parametrize("format", ENCODINGS)
def test_columns_of_the_mirror_equal_the_fields_of_a_scan(
    format: str,
    scene: Scene,  # noqa: F811
    directory: Path,  # noqa: F811
    database: Database,
    tmp_path: Path,
) -> None:
    schema = None
    if format.startswith("avro"):
        schema = tmp_path / "user.avsc"
        schema.write_text(json.dumps(SCHEMA))
    own = scene.with_source(value=ValueSettings(format, COLUMNS, schema))
    driver = DeliveryDriver(Mirror(database), own.settings.store)
    chance, encode = random.Random(format), ENCODINGS[format]
    users: dict[bytes, dict[str, Any]] = {}
    with DatabaseWriter(directory) as writer:
        for _ in range(3):
            for _ in range(30):
                key = b"\xff%d" % chance.randrange(40)
                if chance.random() < 0.2:
                    users.pop(key, None)
                    writer.delete(key)
                else:
                    users[key] = user(chance)
                    writer.put(key, encode(users[key]))
            writer.flush()
            if not own.reader().list():
                writer.flush_table()  # these come from a scan
            own.capture()
            own.deliver(driver)
            assert own.state() == writer.scan() == {key: encode(fields) for key, fields in users.items()}
            with database.connect() as connection:
                connection.execute("SET TimeZone = 'UTC'")
                rows = connection.execute(f"SELECT key, value, {', '.join(COLUMNS)} FROM slatedb.users").fetchall()
            found = {bytes(key): (bytes(value), dict(zip(COLUMNS, row, strict=True))) for key, value, *row in rows}
            expected = {key: (encode(fields), fields) for key, fields in users.items()}
            assert found == expected


def test_snapshot_and_stream_have_the_same_texts(scene: Scene, directory: Path, tmp_path: Path) -> None:  # noqa: F811
    columns = {"f": "float8", "r": "float4", "at": "timestamptz", "n": "numeric"}
    own = scene.with_source(value=ValueSettings("json", columns))
    values = [
        {"f": 36.0, "r": 36.0, "at": "2026-01-02T03:04:05.100Z", "n": 12.50},
        {"f": 1e16, "r": 1234567.5, "at": "2026-01-02T03:04:05+02:00", "n": 10**30},
        {"f": 0.1, "r": 0.123456789, "at": 1e9, "n": 1e-9},
        {"f": -0.0, "r": 1e-7, "at": 0, "n": 0},
    ]
    files = JsonLines(tmp_path / "files")
    with DatabaseWriter(directory) as writer:
        for prefix in (b"a", b"b"):
            for number, value in enumerate(values):
                writer.put(prefix + b"%d" % number, json.dumps(value).encode())
            (writer.flush_table if prefix == b"a" else writer.flush)()
            own.capture()
        writer.put(b"until 33715", b"{}", ttl_ms=10**15)
        writer.put(b"endless", b"{}", ttl_ms=2**62)
        writer.flush()
        own.capture()
    own.deliver(DeliveryDriver(files, own.settings.store))
    rows = {bytes.fromhex(raw["after"].pop("key")[2:]): raw["after"] for raw in files._lines()}
    for number in range(len(values)):
        assert rows[b"a%d" % number] == rows[b"b%d" % number]
    assert rows[b"until 33715"]["expires_at"].startswith("3371")
    assert rows[b"endless"]["expires_at"] == "infinity"


def test_expiries_are_postgresqls_text() -> None:
    texts = {
        0: "1970-01-01 00:00:00+00",
        1_700_000_000_070: "2023-11-14 22:13:20.07+00",
        -1: "1969-12-31 23:59:59.999+00",
        253_402_300_800_000: "10000-01-01 00:00:00+00",
        (1 << 63) // 1000: "294247-01-10 04:00:54.775+00",
        (1 << 63) // 1000 + 1: "infinity",
        (1 << 63) - 1: "infinity",
        -(1 << 63): "-infinity",
        -62_135_596_800_001: "0001-12-31 23:59:59.999+00 BC",
    }
    given = pa.array([*texts, None], pa.int64())
    assert expiry_texts(given).to_pylist() == [*texts.values(), None]
    assert expiry_texts(given.slice(1, 2)).to_pylist() == list(texts.values())[1:3]
    assert expiry_texts(pa.nulls(2, pa.int64())).to_pylist() == [None, None]
    largest = (1 << 63) - 1
    times = pa.array([0, 1_700_000_000_070_000, None, largest, -largest], pa.int64()).view(pa.timestamp("us", "UTC"))
    assert expiry_ms(times).to_pylist() == [0, 1_700_000_000_070, None, largest, -largest - 1]


def test_merges_keep_an_endless_expiry(scene: Scene, directory: Path) -> None:  # noqa: F811
    """The row before a merge is read from the log after a restart, with its expiry."""
    merging = scene.with_source(merge_operator=MERGE_OPERATOR)
    with DatabaseWriter(directory) as writer:
        merging.capture()
        writer.put(b"a", b"1", ttl_ms=2**62)
        writer.put(b"b", b"1", ttl_ms=10**15)
        writer.flush()
        merging.capture()
        for key in (b"a", b"b"):
            writer.merge(key, b"2")
        writer.flush()
        merging.capture()
        assert merging.state() == writer.scan() == {b"a": b"12", b"b": b"12"}
    ends = [change.after["expires_at"] for change in merging.reader().changes() if change.after is not None]
    assert ends[:2] == ends[2:]
    assert ends[0] == "infinity"
