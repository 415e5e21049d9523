"""What requests look like: ids, signatures, bodies of each envelope, paths, methods and headers by template."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa
import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError
from tests.contract.webhook_receiver import OTHER_SECRET, SECRET, HttpReceiver, Received
from tests.log.stream import Server
from tests.pgoutput import build
from tests.sinks.messages import runs
from tests.sinks.messages.runs import table
from tests.sinks.webhook_scene import Scene

from tailrace import settings, sinks
from tailrace.change import Relation
from tailrace.delivery.sink_settings import SinkContext
from tailrace.errors import ConfigError, PoisonError
from tailrace.log.decoding import Chunk
from tailrace.sinks.messages.encoder import PositionIds
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.payload_encoding import ENCODINGS
from tailrace.sinks.messages.progress import Progress
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.messages.tailrace_envelope import TailraceEnvelope
from tailrace.sinks.webhook import WebhookOptions, WebhookSink
from tailrace.sinks.webhook.request_content import ContentFormat, RequestMaker
from tailrace.sinks.webhook.request_envelope import RequestEnvelope

ORDERS = table(("id", "int4"), ("total", "numeric"), ("note", "text"))


@pytest.fixture
def server() -> Iterator[HttpReceiver]:
    with HttpReceiver() as server:
        yield server


def _publish(server: HttpReceiver, directory: Path, chunk: Chunk, **options: Any) -> list[Received]:
    """Send a chunk as the sink would, and return the requests that arrived."""
    given = {"connections": 1, **server.settings(**options)}
    del given["type"]
    secret = settings.Secret(given.pop("secret"))
    context = SinkContext(settings.StoreSettings((directory / "store").as_uri()))
    sink = WebhookSink("hook", WebhookOptions(**given, secret=secret), context)
    before = len(server.requests)
    transport = sink.connect()
    try:
        messages = OutgoingMessages.joined(sink.encoder().encode(chunk, PositionIds()))
        transport.publish(messages, Progress())
    finally:
        transport.close()
    return server.requests[before:]


def _insert(*values: bytes | None, relation: Relation = ORDERS) -> Chunk:
    return [runs.changes(relation, build.insert(values))]


def _mixed() -> Chunk:
    """An insert, an update of another column, a change of the key, and a delete."""
    return [
        runs.changes(
            ORDERS,
            build.insert((b"7", b"1.50", b"x")),
            build.update((b"7", b"2.50", b"x")),
            build.update((b"8", b"2.50", b"x"), (b"7", None, None), b"K"),
            build.delete((b"8", None, None)),
        )
    ]


def test_a_single_change(server: HttpReceiver, tmp_path: Path) -> None:
    (received,) = _publish(server, tmp_path, _insert(b"7", b"1.50", b"x"))
    assert (received.method, received.path) == ("POST", "/hook")
    assert received.headers["content-type"] == "application/json"
    assert received.headers["webhook-id"] == received.headers["tailrace-position"] == "0/1000:0"
    assert received.headers["tailrace-xid"] == "771"
    assert received.headers["tailrace-committed-at"] == "2026-01-31T12:00:00.123456Z"
    assert received.headers["tailrace-last"] == "true"
    assert not [name for name in received.headers if name.startswith(":")]
    assert received.json["data"] == {"id": 7, "total": "1.50", "note": "x"}
    assert received.json["msg_id"] == "0/1000:0"


def test_a_batch_has_an_id_of_its_changes(server: HttpReceiver, tmp_path: Path) -> None:
    """Equal for the same changes, and different for any others."""
    rows = [build.insert((b"%d" % n, b"1", b"x")) for n in range(5)]
    first = _publish(server, tmp_path, [runs.changes(ORDERS, *rows)], batch=3)
    again = _publish(server, tmp_path, [runs.changes(ORDERS, *rows)], batch=3)
    other = _publish(server, tmp_path, [runs.changes(ORDERS, *rows)], batch=4)
    assert [received.id for received in first] == [received.id for received in again]
    assert [len(received.changes) for received in first] == [3, 2]
    assert first[0].id.startswith("0/1000:0+3-")
    assert not {received.id for received in first} & {received.id for received in other}
    assert [change["msg_id"] for r in first for change in r.json] == [f"0/1000:{n}" for n in range(5)]


def test_requests_with_other_changes_have_other_ids() -> None:
    """Also if they begin alike and are as large: a receiver must not take one for the other."""
    rows = runs.changes(ORDERS, *[build.insert((b"%d" % n, b"1", b"x")) for n in range(5)])
    envelope = RequestEnvelope(TailraceEnvelope(ENCODINGS["json"]), DestinationTemplate.parse("/"), {}, {})
    ids = pa.array([f"0/1000:{n}" for n in range(5)])
    maker = RequestMaker(
        envelope.change_messages(rows, pa.array(["/"] * 5), ids), ContentFormat("tailrace", "json", is_batch=True)
    )
    chosen = [[0, 1, 4], [0, 2, 4], [0, 3, 4], [0, 1, 2], [0, 1]]
    assert len({maker.make(rows).id for rows in chosen}) == len(chosen)
    assert maker.make([0, 1, 4]).id == maker.make([0, 1, 4]).id


def test_a_batch_is_cut_at_its_size(server: HttpReceiver, tmp_path: Path) -> None:
    rows = [build.insert((b"%d" % n, b"1", b"x" * 1000)) for n in range(6)]
    found = _publish(server, tmp_path, [runs.changes(ORDERS, *rows)], batch=100, batch_bytes=3000)
    assert [len(received.changes) for received in found] == [2, 2, 2]


def test_several_secrets_and_compression(server: HttpReceiver, tmp_path: Path) -> None:
    """A receiver with either secret can verify the request; with another it cannot."""
    (received,) = _publish(server, tmp_path, _mixed(), secret=f"{OTHER_SECRET} {SECRET}", batch=10, gzip=True)
    assert received.headers["content-encoding"] == "gzip"
    assert len(received.headers["webhook-signature"].split(" ")) == 2
    for secret in (SECRET, OTHER_SECRET):
        assert Webhook(secret).verify(received.content, dict(received.headers)) == received.json
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + "A" * 32).verify(received.content, dict(received.headers))
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(received.content.replace(b"7", b"8"), dict(received.headers))
    assert gzip.decompress(gzip.compress(received.content)) == received.content


def test_rows_alone(server: HttpReceiver, tmp_path: Path) -> None:
    """A deleted row is its key, and the header says that it is gone."""
    more = {"path": "/rows/{id}", "headers": {"X-Id": "{id} {operation}"}}
    found = _publish(server, tmp_path, _mixed(), envelope="row", methods={"delete": "DELETE", "update": "PUT"}, **more)
    said = [(r.id, r.method, r.path, r.headers["x-id"], r.headers["tailrace-operation"], r.json) for r in found]
    assert said == [
        ("0/1000:0", "POST", "/hook/rows/7", "7 insert", "insert", {"id": 7, "total": "1.50", "note": "x"}),
        ("0/1000:1", "PUT", "/hook/rows/7", "7 update", "update", {"id": 7, "total": "2.50", "note": "x"}),
        ("0/1000:2-old", "DELETE", "/hook/rows/7", "7 delete", "delete", {"id": 7}),
        ("0/1000:2", "PUT", "/hook/rows/8", "8 update", "update", {"id": 8, "total": "2.50", "note": "x"}),
        ("0/1000:3", "DELETE", "/hook/rows/8", "8 delete", "delete", {"id": 8}),
    ]
    debezium = _publish(server, tmp_path, _mixed(), envelope="debezium", path="/rows/{id}")
    events = [(received.path[-1], received.json["op"]) for received in debezium]
    assert events == [("7", "c"), ("7", "u"), ("7", "d"), ("8", "c"), ("8", "d")]


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
def test_rows_alone_in_a_batch(tmp_path: Path, encoding: str) -> None:
    with HttpReceiver(secret="" if encoding == "msgpack" else SECRET) as server:
        (received,) = _publish(server, tmp_path, _mixed(), envelope="row", batch=10, encoding=encoding, secret=SECRET)
    found = received.json if encoding == "json" else msgpack.unpackb(received.content)
    assert received.headers["content-type"] == f"application/{encoding}"
    assert [(e["id"], e["operation"], e["key"], e["row"] and e["row"]["total"]) for e in found] == [
        ("0/1000:0", "insert", {"id": 7}, "1.50"),
        ("0/1000:1", "update", {"id": 7}, "2.50"),
        ("0/1000:2-old", "delete", {"id": 7}, None),
        ("0/1000:2", "update", {"id": 8}, "2.50"),
        ("0/1000:3", "delete", {"id": 8}, None),
    ]


def test_cloudevents(server: HttpReceiver, tmp_path: Path) -> None:
    (structured,) = _publish(server, tmp_path, _insert(b"7", b"1.50", b"x"), envelope="cloudevents")
    assert structured.headers["content-type"] == "application/cloudevents+json; charset=UTF-8"
    assert structured.json["specversion"] == "1.0"
    (batch,) = _publish(server, tmp_path, _mixed(), envelope="cloudevents", batch=10)
    assert batch.headers["content-type"] == "application/cloudevents-batch+json; charset=UTF-8"
    assert [event["id"] for event in batch.json] == [f"0/1000:{n}" for n in range(4)]
    odd = table(("id", "int4"), schema="shop", name="größe %")
    (binary,) = _publish(
        server, tmp_path, _insert(b"7", relation=odd), envelope="cloudevents", cloudevents_mode="binary"
    )
    assert binary.headers["content-type"] == "application/json"
    assert binary.headers["ce-specversion"] == "1.0"
    assert binary.headers["ce-id"] == "0/1000:0"
    # Percent-encoded once as the event's subject, and once more for the header, as the HTTP binding requires.
    assert binary.headers["ce-subject"] == "shop.gr%25C3%25B6%25C3%259Fe%2520%2525"
    assert binary.json == {"before": None, "after": {"id": 7}}


def test_other_envelopes(server: HttpReceiver, tmp_path: Path) -> None:
    debezium = _publish(server, tmp_path, _mixed(), envelope="debezium", batch=10)
    assert [event["op"] for event in debezium[0].json] == ["c", "u", "d", "c", "d"], "there are tombstones"
    (sequin,) = _publish(server, tmp_path, _insert(b"7", b"1.50", b"x"), envelope="sequin")
    assert sequin.json["action"] == "insert"
    outbox = table(("id", "uuid"), ("aggregateid", "text"), ("type", "text"), ("payload", "jsonb"))
    (event,) = _publish(
        server, tmp_path, _insert(b"e1", b"a1", b"Placed", b'{"x": 1}', relation=outbox), envelope="outbox"
    )
    assert (event.json, event.headers["content-type"]) == ({"x": 1}, "application/json")
    assert (event.headers["id"], event.headers["eventtype"]) == ("e1", "Placed")


def test_paths_and_headers_by_row(server: HttpReceiver, tmp_path: Path) -> None:
    """Each group of changes with the same path and headers is a request. Values cannot break out of their place."""
    evil = b"a/../b?c#d e%\r\nX-Evil: 1\xc3\xa9"
    rows = [build.insert((b"%d" % n, b"1", note)) for n, note in enumerate([b"plain", b"plain", evil, b"plain"])]
    found = _publish(
        server,
        tmp_path,
        [runs.changes(ORDERS, *rows)],
        path="/{schema}/{note}?op={operation}",
        headers={"X-Note": "note {note}", "X-Key": "s3cret"},
        batch=10,
        connections=2,
    )
    plain, odd = sorted(found, key=lambda received: -len(received.changes))
    assert plain.path == "/hook/public/plain?op=insert"
    assert [change["data"]["id"] for change in plain.json] == [0, 1, 3]
    assert plain.headers["x-note"] == "note plain"
    assert plain.headers["x-key"] == "s3cret"
    assert odd.path == "/hook/public/a%2F..%2Fb%3Fc%23d%20e%25%0D%0AX-Evil%3A%201%C3%A9?op=insert"
    assert odd.headers["x-note"] == "note a/../b?c#d%20e%25%0D%0AX-Evil:%201%C3%A9"
    assert "x-evil" not in odd.headers


@pytest.mark.parametrize("note", [b"..", b"."])
def test_a_row_cannot_leave_its_path(server: HttpReceiver, tmp_path: Path, note: bytes) -> None:
    with pytest.raises(PoisonError, match=r"the path would have the segment \. or \.\.") as caught:
        _publish(server, tmp_path, _insert(b"1", b"1", note), path="/rows/{note}/x")
    assert caught.value.positions == ("0/1000:0",)
    assert not server.requests


def test_a_row_without_the_paths_value_is_rejected(server: HttpReceiver, tmp_path: Path) -> None:
    with pytest.raises(PoisonError, match="column note, which the destination depends on, is null"):
        _publish(server, tmp_path, _insert(b"1", b"1", None), path="/rows/{note}")


def test_logical_messages_go_to_the_url(server: HttpReceiver, tmp_path: Path) -> None:
    chunk: Chunk = [runs.logical_messages(("app", b"hello"))]
    (received,) = _publish(server, tmp_path, chunk, path="/{schema}/{table}", methods={"message": "PUT"})
    assert (received.method, received.path) == ("PUT", "/hook")
    assert received.json["content"] == "hello"
    (received,) = _publish(server, tmp_path, chunk, path="/all/{operation}")
    assert received.path == "/hook/all/message"


def test_urls_with_queries(server: HttpReceiver, tmp_path: Path) -> None:
    (received,) = _publish(
        server, tmp_path, _insert(b"1", b"1", b"x"), url=f"{server.url}/?token=t", path="/{table}?x={id}"
    )
    assert received.path == "/hook/orders?token=t&x=1"


def test_rows_of_two_tables_need_different_paths(server: HttpReceiver, tmp_path: Path) -> None:
    """The row alone does not say which table it is of."""
    scene = Scene(server, tmp_path, Server(1).work(20))
    assert len({change.table for change in scene.changes if change.relation}) > 1
    with pytest.raises(ConfigError, match=r"public\.t10\d and public\.t10\d would both be published to /"):
        scene.deliver(envelope="row", path="/")
    scene.deliver(envelope="row", path="/{schema}.{table}")
    assert {received.path.rpartition("/")[2] for received in server.accepted} == {
        "public.t100",
        "public.t101",
        "public.t102",
    }
    scene.deliver(name="other")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"url": ""}, "url is missing"),
        ({"url": "ftp://x"}, "url is not an https:// or http:// URL"),
        ({"url": "https://x:port/"}, "url is not a URL"),
        ({"url": "https://x/{table}"}, "url contains a brace"),
        ({"path": "x"}, "does not begin with a slash"),
        ({"path": "/{schema}{table}"}, "there is nothing between"),
        ({"path": "/ä"}, "has characters that have to be percent-encoded"),
        ({"secret": "abc"}, "secret does not begin with whsec_"),
        ({"secret": "whsec_!!"}, "secret is not base64"),
        ({"secret_file": "/nowhere/x", "secret": ""}, "secret does not begin"),
        ({"methods": {"insert": "GET"}}, "methods: insert = 'GET' is not known"),
        ({"headers": {"Host": "x"}}, "headers: host cannot be set"),
        ({"headers": {"Webhook-Id": "x"}}, "headers: webhook-id cannot be set"),
        ({"headers": {"X-A": "a\r\nb: c"}}, "headers: the value of x-a is not printable ASCII"),
        ({"headers": {"X A": "a"}}, "headers: x a cannot be set"),
        ({"envelope": "outbox", "batch": 2}, "an event of an outbox is a request of its own"),
        ({"envelope": "cloudevents", "cloudevents_mode": "binary", "batch": 2}, "a binary CloudEvent is a request"),
        ({"envelope": "debezium", "debezium_tombstones": True}, "a request cannot be a tombstone"),
        ({"batch": 0}, "must be at least 1"),
        ({"encoding": "avro", "registry": "http://x"}, "encoding is 'avro'"),
        ({"user": "u", "bearer": "b"}, "more than one of user, bearer and oauth_url"),
        ({"oauth_url": "https://x/token"}, "oauth_client_id and oauth_client_secret are missing"),
        ({"bearer": "a b"}, "bearer is not a token"),
        ({"tls_key": "/x"}, "tls_key is set without tls_certificate"),
        ({"bearer_file": "/nowhere/x"}, "bearer_file /nowhere/x cannot be read: No such file or directory"),
    ],
    ids=str,
)
def test_invalid_settings(given: dict[str, Any], words: str) -> None:
    raw = {"type": "webhook", "name": "tested", "url": "https://x/", **given}
    if raw.get("secret") == "":
        raw["secret"] = "x"
    with pytest.raises(ConfigError) as caught:
        sinks.from_settings(settings.Settings(store=settings.StoreSettings("file:///nowhere"), sinks=(raw,)), {})
    assert words in str(caught.value)


def test_secrets_from_files_and_the_environment(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{SECRET}\n{OTHER_SECRET}\n")
    raw = {"type": "webhook", "name": "hook", "url": "https://u:p4ss@x/a?token=t0ken"}
    given = settings.Settings(
        store=settings.StoreSettings("file:///nowhere"), sinks=({**raw, "secret_file": str(tmp_path / "secret")},)
    )
    (configured,) = sinks.from_settings(given, {})
    assert isinstance(configured.sink, WebhookSink)
    options = configured.sink._options
    assert len(options.keys) == 2
    assert (options.user, options.password and options.password.reveal()) == ("u", "p4ss")
    for secret in ("p4ss", "t0ken", SECRET, OTHER_SECRET):
        assert secret not in repr(options)
    given = settings.Settings(store=settings.StoreSettings("file:///nowhere"), sinks=(raw,))
    (configured,) = sinks.from_settings(given, {"TAILRACE_SINK_HOOK_SECRET": f"{SECRET},{OTHER_SECRET}"})
    assert isinstance(configured.sink, WebhookSink)
    assert len(configured.sink._options.keys) == 2
    assert json.dumps(configured.sink._options.target("/")) == '"/a?token=t0ken"'
