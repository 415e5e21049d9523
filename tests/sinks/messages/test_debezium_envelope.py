"""The envelope `debezium`: operations, key changes, tombstones, old rows, placeholders and schemas."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.pgoutput import build
from tests.sinks.messages import runs

from tailrace.change import UNCHANGED
from tailrace.errors import PoisonError
from tailrace.log.decoding import SNAPSHOT, TableChanges
from tailrace.sinks.messages.debezium_envelope import DebeziumEnvelope
from tailrace.sinks.messages.encoder import MessageEncoder, PositionIds
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.routing import DestinationTemplate

TABLE = runs.table(("id", "int4"), ("name", "text"), ("body", "text"))
ENVELOPE = DebeziumEnvelope("server", "shop", now_us=lambda: 1_769_860_801_000_000)


def _encode(run: TableChanges, envelope: DebeziumEnvelope = ENVELOPE) -> OutgoingMessages:
    encoder = MessageEncoder(envelope, DestinationTemplate.parse("server.{schema}.{table}"), lambda _: "server.message")
    (found,) = encoder.encode([run], PositionIds())
    return found


def test_an_insert() -> None:
    found = _encode(runs.changes(TABLE, build.insert((b"1", b"ann", None))))
    assert runs.keys(found) == [{"id": 1}]
    assert found.destinations.to_pylist() == ["server.public.orders"]
    assert runs.values(found) == [
        {
            "before": None,
            "after": {"id": 1, "name": "ann", "body": None},
            "source": {
                "version": "tailrace",
                "connector": "postgresql",
                "name": "server",
                "ts_ms": 1_769_860_800_123,
                "snapshot": "false",
                "db": "shop",
                "sequence": '["4096","2048"]',
                "ts_us": 1_769_860_800_123_456,
                "ts_ns": 1_769_860_800_123_456_000,
                "schema": "public",
                "table": "orders",
                "txId": 771,
                "lsn": 2048,
                "xmin": None,
                "origin": None,
                "origin_lsn": None,
            },
            "transaction": None,
            "op": "c",
            "ts_ms": 1_769_860_801_000,
            "ts_us": 1_769_860_801_000_000,
            "ts_ns": 1_769_860_801_000_000_000,
        }
    ]


def _summary(found: OutgoingMessages) -> list[tuple[Any, Any, Any, Any]]:
    """Key, operation, old row and new row of each message; of a tombstone only the key."""
    return [
        (key, None, None, None) if value is None else (key, value["op"], value["before"], value["after"])
        for key, value in zip(runs.keys(found), runs.values(found), strict=True)
    ]


def test_updates_and_deletes_with_the_default_identity() -> None:
    """There is no old row for an update, and the old row of a delete has only the key."""
    found = _encode(runs.changes(TABLE, build.update((b"1", b"bob", b"b")), build.delete((b"1", None, None))))
    assert _summary(found) == [
        ({"id": 1}, "u", None, {"id": 1, "name": "bob", "body": "b"}),
        ({"id": 1}, "d", {"id": 1, "name": None, "body": None}, None),
        ({"id": 1}, None, None, None),
    ]


def test_updates_and_deletes_with_the_full_identity() -> None:
    old = (b"1", b"ann", b"b")
    found = _encode(runs.changes(TABLE, build.update((b"1", b"bob", UNCHANGED), old), build.delete(old, letter=b"O")))
    before = {"id": 1, "name": "ann", "body": "b"}
    assert _summary(found) == [
        ({"id": 1}, "u", before, {"id": 1, "name": "bob", "body": "b"}),
        ({"id": 1}, "d", before, None),
        ({"id": 1}, None, None, None),
    ]


def test_a_change_of_the_key_is_a_delete_and_a_create() -> None:
    run = runs.changes(
        TABLE, build.update((b"2", b"ann", b"b"), (b"1", None, None), b"K"), build.insert((b"3", None, None))
    )
    found = _encode(run)
    assert _summary(found) == [
        ({"id": 1}, "d", {"id": 1, "name": None, "body": None}, None),
        ({"id": 1}, None, None, None),
        ({"id": 2}, "c", None, {"id": 2, "name": "ann", "body": "b"}),
        ({"id": 3}, "c", None, {"id": 3, "name": None, "body": None}),
    ]
    headers = [message.headers for message in found.messages()]
    assert [h.get("__debezium.newkey") for h in headers] == ['{"id":2}', '{"id":2}', None, None]
    assert [h.get("__debezium.oldkey") for h in headers] == [None, None, '{"id":1}', None]
    assert len(set(found.ids.to_pylist())) == 4
    assert {h["Tailrace-Position"] for h in headers} == {"0/1000:0", "0/1000:1"}


def test_tombstones_can_be_left_out() -> None:
    found = _encode(runs.changes(TABLE, build.delete((b"1", None, None))), replace(ENVELOPE, has_tombstones=False))
    assert [value["op"] for value in runs.values(found)] == ["d"]


def test_columns_that_were_not_sent() -> None:
    """A NOT NULL column that a delete lacks is the type's zero: the schema does not allow null."""
    columns = tuple([replace(c, nullable=False) for c in TABLE.columns])
    found = _encode(runs.changes(replace(TABLE, columns=columns), build.delete((b"1", None, None))))
    assert runs.values(found)[0]["before"] == {"id": 1, "name": "", "body": ""}
    found = _encode(runs.changes(TABLE, build.update((b"1", b"x", UNCHANGED))))
    assert runs.values(found)[0]["after"]["body"] == "__debezium_unavailable_value"


def test_snapshot_rows_are_reads() -> None:
    run = runs.changes(TABLE, build.insert((b"1", None, None)))
    found = _encode(replace(run, operation=np.array([SNAPSHOT], np.uint8)))
    (value,) = runs.values(found)
    assert (value["op"], value["source"]["snapshot"]) == ("r", "true")


def test_truncates_are_skipped_unless_wanted() -> None:
    encoder = MessageEncoder(ENVELOPE, DestinationTemplate.parse("{table}"))
    assert not encoder.encode([runs.truncate(TABLE)], PositionIds())
    (value,) = runs.values(_encode(runs.truncate(TABLE), replace(ENVELOPE, has_truncates=True)))
    assert (value["op"], value["before"], value["after"]) == ("t", None, None)


def test_a_table_without_a_key_has_no_tombstones() -> None:
    keyless = runs.table(("id", "int4"), key=())
    identity = replace(keyless, identity="f", columns=tuple([replace(c, is_identity=True) for c in keyless.columns]))
    found = _encode(runs.changes(identity, build.delete((b"1",), letter=b"O")))
    assert found.keys is None
    assert [value["op"] for value in runs.values(found)] == ["d"]


def test_schemas() -> None:
    envelope = replace(ENVELOPE, has_schemas=True)
    found = _encode(runs.changes(TABLE, build.insert((b"1", b"ann", None))), envelope)
    (key,) = runs.keys(found)
    assert key == {
        "schema": {
            "type": "struct",
            "fields": [{"type": "int32", "optional": False, "field": "id"}],
            "optional": False,
            "name": "server.public.orders.Key",
        },
        "payload": {"id": 1},
    }
    (value,) = runs.values(found)
    schema = value["schema"]
    assert (schema["name"], schema["version"]) == ("server.public.orders.Envelope", 2)
    assert [field["field"] for field in schema["fields"]] == list(value["payload"])
    after = next(field for field in schema["fields"] if field["field"] == "after")
    assert (after["name"], after["optional"]) == ("server.public.orders.Value", True)
    assert [field["field"] for field in after["fields"]] == ["id", "name", "body"]
    source = next(field for field in schema["fields"] if field["field"] == "source")
    assert source["name"] == "io.debezium.connector.postgresql.Source"
    assert [field["field"] for field in source["fields"]] == list(value["payload"]["source"])


def test_logical_messages() -> None:
    encoder = MessageEncoder(ENVELOPE, DestinationTemplate.parse("{table}"), lambda _: "server.message")
    (found,) = encoder.encode([runs.logical_messages(("audit", b"\x00\xff"))], PositionIds())
    (value,) = runs.values(found)
    assert (value["op"], value["message"]) == ("m", {"prefix": "audit", "content": "AP8="})
    assert runs.keys(found) == [{"prefix": "audit"}]


def test_a_value_that_debezium_cannot_represent_is_named() -> None:
    table = runs.table(("id", "int4"), ("n", "numeric"))
    run = runs.changes(table, build.insert((b"1", b"2.5")), build.insert((b"2", b"NaN")))
    with pytest.raises(PoisonError) as caught:
        _encode(run)
    assert caught.value.positions == ("0/1000:1",)
    assert "NaN" not in str(caught.value)


def test_many_rows_of_every_kind_agree_with_one_row_at_a_time() -> None:
    """The columns are computed together; no row may depend on its neighbours."""
    messages = [
        build.insert((b"1", b"a", None)),
        build.update((b"1", b"b", UNCHANGED)),
        build.update((b"2", b"b", UNCHANGED), (b"1", None, None), b"K"),
        build.update((b"3", b"c", b"d"), (b"2", b"b", b"x")),
        build.delete((b"3", None, None)),
        build.insert((b"4", '"é\n'.encode(), b"\\")),
    ]
    together = runs.changes(TABLE, *messages)
    one_by_one = []
    for row in range(len(messages)):
        found = _encode(together.take(np.array([row])))
        one_by_one += list(zip(found.ids.to_pylist(), runs.keys(found), runs.values(found), strict=True))
    found = _encode(together)
    assert list(zip(found.ids.to_pylist(), runs.keys(found), runs.values(found), strict=True)) == one_by_one
    assert all(json.loads(json.dumps(value)) == value for _, _, value in one_by_one)
