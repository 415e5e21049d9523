"""Tables of a NATS sink: two never share a subject, and the bucket describes those that exist."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import nats
import pytest
from nats.js.errors import KeyNotFoundError
from tests.fixtures.postgres import Database
from tests.sinks.nats_bus import Bus

from tailrace.embedded.nats import NatsServer
from tailrace.embedded.process import wait_until
from tailrace.errors import ConfigError, SinkError
from tailrace.log import published_table


@pytest.fixture
def server() -> Iterator[NatsServer]:
    """A server per test, since streams and bucket have their default names."""
    with NatsServer() as one:
        yield one


def _entries(server: NatsServer) -> dict[str, str]:
    """The entries of the bucket: key and `schema`."""

    async def read() -> dict[str, str]:
        client = await nats.connect(server.url)
        try:
            stream = client.jetstream(timeout=30)
            bucket = await stream.key_value("schemas")
            # Not bucket.keys(): it finds none if the server has sent all of them before the client looks.
            info = await stream.stream_info("KV_schemas", subjects_filter="$KV.schemas.>")
            found = {}
            for key in (subject.removeprefix("$KV.schemas.") for subject in info.state.subjects or {}):
                with suppress(KeyNotFoundError):
                    found[key] = msgpack.unpackb((await bucket.get(key)).value or b"")["schema"]
            return found
        finally:
            await client.close()

    return asyncio.run(read())


def _messages(server: NatsServer, count: int) -> list[tuple[str, Any]]:
    async def read() -> list[tuple[str, Any]]:
        client = await nats.connect(server.url)
        try:
            subscription = await client.jetstream(timeout=30).subscribe("cdc.>", ordered_consumer=True)
            found = [await subscription.next_msg(timeout=30) for _ in range(count)]
            await subscription.unsubscribe()
            return [(message.subject, msgpack.unpackb(message.data)) for message in found]
        finally:
            await client.close()

    return asyncio.run(read())


def _two_schemas(database: Database) -> None:
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); CREATE SCHEMA shop")
    database.execute("CREATE TABLE shop.orders (id int PRIMARY KEY); CREATE PUBLICATION tailrace FOR ALL TABLES")


def test_tables_of_the_same_name_in_two_schemas_are_refused(
    database: Database, server: NatsServer, tmp_path: Path
) -> None:
    _two_schemas(database)
    bus = Bus(database, server, tmp_path)
    bus.expects_failure = True
    with bus.running():
        bus.must_maintain.set()  # the sink may have started before capture listed the tables
        assert wait_until(lambda: bool(bus.failed), 60)
    (error,) = bus.failed
    assert isinstance(error, ConfigError)
    assert str(error) == r"public.orders and shop.orders would both be published to cdc.orders.*"
    assert "schema_in_subject = true" in error.hint


@pytest.mark.parametrize(
    ("more", "subjects"),
    [
        ({"schema_in_subject": True}, {"cdc.public.orders.insert", "cdc.shop.orders.insert"}),
        ({"route": "{schema}.{schema}_{table}"}, {"cdc.public_orders.insert", "cdc.shop_orders.insert"}),
    ],
    ids=["schema_in_subject", "route"],
)
def test_settings_resolve_the_collision(
    database: Database, server: NatsServer, tmp_path: Path, more: dict[str, Any], subjects: set[str]
) -> None:
    _two_schemas(database)
    bus = Bus(database, server, tmp_path, **more)
    with bus.running():
        database.execute("INSERT INTO orders VALUES (1); INSERT INTO shop.orders VALUES (2)")
        bus.reach()
        messages = _messages(server, 2)
    assert {subject for subject, _ in messages} == subjects
    assert [(payload["schema"], payload["data"]) for _, payload in messages] == [
        ("public", {"id": 1}),
        ("shop", {"id": 2}),
    ]


def test_a_table_that_appears_later_is_refused(database: Database, server: NatsServer, tmp_path: Path) -> None:
    """None of its messages is published to the subject of the other table."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY); CREATE PUBLICATION tailrace FOR ALL TABLES")
    bus = Bus(database, server, tmp_path)
    bus.expects_failure = True
    with bus.running():
        database.execute("INSERT INTO orders VALUES (1)")
        bus.reach()
        database.execute("CREATE SCHEMA shop; CREATE TABLE shop.orders (id int PRIMARY KEY)")
        database.execute("INSERT INTO shop.orders VALUES (2)")
        assert wait_until(lambda: bool(bus.failed), 60)
        assert len(_messages(server, 1)) == 1
    (error,) = bus.failed
    assert isinstance(error, ConfigError | SinkError)
    assert "public.orders and shop.orders would both be published" in str(error)


def test_entries_of_renamed_and_dropped_tables_are_removed(
    database: Database, server: NatsServer, tmp_path: Path
) -> None:
    database.execute("CREATE TABLE old (id int PRIMARY KEY); CREATE TABLE gone (id int PRIMARY KEY)")
    database.execute("CREATE TABLE kept (id int PRIMARY KEY); CREATE PUBLICATION tailrace FOR ALL TABLES")
    bus = Bus(database, server, tmp_path)
    with bus.running():
        database.execute("INSERT INTO old VALUES (1); INSERT INTO gone VALUES (1)")
        bus.reach()
        bus.must_maintain.set()
        assert wait_until(lambda: _entries(server).keys() == {"old", "gone", "kept"}, 30)
        database.execute("ALTER TABLE old RENAME TO new; INSERT INTO new VALUES (2)")
        bus.reach()
        assert wait_until(lambda: _entries(server).keys() == {"new", "gone", "kept"}, 30)
        database.execute("INSERT INTO gone VALUES (2); DROP TABLE gone")
        assert wait_until(lambda: {r.name for r in published_table.load(bus.store)} >= {"kept"}, 30)
        assert wait_until(lambda: len(published_table.load(bus.store)) == 2, 30)
        for _ in range(2):  # the first notices that the table is gone, the second that nothing of it is left
            bus.reach()
            bus.must_maintain.set()
            assert wait_until(lambda: not bus.must_maintain.is_set(), 30)
        assert wait_until(lambda: _entries(server) == {"new": "public.new", "kept": "public.kept"}, 30)
