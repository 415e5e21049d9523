"""Topics of the sink `kafka`: created, checked, routed to, and limited."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.contract.delivery_driver import DeliveryDriver, has_delivered
from tests.contract.kafka_topics import KafkaTopics, consume
from tests.fixtures.kafka import admin_client, alter_topic, create_topic, topics
from tests.fixtures.postgres import drop_database, make_database
from tests.sinks.captured_source import CapturedSource
from tests.sinks.messages import runs

from tailrace import settings
from tailrace.change import Lsn, Position
from tailrace.delivery.dead_letters import DeadLetters
from tailrace.delivery.sink_settings import SinkContext
from tailrace.embedded.kafka import KafkaServer
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.errors import ConfigError, PoisonError, SinkRefused, TailraceError
from tailrace.log import planner, published_table
from tailrace.log.planner import Offset
from tailrace.log.reader import LogReader
from tailrace.sinks.kafka import transport
from tailrace.sinks.kafka.options import KafkaOptions
from tailrace.sinks.kafka.sink import KafkaSink
from tailrace.sinks.kafka.topic import TopicLimits, Topics
from tailrace.sinks.kafka.topic_name import MAX_LENGTH, is_topic_name, topic_part


@pytest.fixture(scope="module")
def postgres_source(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CapturedSource]:
    database = make_database(postgres)
    try:
        database.execute("CREATE TABLE orders (id int PRIMARY KEY, region text, body text)")
        database.execute("ALTER TABLE orders REPLICA IDENTITY FULL; CREATE TABLE bag (v text)")
        database.execute("CREATE TABLE many (id int PRIMARY KEY, body text)")
        database.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders (id int PRIMARY KEY)")
        database.execute("CREATE PUBLICATION tailrace FOR ALL TABLES")
        made = CapturedSource(database, tmp_path_factory.mktemp("topics") / "store")
        made.capture(
            "INSERT INTO orders VALUES (1, 'eu', 'a'), (2, 'us', 'b')",
            "UPDATE orders SET body = 'c' WHERE id = 1; DELETE FROM orders WHERE id = 2",
        )
        made.capture(
            "INSERT INTO orders VALUES (3, 'us'), (4, NULL), (5, ''), (6, '..'), (7, 'a b/c'),"
            " (8, '__consumer_offsets'), (9, 'tailrace-cursor-tested'), (10, 'tailrace-cursor-other')",
            "INSERT INTO bag VALUES ('x'), ('x'), ('y')",
            "TRUNCATE bag",
            "INSERT INTO many SELECT n, md5(n::text) FROM generate_series(1, 5000) n",
        )
        made.capture("INSERT INTO shop.orders VALUES (1)")
        yield made
    finally:
        drop_database(database)


Sink = Callable[..., DeliveryDriver]


@pytest.fixture
def sink(postgres_source: CapturedSource, kafka_server: KafkaServer, tmp_path: Path) -> Sink:
    """Makes a delivery of the log to topics of its own. The settings may name the prefix of its topics: `{prefix}`."""

    def make(*tables: str, on_poison: str = "stop", **more: Any) -> DeliveryDriver:
        made = KafkaTopics(kafka_server)
        more = {
            key: value.format(prefix=made.prefix) if "{prefix}" in str(value) else value for key, value in more.items()
        }
        made.more = {"partitions": 1, "message_topic": "", **more}
        directory = tmp_path / made.prefix
        shutil.copytree(postgres_source.store.url.removeprefix("file://"), directory)
        store = settings.StoreSettings(directory.as_uri())
        return DeliveryDriver(made, store, tables=list(tables), start="earliest", on_poison=on_poison)

    return make


def _topics_of(driver: DeliveryDriver) -> KafkaTopics:
    assert isinstance(driver.destination, KafkaTopics)
    return driver.destination


def _cursor_topic(driver: DeliveryDriver) -> str:
    return str(_topics_of(driver).settings()["cursor_topic"])


def _deliver(driver: DeliveryDriver) -> None:
    with driver.stepper() as one:
        one.deliver(one.log_end())


def _failure(driver: DeliveryDriver, kind: type[TailraceError]) -> TailraceError:
    with pytest.raises(kind) as raised:
        _deliver(driver)
    assert not raised.value.retry
    return raised.value


def _positions(driver: DeliveryDriver, table: str, schema: str = "public") -> list[Position]:
    return [c.position for c in LogReader(driver.reader.store).changes() if (c.schema, c.table) == (schema, table)]


def _end_of(driver: DeliveryDriver, table: str, change: int = -1) -> Offset:
    """The end of the segment with a change of a table."""
    start = planner.start_offset(driver.reader, None)
    return planner.advance_to(driver.reader, start, Lsn(_positions(driver, table)[change].commit_lsn + 1))


def _received(driver: DeliveryDriver, topic: str) -> list[Position]:
    found = _topics_of(driver).consume()
    return [Position.parse(m.headers["Tailrace-Position"]) for m in found if m.topic == topic]


# Names.


def test_names_make_different_topics_that_kafka_accepts() -> None:
    rng = random.Random(5)
    alphabet = "aA1_-x2E.5F/ü🐘\" '\n%{"
    names = {"".join(rng.choices(alphabet, k=rng.randint(1, 12))) for _ in range(20_000)}
    names |= {".", "..", "_x2E", "_x5Fx2E", "ü" * 31, "🐘" * 15, "é" * 31, "a" * 63, "." * 63, "_x" + "2E" * 30}
    parts = {name: topic_part(name) for name in names}
    assert len(set(parts.values())) == len(names)
    assert all(is_topic_name(part) for part in parts.values())
    longest = max(map(len, parts.values()))
    assert 2 * longest + len("..") + 50 <= MAX_LENGTH, "a prefix of 50 characters fits"
    assert topic_part("orders_2026-Q1") == "orders_2026-Q1"


def test_columns_choose_the_topic(sink: Sink) -> None:
    """A row that makes no topic name, or a reserved one, is a dead letter: with a record in a cursor's topic, it could
    make a sink skip changes."""
    driver = sink("public.orders", topic="{region}", topic_prefix="", on_poison="dead_letter")
    bootstrap = _topics_of(driver).server.bootstrap
    before = topics(bootstrap).keys() | {"__transaction_state"}
    _deliver(driver)
    letters = DeadLetters(driver.reader, "tested")
    letters.load()
    *_, last = _positions(driver, "orders")
    refused = [Position(last.commit_lsn, ordinal) for ordinal in (1, 2, 5, 6, 7)]
    assert sorted(letters.positions) == refused
    assert "the columns in the template make a topic name that Kafka does not allow" in letters.get(refused[1]).reason
    assert topics(bootstrap).keys() - before == {"eu", "us", "_x2E_x2E", "a_x20b_x2Fc", _cursor_topic(driver)}
    found = {topic: [m.key for m in consume(bootstrap, topic)] for topic in ("eu", "us", "_x2E_x2E", "a_x20b_x2Fc")}
    assert found["eu"] == [b'{"id":1}', b'{"id":1}']
    assert found["us"] == [b'{"id":2}', b'{"id":2}', b'{"id":3}']
    assert found["_x2E_x2E"] == [b'{"id":6}']
    assert found["a_x20b_x2Fc"] == [b'{"id":7}']


def test_tables_that_share_a_topic_are_refused_at_start(sink: Sink) -> None:
    driver = sink("*.*", topic="{prefix}.{{table}}", topic_prefix="")
    relations = [c.relation for c in LogReader(driver.reader.store).changes() if c.relation is not None]
    published_table.save(driver.reader.store, {relation.oid: relation for relation in relations}.values())
    error = _failure(driver, ConfigError)
    prefix = _topics_of(driver).prefix
    assert str(error) == f"public.orders and shop.orders would both be published to {prefix}.orders"
    assert "Use another template in `topic`" in error.hint
    assert f"{prefix}.orders" not in topics(_topics_of(driver).server.bootstrap)


def test_a_table_that_appears_later_and_shares_a_topic_is_refused(sink: Sink) -> None:
    """Its messages are not published. Debezium's names are not unique: both `-` and ` ` become `_`."""
    driver = sink("*.orders", topic="{prefix}.{{table}}", topic_prefix="")
    error = _failure(driver, TailraceError)
    assert "public.orders and shop.orders would both be published to" in str(error)
    topic = f"{_topics_of(driver).prefix}.orders"
    assert _received(driver, topic) == []
    with driver.stepper() as one:
        one.deliver(_end_of(driver, "orders"))
    assert _received(driver, topic) == _positions(driver, "orders")
    assert "would both be published" in str(_failure(driver, TailraceError))
    assert _received(driver, topic) == _positions(driver, "orders")


@pytest.mark.parametrize("setting", ["cursor_topic", "message_topic"])
def test_a_table_may_not_use_a_topic_of_the_sink_itself(sink: Sink, setting: str) -> None:
    driver = sink("public.orders", **{setting: "{prefix}.public.orders"})
    error = _failure(driver, ConfigError)
    assert "public.orders would be published to" in str(error)
    assert "which the sink needs for its progress, or for messages that are not of a table" in str(error)


@pytest.mark.parametrize(
    ("topic", "table"),
    [
        ("{table}", "progress"),
        ("shop.{table}", "message"),
        ("shop.{table}", "transaction"),
        ("__debezium-heartbeat.{table}", "shop"),
    ],
)
def test_a_table_may_not_use_a_topic_of_debezium(tmp_path: Path, topic: str, table: str) -> None:
    options = KafkaOptions(
        url="kafka://127.0.0.1:1", envelope="debezium", topic_prefix="shop", topic=topic, cursor_topic="progress"
    )
    sink = KafkaSink("topics", options, SinkContext(settings.StoreSettings(tmp_path.as_uri())))
    with pytest.raises(ConfigError, match="which the sink needs"):
        sink._registered(runs.table(("id", "int4"), name=table), ("public", table), "current")
    other = sink._registered(runs.table(("id", "int4"), name="orders"), ("public", "orders"), "current")
    assert other.destination == topic.format(table="orders")


def test_a_topic_that_kafka_takes_for_another_is_refused(sink: Sink) -> None:
    """Kafka does not tell `.` from `_` in the names of metrics."""
    driver = sink("public.orders")
    topic = f"{_topics_of(driver).prefix}.public.orders"
    create_topic(_topics_of(driver).server.bootstrap, topic.replace(".", "_"))
    error = _failure(driver, SinkRefused)
    assert f"topic {topic} cannot be created" in str(error)
    assert "collides with existing topic" in str(error)


# Declarations.


def test_a_missing_topic_is_not_created_unasked(sink: Sink) -> None:
    driver = sink("public.orders", create_topics=False, partitions=4, compact=True)
    bootstrap = _topics_of(driver).server.bootstrap
    cursor = _cursor_topic(driver)
    error = _failure(driver, SinkRefused)
    assert str(error) == f"topic {cursor} does not exist"
    assert error.hint.startswith(
        f"kafka-topics.sh --create --topic {cursor} --partitions 1 --config cleanup.policy=compact"
    )
    create_topic(bootstrap, cursor, cleanup_policy="compact")
    error = _failure(driver, SinkRefused)
    topic = f"{_topics_of(driver).prefix}.public.orders"
    assert str(error) == f"topic {topic} does not exist"
    assert error.hint == f"kafka-topics.sh --create --topic {topic} --partitions 4 --config cleanup.policy=compact"
    assert topic not in topics(bootstrap)
    create_topic(bootstrap, topic, 4, cleanup_policy="compact")
    _deliver(driver)
    assert sorted(_received(driver, topic)) == _positions(driver, "orders")


def test_topics_are_created_as_declared(sink: Sink) -> None:
    driver = sink("public.orders", partitions=5, compact=True, replication=1)
    _deliver(driver)
    topic = f"{_topics_of(driver).prefix}.public.orders"
    found = topics(_topics_of(driver).server.bootstrap)
    assert (found[topic], found[_cursor_topic(driver)]) == (5, 1)
    for name in (topic, _cursor_topic(driver)):
        alter_topic(_topics_of(driver).server.bootstrap, name, cleanup_policy="delete")
    error = _failure(driver, SinkRefused)
    assert str(error) == f"topic {_cursor_topic(driver)} has cleanup.policy delete, and has to have compact"
    assert "--add-config cleanup.policy=compact" in error.hint


def test_topics_that_differ_from_the_declaration_are_refused(sink: Sink) -> None:
    driver = sink("public.orders", partitions=5)
    topic = f"{_topics_of(driver).prefix}.public.orders"
    create_topic(_topics_of(driver).server.bootstrap, topic, 2)
    assert str(_failure(driver, SinkRefused)) == f"topic {topic} has 2 partitions, and the settings say 5"
    driver = sink("public.orders", compact=True)
    topic = f"{_topics_of(driver).prefix}.public.orders"
    create_topic(_topics_of(driver).server.bootstrap, topic)
    assert "has cleanup.policy delete, and has to have compact" in str(_failure(driver, SinkRefused))
    driver = sink("public.orders", replication=3)
    error = _failure(driver, SinkRefused)
    assert "cannot be created" in str(error)
    assert "replication factor of 3" in str(error)


@pytest.mark.parametrize("what", ["table", "cursor"])
def test_a_topic_that_is_deleted_while_the_sink_runs(sink: Sink, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is created again, and gets what follows. What is committed is not published again."""
    monkeypatch.setattr(transport, "TIMEOUT_S", 2.0)  # a commit waits for the topic to come back
    driver = sink("public.orders", producer={"topic.metadata.propagation.max.ms": "1000"})
    server = _topics_of(driver).server
    topic = f"{_topics_of(driver).prefix}.public.orders"
    deleted = topic if what == "table" else _cursor_topic(driver)
    changes = _positions(driver, "orders")
    with driver.stepper() as one:
        one.deliver(_end_of(driver, "orders", 0))
        delivered = one.state.cursor
        assert delivered is not None
        client = admin_client(server.bootstrap)
        client.delete_topics([deleted])[deleted].result()
        assert wait_until(lambda: deleted not in topics(server.bootstrap), 30)

        assert wait_until(lambda: has_delivered(one), 60)
    expected = [position for position in changes if what == "cursor" or position.commit_lsn >= delivered]
    assert _received(driver, topic) == expected


# Limits.


def test_many_small_messages_fit_a_topic_with_a_small_limit(sink: Sink) -> None:
    """The limit applies to batches, and a batch of librdkafka's is up to a megabyte."""
    driver = sink("public.many", compression="none")
    topic = f"{_topics_of(driver).prefix}.public.many"
    create_topic(_topics_of(driver).server.bootstrap, topic, max_message_bytes="1200")
    _deliver(driver)
    assert _received(driver, topic) == _positions(driver, "many")


def test_a_limit_that_changes_while_the_sink_runs(sink: Sink) -> None:
    driver = sink("public.orders")
    bootstrap = _topics_of(driver).server.bootstrap
    topic = f"{_topics_of(driver).prefix}.public.orders"
    create_topic(bootstrap, topic, max_message_bytes="200")
    changes = _positions(driver, "orders")
    with driver.stepper() as one:
        with pytest.raises(
            PoisonError, match=r"changes from .* on make messages of up to .*, and topic .* accepts 200"
        ) as raised:
            one.deliver(one.log_end())
        assert set(raised.value.positions) == {str(position) for position in changes}
        alter_topic(bootstrap, topic, max_message_bytes="1000000")
        one.deliver(_end_of(driver, "orders", 0))
        # Below the size of a message, with a transport that has read the limit before.
        alter_topic(bootstrap, topic, max_message_bytes="200")
        with pytest.raises(PoisonError, match="accepts 200"):
            one.deliver(one.log_end())
        alter_topic(bootstrap, topic, max_message_bytes="100000")
        one.deliver(one.log_end())
    assert _received(driver, topic) == changes


def test_a_limit_that_is_raised_counts_at_once(sink: Sink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The transport has read the old limit, and would refuse the message."""
    driver = sink("public.orders")
    topic = f"{_topics_of(driver).prefix}.public.orders"
    create_topic(_topics_of(driver).server.bootstrap, topic)
    with driver.stepper() as one:
        limits = Topics.limits

        def stale(self: Topics, names: list[str], *, again: bool = False) -> dict[str, TopicLimits]:
            found = limits(self, names, again=again)
            return found if again else {name: TopicLimits(200) for name in found}

        monkeypatch.setattr(Topics, "limits", stale)
        one.deliver(one.log_end())
    assert _received(driver, topic) == _positions(driver, "orders")


def test_messages_without_a_key_do_not_fit_a_compacted_topic(sink: Sink) -> None:
    """Rows of a table without a key, and a TRUNCATE: each is named, also if the rows are equal."""
    driver = sink("public.bag", compact=True)
    error = _failure(driver, PoisonError)
    assert isinstance(error, PoisonError)
    changes = _positions(driver, "bag")
    assert len(changes) == 4
    assert error.positions == tuple(str(position) for position in changes)
    assert "without a key" in str(error)
    assert "is compacted" in str(error)
    assert "primary key" in error.hint
