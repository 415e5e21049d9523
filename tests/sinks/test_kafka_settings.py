"""Settings of the sink `kafka`: each fault has a message of its own, and none quotes a password."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from confluent_kafka import Producer

from tailrace import settings
from tailrace.delivery.sink_settings import SinkContext
from tailrace.errors import ConfigError, SinkRefused
from tailrace.settings import Secret
from tailrace.sinks import from_settings
from tailrace.sinks.kafka.client_configuration import client_configuration, make_client
from tailrace.sinks.kafka.options import KafkaOptions
from tailrace.sinks.kafka.sink import KafkaSink

URL = "kafka://one:9092"
SCRAM: dict[str, Any] = {"sasl": "SCRAM-SHA-512", "user": "alice", "password": Secret("p")}
OAUTH = {
    "sasl": "OAUTHBEARER",
    "oauth_token_url": "https://login.example/token",
    "oauth_client_id": "id",
    "oauth_client_secret": Secret("s"),
}


@pytest.mark.parametrize(
    ("given", "fault", "hint"),
    [
        ({"url": ""}, "url is missing", "kafka://one:9092"),
        ({"url": "nats://one"}, "url does not begin with kafka://", "kafka://one:9092"),
        ({"url": "one:9092"}, "url does not begin with kafka://", "kafka://one:9092"),
        ({"url": "kafka://"}, "url: server 1 is not host:port", "kafka://one:9092"),
        ({"url": "kafka://one:9092,:9092"}, "url: server 2 is not host:port", "kafka://one:9092"),
        ({"url": "kafka://one:many"}, "url: server 1 is not host:port", "kafka://one:9092"),
        ({"url": "kafka://one:9092/topic"}, "url: server 1 is not host:port", "kafka://one:9092"),
        ({"envelope": "debezium"}, "topic_prefix is missing", "topic.prefix"),
        (
            {"envelope": "debezium", "topic_prefix": "p", "encoding": "msgpack"},
            "is JSON, not msgpack",
            'encoding = "json"',
        ),
        (
            {"topic": "a.{table}", "topic_prefix": "p"},
            "topic and topic_prefix are both set",
            "write the prefix into topic",
        ),
        ({"topic": "my topic.{table}"}, "topic 'my topic.{table}' is not a topic name", "only letters, digits"),
        ({"topic": "{schema}{table}"}, "there is nothing between {schema} and {table}", "'{schema}.{table}'"),
        ({"topic": "{"}, "is not a template", "'{schema}.{table}'"),
        ({"topic_prefix": "a b"}, "topic_prefix 'a b' is not a topic name", "only letters, digits"),
        ({"message_topic": "a/b"}, "message_topic 'a/b' is not a topic name", "only letters, digits"),
        ({"cursor_topic": "ü"}, "cursor_topic 'ü' is not a topic name", "only letters, digits"),
        ({"user": "alice"}, "user is set, and sasl is not", "SCRAM-SHA-512"),
        ({"sasl": "PLAIN"}, "sasl = 'PLAIN' needs user and password", "environment"),
        ({"sasl": "PLAIN", "user": "alice"}, "sasl = 'PLAIN' needs user and password", "environment"),
        ({**OAUTH, "oauth_client_secret": None}, "OAUTHBEARER needs oauth_token_url", "set all three"),
        ({"tls_certificate": "c.pem"}, "tls_certificate and tls_key belong together", "set both or neither"),
        ({"producer": {"acks": "1"}}, "producer.acks cannot be set", "exactly-once delivery depends on it"),
        ({"producer": {"transactional.id": "x"}}, "producer.transactional.id cannot be set", "exactly-once"),
        ({"producer": {"partitioner": "random"}}, "producer.partitioner cannot be set", "exactly-once"),
        ({"producer": {"batch.size": "1"}}, "producer.batch.size cannot be set", "exactly-once"),
        ({"producer": {"sasl.password": "p"}}, "producer.sasl.password cannot be set", "use password"),
        ({"producer": {"bootstrap.servers": "x"}}, "producer.bootstrap.servers cannot be set", "use url"),
        (
            {"producer": {"enable.ssl.certificate.verification": "false"}},
            "producer.enable.ssl.certificate.verification cannot be set",
            "always verified",
        ),
    ],
)
def test_faults(given: dict[str, Any], fault: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        KafkaOptions(**{"url": URL, **given}).validate()
    assert fault in str(raised.value)
    assert hint in raised.value.hint


def test_faults_of_the_file_are_reported_together() -> None:
    raw = {
        "type": "kafka",
        "name": "bus",
        "url": URL,
        "sasl": "KERBEROS",
        "compression": "rar",
        "partitions": -1,
        "tpoic": "x",
    }
    with pytest.raises(ConfigError) as raised:
        from_settings(settings.Settings(store=settings.StoreSettings("file:///x"), sinks=(raw,)), {})
    for fault in (
        "sasl is 'KERBEROS'",
        "compression is 'rar'",
        "partitions is -1: must be at least 0",
        "did you mean sink bus: topic?",
    ):
        assert fault in str(raised.value)


@pytest.mark.parametrize(
    ("url", "shown", "user", "password"),
    [
        ("kafka://one,two:9093", "kafka://one,two:9093", "", None),
        ("kafka://alice:s%2Fe%2Cc%40ret@one:9092, two", "kafka://one:9092,two", "alice", "s/e,c@ret"),
        ("kafka://alice:se/cr:et@one", "kafka://one", "alice", "se/cr:et"),
        ("kafka://alice:se://cret@one", "kafka://one", "alice", "se://cret"),
        ("kafka://alice@one", "kafka://one", "alice", None),
    ],
)
def test_credentials_are_moved_out_of_the_url(url: str, shown: str, user: str, password: str | None) -> None:
    options = KafkaOptions(url=url)
    assert (options.url, options.user) == (shown, user)
    assert options.password == (None if password is None else Secret(password))
    assert password is None or password not in repr(options)
    # Settings and environment come before the URL.
    assert KafkaOptions(url=url, user="bob", password=Secret("own")).password == Secret("own")


@pytest.mark.parametrize(
    "url",
    [
        *("kafka://alice:hid,den@one", "kafka://alice:hidden@", "alice:hidden@one:9092", "kafka://alice:hidden@one:x"),
        "kafka://one,alice:hidden@two",
    ],
)
def test_no_message_quotes_a_password(url: str) -> None:
    options = KafkaOptions(url=url, sasl="PLAIN")
    with pytest.raises(ConfigError) as raised:
        options.validate()
    for text in (str(raised.value), raised.value.hint, repr(options), options.url):
        assert "hid" not in text
        assert "den" not in text


def test_servers_have_a_port_by_default() -> None:
    options = KafkaOptions(url="kafka://one,two:9093,[::1],[::2]:9094").validate()
    assert options.bootstrap == "one:9092,two:9093,[::1]:9092,[::2]:9094"


def test_topics_by_envelope() -> None:
    def topic(**given: Any) -> str:
        options = KafkaOptions(url=URL, **given).validate()
        return options.template("shop").of_table(("public", "order items"))

    assert topic() == "public.order_x20items"
    assert topic(topic_prefix="a.b") == "a.b.public.order_x20items"
    assert topic(topic="x.{database}.{table}") == "x.shop.order_x20items"
    assert topic(envelope="debezium", topic_prefix="server") == "server.public.order_items"
    assert topic(envelope="debezium", topic_prefix="server", topic="{table}") == "order_x20items"


def test_security_becomes_the_clients_configuration() -> None:
    def configured(**given: Any) -> dict[str, Any]:
        return client_configuration(KafkaOptions(url=URL, **given).validate(), "bus", lambda _: None)

    assert configured()["security.protocol"] == "PLAINTEXT"
    tls = configured(tls=True)
    assert tls["security.protocol"] == "SSL"
    assert tls["ssl.endpoint.identification.algorithm"] == "https"
    assert configured(tls_ca="ca.pem")["security.protocol"] == "SSL"
    scram = configured(**SCRAM, tls=True)
    assert (scram["security.protocol"], scram["sasl.mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
    assert (scram["sasl.username"], scram["sasl.password"]) == ("alice", "p")
    oauth = configured(**OAUTH, oauth_scope="write")
    assert (oauth["sasl.oauthbearer.method"], oauth["sasl.oauthbearer.scope"]) == ("oidc", "write")
    assert "sasl.password" not in oauth
    shared = configured(producer={"socket.timeout.ms": "7000", "linger.ms": "5"})
    assert shared["socket.timeout.ms"] == "7000"
    assert "linger.ms" not in shared, "it is the producer's alone"


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"producer": {"lingr.ms": "5"}}, 'No such configuration property: "lingr.ms"'),
        ({"producer": {"linger.ms": "soon"}}, "Invalid value for configuration property"),
        ({"producer": {"error_cb": "x"}}, "error_cb"),
    ],
)
def test_properties_that_the_client_does_not_know_are_refused(given: dict[str, Any], fault: str) -> None:
    options = KafkaOptions(url=URL, **given).validate()
    with pytest.raises(SinkRefused, match="the settings are not valid") as raised:
        make_client(Producer, {**client_configuration(options, "bus", lambda _: None), **options.producer})
    assert fault in str(raised.value)


def test_a_sink_is_sent_to_executors_with_its_secrets() -> None:
    """And only there: its printed form hides them."""
    options = KafkaOptions(url=URL, **SCRAM)
    sink = KafkaSink("bus", options, SinkContext(settings.StoreSettings("file:///x")))
    copy = pickle.loads(pickle.dumps(sink))
    assert copy._options == options
    assert "'p'" not in repr(copy._options)
    with pytest.raises(TypeError, match="secret cannot be pickled"):
        pickle.dumps(copy._options)
