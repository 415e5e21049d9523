"""Encodings of messages, and MySQL's text: rows of seven columns, decoded from pgoutput before the clock starts.

The clock is the processor's time, as one thread does all of the work. Avro is compared with fastavro, which writes the
same rows one by one, given as Python values.
"""

from __future__ import annotations

import io
import json
import random
import statistics
import struct
import time
from collections.abc import Callable

import fastavro
import numpy as np
import pyarrow as pa
from pymysql.converters import escape_sequence

from bench.report import Report
from tailrace.change import Column, Relation, Type
from tailrace.embedded.schema_registry import SchemaRegistryServer
from tailrace.log.decoding import INSERT, ChangePositions, TableChanges
from tailrace.pgoutput.decoder import decode
from tailrace.sinks.database.staged_rows import Positions
from tailrace.sinks.messages.encoder import MessageEncoder, PositionIds
from tailrace.sinks.messages.envelope import row_record
from tailrace.sinks.messages.envelope_options import EnvelopeOptions
from tailrace.sinks.messages.piece import join
from tailrace.sinks.messages.registry_encoding import AvroFormat
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.messages.row_image import new_values
from tailrace.sinks.mysql import load_data
from tailrace.sinks.mysql.column_mapping import map_relation
from tailrace.sinks.mysql.flavour import Flavour
from tailrace.sinks.mysql.unrepresentable import UnrepresentablePolicy

_ROWS = 20_000
_ROUNDS = 7
_OID = 16384
_NUMERIC_12_2 = (12 << 16 | 2) + 4
_WANT = 300_000


def run(report: Report) -> None:
    report.title("Encodings: inserts of seven columns, 20,000 at a time, with their keys")
    changes = _changes()
    with SchemaRegistryServer() as server:
        for envelope in ("row", "tailrace", "debezium"):
            report.section(f"envelope {envelope}")
            rates: dict[str, float] = {}
            for encoding in ("json", "msgpack", "avro", "jsonschema"):
                if (envelope, encoding) == ("debezium", "msgpack"):
                    continue
                registry = server.url if encoding in ("avro", "jsonschema") else ""
                options = EnvelopeOptions(envelope=envelope, encoding=encoding, registry=registry)
                rate = rates[encoding] = _rate(options, changes)
                want = f"{rate / rates['json']:.2f} of JSON" + (f"; want ≥ {_WANT:,}" if encoding == "avro" else "")
                report.line(encoding, f"{rate:,.0f} rows/s", want, ok=rate >= _WANT if encoding == "avro" else None)
            if envelope == "row":
                rate = _fastavro_rate(changes)
                report.line("fastavro, values only", f"{rate:,.0f} rows/s", f"{rates['avro'] / rate:.0f} times as fast")
    _load_data(report, changes)


def _load_data(report: Report, changes: TableChanges) -> None:
    report.section("MySQL's text")
    mappings = map_relation(changes.relation, Flavour("mysql", (8, 4, 0)), UnrepresentablePolicy())

    def encode() -> list[pa.Array]:
        columns = zip(mappings, changes.new.batch.columns, strict=True)
        return [mapping.encode(column, Positions.of(changes.at)) for mapping, column in columns]

    rate = _median_rate(lambda: list(load_data.lines(encode(), _ROWS)))
    report.line("for LOAD DATA", f"{rate:,.0f} rows/s", f"want ≥ {_WANT:,}", ok=rate >= _WANT)
    literals = _median_rate(lambda: load_data.row_literals(encode()))
    rows = changes.new.batch.to_pylist()
    own = _median_rate(lambda: [escape_sequence(row.values(), "utf8mb4") for row in rows])
    report.line("for INSERT", f"{literals:,.0f} rows/s", f"{literals / own:.1f} times as fast as PyMySQL, row by row")


def _rate(options: EnvelopeOptions, changes: TableChanges) -> float:
    envelope = options.make_envelope("bench", "shop", "server", "ce_")
    encoder = MessageEncoder(envelope, DestinationTemplate.parse(f"{options.envelope}.{options.encoding}.{{table}}"))
    return _median_rate(lambda: encoder.encode([changes], PositionIds()))


def _median_rate(encode: Callable[[], object]) -> float:
    times = []
    for _ in range(_ROUNDS + 1):
        began = time.process_time()
        encode()
        times.append(time.process_time() - began)
    return _ROWS / statistics.median(times[1:])


def _fastavro_rate(changes: TableChanges) -> float:
    record = row_record(changes, new_values)
    made = AvroFormat("shop")
    schema = fastavro.parse_schema(json.loads(made.schema(record).text))
    encoded = join(made.pieces(record, _ROWS), _ROWS).to_pylist()
    rows = [fastavro.schemaless_reader(io.BytesIO(data), schema, None) for data in encoded]
    began = time.process_time()
    for row in rows:
        fastavro.schemaless_writer(io.BytesIO(), schema, row)
    return _ROWS / (time.process_time() - began)


def _changes() -> TableChanges:
    rng = random.Random(1)
    types = (
        *(("id", "int8", -1), ("customer", "int4", -1), ("amount", "numeric", _NUMERIC_12_2)),
        *(("placed_at", "timestamptz", -1), ("is_paid", "bool", -1), ("status", "text", -1), ("note", "text", -1)),
    )
    columns = tuple(
        [
            Column(name, Type(0, "pg_catalog", kind), modifier, name == "id", nullable=name != "id")
            for name, kind, modifier in types
        ]
    )
    relation = Relation(_OID, "public", "orders", "d", columns, ("id",))
    decoded = decode(relation, pa.array([_insert(rng, n) for n in range(_ROWS)], pa.binary()), as_text=True)
    numbers = np.arange(_ROWS)
    at = ChangePositions(
        np.full(_ROWS, 0x1000), numbers, numbers, np.full(_ROWS, 7), np.full(_ROWS, 10**15), numbers == _ROWS - 1
    )
    operations = np.full(_ROWS, INSERT, np.uint8)
    return TableChanges(
        relation, at, operations, decoded.old, decoded.old_is_key, decoded.new, target=("public", "orders")
    )


def _insert(rng: random.Random, number: int) -> bytes:
    clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}:{rng.randint(0, 59):02}.{rng.randint(100_000, 999_999)}"
    values = (
        *(str(number + 1), str(number % 1000), f"{rng.randint(0, 9999)}.{rng.randint(0, 99):02}"),
        *(f"2026-01-31 {clock}+00", "tf"[number % 2], ("new", "paid", "sent", "done")[number % 4], f"{number:032x}"),
    )
    cells = b"".join(b"t" + struct.pack(">i", len(value)) + value.encode() for value in values)
    return b"I" + struct.pack(">I", _OID) + b"N" + struct.pack(">H", len(values)) + cells
