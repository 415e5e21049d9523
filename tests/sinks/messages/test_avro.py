"""Avro as fastavro reads it: every value is exact, or its change is named as one that cannot be encoded."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pgoutput import build, values
from tests.sinks.messages import avro_reader, runs
from tests.sinks.messages.avro_reader import BareAvro

from tailrace import text, types
from tailrace.change import UNCHANGED, Column, Relation, Type
from tailrace.errors import ConfigError, PoisonError
from tailrace.sinks.messages import avro, avro_encoding
from tailrace.sinks.messages.avro import NULL_FIRST, NULL_LAST
from tailrace.sinks.messages.avro_name import avro_name
from tailrace.sinks.messages.avro_type import avro_type
from tailrace.sinks.messages.cloudevents_envelope import CloudEventsEnvelope
from tailrace.sinks.messages.encoder import MessageEncoder, PositionIds
from tailrace.sinks.messages.envelope import Envelope
from tailrace.sinks.messages.message import Message
from tailrace.sinks.messages.payload import ColumnValues, Field, Record
from tailrace.sinks.messages.piece import join
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.messages.row_envelope import RowEnvelope
from tailrace.sinks.messages.sequin_envelope import SequinEnvelope
from tailrace.sinks.messages.tailrace_envelope import TailraceEnvelope
from tailrace.types import Form

TABLE = runs.table(("id", "int4"), ("total", "numeric"), ("note", "text"))


def _messages(envelope: Envelope, *chunks: Any) -> list[Message]:
    encoder = MessageEncoder(envelope, DestinationTemplate.parse("{schema}.{table}"), lambda prefix: f"m.{prefix}")
    return [
        message for chunk in chunks for found in encoder.encode([chunk], PositionIds()) for message in found.messages()
    ]


def _values(encoding: BareAvro, messages: list[Message]) -> list[Any]:
    return [None if message.value is None else avro_reader.read(encoding.value, message.value) for message in messages]


@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1), st.sampled_from([NULL_FIRST, NULL_LAST]))
def test_integers(numbers: list[int | None], branches: avro.Branches) -> None:
    union = ["null", "long"] if branches is NULL_FIRST else ["long", "null"]
    encoded = join(avro.integers(pa.array(numbers, pa.int64()), branches), len(numbers))
    assert [avro_reader.read(union, data) for data in encoded.to_pylist()] == numbers
    assert all(
        avro.integer(number) == data[1:] for number, data in zip(numbers, encoded.to_pylist(), strict=True) if number
    )


@given(st.lists(st.none() | st.text(max_size=150), min_size=1))
def test_strings(texts: list[str | None]) -> None:
    encoded = join(avro.binaries(pa.array(texts, pa.string()), NULL_FIRST), len(texts))
    assert [avro_reader.read(["null", "string"], data) for data in encoded.to_pylist()] == texts


@given(st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1))
def test_decimals_take_as_few_bytes_as_possible(numbers: list[int]) -> None:
    """Java's BigInteger writes them like that, and readers compare bytes of keys."""
    array = pa.array([Decimal(number) for number in numbers], pa.decimal128(38, 0))
    encoded = join(avro.decimals(array), len(numbers)).to_pylist()
    assert encoded == [avro.binary(avro.decimal_bytes(Decimal(number), 0)) for number in numbers]
    for data in encoded:
        (number,) = [data[1:]]
        assert len(number) == 1 or not (number[0] in (0, 255) and number[0] >> 7 == number[1] >> 7)


def _expected(column: Column, value: bytes) -> Any:
    """The value that Avro has for PostgreSQL's text; SPECIAL if it has none."""
    shown = value.decode()
    mapping = types.mapping(column)
    infinite = shown in ("infinity", "-infinity")
    match mapping.form:
        case Form.BOOLEAN:
            return shown == "t"
        case Form.INTEGER:
            return int(shown)
        case Form.FLOAT:
            return mapping.parse(shown)
        case Form.BINARY:
            return bytes.fromhex(shown[2:])
        case Form.DATE | Form.TIMESTAMP | Form.TIMESTAMPTZ | Form.TIME:
            return text.SPECIAL if infinite else mapping.parse(shown)
        case Form.DECIMAL | Form.MONEY:
            return mapping.parse(shown)
        case Form.NUMERIC if types.base(column.type, column.modifier)[1] >= 0:
            return text.SPECIAL if not shown[-1].isdigit() else Decimal(shown)
    return shown


def _same(found: Any, expected: Any) -> bool:
    if isinstance(expected, float):
        return struct.pack("<d", found) == struct.pack("<d", expected) or (math.isnan(found) and math.isnan(expected))
    return bool(str(found) == str(expected)) if isinstance(expected, str) else bool(found == expected)


@settings(deadline=None, max_examples=50)
@given(values.tables())
def test_every_value_is_exact_or_named(made: tuple[Relation, list[Any]]) -> None:
    relation, rows = made
    if not rows:
        return
    encoding = BareAvro()
    run = runs.changes(relation, *(build.update(row) for row in rows))
    expected = [
        [
            None if value in (None, UNCHANGED) else _expected(column, value)
            for column, value in zip(relation.columns, row, strict=True)
        ]
        for row in rows
    ]
    is_special = [any(value is text.SPECIAL for value in row) for row in expected]
    if any(is_special):
        with pytest.raises(PoisonError) as caught:
            _messages(RowEnvelope(encoding), run)
        assert caught.value.positions == tuple(f"0/1000:{row}" for row in np.flatnonzero(is_special))
    found = _values(encoding, _messages(RowEnvelope(encoding), run.take(~np.array(is_special))))
    kept = [row for row, special in zip(expected, is_special, strict=True) if not special]
    assert len(found) == len(kept)
    for row, wanted in zip(found, kept, strict=True):
        assert all(
            (one is None and two is None) or _same(one, two) for one, two in zip(row.values(), wanted, strict=True)
        ), (row, wanted)


def _column(name: str, modifier: int = -1, **more: Any) -> Column:
    return Column("c", build.type_(name, **more), modifier)


def _decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


@pytest.mark.parametrize(
    ("column", "schema"),
    [
        (_column("int2"), "int"),
        (_column("oid"), "long"),
        (_column("float4"), "float"),
        (_column("numeric"), {"type": "string", "postgres.type": "numeric"}),
        (_column("numeric", build.numeric(10, 2)), _decimal(10, 2)),
        (_column("numeric", build.numeric(60, 5)), _decimal(60, 5)),
        (_column("numeric", build.numeric(5, -2)), _decimal(7, 0)),
        (_column("numeric", build.numeric(3, 5)), _decimal(5, 5)),
        (_column("money"), _decimal(19, 2)),
        (_column("varchar", 24), "string"),
        (_column("uuid"), {"type": "string", "logicalType": "uuid"}),
        (_column("jsonb"), {"type": "string", "postgres.type": "jsonb"}),
        (_column("date"), {"type": "int", "logicalType": "date"}),
        (_column("timestamp"), {"type": "long", "logicalType": "local-timestamp-micros"}),
        (_column("timestamptz", 3), {"type": "long", "logicalType": "timestamp-micros"}),
        (_column("time"), {"type": "long", "logicalType": "time-micros"}),
        (_column("interval"), {"type": "string", "postgres.type": "interval"}),
        (_column("_int4", element=build.type_("int4")), {"type": "string", "postgres.type": "int4[]"}),
        (Column("c", Type(1, "public", "mood", "e")), {"type": "string", "postgres.type": "public.mood"}),
        (Column("c", Type(1, "public", "short", "d", base=build.type_("varchar"))), "string"),
    ],
    ids=str,
)
def test_types(column: Column, schema: Any) -> None:
    assert avro_type(column).schema == schema


@pytest.mark.parametrize(
    ("column", "shown", "number"),
    [
        (_column("numeric", build.numeric(60, 5)), "9" * 55 + ".99999", "9" * 55 + ".99999"),
        (_column("numeric", build.numeric(60, 5)), "-1.5", "-1.50000"),
        (_column("numeric", build.numeric(5, -2)), "1234500", "1234500"),
        (_column("numeric", build.numeric(3, 5)), "-0.00999", "-0.00999"),
    ],
)
def test_decimals_of_any_precision_and_scale(column: Column, shown: str, number: str) -> None:
    record = Record(("t", "Row"), [Field("c", ColumnValues(pa.array([shown]), column), is_optional=True)])
    (data,) = join(avro_encoding.pieces(record, 1), 1).to_pylist()
    assert avro_reader.read(avro_encoding.schema(record, ""), data) == {"c": Decimal(number)}


def test_rows_tombstones_and_keys() -> None:
    run = runs.changes(
        TABLE,
        build.insert((b"1", b"2.50", None)),
        build.delete((b"1", None, None)),
        build.update((b"3", b"1", UNCHANGED), (b"2", None, None), b"K"),
    )
    encoding = BareAvro()
    messages = _messages(RowEnvelope(encoding), run)
    keys = [avro_reader.read(encoding.key, message.key or b"") for message in messages]
    assert list(zip(keys, _values(encoding, messages), strict=True)) == [
        ({"id": 1}, {"id": 1, "total": "2.50", "note": None}),
        ({"id": 1}, None),
        ({"id": 2}, None),
        ({"id": 3}, {"id": 3, "total": "1", "note": None}),
    ]
    assert messages[3].headers["Tailrace-Unchanged"] == '["note"]'
    assert (encoding.key["name"], encoding.value["name"]) == ("shop.public.orders.Key", "shop.public.orders.Row")


def test_the_schema_does_not_depend_on_the_changes() -> None:
    """Otherwise a batch with an update would be incompatible with one of inserts."""
    inserts = runs.changes(TABLE, build.insert((b"1", b"2.50", None)))
    mixed = runs.changes(
        TABLE,
        build.update((b"3", b"1", UNCHANGED), (b"2", None, None), b"K"),
        build.update((b"3", b"1", b"x"), (b"3", b"2", b"y")),
        build.delete((b"1", None, None)),
    )
    for make in (
        lambda encoding: TailraceEnvelope(encoding),
        lambda encoding: CloudEventsEnvelope("shop", is_structured=False, encoding=encoding),
        lambda encoding: SequinEnvelope(encoding, "bus", "shop"),
    ):
        found = []
        for run in (inserts, mixed):
            encoding = BareAvro()
            _messages(make(encoding), run)
            found.append((encoding.key, encoding.value))
        assert found[0] == found[1]


def test_the_envelope_tailrace() -> None:
    run = runs.changes(
        TABLE,
        build.update((b"3", b"1", UNCHANGED), (b"2", None, None), b"K"),
        build.delete((b"1", None, None)),
    )
    encoding = BareAvro()
    messages = _messages(TailraceEnvelope(encoding), run, runs.truncate(TABLE))
    moved, deleted, truncated = _values(encoding, messages)
    assert moved == {
        "data": {"id": 3, "total": "1", "note": None},
        "msg_id": "0/1000:0",
        "old_key": {"id": 2},
        "operation": "UPDATE",
        "relation_id": build.OID,
        "schema": "public",
        "subject": "public.orders",
        "table": "orders",
        "unchanged": ["note"],
        "options": None,
    }
    assert (deleted["data"], deleted["old_key"]) == ({"id": 1, "total": None, "note": None}, None)
    assert (truncated["data"], truncated["operation"]) == (None, "TRUNCATE")
    encoding = BareAvro()
    (message,) = _values(encoding, _messages(TailraceEnvelope(encoding), runs.logical_messages(("app", b"hello"))))
    assert (message["prefix"], message["content"]) == ("app", "hello")


def test_binary_cloudevents_and_sequin_say_what_was_not_sent() -> None:
    """Avro has no field that is left out, so null alone would not tell NULL from a value that is not known."""
    run = runs.changes(
        TABLE,
        build.update((b"1", b"3", b"b"), (b"1", b"2.50", None)),
        build.delete((b"1", None, None)),
        build.insert((b"4", None, None)),
    )
    encoding = BareAvro()
    events = _values(encoding, _messages(CloudEventsEnvelope("shop", is_structured=False, encoding=encoding), run))
    assert events[0]["before"] == {"id": 1, "total": "2.50", "note": None}
    assert [event["before_unsent"] for event in events] == [None, ["total", "note"], None]
    assert (events[1]["before"], events[1]["after"]) == ({"id": 1, "total": None, "note": None}, None)
    encoding = BareAvro()
    found = _values(encoding, _messages(SequinEnvelope(encoding, "bus", "shop"), run))
    assert found[0]["changes"] == {"id": None, "total": "2.50", "note": None}
    assert [one["changed"] for one in found] == [["total", "note"], None, None]
    assert [one["unsent"] for one in found] == [None, ["total", "note"], None]
    assert found[2]["metadata"]["consumer"]["name"] == "bus"


def test_a_key_without_a_value_is_not_encoded() -> None:
    run = runs.changes(TABLE, build.insert((b"1", None, None)), build.insert((None, None, None)))
    with pytest.raises(PoisonError) as caught:
        _messages(RowEnvelope(BareAvro()), run)
    assert caught.value.positions == ("0/1000:1",)


def test_names_that_avro_does_not_allow() -> None:
    table = runs.table(("id", "int4"), ("straße", "text"), ("2nd", "text"), schema="my shop", name="o-1")
    encoding = BareAvro()
    (found,) = _values(
        encoding, _messages(RowEnvelope(encoding), runs.changes(table, build.insert((b"1", b"x", b"y"))))
    )
    assert found == {"id": 1, "stra_u00dfe": "x", "_2nd": "y"}
    assert encoding.value["name"] == "shop.my_u0020shop.o_u002d1.Row"
    assert [field.get("postgres.name") for field in encoding.value["fields"]] == [None, "straße", "2nd"]
    twice = runs.table(("id", "int4"), ("a-b", "text"), ("a_u002db", "text"))
    with pytest.raises(ConfigError, match=r"columns a-b and a_u002db of public\.orders have the same name in Avro"):
        _messages(RowEnvelope(BareAvro()), runs.changes(twice, build.insert((b"1", b"x", b"y"))))


@given(st.text(min_size=1), st.text(min_size=1))
def test_names_stay_different(one: str, two: str) -> None:
    if one != two and "_u" not in one + two and not (one + two).startswith("_"):
        assert avro_name(one) != avro_name(two) or f"_{one}" == two or f"_{two}" == one


def test_many_rows_of_every_kind_agree_with_one_row_at_a_time() -> None:
    rows = [
        build.insert((b"1", b"2.50", None)),
        build.update((b"1", b"3", UNCHANGED)),
        build.update((b"2", b"3", UNCHANGED), (b"1", None, None), b"K"),
        build.update((b"3", None, b"d"), (b"2", b"3", b"x")),
        build.delete((b"3", None, None)),
        build.insert((b"4", None, "é".encode() * 5000)),
    ]
    together = runs.changes(TABLE, *rows)
    for make in (
        lambda encoding: TailraceEnvelope(encoding),
        lambda encoding: RowEnvelope(encoding),
        lambda encoding: CloudEventsEnvelope("shop", is_structured=False, encoding=encoding),
        lambda encoding: SequinEnvelope(encoding, "bus", "shop"),
    ):
        envelope = make(BareAvro())
        single = [
            message for row in range(len(rows)) for message in _messages(envelope, together.take(np.array([row])))
        ]
        # Not by the encoder, which would divide a run that fails.
        texts = pa.array(["public.orders"] * len(rows)), PositionIds().of_changes(together)
        assert list(envelope.change_messages(together, *texts).messages()) == single
