"""Every envelope and encoding through the sink `kafka`: keys, values, headers, tombstones, partitions and order."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pytest
from tests.contract.delivery_driver import Crash, DeliveryDriver
from tests.contract.kafka_topics import Consumed, KafkaTopics, consume
from tests.fixtures.kafka import console_consume
from tests.fixtures.postgres import drop_database, make_database
from tests.sinks.captured_source import CapturedSource
from tests.sinks.kafka_faults import before_commit, crash

from tailrace import settings
from tailrace.change import Change
from tailrace.embedded.kafka import KafkaServer
from tailrace.embedded.postgres import Postgres
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader
from tailrace.log.timestamp import format_timestamp

Row = dict[str, Any]
Decode = Callable[[bytes], Any]

_EVENT = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


def _row(id: int, total: str, note: str | None = None) -> Row:
    return {"id": id, "region": "eu", "total": total, "note": note}


SNAPSHOT = _row(1, "1.00", "first")
ROWS: Sequence[tuple[str, Row | None, Row | None]] = (
    ("INSERT", None, _row(2, "5.00")),
    ("UPDATE", _row(2, "5.00"), _row(2, "6.50", "ü")),
    ("UPDATE", _row(2, "6.50", "ü"), _row(3, "6.50", "ü")),
    ("INSERT", None, _row(2, "7.00")),
    ("DELETE", _row(3, "6.50", "ü"), None),
)
"""The changes of `orders` after its snapshot, with the old and the new row. The third changes the key."""
STATEMENTS = (
    "INSERT INTO orders VALUES (2, 'eu', 5.00)",
    "UPDATE orders SET total = 6.50, note = 'ü' WHERE id = 2; UPDATE orders SET id = 3 WHERE id = 2;"
    " INSERT INTO orders VALUES (2, 'eu', 7.00)",
    "DELETE FROM orders WHERE id = 3",
    f"INSERT INTO outbox VALUES ('{_EVENT}', 'order', '42', 'created', '{{\"total\": 1.50}}')",
    f"UPDATE outbox SET type = 'seen'; DELETE FROM outbox WHERE id = '{_EVENT}'",
    "INSERT INTO many SELECT n FROM generate_series(1, 200) n",
)


@pytest.fixture(scope="module")
def source(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CapturedSource]:
    database = make_database(postgres)
    try:
        database.execute("CREATE TABLE orders (id int PRIMARY KEY, region text, total numeric(10, 2), note text)")
        database.execute("ALTER TABLE orders REPLICA IDENTITY FULL; CREATE TABLE many (id int PRIMARY KEY)")
        database.execute(
            "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb)"
        )
        database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
        made = CapturedSource(database, tmp_path_factory.mktemp("messages") / "store")
        made.capture("INSERT INTO orders VALUES (1, 'eu', 1, 'first')", snapshot=None)
        made.capture(*STATEMENTS)
        yield made
    finally:
        drop_database(database)


class Delivered(NamedTuple):
    topics: KafkaTopics
    messages: list[Consumed]
    driver: DeliveryDriver

    def of(self, topic: str) -> list[Consumed]:
        return [message for message in self.messages if message.topic == topic]


Deliver = Callable[..., Delivered]


@pytest.fixture
def deliver(source: CapturedSource, kafka_server: KafkaServer, tmp_path: Path) -> Deliver:
    """Delivers some tables with a sink of its own."""

    def deliver(tables: Sequence[str], **more: Any) -> Delivered:
        topics = KafkaTopics(kafka_server, {"partitions": 1, **more})
        directory = tmp_path / topics.prefix
        shutil.copytree(str(source.store.url).removeprefix("file://"), directory)
        driver = DeliveryDriver(topics, settings.StoreSettings(directory.as_uri()), tables=tables)
        with driver.stepper() as one:
            one.load_missing()
            one.deliver(one.log_end())
        return Delivered(topics, topics.consume(), driver)

    return deliver


def _changes(source: CapturedSource, table: str) -> list[Change]:
    """The changes of a table since its snapshot."""
    (snapshot,) = SnapshotReader(source.store).list("public", table)
    changes = LogReader(source.store).changes()
    return [change for change in changes if change.table == table and change.position.commit_lsn >= snapshot.lsn]


def _decoded(messages: Sequence[Consumed], decode: Decode) -> list[tuple[Any, Any]]:
    return [(None if m.key is None else decode(m.key), None if m.value is None else decode(m.value)) for m in messages]


def _assert_position_headers(found: Sequence[Consumed], changes: Sequence[Change]) -> None:
    """Assert that each change has at least one message with its position, transaction and commit time."""
    by_position = {str(change.position): change for change in changes}
    lasts = {change.position.commit_lsn: str(change.position) for change in changes}
    assert [position for position, _ in groupby(m.headers["Tailrace-Position"] for m in found)] == [*by_position]
    for message in found:
        position = message.headers["Tailrace-Position"]
        change = by_position[position]
        assert message.headers["Tailrace-Xid"] == str(change.xid)
        assert message.headers["Tailrace-Committed-At"] == format_timestamp(change.committed_at)
        assert message.headers["Tailrace-Last"] == str(lasts[change.position.commit_lsn] == position).lower()


def _tailrace(operation: str, old: Row | None, new: Row | None, moved: bool) -> list[tuple[Any, Any]]:
    data = new if new is not None else {name: value if name == "id" else None for name, value in (old or {}).items()}
    value = {"operation": operation, "data": data} | ({"old_key": {"id": (old or {})["id"]}} if moved else {})
    return [({"id": data["id"]}, value)]


def _row_alone(operation: str, old: Row | None, new: Row | None, moved: bool) -> list[tuple[Any, Any]]:
    gone = [({"id": old["id"]}, None)] if old is not None and (moved or new is None) else []
    return [*gone, *([] if new is None else [({"id": new["id"]}, new)])]


def _sequin(operation: str, old: Row | None, new: Row | None, moved: bool) -> list[tuple[Any, Any]]:
    record = new or old or {}
    changes = None
    if old is not None and new is not None:
        changes = {name: value for name, value in old.items() if value != new[name]}
    return [({"id": record["id"]}, {"record": record, "changes": changes, "action": operation.lower()})]


def _cloudevents(operation: str, old: Row | None, new: Row | None, moved: bool) -> list[tuple[Any, Any]]:
    return [({"id": (new or old or {})["id"]}, {"before": old, "after": new})]


@pytest.mark.parametrize(
    ("envelope", "encoding", "more", "expected"),
    [
        ("tailrace", "json", {}, _tailrace),
        ("tailrace", "msgpack", {}, _tailrace),
        ("row", "json", {"compact": True}, _row_alone),
        ("row", "msgpack", {}, _row_alone),
        ("sequin", "json", {}, _sequin),
        ("sequin", "msgpack", {}, _sequin),
        ("cloudevents", "json", {"cloudevents_mode": "structured"}, _cloudevents),
        ("cloudevents", "json", {"cloudevents_mode": "binary"}, _cloudevents),
        ("cloudevents", "msgpack", {"cloudevents_mode": "binary"}, _cloudevents),
    ],
)
def test_an_envelope_arrives(
    source: CapturedSource,
    deliver: Deliver,
    envelope: str,
    encoding: str,
    more: Mapping[str, Any],
    expected: Callable[..., list[tuple[Any, Any]]],
) -> None:
    delivered = deliver(["public.orders"], envelope=envelope, encoding=encoding, **more)
    row, *found = delivered.of(f"{delivered.topics.prefix}.public.orders")
    changes = _changes(source, "orders")
    decode: Decode = json.loads if encoding == "json" else msgpack.unpackb
    _assert_position_headers(found, changes)
    wanted: list[tuple[Any, Any]] = []
    for operation, old, new in ROWS:
        wanted += expected(operation, old, new, old is not None and new is not None and old["id"] != new["id"])
    values = _decoded(found, decode)
    if envelope == "cloudevents":
        _assert_attributes(source, found, changes, more["cloudevents_mode"] == "structured", encoding)
        if more["cloudevents_mode"] == "structured":
            values = [(key, value["data"]) for key, value in values]
    elif envelope == "row":
        operations = [m.headers["Tailrace-Operation"] for m in found]
        assert operations == ["insert", "update", "delete", "update", "insert", "delete"]
    found_parts = [
        (key, value if value is None else {name: value[name] for name in (wanted_value or value)})
        for (key, value), (_, wanted_value) in zip(values, wanted, strict=True)
    ]
    assert found_parts == wanted
    _assert_snapshot(source, row, decode, envelope, more)


def _assert_attributes(
    source: CapturedSource, found: Sequence[Consumed], changes: Sequence[Change], structured: bool, encoding: str
) -> None:
    for message, change in zip(found, changes, strict=True):
        if structured:
            assert message.headers["content-type"] == "application/cloudevents+json; charset=UTF-8"
            attributes = json.loads(message.value or b"")
        else:
            assert message.headers["content-type"] == f"application/{encoding}"
            attributes = {
                name.removeprefix("ce_"): value for name, value in message.headers.items() if name.startswith("ce_")
            }
        assert attributes["specversion"] == "1.0"
        assert attributes["id"] == attributes["position"] == str(change.position)
        assert attributes["type"] == f"tailrace.change.{change.operation.name.lower()}"
        assert attributes["source"] == f"/tailrace/{source.source.name}"
        assert attributes["subject"] == "public.orders"


def _assert_snapshot(
    source: CapturedSource, message: Consumed, decode: Decode, envelope: str, more: Mapping[str, Any]
) -> None:
    """The first message is the row that was there before."""
    (snapshot,) = SnapshotReader(source.store).list("public", "orders")
    assert message.headers["Tailrace-Position"] == f"{snapshot.lsn}:0"
    assert message.key is not None
    assert message.value is not None
    assert decode(message.key) == {"id": 1}
    value = decode(message.value)
    match envelope:
        case "tailrace":
            value = value["data"]
        case "sequin":
            assert value["action"] == "read"
            value = value["record"]
        case "cloudevents":
            value = (value["data"] if more["cloudevents_mode"] == "structured" else value)["after"]
    assert value == SNAPSHOT


@pytest.mark.parametrize("tombstones", [True, False])
def test_debezium_events_keep_their_order(source: CapturedSource, deliver: Deliver, tombstones: bool) -> None:
    """A change of the key is a delete and its tombstone under the old key, then a create under the new one."""
    delivered = deliver(
        ["public.orders"], envelope="debezium", debezium_tombstones=tombstones, debezium_decimals="string"
    )
    row, *found = delivered.of(f"{delivered.topics.prefix}.public.orders")
    _assert_position_headers(found, _changes(source, "orders"))
    wanted = [
        ({"id": 2}, "c", None, ROWS[0][2]),
        ({"id": 2}, "u", ROWS[1][1], ROWS[1][2]),
        ({"id": 2}, "d", ROWS[2][1], None),
        *([({"id": 2}, None, None, None)] if tombstones else []),
        ({"id": 3}, "c", None, ROWS[2][2]),
        ({"id": 2}, "c", None, ROWS[3][2]),
        ({"id": 3}, "d", ROWS[4][1], None),
        *([({"id": 3}, None, None, None)] if tombstones else []),
    ]
    events = [
        (key, *((value or {}).get(name) for name in ("op", "before", "after")))
        for key, value in _decoded(found, json.loads)
    ]
    assert events == wanted
    key_headers = [
        {name: json.loads(value) for name, value in m.headers.items() if name.startswith("__debezium")} for m in found
    ]
    created = 4 if tombstones else 3
    assert key_headers[2] == {"__debezium.newkey": {"id": 3}}
    assert key_headers[created] == {"__debezium.oldkey": {"id": 2}}
    if tombstones:
        assert key_headers[3] == key_headers[2], "Debezium's tombstone of a changed key names the new key too"
    assert sum(map(bool, key_headers)) == (3 if tombstones else 2)
    (snapshot,) = _decoded([row], json.loads)
    assert (snapshot[0], snapshot[1]["op"], snapshot[1]["after"]) == ({"id": 1}, "r", SNAPSHOT)
    assert snapshot[1]["source"]["name"] == delivered.topics.prefix


def test_events_of_an_outbox_are_routed_by_column(source: CapturedSource, deliver: Deliver) -> None:
    """Only inserts are events, so the application may remove the rows."""
    delivered = deliver(
        ["public.outbox"], envelope="outbox", topic="outbox.{aggregatetype}", topic_prefix="", message_topic=""
    )
    event = _changes(source, "outbox")[0]
    found = list(consume(delivered.topics.server.bootstrap, "outbox.order"))
    assert [(m.key, m.value) for m in found] == [(b"42", b'{"total": 1.50}')]
    assert found[0].headers["id"] == str(_EVENT)
    assert found[0].headers["eventType"] == "created"
    assert found[0].headers["Tailrace-Position"] == str(event.position)


def test_logical_messages_have_a_topic_of_their_own(source: CapturedSource, deliver: Deliver) -> None:
    topic = f"messages-{uuid.uuid4().hex}"
    delivered = deliver(["public.orders"], message_topic=topic, compact=True)
    with source.source.connect() as connection:
        connection.execute("SELECT pg_logical_emit_message(true, 'app', 'hello')")
    source.capture()
    assert delivered.of(topic) == []
    delivered = deliver(["public.orders"], message_topic=topic, compact=True)
    (message,) = list(consume(delivered.topics.server.bootstrap, topic))
    assert json.loads(message.value or b"")["content"] == "hello"


def test_java_reads_the_changes_of_the_log_once(
    source: CapturedSource, deliver: Deliver, kafka_server: KafkaServer
) -> None:
    """The console consumer of Kafka itself, over a rewind and a transaction that was aborted."""
    delivered = deliver(["public.orders"], envelope="row", partitions=2)
    topic = f"{delivered.topics.prefix}.public.orders"
    with delivered.driver.stepper() as one:
        one.rewind("snapshot")
    with delivered.driver.stepper() as one, pytest.raises(Crash), before_commit(crash):
        one.load_missing()
    with delivered.driver.stepper() as one:
        one.load_missing()
        one.deliver(one.log_end())
    expected = 2 * _printed_rows(source)
    uncommitted = [message for message in delivered.topics.consume("read_uncommitted") if message.topic == topic]
    assert len(uncommitted) > len(expected)
    found = []
    for partition, headers, key, value in console_consume(kafka_server, topic, len(expected)):
        pairs = dict(header.split(":", 1) for header in headers.split("\x1e"))
        positions = tuple(pairs.get(name) for name in _POSITION_HEADERS)
        found.append((int(partition), positions, key, json.loads(value)))
    for number in (0, 1):
        assert [one for one in found if one[0] == number] == [one for one in expected if one[0] == number]


_POSITION_HEADERS = ("Tailrace-Position", "Tailrace-Xid", "Tailrace-Committed-At", "Tailrace-Last")


def _printed_rows(source: CapturedSource) -> list[tuple[int, tuple[Any, ...], str, Row | None]]:
    """Partition, headers, key and value of all messages of `orders` in the envelope `row`, in their order."""
    (snapshot,) = SnapshotReader(source.store).list("public", "orders")
    changes = _changes(source, "orders")
    lasts = {change.position.commit_lsn: change.position for change in changes}
    first = f"{snapshot.lsn}:0", "0", format_timestamp(snapshot.taken_at), "false"
    rows: list[tuple[tuple[Any, ...], Any, Any]] = [(first, {"id": 1}, SNAPSHOT)]
    for change, (operation, old, new) in zip(changes, ROWS, strict=True):
        is_last = lasts[change.position.commit_lsn] == change.position
        headers = str(change.position), str(change.xid), format_timestamp(change.committed_at), str(is_last).lower()
        is_moved = old is not None and new is not None and old["id"] != new["id"]
        rows += [(headers, key, value) for key, value in _row_alone(operation, old, new, is_moved)]
    found = []
    for headers, key, value in rows:
        text = json.dumps(key, separators=(",", ":"))
        found.append(((_murmur2(text.encode()) & 0x7FFFFFFF) % 2, headers, text, value))
    return found


def _murmur2(data: bytes) -> int:
    """Java's `Utils.murmur2`, written from the algorithm's definition; a signed 32-bit number."""
    mask, m = 0xFFFFFFFF, 0x5BD1E995
    h = (0x9747B28C ^ len(data)) & mask
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    if rest := data[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    h ^= h >> 15
    return h - (1 << 32) if h & 0x80000000 else h


def test_keys_are_placed_as_java_places_them(deliver: Deliver) -> None:
    """A topic that Debezium filled continues with each key in its partition. The vectors are those of Kafka's tests."""
    for text, hash_ in (
        ("21", -973932308),
        ("foobar", -790332482),
        ("a-little-bit-long-string", -985981536),
        ("a-little-bit-longer-string", -1486304829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    ):
        assert _murmur2(text.encode()) == hash_
    for envelope, encoding in (("debezium", "json"), ("row", "msgpack")):
        delivered = deliver(["public.many"], envelope=envelope, encoding=encoding, partitions=7)
        found = delivered.of(f"{delivered.topics.prefix}.public.many")
        assert len(found) == 200
        placed = [(m.key, m.partition) for m in found]
        assert placed == [(key, (_murmur2(key or b"") & 0x7FFFFFFF) % 7) for key, _ in placed]
        assert {partition for _, partition in placed} == set(range(7))
