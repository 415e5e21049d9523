"""The envelopes `row`, `outbox`, `cloudevents` and `sequin`."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from tests.pgoutput import build
from tests.sinks.messages import runs

from tailrace.change import UNCHANGED
from tailrace.errors import ConfigError, PoisonError
from tailrace.log.decoding import LogicalMessages, TableChanges
from tailrace.sinks.messages.cloudevents_envelope import CloudEventsEnvelope
from tailrace.sinks.messages.encoder import MessageEncoder, PositionIds
from tailrace.sinks.messages.envelope import Envelope
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.outbox_envelope import OutboxColumns, OutboxEnvelope
from tailrace.sinks.messages.payload_encoding import ENCODINGS
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.messages.row_envelope import RowEnvelope
from tailrace.sinks.messages.sequin_envelope import SequinEnvelope

JSON = ENCODINGS["json"]
TABLE = runs.table(("id", "int4"), ("total", "numeric"), ("note", "text"))
OUTBOX = runs.table(
    *(("id", "uuid"), ("aggregatetype", "text"), ("aggregateid", "text"), ("type", "text"), ("payload", "jsonb")),
    name="outbox",
)


def _encode(
    envelope: Envelope, run: TableChanges | LogicalMessages, template: str = "{schema}.{table}"
) -> OutgoingMessages:
    encoder = MessageEncoder(envelope, DestinationTemplate.parse(template), lambda prefix: f"message.{prefix}")
    (found,) = encoder.encode([run], PositionIds())
    return found


def test_rows_and_tombstones() -> None:
    run = runs.changes(TABLE, build.insert((b"1", b"2.50", None)), build.delete((b"1", None, None)))
    found = _encode(RowEnvelope(JSON), run)
    assert runs.keys(found) == [{"id": 1}, {"id": 1}]
    assert runs.values(found) == [{"id": 1, "total": "2.50", "note": None}, None]
    assert [m.headers["Tailrace-Operation"] for m in found.messages()] == ["insert", "delete"]


def test_a_row_under_a_new_key_leaves_a_tombstone_under_the_old_one() -> None:
    run = runs.changes(TABLE, build.update((b"2", b"1", UNCHANGED), (b"1", None, None), b"K"))
    found = _encode(RowEnvelope(JSON), run)
    assert list(zip(runs.keys(found), runs.values(found), strict=True)) == [
        ({"id": 1}, None),
        ({"id": 2}, {"id": 2, "total": "1"}),
    ]
    assert [m.headers.get("Tailrace-Unchanged") for m in found.messages()] == [None, '["note"]']


def test_a_large_key_that_an_update_did_not_change_comes_from_the_old_key() -> None:
    """PostgreSQL then sends the old key, and does not repeat the key in the new row."""
    run = runs.changes(TABLE, build.update((UNCHANGED, b"1", None), (b"1", None, None), b"K"))
    found = _encode(RowEnvelope(JSON), run)
    assert runs.keys(found) == [{"id": 1}]
    assert runs.values(found) == [{"id": 1, "total": "1", "note": None}]


def test_rows_of_a_table_without_a_key_cannot_be_deleted() -> None:
    keyless = replace(TABLE, key=(), identity="f", columns=tuple([replace(c, is_identity=True) for c in TABLE.columns]))
    run = runs.changes(keyless, build.delete((b"1", None, None), letter=b"O"))
    with pytest.raises(PoisonError, match="the table has no key") as caught:
        _encode(RowEnvelope(JSON), run)
    assert caught.value.positions == ("0/1000:0",)


def test_a_truncate_has_no_row() -> None:
    encoder = MessageEncoder(RowEnvelope(JSON), DestinationTemplate.parse("{table}"))
    assert not encoder.encode([runs.truncate(TABLE)], PositionIds())


def test_events_of_an_outbox() -> None:
    row = (b"e1", b"order", b"42", b"created", b'{"total": 1.50}')
    run = runs.changes(
        OUTBOX,
        build.insert(row),
        build.update(row),
        build.delete((b"e1", None, None, None, None)),
        build.insert((b"e2", b"customer", b"7", b"removed", None)),
    )
    found = _encode(OutboxEnvelope(), run, "outbox.event.{aggregatetype}")
    first, second = found.messages()
    assert (first.destination, first.key, first.value) == ("outbox.event.order", b"42", b'{"total": 1.50}')
    assert (first.headers["id"], first.headers["eventType"]) == ("e1", "created")
    assert (second.destination, second.key, second.value) == ("outbox.event.customer", b"7", None)


def test_an_outbox_with_other_columns_and_binary_payloads() -> None:
    table = runs.table(("event", "uuid"), ("kind", "text"), ("of", "text"), ("what", "text"), ("data", "bytea"), key=())
    run = runs.changes(table, build.insert((b"e1", b"order", b"42", b"created", b"\\x00ff")))
    columns = OutboxColumns("event", "of", "what", "data")
    (message,) = _encode(OutboxEnvelope(columns), run, "{kind}").messages()
    assert message.value == b"\x00\xff"
    with pytest.raises(ConfigError, match=r"public\.orders has no column id, so it is not an outbox table"):
        _encode(OutboxEnvelope(), run, "{kind}")


def test_structured_cloudevents() -> None:
    old = (b"1", b"2.50", b"a")
    run = runs.changes(TABLE, build.update((b"1", b"3", b"b"), old), build.delete((b"1", None, None)))
    found = _encode(CloudEventsEnvelope("shop"), run)
    first, second = runs.values(found)
    assert first == {
        "specversion": "1.0",
        "id": "0/1000:0",
        "source": "/tailrace/shop",
        "type": "tailrace.change.update",
        "subject": "public.orders",
        "time": "2026-01-31T12:00:00.123456Z",
        "position": "0/1000:0",
        "xid": "771",
        "lastoftransaction": "false",
        "datacontenttype": "application/json",
        "data": {
            "before": {"id": 1, "total": "2.50", "note": "a"},
            "after": {"id": 1, "total": "3", "note": "b"},
        },
    }
    assert second["data"] == {"before": {"id": 1}, "after": None}
    assert [m.headers["content-type"] for m in found.messages()] == ["application/cloudevents+json; charset=UTF-8"] * 2
    # Names of attributes are small letters and digits.
    assert all(name.isalnum() and name == name.lower() for name in first)


def test_binary_cloudevents() -> None:
    run = runs.changes(TABLE, build.insert((b"1", b"2.50", None)))
    (message,) = _encode(CloudEventsEnvelope("my shop", is_structured=False, header_prefix="ce-"), run).messages()
    assert json.loads(message.value or b"") == {"before": None, "after": {"id": 1, "total": "2.50", "note": None}}
    assert message.headers["ce-specversion"] == "1.0"
    assert message.headers["ce-type"] == "tailrace.change.insert"
    assert message.headers["ce-source"] == "/tailrace/my%20shop"
    assert message.headers["content-type"] == "application/json"
    packed = CloudEventsEnvelope("shop", is_structured=False, encoding=ENCODINGS["msgpack"])
    (message,) = _encode(packed, run).messages()
    assert msgpack.unpackb(message.value or b"")["after"]["id"] == 1
    assert message.headers["content-type"] == "application/msgpack"


def test_logical_messages_as_cloudevents() -> None:
    (event,) = runs.values(_encode(CloudEventsEnvelope("shop"), runs.logical_messages(("app", b"hello"))))
    assert (event["type"], event["data"]) == ("tailrace.change.message", {"content": "hello", "prefix": "app"})


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_sequin(encoding: str) -> None:
    old = (b"1", b"2.50", b"a")
    run = runs.changes(
        TABLE,
        build.insert((b"1", b"2.50", None)),
        build.update((b"1", b"3", b"a"), old),
        build.update((b"2", b"3", b"a"), (b"1", None, None), b"K"),
        build.delete(old, letter=b"O"),
    )
    found = _encode(SequinEnvelope(ENCODINGS[encoding], "orders_kafka", "shop"), run)
    decode: Any = json.loads if encoding == "json" else msgpack.unpackb
    insert, update, moved, delete = (decode(value) for value in found.values.to_pylist())
    assert (insert["action"], insert["changes"]) == ("insert", None)
    assert insert["record"] == {"id": 1, "total": "2.50", "note": None}
    assert (update["action"], update["changes"]) == ("update", {"total": "2.50"})
    assert (moved["record"]["id"], moved["changes"]) == (2, {"id": 1})
    assert (delete["action"], delete["record"]) == ("delete", {"id": 1, "total": "2.50", "note": "a"})
    metadata = insert["metadata"]
    assert metadata["table_schema"] == "public"
    assert metadata["table_name"] == "orders"
    assert (metadata["commit_lsn"], metadata["commit_idx"]) == (0x1000, 0)
    assert metadata["commit_timestamp"] == "2026-01-31T12:00:00.123456Z"
    assert metadata["consumer"]["name"] == "orders_kafka"
    keys = [decode(value)["metadata"]["idempotency_key"] for value in found.values.to_pylist()]
    # Positions alone are not unique: rows of several tables' snapshots have the same.
    assert [base64.b64decode(key).decode() for key in keys] == found.ids.to_pylist()
