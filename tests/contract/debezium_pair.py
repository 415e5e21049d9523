"""Debezium and Tailrace side by side: both read one database and publish to one Kafka server, each with its prefix."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, TopicPartition
from tests.capturing import CaptureThread, current_lsn
from tests.fixtures.debezium import Connect, connector
from tests.fixtures.kafka import QUIET, admin_client
from tests.stepping import DrivenStepper

from tailrace import settings, sinks
from tailrace.capture.postgres.bootstrap import Bootstrap
from tailrace.embedded.kafka import KafkaServer
from tailrace.embedded.postgres import Postgres
from tailrace.embedded.process import wait_until
from tailrace.log import planner
from tailrace.log.reader import LogReader
from tailrace.sinks.messages.message import COMMITTED_AT, LAST, POSITION, XID
from tailrace.store import Store

_END: Final = "pair_end"
_OWN_HEADERS: Final = (POSITION, XID, COMMITTED_AT, LAST)
_CONVERTER: Final = "org.apache.kafka.connect.json.JsonConverter"


@dataclass(frozen=True)
class Variant:
    """A configuration of Debezium and the same of Tailrace."""

    name: str
    """Letters only: it is part of the prefix."""
    debezium: Mapping[str, Any] = field(default_factory=dict)
    tailrace: Mapping[str, Any] = field(default_factory=dict)
    partitions: int = 1
    schemas: bool = False

    @property
    def debezium_prefix(self) -> str:
        return f"dbz_{self.name}"

    @property
    def tailrace_prefix(self) -> str:
        return f"tlr_{self.name}"

    def connector(self, postgres: Postgres) -> dict[str, Any]:
        options = {
            "topic_creation_default_partitions": self.partitions,
            "key_converter": _CONVERTER,
            "key_converter_schemas_enable": str(self.schemas).lower(),
            "value_converter": _CONVERTER,
            "value_converter_schemas_enable": str(self.schemas).lower(),
            # Otherwise NULL in a column that has a default is written as that default.
            "key_converter_replace_null_with_default": "false",
            "value_converter_replace_null_with_default": "false",
            # Headers that name the connector's task and its run.
            "extended_headers_enabled": "false",
            **self.debezium,
        }
        return connector(postgres, "postgres", self.debezium_prefix, **options)

    def sink(self, server: KafkaServer) -> dict[str, Any]:
        return {
            "name": self.name,
            "type": "kafka",
            "url": server.url,
            "envelope": "debezium",
            "topic_prefix": self.tailrace_prefix,
            "debezium_schemas": self.schemas,
            "partitions": self.partitions,
            **self.tailrace,
        }


@dataclass(frozen=True)
class Record:
    """A message in Kafka, with `PREFIX` for the prefix."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


Topics = Mapping[str, Sequence[Record]]
"""Records by topic, in the order of each partition."""


class Pair:
    """Both readers, once they stream."""

    def __init__(
        self,
        postgres: Postgres,
        server: KafkaServer,
        connect: Connect,
        given: settings.Settings,
        running: CaptureThread,
        variants: Sequence[Variant],
    ) -> None:
        self.postgres = postgres
        self._server = server
        self._connect = connect
        self._given = given
        self._running = running
        self._variants = variants
        self._marks = 0

    def catch_up(self) -> None:
        """Wait until both have read everything that was committed."""
        self._marks += 1
        with self.postgres.connect() as connection:
            connection.execute(f"INSERT INTO {_END} VALUES ({self._marks})")
            self._running.wait_for(current_lsn(connection))
        admin, consumer = admin_client(self._server.bootstrap), self._consumer()

        def has_mark(variant: Variant) -> bool:
            self._connect.check(variant.name)
            topic = f"{variant.debezium_prefix}.public.{_END}"
            found = admin.list_topics(topic, timeout=30).topics[topic].partitions
            places = [TopicPartition(topic, number) for number in found]
            try:
                ends = [consumer.get_watermark_offsets(place, timeout=30)[1] for place in places]
            except KafkaException:  # the topic is being created
                return False
            return sum(ends) >= self._marks

        for variant in self._variants:
            assert wait_until(lambda variant=variant: has_mark(variant), 120), self._connect.last_lines()  # type: ignore[misc]
        consumer.close()

    def deliver(self, variant: Variant) -> None:
        """Deliver Tailrace's log with the sink."""
        given = replace(self._given, sinks=(variant.sink(self._server),))
        (configured,) = sinks.from_settings(given, {})
        stepper = DrivenStepper(configured, given.store)
        try:
            stepper.open()
            stepper.load_missing()
            stepper.deliver(planner.latest_offset(LogReader(Store.open(given.store.url))))
            for _ in range(2):
                stepper.sink.maintain()
        finally:
            stepper.sink.close()

    def debezium(self, variant: Variant) -> Topics:
        return self._read(variant.debezium_prefix)

    def tailrace(self, variant: Variant) -> Topics:
        return self._read(variant.tailrace_prefix)

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._server.bootstrap,
                "group.id": "pair",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                **QUIET,
            }
        )

    def _read(self, prefix: str) -> Topics:
        pattern = re.compile(rf"{re.escape(prefix)}\.|__debezium-heartbeat\.{re.escape(prefix)}$")
        topics = admin_client(self._server.bootstrap).list_topics(timeout=30).topics
        partitions = [
            TopicPartition(name, number, 0)
            for name, topic in topics.items()
            if pattern.match(name)
            for number in topic.partitions
        ]
        found: defaultdict[str, list[Record]] = defaultdict(list)
        consumer = self._consumer()
        consumer.assign(partitions)
        open_partitions = {(one.topic, one.partition) for one in partitions}
        while open_partitions:
            for message in consumer.consume(1000, 0.2):
                topic, partition, headers = message.topic(), message.partition(), message.headers() or []
                if message.error() is not None:
                    open_partitions.discard((topic, partition))
                    continue
                own = [(name, _plain(prefix, value)) for name, value in headers if name not in _OWN_HEADERS]  # type: ignore[str-unpack]
                name = str(topic).replace(prefix, "PREFIX")
                key, value = _plain(prefix, message.key()), _plain(prefix, message.value())
                found[name].append(Record(name, int(partition or 0), key, value, tuple(own)))
        consumer.close()
        return found


def _plain(prefix: str, data: Any) -> Any:
    return None if data is None else data.replace(prefix.encode(), b"PREFIX")


@contextmanager
def side_by_side(
    postgres: Postgres, server: KafkaServer, connect: Connect, directory: Path, variants: Sequence[Variant]
) -> Iterator[Pair]:
    """The tables have to exist. Both take their snapshots first; what the context's body writes is streamed."""
    with ExitStack() as stack:
        connection = stack.enter_context(postgres.connect())
        connection.execute(f"CREATE TABLE {_END} (id int PRIMARY KEY)")
        for name in ("tailrace", "debezium"):
            connection.execute(
                f"CREATE PUBLICATION {name} FOR ALL TABLES WITH (publish_via_partition_root = true)".encode()
            )
        for variant in variants:
            connect.create(variant.name, variant.connector(postgres))
            stack.callback(connect.delete, variant.name)
        given = settings.Settings(
            source=settings.SourceSettings(url=postgres.url, tables=("*.*",)),
            store=settings.StoreSettings(directory.as_uri()),
            capture=settings.CaptureSettings(seal_after_ms=5),
        )
        store = Store.open(given.store.url)
        bootstrap = Bootstrap(given, store)
        running = stack.enter_context(CaptureThread(given, store, snapshots=bootstrap))
        assert bootstrap.wait(60)
        assert bootstrap.error is None
        bootstrap.stop()
        query = "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name LIKE 'dbz%'"

        def are_streaming() -> bool:
            for variant in variants:
                connect.check(variant.name)
            return connection.execute(query).fetchone() == (len(variants),)

        assert wait_until(are_streaming, 120), connect.last_lines()
        yield Pair(postgres, server, connect, given, running, variants)
