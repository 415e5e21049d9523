"""`tailrace bridge` with only the bridge's environment and flags: two side by side, with minimal privileges, on a NATS
server with passwords."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import httpx
import msgpack
import nats
import psycopg
import pytest
from nats.aio.client import Client
from tests import process_tree
from tests.capturing import tailrace
from tests.fixtures.postgres import running

from tailrace import sinks
from tailrace.bridge import bridge_environment
from tailrace.embedded.nats import NatsServer
from tailrace.embedded.process import free_port, wait_until
from tailrace.sinks.nats import NatsSink

T = TypeVar("T")

PLANTED = "planted-5d20aa"
STATUS_KEYS = """
    status uptime_seconds wal_messages_received cdc_events_published current_lsn is_connected reconnect_count
    nats_reconnect_count last_processing_time_us slot_active wal_lag_bytes wal_lag_mb
"""
METRICS = """
    bridge_uptime_seconds bridge_wal_messages_received_total bridge_cdc_events_published_total bridge_last_ack_lsn
    bridge_connected bridge_reconnects_total bridge_nats_reconnects_total bridge_last_processing_time_us
    bridge_slot_active bridge_wal_lag_bytes
"""
LINE = re.compile(
    r"METRICS uptime=(\d+) wal_messages=(\d+) cdc_events=(\d+) lsn=([0-9a-f]+/[0-9a-f]+) connected=([01])"
    r" reconnects=(\d+) nats_reconnects=(\d+) lag_bytes=(\d+) slot_active=([01])"
)


class Bridge:
    def __init__(self, environ: dict[str, str], directory: Path, *flags: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._out = directory / f"out {self.port}"
        with self._out.open("w") as out:
            command = tailrace("bridge", *flags, "--port", str(self.port))
            self.process = subprocess.Popen(command, env=environ, cwd=directory, stdout=out, stderr=out)

    @property
    def output(self) -> str:
        return self._out.read_text()

    def has_published(self, count: int) -> bool:
        assert self.process.poll() is None, self.output
        try:
            status = httpx.get(f"{self.url}/status").json()
        except httpx.TransportError:
            return False
        return bool(status["is_connected"] and status["cdc_events_published"] == count)


def _with(server: NatsServer, action: Callable[[Client], Awaitable[T]]) -> T:
    async def done() -> T:
        client = await nats.connect(server.url, user="consumer", password=PLANTED)
        try:
            return await action(client)
        finally:
            await client.close()

    return asyncio.run(done())


def _messages(server: NatsServer) -> list[tuple[str, str, bytes]]:
    """Return all messages of the stream: subject, id, payload."""

    async def read(client: Client) -> list[tuple[str, str, bytes]]:
        stream = client.jetstream(timeout=30)
        count = (await stream.stream_info("CDC")).state.messages
        found = [await stream.get_msg("CDC", number) for number in range(1, count + 1)]
        return [(m.subject or "", (m.headers or {})["Nats-Msg-Id"], m.data or b"") for m in found]

    return _with(server, read)


def test_two_bridges_side_by_side(tmp_path: Path) -> None:
    users = [{"user": name, "password": PLANTED} for name in ("bridge_user", "consumer")]
    with (
        running(18, auth="scram-sha-256", password=PLANTED) as server,
        NatsServer(authorization={"users": users}) as bus,
        psycopg.connect(server.url, password=PLANTED, autocommit=True) as admin,
    ):
        admin.execute("CREATE TABLE users (id int PRIMARY KEY, name text, born date, score numeric, tags text[])")
        admin.execute("CREATE TABLE orders (id bigint PRIMARY KEY, total float8); CREATE TABLE others (id int)")
        admin.execute("INSERT INTO users VALUES (1, 'Ann', '1990-02-28', 1.50, '{a,b}')")
        admin.execute(f"CREATE ROLE bridge_reader LOGIN REPLICATION PASSWORD '{PLANTED}'")
        admin.execute(
            "GRANT CONNECT ON DATABASE postgres TO bridge_reader; GRANT USAGE ON SCHEMA public TO bridge_reader"
        )
        admin.execute("GRANT SELECT ON users, orders TO bridge_reader")
        admin.execute("CREATE PUBLICATION pub_1 FOR TABLE users; CREATE PUBLICATION pub_2 FOR TABLE orders")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "NATS", "POSTGRES", "TAILRACE_"))}
        environ = inherited | {
            "PG_HOST": "127.0.0.1",
            "PG_PORT": str(server.port),
            "PG_DB": "postgres",
            "POSTGRES_BRIDGE_USER": "bridge_reader",
            "POSTGRES_BRIDGE_PASSWORD": PLANTED,
            "NATS_HOST": bus.url.removeprefix("nats://"),
            "NATS_BRIDGE_USER": "bridge_user",
            "NATS_BRIDGE_PASSWORD": PLANTED,
        }
        one = Bridge(environ, tmp_path, "--slot", "slot_1", "--pub", "pub_1")
        two = Bridge(environ, tmp_path, "--slot", "slot_2", "--pub", "pub_2", "--json", "--zstd")
        try:
            assert wait_until(lambda: one.has_published(0) and two.has_published(0), 60)
            admin.execute("INSERT INTO users VALUES (2, 'Bob', NULL, 2, NULL); INSERT INTO others VALUES (1)")
            admin.execute("UPDATE users SET name = 'Bobby' WHERE id = 2; DELETE FROM users WHERE id = 2")
            admin.execute("INSERT INTO orders SELECT g, g / 2.0 FROM generate_series(1, 20) g")
            assert wait_until(lambda: one.has_published(3) and two.has_published(20), 120), one.output + two.output

            messages = _messages(bus)
            assert len(messages) == 23
            of_users = [(subject, id, msgpack.unpackb(data)) for subject, id, data in messages if b"users" in data]
            assert [subject for subject, _, _ in of_users] == [
                "cdc.users.insert",
                "cdc.users.update",
                "cdc.users.delete",
            ]
            for subject, id, payload in of_users:
                assert payload.keys() == {"data", "msg_id", "operation", "relation_id", "schema", "subject", "table"}
                assert re.fullmatch(r"[0-9a-f]+-users-(insert|update|delete)", id)
                assert (payload["subject"], payload["msg_id"], payload["table"]) == (subject, id, "users")
                assert payload["operation"] == subject.rpartition(".")[2].upper()
            bob = {"id": 2, "name": "Bob", "born": None, "score": "2", "tags": None}
            assert [payload["data"] for _, _, payload in of_users] == [
                bob,
                bob | {"name": "Bobby"},
                dict.fromkeys(bob) | {"id": 2},
            ]
            of_orders = [json.loads(data)["data"] for subject, _, data in messages if subject == "cdc.orders.insert"]
            assert of_orders == [{"id": n, "total": n / 2} for n in range(1, 21)]

            _assert_consumers_can_start(bus)
            _assert_http_api(one, 3)
            assert wait_until(lambda: LINE.search(one.output) is not None, 30), one.output
            assert PLANTED not in str([process_tree.arguments(bridge.process.pid) for bridge in (one, two)])
        finally:
            for bridge in (one, two):
                if bridge.process.poll() is None:
                    assert httpx.post(f"{bridge.url}/shutdown").status_code == 202
            codes = [bridge.process.wait(60) for bridge in (one, two)]
        assert codes == [0, 0], one.output + two.output
        assert re.search(
            r"stopped after .*: \d+ WAL messages received, 3 events published, acknowledged to", one.output
        )
        confirmed = admin.execute(
            "SELECT slot_name, active, confirmed_flush_lsn > '0/0' FROM pg_replication_slots ORDER BY 1"
        ).fetchall()
        assert confirmed == [("slot_1", False, True), ("slot_2", False, True)]
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.parts[len(tmp_path.parts) + 1] for path in written if "tailrace-log" in path.parts} == {
        "slot_1",
        "slot_2",
    }
    assert not [path for path in written if PLANTED.encode() in path.read_bytes()]


def _assert_consumers_can_start(bus: NatsServer) -> None:
    """The bucket has the schemas of both, and a snapshot request is answered by the bridge that has the table."""

    async def read(client: Client) -> tuple[list[bytes], list[dict[str, Any]]]:
        bucket = await client.jetstream(timeout=30).key_value("schemas")
        entries = [(await bucket.get(name)).value or b"" for name in ("users", "orders")]
        replies = [await client.request(f"snapshot.request.{name}", timeout=30) for name in ("users", "orders")]
        metas = [msgpack.unpackb(replies[0].data), json.loads(replies[1].data)]
        unknown = await client.request("snapshot.request.nothing", timeout=30)
        assert b"there is no table nothing" in unknown.data
        return entries, metas

    (users, orders), metas = _with(bus, read)
    assert [(c["name"], c["data_type"]) for c in msgpack.unpackb(users)["columns"]] == [
        ("id", "integer"),
        ("name", "text"),
        ("born", "date"),
        ("score", "numeric"),
        ("tags", "ARRAY"),
    ]
    assert json.loads(orders)["schema"] == "public.orders"
    assert [(meta["table"], meta["row_count"], meta["batch_count"]) for meta in metas] == [
        ("users", 1, 1),
        ("orders", 20, 1),
    ]


def _assert_http_api(bridge: Bridge, events: int) -> None:
    with httpx.Client(base_url=bridge.url) as client:
        assert client.get("/health").json()["status"] == "ok"
        status = client.get("/status").json()
        assert list(status) == STATUS_KEYS.split()
        assert (status["status"], status["is_connected"], status["slot_active"]) == ("connected", True, True)
        assert status["cdc_events_published"] == events
        assert re.fullmatch(r"[0-9a-f]+/[0-9a-f]+", status["current_lsn"])
        text = client.get("/metrics").text
        values = {line.split()[0]: line.split()[1] for line in text.splitlines() if line.startswith("bridge_")}
        assert list(values) == METRICS.split()
        assert values["bridge_cdc_events_published_total"] == str(events)
        assert values["bridge_connected"] == "1"
        assert "tailrace_sink_changes_total" in text
        info = client.get("/streams/info", params={"stream": "CDC"}).json()
        assert info["config"]["subjects"] == ["cdc.>"]
        assert info["config"]["max_age"] == 60 * 10**9
        assert client.get("/streams/info", params={"stream": "SECRET"}).status_code == 404
        # A local client can shut it down, but not with a host name that a web page of another origin may use.
        assert client.post("/shutdown", headers={"Host": "evil.example"}).status_code == 401
        assert client.post("/shutdown", headers={"Origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize(
    ("environ", "flags", "words"),
    [
        ({}, [], "Missing option '--pub'"),
        ({"PG_PORT": "x"}, ["--pub", "p"], "PG_PORT"),
        ({"NATS_BRIDGE_USER": "u"}, ["--pub", "p"], "NATS_BRIDGE_PASSWORD"),
        ({}, ["--pub", "p", "--slot", "No!"], "slot"),
        ({"WITHOUT": "msgpack"}, ["--pub", "p"], "pip install 'tailrace[nats]'"),
    ],
)
def test_wrong_usage_is_reported(environ: dict[str, str], flags: list[str], words: str) -> None:
    without = f"sys.modules[{environ.get('WITHOUT')!r}] = None"
    code = f"import sys; {without}; from tailrace.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "bridge", *flags]
    done = subprocess.run(command, env=os.environ | environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert words in done.stderr


def test_settings_from_the_environment() -> None:
    settings = bridge_environment.read({}, "_mine", "pub", is_json=False, is_zstd=False)
    assert (settings.source.url, settings.source.password) == ("postgresql://postgres@127.0.0.1:5432/postgres", None)
    assert settings.store.url.endswith("/tailrace-log/_mine")
    (sink,) = settings.sinks
    assert (sink["name"], sink["url"], sink["encoding"]) == ("slot._mine", "nats://127.0.0.1", "msgpack")
    assert "user" not in sink
    environ = {"PG_HOST": "::1", "PG_DB": "a/b", "PG_USER": "me", "PG_PASSWORD": "p", "TAILRACE_STORE_URL": "s3://b/x/"}
    settings = bridge_environment.read(environ | {"NATS_HOST": "::1"}, "s", "pub", is_json=True, is_zstd=True)
    assert settings.source.url == "postgresql://me@[::1]:5432/a%2Fb"
    assert settings.source.password is not None
    assert settings.source.password.reveal() == "p"
    assert settings.store.url == "s3://b/x/s"
    (sink,) = settings.sinks
    assert (sink["url"], sink["encoding"], sink["zstd"]) == ("nats://[::1]", "json", True)


def test_equal_names_in_two_schemas_are_resolved_by_a_variable() -> None:
    """docs/bridge.md says which one, for a bridge has no settings file."""
    settings = bridge_environment.read({}, "my_slot", "my_pub", is_json=True, is_zstd=False)
    (plain,) = sinks.from_settings(settings, {})
    (resolved,) = sinks.from_settings(settings, {"TAILRACE_SINK_MY_SLOT_SCHEMA_IN_SUBJECT": "true"})
    assert isinstance(plain.sink, NatsSink)
    assert isinstance(resolved.sink, NatsSink)
    orders = [("public", "orders"), ("shop", "orders")]
    assert len({plain.sink._options.template.of_table(target) for target in orders}) == 1
    assert len({resolved.sink._options.template.of_table(target) for target in orders}) == 2
