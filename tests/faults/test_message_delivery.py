"""Kills deliveries to Kafka and RabbitMQ, the brokers, and their connections.

Kafka's topics and RabbitMQ's streams then have every change once, and its queues at least once with equal ids. Real
`tailrace deliver` processes run while a workload runs and capture writes. `DELIVERY_KILLS` is the number of kills.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from tests.contract.kafka_topics import KafkaTopics
from tests.contract.message_destination import MessageDestination
from tests.contract.rabbitmq_messages import RabbitMqQueue, RabbitMqStreams, is_readable
from tests.contract.scenario import Name
from tests.faults.test_delivery import KILLS, Progress, Scene, kill
from tests.fixtures.kafka import make_server
from tests.fixtures.network import Proxy
from tests.fixtures.postgres import Database
from tests.fixtures.rabbitmq import require_rabbitmq
from tests.workload import Workload

from tailrace.delivery import cursors
from tailrace.embedded.kafka import KafkaServer
from tailrace.embedded.process import wait_until
from tailrace.embedded.rabbitmq import RabbitMqServer

_SINKS = ("topics", "streams", "queue")


class Destinations:
    """Topics, streams and a queue, and the settings of their sinks."""

    def __init__(self, kafka: KafkaServer, rabbitmq: RabbitMqServer, tables: Sequence[Name]) -> None:
        self.topics = KafkaTopics(kafka)
        self.streams = RabbitMqStreams(rabbitmq, tables)
        self.queue = RabbitMqQueue(rabbitmq)

    def toml(self, **other: dict[str, object]) -> str:
        """The settings of all sinks. `other` replaces some of one of them."""
        text = ""
        for name in _SINKS:
            given = {"name": name, **self.of(name).settings(), **other.get(name, {})}
            text += "[[sink]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in given.items())
        return text

    def of(self, name: str) -> KafkaTopics | RabbitMqStreams | RabbitMqQueue:
        found: KafkaTopics | RabbitMqStreams | RabbitMqQueue = getattr(self, name)
        return found

    def has_unrecorded(self, scene: Scene, name: str) -> bool:
        """Whether a destination has changes that the sink does not know to be there."""
        stored = cursors.load(scene.store, name)
        cursor = None if stored is None else stored.state.cursor
        places = [message.position.commit_lsn for message in self.of(name).received() if not message.is_row]
        return bool(places) and (cursor is None or max(places) >= cursor)

    def assert_match(self, scene: Scene) -> None:
        """Assert that each has the log and the snapshots' rows, and that these are PostgreSQL's."""
        scenario = scene.scenario
        scenario.assert_results_in_rows()
        began = min(snapshot.lsn for snapshot in scenario.snapshots)
        for name in _SINKS:
            stored = cursors.load(scene.store, name)
            assert stored is not None
            assert stored.state.cursor is not None
            assert stored.state.cursor >= scenario.end.lsn, name
            destination: MessageDestination = self.of(name)
            destination.assert_holds(scenario, scenario.marks[-1], stored.state, began)


def _tables(database: Database) -> list[Name]:
    return [(table.schema, table.name) for table in Workload(database.connect, seed=3).tables]


class Network:
    """Kafka and RabbitMQ with a proxy before each port. Killed brokers start again with what they had."""

    def __init__(self, kafka: KafkaServer, rabbitmq: RabbitMqServer, proxies: Sequence[Proxy]) -> None:
        self.kafka, self.rabbitmq = kafka, rabbitmq
        self._proxies = proxies

    def other(self) -> dict[str, dict[str, object]]:
        """The settings by which sinks connect to RabbitMQ through the proxies. Kafka itself tells its clients."""
        _, stream, amqp = self._proxies
        url = self.rabbitmq.url.replace(f":{self.rabbitmq.port}/", f":{amqp.port}/")
        return {"streams": {"stream_port": stream.port}, "queue": {"url": url}}

    def cut(self) -> None:
        for proxy in self._proxies:
            proxy.cut()

    def silence(self) -> None:
        for proxy in self._proxies:
            proxy.silence()

    def kill_kafka(self) -> None:
        self.kafka.kill9()
        self.kafka.start()

    def kill_rabbitmq(self) -> None:
        self.rabbitmq.kill9()
        self.rabbitmq.start()

    def kill_both(self) -> None:
        self.kill9()
        self.start()

    def kill9(self) -> None:
        self.kafka.kill9()
        self.rabbitmq.kill9()

    def start(self) -> None:
        self.kafka.start()
        self.rabbitmq.start()


@contextmanager
def _network() -> Iterator[Network]:
    require_rabbitmq()
    proxies = [Proxy() for _ in range(3)]
    try:
        with make_server(advertised_port=proxies[0].port) as kafka, RabbitMqServer() as rabbitmq:
            ports = kafka.port, rabbitmq.stream_port, rabbitmq.port
            for proxy, port in zip(proxies, ports, strict=True):
                proxy.target_port = port
            yield Network(kafka, rabbitmq, proxies)
    finally:
        for proxy in proxies:
            proxy.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the driver: its tasks publish what they have, and nothing of it is recorded."""
    os.kill(process.pid, signal.SIGSTOP)


@pytest.mark.soak
def test_killed_deliveries_and_brokers_lose_and_duplicate_nothing(database: Database, tmp_path: Path) -> None:
    """One process for all sinks. First its brokers are killed and its connections fail, then repeatedly the process
    itself is killed, at any time or before it has recorded what it published, every other time with the brokers."""
    rng = random.Random(1)
    with _network() as network:
        destinations = Destinations(network.kafka, network.rabbitmq, _tables(database))
        scene = Scene(database, tmp_path, destinations.toml(**network.other()))
        with scene.captured():
            progress = Progress(scene, *(scene.state_of(name) for name in _SINKS))
            process = scene.start()
            try:
                progress.wait(process)
                assert wait_until(network.rabbitmq.has_stored_streams, 60)
                faults: list[Callable[[], None]] = [
                    *(network.cut, network.kill_kafka, network.kill_rabbitmq),
                    *(network.cut, network.kill_both, network.silence),
                ]
                for number, fault in enumerate(faults):
                    destinations.of(_SINKS[number % 3]).when_more(fault)
                    progress.wait(process)
            finally:
                kill(process)
            unrecorded = Counter[str]()
            for number in itertools.count():
                missing = [name for name in _SINKS if not unrecorded[name]]
                if number >= (3 * KILLS if missing else KILLS):
                    break
                process = scene.start()
                try:
                    progress.wait(process)
                    if number % 4 < 3:
                        destinations.of(rng.choice(missing or _SINKS)).when_more(partial(_stop, process))
                    time.sleep(rng.uniform(0, 0.5))
                finally:
                    if number % 2:
                        network.kill9()
                    kill(process)
                if number % 2:
                    network.start()
                    assert wait_until(lambda: is_readable(destinations.streams), 60)
                unrecorded.update(name for name in _SINKS if destinations.has_unrecorded(scene, name))
            assert not missing, f"never killed after they published and before they recorded that: {missing}"
        scene.deliver_all()
        destinations.assert_match(scene)


def test_a_delivery_that_is_killed_loses_and_duplicates_nothing(
    database: Database, tmp_path: Path, kafka_server: KafkaServer, rabbitmq_server: RabbitMqServer
) -> None:
    destinations = Destinations(kafka_server, rabbitmq_server, _tables(database))
    scene = Scene(database, tmp_path, destinations.toml())
    with scene.captured():
        process = scene.start()
        try:
            Progress(scene, *(scene.state_of(name) for name in _SINKS)).wait(process)
            destinations.topics.when_more(partial(_stop, process))
        finally:
            kill(process)
    scene.deliver_all()
    destinations.assert_match(scene)
