"""The sink `kafka` publishes each change once, whatever fails at whatever moment."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.contract.delivery_driver import Crash, DeliveryDriver
from tests.contract.kafka_topics import KafkaTopics
from tests.fixtures.kafka import QUIET, create_topic, make_server
from tests.fixtures.network import Proxy
from tests.log.stream import SOURCE, Server, write
from tests.pgoutput import build
from tests.sinks.kafka_faults import before_commit, crash
from tests.sinks.kafka_publisher import Publisher
from tests.stepping import DrivenStepper

from tailrace import settings
from tailrace.change import Lsn, Operation, Position
from tailrace.embedded.kafka import KafkaServer
from tailrace.embedded.process import wait_until
from tailrace.errors import SinkError, SinkRefused
from tailrace.log import source_record
from tailrace.log.planner import BatchLimits
from tailrace.log.reader import LogReader
from tailrace.sinks.kafka import cursor_topic, transport
from tailrace.sinks.kafka.options import KafkaOptions
from tailrace.sinks.kafka.topic import Topics
from tailrace.sinks.messages.progress import Progress
from tailrace.store import Store

_names = count(1)
_SMALL = BatchLimits(4, 1 << 40)
"""A few transactions in each step."""


class ServerOfInserts(Server):
    """Inserts rows into one table, so that one topic has everything."""

    def _change(self) -> tuple[bytes, list[tuple[Operation, dict[str, Any]]]]:
        relation = self.relations[100]
        row = (b"%d" % self.rng.randint(0, 99), b"text", *[b"1.5"] * (len(relation.columns) - 2))
        return build.insert(row, oid=100), [(Operation.INSERT, {"relation": relation, "new": row})]


def _driver(server: KafkaServer, directory: Path, **more: Any) -> DeliveryDriver:
    """A sink with a log of 60 transactions."""
    store = Store.open(directory.as_uri())
    write(store, ServerOfInserts(1).work(60), most=6)
    source_record.save(store, SOURCE, Lsn(0))
    topics = KafkaTopics(server, {"partitions": 2, **more})
    return DeliveryDriver(topics, settings.StoreSettings(store.url), start="earliest")


@pytest.fixture
def driver(kafka_server: KafkaServer, tmp_path: Path) -> DeliveryDriver:
    return _driver(kafka_server, tmp_path / "store")


def _topics(driver: DeliveryDriver) -> KafkaTopics:
    assert isinstance(driver.destination, KafkaTopics)
    return driver.destination


def _assert_each_once(driver: DeliveryDriver) -> None:
    """Assert that consumers of committed messages get each change once, those of each key in order."""
    expected = [str(change.position) for change in LogReader(driver.reader.store).changes()]
    found = _topics(driver).consume()
    assert sorted(m.headers["Tailrace-Position"] for m in found) == sorted(expected)
    last: dict[Any, Position] = {}
    for message in found:
        position = Position.parse(message.headers["Tailrace-Position"])
        key = message.topic, message.partition, message.key
        assert last.get(key, position) <= position, f"{position} of {key} is out of order"
        last[key] = position


def _deliver(driver: DeliveryDriver, small: bool = False) -> None:
    with driver.stepper() as one:
        if small:
            _deliver_steps(one)
        one.deliver(one.log_end())


# A second process.


@pytest.fixture
def publisher(kafka_server: KafkaServer) -> Publisher:
    name = f"once-{next(_names)}-{os.getpid()}"
    return Publisher(name, KafkaOptions(url=kafka_server.url, cursor_topic=f"cursor-{name}", partitions=1))


def test_a_process_that_was_superseded_publishes_nothing(publisher: Publisher) -> None:
    first = publisher.connect()
    publisher.publish(first, 1)
    second = publisher.connect()
    assert second.progress() == Progress("source", 0, Position(Lsn(1), 0))
    with pytest.raises(SinkError) as raised:
        publisher.publish(first, 2)
    assert "_FENCED" in str(raised.value)
    assert "Another process publishes for this sink" in raised.value.hint
    first.close()
    publisher.publish(second, 2)
    # Between the messages of a transaction and its commit.
    with before_commit(lambda: publisher.connect().close()), pytest.raises(SinkError):
        publisher.publish(second, 3)
    second.close()
    assert publisher.received() == [1, 2]
    third = publisher.connect()
    assert third.progress() == Progress("source", 0, Position(Lsn(2), 0))
    publisher.publish(third, 3)
    third.close()
    assert publisher.received() == [1, 2, 3]


def test_two_processes_publish_in_turns(publisher: Publisher) -> None:
    """Each reads the progress and publishes what follows, until the other supersedes it."""
    end = 25
    rng = random.Random(1)

    def work() -> None:
        while True:
            made = publisher.connect()
            try:
                while True:
                    progress = made.progress()
                    last = int(progress.log.commit_lsn) if progress is not None and progress.log is not None else 0
                    if last == end:
                        return
                    publisher.publish(made, last + 1)
                    if rng.random() < 0.3:
                        break
            except SinkError:
                pass
            finally:
                made.close()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert publisher.received() == list(range(1, end + 1))


# The progress.


def test_only_the_end_of_a_cursor_topic_is_read(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of records, and at the end more aborted transactions than are read first."""
    made = publisher.connect()
    publisher.publish(made, 7)
    made.close()
    topic = str(publisher.options.cursor_topic)
    producer = Producer({"bootstrap.servers": publisher.options.bootstrap, "transactional.id": topic, **QUIET})
    producer.init_transactions(30)

    def transaction(value: bytes, records: int, *, commits: bool) -> None:
        producer.begin_transaction()
        for _ in range(records):
            producer.produce(topic, value, publisher.name.encode())
        producer.flush(30)
        (producer.commit_transaction if commits else producer.abort_transaction)(30)

    progress = Progress("source", 0, Position(Lsn(8), 0))
    transaction(b"not read", 5000, commits=True)
    transaction(progress.to_json().encode(), 1, commits=True)
    for _ in range(20):
        transaction(b"aborted", 1, commits=False)
    starts = []
    last_record = cursor_topic._last_record

    def recorded(consumer: Any, topic: str, start: int, end: int, key: bytes) -> bytes | None:
        starts.append(end - start)
        return last_record(consumer, topic, start, end, key)

    monkeypatch.setattr(cursor_topic, "_last_record", recorded)
    administrator = Topics(publisher.name, publisher.options).administrator
    assert cursor_topic.read_progress(publisher.name, publisher.options, administrator) == progress
    assert starts == [16, 256]


def test_an_open_transaction_does_not_hide_the_progress(publisher: Publisher, kafka_server: KafkaServer) -> None:
    """Of another sink that shares the cursor topic. It ends while the progress is read."""
    made = publisher.connect()
    publisher.publish(made, 1)
    other = Producer(
        {"bootstrap.servers": kafka_server.bootstrap, "transactional.id": f"{publisher.name}-other", **QUIET}
    )
    other.init_transactions(30)
    other.begin_transaction()
    other.produce(str(publisher.options.cursor_topic), b"{}", b"other")
    other.flush(30)
    publisher.publish(made, 2)
    made.close()
    found: list[Progress | None] = []
    reading = threading.Thread(target=lambda: found.append(publisher.connect().progress()))
    reading.start()
    reading.join(1)
    assert not found, "the progress was taken from before the open transaction"
    other.abort_transaction(30)
    reading.join()
    assert found == [Progress("source", 0, Position(Lsn(2), 0))]


def test_a_cursor_topic_with_other_content_is_refused(publisher: Publisher) -> None:
    topic = str(publisher.options.cursor_topic)
    create_topic(publisher.options.bootstrap, topic, cleanup_policy="compact")
    producer = Producer({"bootstrap.servers": publisher.options.bootstrap, **QUIET})
    producer.produce(topic, b'{"cursor": 5}', publisher.name.encode())
    producer.flush(30)
    with pytest.raises(SinkRefused, match=f"topic {topic} holds something else than the progress of a sink"):
        publisher.connect()


# Consumers.


def test_uncommitted_messages_repeat_with_the_same_positions(driver: DeliveryDriver) -> None:
    """Consumers that do not ask for committed messages only, which is Kafka's default, get aborted attempts too."""
    with driver.stepper() as one, before_commit(crash), pytest.raises(Crash):
        one.deliver(one.log_end())
    _deliver(driver)
    _assert_each_once(driver)
    committed, all_ = (_topics(driver).consume(level) for level in ("read_committed", "read_uncommitted"))
    assert len(all_) == 2 * len(committed)
    # A message without a key may be in any partition.
    contents = Counter((m.topic, m.key, m.value, tuple(m.headers.items())) for m in all_)
    assert set(contents.values()) == {2}
    assert contents.keys() == {(m.topic, m.key, m.value, tuple(m.headers.items())) for m in committed}


def test_a_rewind_publishes_again_under_new_ids(driver: DeliveryDriver) -> None:
    _deliver(driver)
    changes = list(LogReader(driver.reader.store).changes())
    start = changes[len(changes) // 2].position.commit_lsn
    for _ in range(2):
        with driver.stepper() as one:
            one.rewind(str(start))
        _deliver(driver)
    first = [str(change.position) for change in changes]
    again = [str(change.position) for change in changes if change.position.commit_lsn >= start]
    ids = [json.loads(message.value or b"")["msg_id"] for message in _topics(driver).consume()]
    assert sorted(ids) == sorted([*first, *(f"{id}-r{number}" for id in again for number in (1, 2))])


# Failures of the network and of the server.


@pytest.fixture(scope="module")
def network() -> Iterator[tuple[KafkaServer, Proxy]]:
    """A server that clients reach through a proxy."""
    proxy = Proxy()
    with make_server(advertised_port=proxy.port) as server:
        proxy.target_port = server.port
        yield server, proxy
    proxy.close()


@pytest.fixture
def remote(network: tuple[KafkaServer, Proxy], tmp_path: Path) -> DeliveryDriver:
    return _driver(network[0], tmp_path / "store")


@pytest.mark.parametrize("lost", ["answer", "request"])
def test_a_commit_that_gets_no_answer(remote: DeliveryDriver, network: tuple[KafkaServer, Proxy], lost: str) -> None:
    """Only the cursor topic tells whether the transaction was committed."""
    _, proxy = network
    before = len(_topics(remote).consume())
    with remote.stepper() as one:
        act = proxy.drop_answers if lost == "answer" else proxy.silence
        with before_commit(act), pytest.raises(SinkError, match="the transaction failed"):
            one.deliver(one.log_end())
    # The server ends the transaction by itself, or the next producer does.
    _deliver(remote)
    _assert_each_once(remote)
    uncommitted = len(_topics(remote).consume("read_uncommitted"))
    committed = len(_topics(remote).consume())
    assert before == 0
    assert (uncommitted > committed) == (lost == "request")


def test_connections_that_are_cut_at_any_time(
    remote: DeliveryDriver, network: tuple[KafkaServer, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "TIMEOUT_S", 4.0)
    _, proxy = network
    _deliver_while(remote, proxy.cut, times=15)


def _deliver_while(driver: DeliveryDriver, act: Callable[[], None], times: int) -> None:
    """Deliver in small steps while something acts at random times; after failures again, as a pipeline does."""
    rng = random.Random(7)
    finished = threading.Event()

    def disturb() -> None:
        for _ in range(times):
            if finished.wait(rng.uniform(0, 0.4)):
                return
            act()

    thread = threading.Thread(target=disturb)
    thread.start()
    failures = 0

    def has_delivered() -> bool:
        nonlocal failures
        try:
            _deliver(driver, small=True)
        except SinkError:
            failures += 1
            return False
        return True

    try:
        assert wait_until(has_delivered, 120)
    finally:
        finished.set()
        thread.join()
    _assert_each_once(driver)


def test_a_server_that_stops_answering(remote: DeliveryDriver, network: tuple[KafkaServer, Proxy]) -> None:
    """While it has the messages of a transaction that is not committed."""
    pid = network[0].pid
    assert pid is not None
    with remote.stepper() as one:
        with before_commit(lambda: os.kill(pid, signal.SIGSTOP)), pytest.raises(SinkError):
            one.finish(one.next_step(_SMALL))
        os.kill(pid, signal.SIGCONT)
    _deliver(remote, small=True)
    _assert_each_once(remote)


@pytest.mark.soak
@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_server_that_is_killed(remote: DeliveryDriver, network: tuple[KafkaServer, Proxy], at: int) -> None:
    """While it has the messages of a transaction that is not committed, and just after it committed one."""
    server, _ = network
    with remote.stepper() as one:
        with before_commit(server.kill9, at), pytest.raises(SinkError):
            _deliver_steps(one)
        server.start()
    _deliver(remote, small=True)
    _assert_each_once(remote)


def _deliver_steps(stepper: DrivenStepper) -> None:
    while (planned := stepper.next_step(_SMALL)) is not None:
        stepper.finish(planned)
