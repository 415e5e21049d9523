"""Messages with schemas in a real registry, read by Confluent's own deserialisers."""

from __future__ import annotations

import base64
import json
import pickle
import struct
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext
from tests.contract.kafka_topics import consume
from tests.e2e.captured_database import captured
from tests.fixtures.postgres import Database
from tests.fixtures.schema_registry import Gate, call
from tests.fixtures.tls import Tls
from tests.pgoutput import build
from tests.sinks.messages import avro_reader, runs
from tests.sinks.messages.captured_values import StoredValue, stored_values
from tests.sinks.sink_driver import deliver

from tailrace import settings
from tailrace.change import UNCHANGED, Column, Position, Relation
from tailrace.delivery.sink_settings import SinkContext
from tailrace.embedded.kafka import KafkaServer
from tailrace.embedded.process import free_port
from tailrace.embedded.schema_registry import SchemaRegistryServer
from tailrace.errors import ConfigError, PoisonError, SinkError, SinkRefused
from tailrace.log.decoding import TableChanges
from tailrace.settings import Secret
from tailrace.sinks.kafka import KafkaSink
from tailrace.sinks.kafka.options import KafkaOptions
from tailrace.sinks.messages.avro_name import avro_name
from tailrace.sinks.messages.encoder import MessageEncoder, PositionIds
from tailrace.sinks.messages.envelope_options import EnvelopeOptions
from tailrace.sinks.messages.message import Message
from tailrace.sinks.messages.routing import DestinationTemplate

Encoding = Literal["avro", "jsonschema"]


@pytest.fixture
def topic() -> str:
    """A prefix that no other test uses, because the registry never forgets a schema."""
    return f"t{uuid.uuid4().hex[:8]}"


def _publish(
    options: EnvelopeOptions, topic: str, *chunks: Any, template: str = "{schema}.{table}", database: str = "shop"
) -> list[Message]:
    envelope = options.make_envelope("bus", database, "server", "ce_")
    encoder = MessageEncoder(
        envelope, DestinationTemplate.parse(f"{topic}.{template}"), lambda prefix: f"{topic}.{prefix}"
    )
    return [m for chunk in chunks for found in encoder.encode([chunk], PositionIds()) for m in found.messages()]


class Reader:
    """Reads messages as a consumer with Confluent's library does."""

    def __init__(self, server: SchemaRegistryServer, encoding: Encoding) -> None:
        self._client = SchemaRegistryClient({"url": server.url})
        conf = {"subject.name.strategy.type": "TOPIC"}
        self._read: Any = (
            AvroDeserializer(self._client, conf=conf)
            if encoding == "avro"
            else JSONDeserializer(None, schema_registry_client=self._client, conf={**conf, "validate": True})
        )

    def __call__(self, message: Message) -> tuple[Any, Any]:
        """The key and the value."""
        return tuple(  # type: ignore[return-value]
            None if data is None else self._read(data, SerializationContext(message.destination, field))
            for data, field in ((message.key, MessageField.KEY), (message.value, MessageField.VALUE))
        )


def _options(server: SchemaRegistryServer, encoding: Encoding, **more: Any) -> EnvelopeOptions:
    return EnvelopeOptions(registry=server.url, encoding=encoding, **{"envelope": "row", **more})


def _subjects(server: SchemaRegistryServer, topic: str) -> set[str]:
    return {subject for subject in call(server, "GET", "/subjects") if topic in subject}


ORDERS = runs.table(
    *(("id", "int8"), ("note", "text"), ("ratio", "float8"), ("is_paid", "bool"), ("doc", "jsonb")),
    *(Column("total", build.type_("numeric"), build.numeric(10, 2)), ("at", "timestamptz")),
)
INSERT = build.insert((b"7", "é".encode(), b"NaN", b"t", b'{"a": [1.50]}', b"12.50", b"2026-01-31 12:00:00.5+00"))
DELETE = build.delete((b"7", None, None, None, None, None, None))
MOVE = build.update((b"8", UNCHANGED, b"1.5", None, None, None, None), (b"7", *(None,) * 6), b"K")


@pytest.mark.parametrize("encoding", ["avro", "jsonschema"])
@pytest.mark.parametrize("envelope", ["row", "tailrace", "sequin", "cloudevents"])
def test_confluents_deserialisers_read_every_envelope(
    schema_registry: SchemaRegistryServer, topic: str, encoding: Encoding, envelope: str
) -> None:
    options = _options(schema_registry, encoding, envelope=envelope, cloudevents_mode="binary")
    messages = _publish(options, topic, runs.changes(ORDERS, INSERT, MOVE, DELETE), runs.truncate(ORDERS))
    read = Reader(schema_registry, encoding)
    keys = [key for key, _ in map(read, messages)]
    found = [value for _, value in map(read, messages)]
    rows = {
        "row": lambda value: value,
        "tailrace": lambda value: value["data"],
        "sequin": lambda value: value["record"],
        "cloudevents": lambda value: value["after"],
    }
    row = rows[envelope](found[0])
    assert keys[0] == {"id": 7}
    assert (row["id"], row["note"], row["is_paid"]) == (7, "é", True)
    assert str(row["ratio"]).lower() == "nan"
    assert str(row["total"]) == "12.50"
    assert row["doc"] == ('{"a": [1.50]}' if encoding == "avro" else {"a": [1.5]})
    assert str(row["at"]) in ("2026-01-31 12:00:00.500000+00:00", "2026-01-31T12:00:00.5Z")
    assert {"id": 7} in keys[1:]
    assert {"id": 8} in keys
    assert _subjects(schema_registry, topic) == {f"{topic}.public.orders-{role}" for role in ("key", "value")}
    if envelope == "row":
        assert found[1:] == [
            None,
            {**dict.fromkeys(row), "id": 8, "ratio": 1.5} if encoding == "avro" else found[2],
            None,
        ]
    if envelope == "cloudevents":
        assert messages[0].headers["content-type"] == f"application/vnd.confluent.{encoding.removesuffix('schema')}"


@pytest.mark.parametrize("encoding", ["avro", "jsonschema"])
def test_debeziums_events(schema_registry: SchemaRegistryServer, topic: str, encoding: Encoding) -> None:
    options = _options(schema_registry, encoding, envelope="debezium")
    # Connect's JSON has strings for NaN, which its JSON Schemas do not allow.
    insert = INSERT if encoding == "avro" else INSERT.replace(b"NaN", b"1.5")
    messages = _publish(options, topic, runs.changes(ORDERS, insert, MOVE), runs.logical_messages(("app", b"hello")))
    read = Reader(schema_registry, encoding)
    (create, delete, tombstone, recreated, note) = map(read, messages)
    assert create[0] == {"id": 7}
    assert (create[1]["op"], create[1]["before"], create[1]["source"]["table"]) == ("c", None, "orders")
    after = create[1]["after"]
    assert (after["id"], after["note"], after["doc"]) == (7, "é", '{"a": [1.50]}')
    assert after["at"] == "2026-01-31T12:00:00.500000Z"
    assert str(after["total"]) == "12.50" if encoding == "avro" else after["total"] == "BOI="
    assert (delete[0], delete[1]["op"], tombstone) == ({"id": 7}, "d", ({"id": 7}, None))
    assert messages[1].headers["__debezium.newkey"] == '{"id":8}'
    assert (recreated[0], recreated[1]["after"]["note"]) == ({"id": 8}, "__debezium_unavailable_value")
    assert (note[0], note[1]["op"]) == ({"prefix": "app"}, "m")
    schema = _schema(schema_registry, messages[0])
    names = [schema["namespace"], schema["name"]] if encoding == "avro" else [schema["title"]]
    assert ".".join(names) == "server.public.orders.Envelope"
    assert _subjects(schema_registry, topic) == {
        f"{topic}.{name}-{role}" for name in ("public.orders", "app") for role in ("key", "value")
    }


@pytest.mark.parametrize("encoding", ["avro", "jsonschema"])
def test_names_of_subjects(schema_registry: SchemaRegistryServer, topic: str, encoding: Encoding) -> None:
    run = runs.changes(ORDERS, INSERT)
    for subjects, wanted in (
        ("topic", {f"{topic}.public.orders-key", f"{topic}.public.orders-value"}),
        ("record", {f"{topic}.public.orders.Key", f"{topic}.public.orders.Row"}),
        (
            "topic_record",
            {f"{topic}.public.orders-{topic}.public.orders.Key", f"{topic}.public.orders-{topic}.public.orders.Row"},
        ),
    ):
        before = _subjects(schema_registry, topic)
        _publish(_options(schema_registry, encoding, registry_subjects=subjects), topic, run, database=topic)
        assert _subjects(schema_registry, topic) - before == wanted


def test_each_topic_of_a_table_has_its_own_schema(schema_registry: SchemaRegistryServer, topic: str) -> None:
    table = runs.table(("id", "int8"), ("region", "text"))
    rows = [build.insert((b"%d" % n, region)) for n, region in enumerate((b"eu", b"us", b"eu", b"as"))]
    messages = _publish(_options(schema_registry, "avro"), topic, runs.changes(table, *rows), template="{region}")
    read = Reader(schema_registry, "avro")
    assert [(m.destination, read(m)[1]["region"]) for m in messages] == [
        (f"{topic}.{region}", region) for region in ("eu", "us", "eu", "as")
    ]
    assert _subjects(schema_registry, topic) == {
        f"{topic}.{r}-{role}" for r in ("eu", "us", "as") for role in ("key", "value")
    }


def _version(*columns: tuple[str, str] | Column, **more: Any) -> Relation:
    return runs.table(("id", "int8"), *columns, **more)


def _row(relation: Relation, *values: bytes | None) -> TableChanges:
    return runs.changes(relation, build.insert((b"1", *values)))


def _require(server: SchemaRegistryServer, topic: str, level: str) -> None:
    """Set the level of compatibility of the subject of values, which exists already."""
    call(server, "PUT", f"/config/{topic}.public.orders-value", {"compatibility": level})


def test_columns_come_and_go(schema_registry: SchemaRegistryServer, topic: str) -> None:
    """A reader with the newest schema reads all messages, and one with the first schema too."""
    options = _options(schema_registry, "avro")
    first = _version(("note", "text"))
    messages = _publish(options, topic, _row(first, b"a"))
    _require(schema_registry, topic, "FULL_TRANSITIVE")
    added = _version(("note", "text"), Column("n", build.type_("int4"), nullable=False, default="5"))
    messages += _publish(options, topic, _row(added, b"b", b"5"))
    dropped = _version(Column("n", build.type_("int4"), nullable=False, default="5"))
    messages += _publish(options, topic, _row(dropped, b"6"))
    read = Reader(schema_registry, "avro")
    assert [read(message)[1] for message in messages] == [
        {"id": 1, "note": "a"},
        {"id": 1, "note": "b", "n": 5},
        {"id": 1, "n": 6},
    ]
    versions = call(schema_registry, "GET", f"/subjects/{topic}.public.orders-value/versions")
    assert versions == [1, 2, 3]
    for number, wanted in ((1, [("note", "a"), ("note", "b"), ("note", None)]), (3, [("n", None), ("n", 5), ("n", 6)])):
        schema = call(schema_registry, "GET", f"/subjects/{topic}.public.orders-value/versions/{number}")["schema"]
        evolved = AvroDeserializer(SchemaRegistryClient({"url": schema_registry.url}), schema)
        context = SerializationContext(f"{topic}.public.orders", MessageField.VALUE)
        found = [evolved(message.value, context) for message in messages]
        assert [(name, row[name]) for (name, _), row in zip(wanted, found, strict=True)] == wanted
    # A rewind publishes messages of the first version again.
    (again,) = _publish(options, topic, _row(first, b"a"))
    assert again.value == messages[0].value


def test_a_compatible_change_of_a_type(schema_registry: SchemaRegistryServer, topic: str) -> None:
    options = _options(schema_registry, "avro")
    old, new = _version(("n", "int4")), _version(("n", "int8"))
    messages = _publish(options, topic, _row(old, b"1"))
    _require(schema_registry, topic, "BACKWARD")
    messages += _publish(options, topic, _row(new, b"9000000000"))
    assert [Reader(schema_registry, "avro")(m)[1]["n"] for m in messages] == [1, 9000000000]


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("avro", "n was null or long and is null or string"),
        ("jsonschema", "n was null or integer and is null or string"),
    ],
)
def test_an_incompatible_schema_stops_the_sink_before_its_first_message(
    schema_registry: SchemaRegistryServer, topic: str, encoding: Encoding, words: str
) -> None:
    options = _options(schema_registry, encoding)
    old, new = _version(("n", "int8")), _version(("n", "text"))
    _publish(options, topic, _row(old, b"1"))
    _require(schema_registry, topic, "BACKWARD")
    subject = f"{topic}.public.orders-value"
    with pytest.raises(SinkRefused, match=words) as caught:
        _publish(options, topic, _row(old, b"2"), _row(new, b"x"))
    assert subject in str(caught.value)
    assert subject in caught.value.hint
    assert call(schema_registry, "GET", f"/subjects/{subject}/versions") == [1], "it was registered"
    with pytest.raises(SinkRefused):  # the refusal is not forgotten
        _publish(options, topic, _row(new, b"x"))
    _require(schema_registry, topic, "NONE")
    (message,) = _publish(options, topic, _row(new, b"x"))
    assert Reader(schema_registry, encoding)(message)[1] == {"id": 1, "n": "x"}


@pytest.mark.soak  # it starts a Kafka server
def test_a_table_that_changes_while_it_is_delivered(
    schema_registry: SchemaRegistryServer, kafka_server: KafkaServer, topic: str, database: Database, tmp_path: Path
) -> None:
    """PostgreSQL to Kafka: nothing of the incompatible version is published, and everything once it is allowed."""
    name = f"{topic}.public.orders"
    options = KafkaOptions(
        url=kafka_server.url,
        topic_prefix=topic,
        cursor_topic=f"{topic}-cursor",
        partitions=1,
        envelope="row",
        encoding="avro",
        registry=schema_registry.url,
    )
    read = Reader(schema_registry, "avro")

    def published() -> list[Any]:
        found = consume(kafka_server.bootstrap, name)
        return [read(Message(name, one.key, one.value, {}, Position.parse("0/0")))[1] for one in found]

    database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, n int)")
    with captured(database, tmp_path) as log:
        context = SinkContext(settings.StoreSettings(url=log.store.url))

        def deliver_all() -> None:
            log.catch_up()
            deliver(KafkaSink("bus", options, context), log.store)

        log.execute("INSERT INTO orders VALUES (1, 1)")
        deliver_all()
        _require(schema_registry, topic, "BACKWARD")
        log.execute(
            "ALTER TABLE orders ADD COLUMN note text NOT NULL DEFAULT 'none'",
            "INSERT INTO orders VALUES (2, 2)",
            "ALTER TABLE orders DROP COLUMN note",
            "ALTER TABLE orders ALTER n TYPE bigint",
            "INSERT INTO orders VALUES (3, 9000000000)",
        )
        deliver_all()
        compatible = [{"id": 1, "n": 1}, {"id": 2, "n": 2, "note": "none"}, {"id": 3, "n": 9000000000}]
        assert published() == compatible
        log.execute("ALTER TABLE orders ALTER n TYPE text", "INSERT INTO orders VALUES (4, 'four')")
        for _ in range(2):
            with pytest.raises(SinkRefused, match=rf"subject {name}-value .* n was null or long and is null or string"):
                deliver_all()
            assert published() == compatible
        _require(schema_registry, topic, "NONE")
        deliver_all()
        assert published() == [*compatible, {"id": 4, "n": "four"}]


def test_a_new_column_in_json_schema(schema_registry: SchemaRegistryServer, topic: str) -> None:
    options = _options(schema_registry, "jsonschema", envelope="tailrace")
    messages = _publish(options, topic, _row(_version(("note", "text")), b"a"))
    _require(schema_registry, topic, "BACKWARD")
    messages += _publish(options, topic, _row(_version(("note", "text"), ("n", "int4")), b"b", b"5"))
    read = Reader(schema_registry, "jsonschema")
    assert [read(m)[1]["data"] for m in messages] == [{"id": 1, "note": "a"}, {"id": 1, "note": "b", "n": 5}]


def test_schemas_that_others_register(schema_registry: SchemaRegistryServer, topic: str) -> None:
    options = _options(schema_registry, "avro")
    run = _row(_version(("note", "text")), b"a")
    forbidden = replace(options, registry_register=False)
    with pytest.raises(
        SinkRefused, match=rf"subject {topic}\.public\.orders-value .* does not have the current schema"
    ):
        _publish(forbidden, topic, run)
    assert not _subjects(schema_registry, topic)
    registered = _publish(options, topic, run)
    assert _publish(forbidden, topic, run) == registered


def test_a_schema_is_checked_and_registered_once_in_a_process(
    schema_registry: SchemaRegistryServer, topic: str
) -> None:
    with Gate(schema_registry) as gate:
        options = replace(_options(schema_registry, "avro"), registry=gate.url)
        for _ in range(3):
            _publish(options, topic, _row(_version(("note", "text")), b"a"))
        subject = f"/subjects/{topic}.public.orders"
        assert [one for one in gate.requests if f"{subject}-value" in one] == [
            f"POST {subject}-value",
            f"POST /compatibility{subject}-value/versions/latest?verbose=true",
            f"POST {subject}-value/versions",
        ]


@pytest.mark.parametrize(
    ("authorization", "given"),
    [
        (
            f"Basic {base64.b64encode('ann:pä:ss'.encode()).decode()}",
            {"registry_user": "ann", "registry_password": Secret("pä:ss")},
        ),
        ("Bearer abc.def", {"registry_token": Secret("abc.def")}),
    ],
)
def test_logins(schema_registry: SchemaRegistryServer, topic: str, authorization: str, given: dict[str, Any]) -> None:
    run = _row(
        _version(),
    )
    with Gate(schema_registry, authorization) as gate:
        options = EnvelopeOptions(registry=gate.url, encoding="avro", envelope="row", **given)
        sent = pickle.loads(pickle.dumps(options.to_picklable()))
        (message,) = _publish(sent, topic, run)
        assert Reader(schema_registry, "avro")(message)[1] == {"id": 1}
        wrong: dict[str, Any] = {
            name: value if name == "registry_user" else Secret("x") for name, value in given.items()
        }
        for other in ({}, wrong):
            with pytest.raises(SinkRefused, match="Unauthorized") as caught:
                _publish(EnvelopeOptions(registry=gate.url, encoding="avro", envelope="row", **other), topic, run)
            assert "registry_token" in caught.value.hint


def test_a_login_in_the_url_is_moved_out_of_it(schema_registry: SchemaRegistryServer, topic: str) -> None:
    login = base64.b64encode(b"ann:p@ss").decode()
    with Gate(schema_registry, f"Basic {login}") as gate:
        url = gate.url.replace("://", "://ann:p%40ss@")
        options = EnvelopeOptions(registry=url, encoding="avro", envelope="row")
        assert (options.registry, options.registry_user) == (gate.url, "ann")
        assert "p@ss" not in repr(options)
        assert "p%40ss" not in repr(options)
        _publish(options, topic, _row(_version()))


def test_tls_with_host_verification(schema_registry: SchemaRegistryServer, topic: str, tls: Tls) -> None:
    run = _row(_version())
    with Gate(schema_registry, context=tls.context) as gate:
        options = EnvelopeOptions(registry=gate.url, encoding="avro", envelope="row", registry_ca=tls.authority.file)
        _publish(options, topic, run)
        for wrong in (
            replace(options, registry=gate.url.replace("localhost", "127.0.0.1")),
            replace(options, registry_ca=tls.stranger.file),
            replace(options, registry_ca=None),
        ):
            with pytest.raises(SinkRefused, match="certificate of the schema registry") as caught:
                _publish(wrong, f"{topic}x", run)
            assert "registry_ca" in caught.value.hint


def test_failures_that_a_retry_cures(schema_registry: SchemaRegistryServer, topic: str) -> None:
    run = _row(_version())
    with Gate(schema_registry) as gate:
        options = EnvelopeOptions(registry=gate.url, encoding="avro", envelope="row")
        for status in (500, 502, 429, 599):
            gate.failure = status
            with pytest.raises(SinkError, match=str(status)):
                _publish(options, topic, run)
        # The second of two registries answers.
        both = replace(options, registry=f"{gate.url},{schema_registry.url}")
        (message,) = _publish(both, topic, run)
        gate.failure = None
        assert _publish(options, topic, run) == [message]
    gone = replace(options, registry=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SinkError, match="cannot be reached"):
        _publish(gone, topic, run)
    assert _publish(replace(gone, registry=f"{gone.registry},{schema_registry.url}"), topic, run) == [message]


@pytest.mark.parametrize("answer", [b"{}", b'{"id": 4294967296}', b'{"id": "1"}', b"[1]", b"\xff"])
def test_answers_that_no_registry_gives_are_not_taken_for_values_that_cannot_be_encoded(
    schema_registry: SchemaRegistryServer, topic: str, answer: bytes
) -> None:
    """Otherwise every change would become a dead letter."""
    with Gate(schema_registry) as gate:
        gate.failure, gate.answer = 200, answer
        with pytest.raises(SinkRefused, match="not a schema registry"):
            _publish(EnvelopeOptions(registry=gate.url, encoding="avro"), topic, _row(_version()))


def test_a_subject_with_schemas_of_another_type(schema_registry: SchemaRegistryServer, topic: str) -> None:
    run = _row(_version())
    _publish(_options(schema_registry, "avro"), topic, run)
    with pytest.raises(SinkRefused, match=rf"refused the schema of {topic}\.public\.orders-value"):
        _publish(_options(schema_registry, "jsonschema"), topic, run)


@pytest.mark.parametrize("path", ["/nothing", "/health"])
def test_something_else_than_a_registry(schema_registry: SchemaRegistryServer, topic: str, path: str) -> None:
    options = EnvelopeOptions(registry=schema_registry.url.removesuffix("/apis/ccompat/v7") + path, encoding="avro")
    with pytest.raises(SinkRefused, match="not a schema registry"):
        _publish(options, topic, _row(_version()))


def test_what_a_check_reports(schema_registry: SchemaRegistryServer) -> None:
    with Gate(schema_registry, "Bearer abc") as gate:
        options = KafkaOptions(registry=gate.url, encoding="avro", registry_token=Secret("abc"))
        (finding,) = options.registry_findings()
        assert (finding.severity, finding.subject) == ("note", f"schema registry {gate.url}")
        with pytest.raises(SinkRefused, match="Unauthorized"):
            list(replace(options, registry_token=None).registry_findings())
    assert not list(KafkaOptions().registry_findings())
    url = "http://ann:hunter2@registry:8081"
    assert "hunter2" not in repr(KafkaOptions(url="kafka://one:9092", registry=url))


@pytest.mark.parametrize("encoding", ["avro", "jsonschema"])
def test_values_of_every_type_are_those_of_postgresql(
    schema_registry: SchemaRegistryServer, topic: str, database: Database, tmp_path: Path, encoding: Encoding
) -> None:
    run, stored = stored_values(database, tmp_path)
    special = {key for key, value in stored.items() if value.is_special and encoding == "avro"}
    options = _options(schema_registry, encoding)
    if special:
        with pytest.raises(PoisonError) as caught:
            _publish(options, topic, run)
        assert len(caught.value.positions) == len(special)
        rejected = {Position.parse(position) for position in caught.value.positions}
        run = run.take(np.array([run.at.position(row) not in rejected for row in range(len(run))]))
    read = Reader(schema_registry, encoding)
    found: dict[int, Any] = {}
    messages = _publish(options, topic, run)
    schema = _schema(schema_registry, messages[0])
    for message in messages:
        assert message.value is not None
        row = avro_reader.read(schema, message.value[5:]) if encoding == "avro" else read(message)[1]
        value = stored[row["id"]]
        name = avro_name(value.type.replace('"', "")) if encoding == "avro" else value.type.replace('"', "")
        found[row["id"]] = row[name]
        assert {key for key, one in row.items() if one is not None} <= {"id", name}
        is_python_date = value.text[4:5] == "-" and not value.text.endswith("BC")
        if encoding == "avro" and (is_python_date or not value.type.startswith(("date", "timestamp"))):
            assert read(message)[1]["id"] == row["id"], "Confluent's deserialiser reads the message"
    assert found.keys() == stored.keys() - special
    for key, one in found.items():
        expected = stored[key]
        assert _agrees(one, expected, encoding), (expected.type, expected.text, one)


def _schema(server: SchemaRegistryServer, message: Message) -> Any:
    assert message.value is not None
    (number,) = struct.unpack(">xI", message.value[:5])
    return json.loads(call(server, "GET", f"/schemas/ids/{number}")["schema"])


def _agrees(found: Any, expected: StoredValue, encoding: Encoding) -> bool:
    kind = expected.type
    if encoding == "jsonschema":
        if kind in ("json", "jsonb"):
            return bool(found == json.loads(expected.text))
        if kind in ("int2", "int4", "int8", "oid", "bool"):
            return bool(found == expected.value)
        if kind.startswith("float"):
            return repr(float(found)) == repr(float(expected.text))
        if kind.startswith("timestamp") and expected.text[0].isdigit() and not expected.text.endswith("BC"):
            return bool(found == expected.text.removesuffix("+00").replace(" ", "T") + "Z")
        return bool(found == expected.text)
    if kind == "float4":
        return struct.pack("<f", found) == struct.pack("<f", np.float32(expected.text))
    if kind == "float8":
        return struct.pack("<d", found) == struct.pack("<d", float(expected.text))
    return bool(found == expected.value) or (kind == "uuid" and str(found) == expected.text)


def _avro(**more: Any) -> EnvelopeOptions:
    return EnvelopeOptions(**{"encoding": "avro", "registry": "http://registry:8081", **more})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (lambda: EnvelopeOptions(encoding="avro"), "encoding avro needs a schema registry"),
        (lambda: EnvelopeOptions(registry="http://r"), "encoding json has no use for registry"),
        (lambda: _avro(registry="registry:8081"), "registry is not a URL"),
        (lambda: _avro(registry_user="a", registry_token=Secret("t")), "both registry_user and registry_token"),
        (lambda: _avro(registry_password=Secret("p")), "registry_password is set, but not registry_user"),
        (lambda: _avro(registry_token=Secret("hunter2\n")), "registry_token has characters that are not allowed"),
        (lambda: _avro(registry_ca=Path(__file__)), "registry_ca .* has no certificates"),
        (lambda: _avro(registry_ca=Path("/nowhere")), "registry_ca /nowhere has no certificates"),
        (lambda: _avro(registry="http://registry:port"), "registry is not a URL"),
        (lambda: _avro(envelope="outbox"), "envelope outbox publishes payloads as the application wrote them"),
        (lambda: _avro(envelope="cloudevents"), "a structured CloudEvent is JSON"),
        (lambda: _avro(envelope="debezium", debezium_schemas=True), "the registry has them already"),
    ],
)
def test_settings_that_do_not_fit_together(options: Callable[[], EnvelopeOptions], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        options().check_envelope()
